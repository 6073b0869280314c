//! Random orders of all of it.

use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use proptest::prelude::*;

use crate::rig::{self, Rig, pool, prompt};
use crate::{LONG, panicking, small, verify};

const CASES: u32 = 300;

/// What can happen next.
#[derive(Debug, Clone)]
enum Event {
    Admit(u64, i32, usize),
    /// Which requests, chunk in tokens, and how far the pass gets: 0 built, 1 bound, 2 loaded, 3 run.
    Pass(u8, usize, u8),
    StepSave(usize),
    Finish(u64, bool),
    Poll,
    Fail(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (0u64..3, 0i32..2, 1usize..100).prop_map(|(a, b, c)| Event::Admit(a, b, c)),
        8 => (0u8..8, 1usize..50, prop_oneof![1 => 0u8..3, 3 => Just(3u8)])
            .prop_map(|(a, b, c)| Event::Pass(a, b, c)),
        6 => (0usize..4).prop_map(Event::StepSave),
        3 => (0u64..3, any::<bool>()).prop_map(|(a, b)| Event::Finish(a, b)),
        3 => Just(Event::Poll),
        1 => (0u8..6).prop_map(Event::Fail),
    ]
}

/// Requests whose pages were lost run again from the start.
fn restart(rig: &mut Rig, lost: &[u64]) {
    for id in lost {
        if rig.live.contains_key(id) {
            rig.finish(*id, FinishReason::Preempted);
            rig.scheduler.reset(*id).unwrap();
        }
    }
}

fn happen(rig: &mut Rig, event: &Event) {
    match event {
        Event::Admit(id, kind, length) => {
            if !rig.live.contains_key(id) && !rig.ending.contains_key(id) {
                rig.admit(*id, &prompt(*kind, *length));
            }
        }
        Event::Pass(which, chunk, far) => {
            let chunks: Vec<(u64, usize)> = rig
                .live
                .iter()
                .filter(|(id, _)| which & (1 << **id) != 0)
                .map(|(id, live)| {
                    let rest = live.tokens.len() - live.computed - live.restore;
                    (*id, rest.min(*chunk))
                })
                .collect();
            let metadata = rig.build(&chunks);
            if *far >= 1 {
                rig.bind(&metadata);
            }
            let lost = rig.ranks[0].worker.take_failed_loads().to_vec();
            // Handed back with the pass before; those of this one go on.
            let mut gone = lost;
            if *far >= 2 {
                rig.start_load().unwrap();
                gone.extend(rig.ranks[0].worker.take_failed_loads());
            }
            if *far >= 3 {
                let runs: Vec<_> = chunks
                    .into_iter()
                    .filter(|(id, _)| !gone.contains(id))
                    .collect();
                rig.forward(&runs);
                for (id, _) in &runs {
                    rig.check(*id);
                }
                rig.wait_for_save();
            }
            restart(rig, &gone);
        }
        Event::StepSave(index) => {
            rig.stepper.step(*index);
        }
        Event::Finish(id, ends) => {
            let reason = if *ends {
                FinishReason::Ended
            } else {
                FinishReason::Preempted
            };
            rig.finish(*id, reason);
        }
        Event::Poll => {
            rig.poll();
        }
        Event::Fail(what) => rig.script(match what {
            0 => vec![],
            1 => second_key(Call::Get, Action::Lose),
            2 => second_key(Call::Put, Action::NoSpace),
            3 => second_key(Call::Exist, Action::Fail(-1)),
            4 => second_key(Call::Get, Action::Corrupt),
            _ => vec![panicking(0..u64::MAX)],
        }),
    }
}

fn second_key(call: Call, action: Action) -> Vec<Rule> {
    vec![rig::rule(call, Which::Index(1), action)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    /// Whatever happens in whatever order: caches and pool hold the right bytes, and in the end
    /// every page is back and every id was reported.
    #[test]
    fn any_order_of_events_keeps_pages_right(events in prop::collection::vec(event(), 1..60)) {
        let mut rig = Rig::on(small(), pool(1 << 14));
        let pages = rig.free.len();
        for event in &events {
            happen(&mut rig, event);
        }
        rig.script(Vec::new());
        for id in rig.live.keys().copied().collect::<Vec<_>>() {
            rig.finish(id, FinishReason::Ended);
        }
        rig.poll();
        rig.drain();
        rig.poll();
        prop_assert!(rig.ending.is_empty(), "{:?}", rig.ending.keys());
        prop_assert_eq!(rig.free.len(), pages);
        for kind in 0..2 {
            verify(&rig, &prompt(kind, 96));
        }
        rig.ranks[0].worker.shutdown(LONG).unwrap();
    }
}
