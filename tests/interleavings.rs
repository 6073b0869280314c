//! Orders of events that an engine, a pool and the save thread can come to, step by step. Pages
//! that the engine got back are overwritten at once, so whoever touches them too late shows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use kvbridge::device::Stream;
use kvbridge::error::Kind;
use kvbridge::lane::Step;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use parking_lot::Mutex;
use proptest::prelude::*;
use rig::{Cache, Rig, Setup, T, pool, prompt};

const CASES: u32 = 300;
const LONG: Duration = Duration::from_secs(60);

/// Every block of the prompt that the pool has is right; how many there are from the head on.
fn verify(rig: &Rig, tokens: &[i32]) -> usize {
    let mut reader = Rig::on(
        Setup {
            role: "consumer",
            ..rig.setup.clone()
        },
        Arc::clone(&rig.pool),
    );
    let longer = [tokens, &[-1]].concat();
    let offered = reader.admit(1, &longer) as usize;
    reader.pass(&[(1, longer.len() - offered)]);
    reader.check(1);
    offered / T
}

fn small() -> Setup {
    Setup {
        batch: 2,
        ..Setup::default()
    }
}

#[test]
fn a_finish_while_a_save_is_half_way() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 6 * T)]);
    assert_eq!(rig.stepper.step(0), Some(Step::More));
    assert!(rig.finish(1, FinishReason::Ended));
    for _ in 0..2 {
        assert!(rig.poll().is_empty());
        assert_eq!(rig.stepper.step(0), Some(Step::More));
    }
    // All is put; the item does not know yet that it has ended.
    assert!(rig.poll().is_empty());
    assert_eq!(rig.stepper.step(0), Some(Step::Done));
    assert_eq!(rig.poll(), [1]);
    assert!(rig.poll().is_empty());
    assert_eq!(verify(&rig, &tokens), 6);
}

#[test]
fn an_id_is_used_again_while_its_earlier_save_is_pending() {
    let mut rig = Rig::new(small());
    let (old, new) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.admit(1, &old);
    rig.pass(&[(1, 4 * T)]);
    assert!(rig.finish(1, FinishReason::Preempted));
    assert!(rig.poll().is_empty());
    rig.scheduler.reset(1);
    // The same id with another prompt, on other pages; its save is queued behind the old one.
    rig.admit(1, &new);
    let metadata = rig.pass(&[(1, 4 * T)]);
    assert_eq!(metadata.saves().blocks(), 4);
    assert!(rig.poll().is_empty());
    rig.stepper.step(0);
    assert!(rig.poll().is_empty());
    while rig.stepper.pending().len() == 2 {
        rig.stepper.step(0);
    }
    // The old life is done and its pages are overwritten; the new one goes on.
    assert_eq!(rig.poll(), [1]);
    assert!(rig.poll().is_empty());
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    assert_eq!((verify(&rig, &old), verify(&rig, &new)), (4, 4));
}

#[test]
fn a_bound_pass_that_is_replaced_hands_its_loads_back_and_its_saves_stay_open() {
    let mut rig = Rig::new(small());
    let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.publish(9, &one);
    rig.admit(1, &one);
    rig.admit(2, &two);
    let metadata = rig.build(&[(1, T), (2, 2 * T)]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.saves().blocks()),
        (3, 3)
    );
    rig.bind(&metadata);
    // No start_load, no forward pass, no wait_for_save: the next pass comes.
    let next = rig.build(&[(2, 3 * T)]);
    assert_eq!(next.saves().blocks(), 3, "emitted again, watermark unmoved");
    rig.bind(&next);
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [1]);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.finish(1, FinishReason::Preempted);
    rig.start_load().unwrap();
    rig.forward(&[(2, 3 * T)]);
    rig.wait_for_save();
    assert_eq!(rig.poll(), [1]);
    rig.drain();
    assert_eq!(rig.asked(Call::Get), 0);
    assert_eq!(verify(&rig, &two), 3);
}

/// The next pass was built before the engine heard that the request is handed back.
#[test]
fn a_request_that_was_handed_back_publishes_nothing_in_the_next_pass() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 2 * T);
    rig.publish(9, &tokens[..T]);
    rig.admit(1, &tokens);
    let metadata = rig.build(&[(1, 1)]);
    rig.bind(&metadata);
    let next = rig.build(&[(1, T)]);
    assert_eq!((next.loads().blocks(), next.saves().blocks()), (1, 1));
    rig.bind(&next);
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [1]);
    // It leaves the batch here: nothing is computed.
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.drain();
    assert_eq!((rig.stored(), rig.asked(Call::Get)), (1, 0));
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
}

#[test]
fn a_pass_that_never_ran_publishes_nothing() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    for _ in 0..3 {
        let metadata = rig.build(&[(1, 2 * T)]);
        assert_eq!(metadata.saves().blocks(), 2);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        rig.drain();
        assert_eq!(rig.stored(), 0);
    }
    rig.pass(&[(1, 3 * T)]);
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 3);
}

#[test]
fn announcements_persist_and_are_answered_once() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    assert!(rig.scheduler.finished(1, FinishReason::Ended));
    assert!(rig.scheduler.finished(1, FinishReason::Ended), "twice");
    let worker = &mut rig.ranks[0].worker;
    for announced in [&[1, 1][..], &[1], &[]] {
        assert!(
            worker
                .get_finished(announced, &[])
                .unwrap()
                .saved
                .is_empty()
        );
    }
    rig.stepper.run_all();
    let worker = &mut rig.ranks[0].worker;
    assert_eq!(worker.get_finished(&[], &[]).unwrap().saved, [1]);
    assert!(worker.get_finished(&[], &[]).unwrap().saved.is_empty());
    assert!(!rig.scheduler.finished(1, FinishReason::Ended));
    // Never announced: never reported.
    rig.admit(2, &tokens);
    rig.pass(&[(2, T)]);
    rig.drain();
    assert!(
        rig.ranks[0]
            .worker
            .get_finished(&[], &[])
            .unwrap()
            .saved
            .is_empty()
    );
}

#[test]
fn a_pass_built_before_a_report_and_bound_after_it_touches_nothing() {
    // The request was bound before; or it was not, but a younger one was.
    for bound_before in [true, false] {
        let mut rig = Rig::new(small());
        let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
        rig.publish(9, &one[..2 * T]);
        rig.admit(1, &one);
        rig.admit(2, &two);
        if bound_before {
            rig.pass(&[(1, T), (2, T)]);
        } else {
            rig.pass(&[(2, T)]);
        }
        rig.drain();
        let ahead = rig.build(&[(1, T), (2, T)]);
        assert_eq!(ahead.loads().blocks(), if bound_before { 0 } else { 2 });
        // Request 1 is cancelled, reported at once, and its pages are overwritten.
        assert!(rig.finish(1, FinishReason::Cancelled));
        assert_eq!(rig.poll(), [1]);
        let gets = rig.asked(Call::Get);
        rig.bind(&ahead);
        rig.start_load().unwrap();
        rig.forward(&[(2, T)]);
        rig.wait_for_save();
        rig.drain();
        assert_eq!(
            rig.asked(Call::Get),
            gets,
            "nothing is loaded into pages that were given back"
        );
        assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
        assert_eq!(verify(&rig, &two), 2);
        let known = verify(&rig, &one);
        assert_eq!(known, if bound_before { 3 } else { 2 });
        // The next life of the id is not taken for the old one.
        rig.admit(1, &one);
        let rest = one.len() - rig.live[&1].restore;
        rig.pass(&[(1, rest)]);
        rig.drain();
        assert_eq!(verify(&rig, &one), 4);
    }
}

#[test]
fn a_scheduler_that_is_made_anew_starts_new_lives() {
    let mut rig = Rig::new(small());
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    for _ in 0..20 {
        rig.publish(1, &one);
    }
    let handle = rig.ranks[0].worker.handle();
    let terms = handle.terms().clone();
    // The first one is dropped before the second one is connected.
    struct Nobody;
    impl kvbridge::link::LocalWorker for Nobody {
        fn life_ended(&self, _: u64, _: u64) {}
        fn source(&self) -> u64 {
            1
        }
        fn lookup(&self, _: &[u8]) -> usize {
            0
        }
        fn groups(&self) -> Option<Arc<[kvbridge::link::GroupInfo]>> {
            None
        }
        fn take_report(&self, _: &mut kvbridge::link::Report) {}
    }
    let make = |link| kvbridge::scheduler::Scheduler::new(terms.clone(), link).unwrap();
    rig.scheduler = make(Arc::new(Nobody));
    rig.scheduler = make(handle.link().unwrap());
    rig.publish(1, &two);
    assert_eq!(verify(&rig, &two), 2);
}

#[test]
fn a_layout_goes_and_comes_while_saves_run() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    rig.stepper.step(0);
    // A further pass is bound and not run.
    let metadata = rig.build(&[(1, T)]);
    rig.bind(&metadata);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(rig.stored(), 4, "what was queued was saved");
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.stored(), 4, "what was not queued is gone");
    assert_eq!(rig.offer(2, &tokens, 0), 0, "no layout, no offers");
    rig.scheduler.reset(1);
    rig.scheduler.reset(2);
    let setup = rig.setup.clone();
    rig.ranks[0].cache = Cache::new(&setup);
    let memory = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(memory).unwrap();
    assert_eq!(rig.admit(3, &tokens), 4 * T as u64);
    rig.pass(&[(3, 2 * T)]);
    rig.check(3);
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 6);
}

/// A put that waits until it is let go; tells when it has begun.
fn stall() -> (Rule, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let waits = Mutex::new((begun, may_go));
    let rule = Rule {
        call: Call::Put,
        at: 0..1,
        keys: Which::All,
        action: Action::Hook(Arc::new(move || {
            let waits = waits.lock();
            let _ = waits.0.send(());
            let _ = waits.1.recv();
        })),
    };
    (rule, has_begun, go)
}

#[test]
fn a_layout_is_not_given_back_while_a_save_is_stuck() {
    let mut rig = Rig::new(Setup {
        stepped: false,
        save_timeout_ms: 20,
        ..small()
    });
    let (rule, has_begun, go) = stall();
    rig.script(vec![rule]);
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    has_begun.recv().unwrap();
    let busy = rig.ranks[0].worker.unregister_layout().unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    assert_eq!(rig.offer(2, &prompt(3, 2 * T), 0), 0);
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    go.send(()).unwrap();
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(rig.stored(), 4);
}

/// Whatever was queued is saved or counted, and reported.
#[test]
fn shutdown_from_every_state() {
    type Prepare = fn(&mut Rig);
    let states: [(&str, Prepare, u64); 7] = [
        ("registered", |_| {}, 0),
        (
            "unregistered",
            |rig| rig.ranks[0].worker.unregister_layout().unwrap(),
            0,
        ),
        (
            "bound",
            |rig| {
                let metadata = rig.build(&[(1, 2 * T)]);
                rig.bind(&metadata);
            },
            0,
        ),
        (
            "loads started",
            |rig| {
                let metadata = rig.build(&[(1, 2 * T)]);
                rig.bind(&metadata);
                rig.start_load().unwrap();
            },
            0,
        ),
        (
            "saves queued",
            |rig| {
                rig.pass(&[(1, 2 * T)]);
                rig.pass(&[(1, 2 * T)]);
            },
            4,
        ),
        (
            "twice",
            |rig| {
                rig.pass(&[(1, 2 * T)]);
                rig.ranks[0].worker.shutdown(LONG).unwrap();
            },
            2,
        ),
        (
            "after a panic",
            |rig| {
                rig.script(vec![panicking(0..1)]);
                rig.pass(&[(1, 2 * T)]);
                rig.drain();
            },
            0,
        ),
    ];
    for stepped in [true, false] {
        for (name, prepare, stored) in &states {
            let mut rig = Rig::new(Setup { stepped, ..small() });
            let tokens = prompt(1, 4 * T);
            rig.admit(1, &tokens);
            prepare(&mut rig);
            let pinned = rig.finish(1, FinishReason::Ended);
            for _ in 0..2 {
                rig.ranks[0].worker.shutdown(LONG).unwrap();
                assert_eq!(rig.stored(), *stored, "{name}");
            }
            let worker = &mut rig.ranks[0].worker;
            // Answered, whatever the answer.
            let _ = worker.start_load(Stream::default());
            let _ = worker.wait_for_save(Stream::default());
            assert_eq!(worker.handle().gauges().saves_in_flight, 0, "{name}");
            assert_eq!(rig.poll(), if pinned { vec![1] } else { vec![] }, "{name}");
            let memory = rig.ranks[0].cache.register();
            let late = rig.ranks[0].worker.register_layout(memory).unwrap_err();
            assert_eq!(late.kind(), Kind::Closed);
        }
    }
}

#[test]
fn shutdown_with_a_stuck_put_says_busy_and_keeps_the_memory() {
    let mut rig = Rig::new(Setup {
        stepped: false,
        ..small()
    });
    let (rule, has_begun, go) = stall();
    rig.script(vec![rule]);
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    rig.pass(&[(1, 2 * T)]);
    has_begun.recv().unwrap();
    let busy = rig.ranks[0]
        .worker
        .shutdown(Duration::from_millis(1))
        .unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    // The second pass was dropped and counted; the first one's put still runs.
    assert_eq!(rig.stats().dropped_save_pages, 2);
    assert_eq!(rig.ranks[0].worker.handle().gauges().saves_in_flight, 1);
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty(), "its pages are still read");
    go.send(()).unwrap();
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    rig.ranks[0].worker.shutdown(LONG).unwrap();
    assert_eq!(rig.stats().dropped_save_pages, 4);
    assert_eq!(
        (rig.stored(), verify(&rig, &tokens)),
        (2, 0),
        "the tail was put first"
    );
}

fn panicking(at: std::ops::Range<u64>) -> Rule {
    Rule {
        call: Call::Put,
        at,
        keys: Which::All,
        action: Action::Hook(Arc::new(|| panic!("the store is broken"))),
    }
}

#[test]
fn a_store_that_panics_costs_that_save_only() {
    for stepped in [true, false] {
        let mut rig = Rig::new(Setup { stepped, ..small() });
        // The second batch of the first pass.
        rig.script(vec![panicking(1..2)]);
        let tokens = prompt(1, 8 * T);
        rig.admit(1, &tokens);
        rig.pass(&[(1, 6 * T)]);
        rig.drain();
        let stats = rig.stats();
        assert_eq!(
            (
                stats.saved_pages,
                stats.failed_save_pages,
                stats.dropped_save_pages
            ),
            (2, 2, 2)
        );
        // The next block brings the lost ones along.
        let metadata = rig.pass(&[(1, T)]);
        assert_eq!(metadata.saves().blocks(), 5);
        assert!(rig.finish(1, FinishReason::Ended));
        rig.drain();
        assert_eq!(rig.poll(), [1]);
        assert_eq!(verify(&rig, &tokens[..7 * T]), 7);
        rig.ranks[0].worker.unregister_layout().unwrap();
        rig.ranks[0].worker.shutdown(LONG).unwrap();
    }
}

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
            rig.scheduler.reset(*id);
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

/// A request with two blocks in the pool and two to compute, in a pass that was built.
fn half_known(rig: &mut Rig) -> (Vec<i32>, Arc<kvbridge::metadata::Metadata>) {
    let known = prompt(1, 2 * T);
    rig.publish(9, &known);
    let tokens = [known, prompt(2, 3 * T)].concat();
    assert_eq!(rig.admit(6, &tokens), 2 * T as u64);
    let metadata = rig.build(&[(6, 2 * T)]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.saves().blocks()),
        (2, 2)
    );
    (tokens, metadata)
}

#[test]
fn a_request_that_ends_between_build_and_bind_moves_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    // Pinned, announced, and reported at once, since nothing was queued: the pages are overwritten.
    assert!(rig.finish(6, FinishReason::Cancelled));
    assert_eq!(rig.poll(), [6]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.asked(Call::Get), 0, "freed pages were loaded into");
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_request_that_is_reset_between_load_and_save_publishes_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.scheduler.reset(6);
    rig.wait_for_save();
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_request_that_is_cancelled_before_its_forward_pass_publishes_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    // The batch runs without it, so its chunk is never computed.
    assert!(rig.finish(6, FinishReason::Cancelled));
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.poll(), [6]);
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_report_that_comes_twice_is_a_contradiction() {
    let mut rig = Rig::new(small());
    let (tokens, _) = half_known(&mut rig);
    // As an engine would that thinks the report of a pass that never ran did not count.
    let again = kvbridge::scheduler::Step {
        request_id: 6,
        new_tokens: kvbridge::keys::Tokens::I32(&tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 2 * T as u64,
    };
    let error = rig.scheduler.build(&[again]).unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(error.message().contains("new tokens"), "{error}");
    assert_eq!(rig.build(&[(6, 2 * T)]).saves().blocks(), 2);
}

#[test]
fn metadata_of_another_scheduler_is_refused() {
    let mut rig = Rig::new(small());
    let mut other = Rig::on(small(), Arc::clone(&rig.pool));
    let (_, metadata) = half_known(&mut rig);
    other.bind(&metadata);
    let error = other.start_load().unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(error.message().contains("another scheduler"), "{error}");
    other.wait_for_save();
    other.drain();
    assert_eq!(other.asked(Call::Put), 0);
}

#[test]
fn an_end_that_was_heard_of_is_not_reported_as_a_lost_load_later() {
    let mut rig = Rig::new(small());
    rig.publish(9, &prompt(1, 2 * T));
    let (loads, saves) = (prompt(1, 3 * T), prompt(2, 2 * T));
    rig.admit(1, &loads);
    rig.admit(2, &saves);
    let metadata = rig.build(&[(1, T), (2, 2 * T)]);
    rig.bind(&metadata);
    rig.finish(1, FinishReason::Cancelled);
    // Nothing is left to load, so the pass may go on without start_load.
    rig.forward(&[(2, 2 * T)]);
    rig.wait_for_save();
    let next = rig.build(&[]);
    rig.bind(&next);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.drain();
    assert_eq!(verify(&rig, &saves), 2);
}

#[test]
fn what_became_of_another_schedulers_pass_moves_no_watermark() {
    let mut rig = Rig::new(small());
    let handle = rig.ranks[0].worker.handle();
    let terms = handle.terms().clone();
    let old = prompt(1, 2 * T);
    rig.admit(1, &old);
    let metadata = rig.build(&[(1, 2 * T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.forward(&[(1, 2 * T)]);
    // Another scheduler comes; its first pass has the same number as the bound one.
    struct Nobody;
    impl kvbridge::link::LocalWorker for Nobody {
        fn lookup(&self, _: &[u8]) -> usize {
            0
        }
        fn groups(&self) -> Option<Arc<[kvbridge::link::GroupInfo]>> {
            None
        }
        fn take_report(&self, _: &mut kvbridge::link::Report) {}
        fn life_ended(&self, _: u64, _: u64) {}
        fn source(&self) -> u64 {
            1
        }
    }
    let make = |link| kvbridge::scheduler::Scheduler::new(terms.clone(), link).unwrap();
    rig.scheduler = make(Arc::new(Nobody));
    rig.scheduler = make(handle.link().unwrap());
    let new = prompt(2, 2 * T);
    rig.admit(2, &new);
    assert_eq!(rig.build(&[(2, 2 * T)]).saves().blocks(), 2);
    rig.wait_for_save();
    // Its own pass never ran, so it is built again.
    assert_eq!(rig.build(&[(2, 2 * T)]).saves().blocks(), 2);
}

#[test]
fn without_a_layout_requests_sit_out_and_no_call_fails() {
    let mut rig = Rig::new(small());
    rig.ranks[0].worker.unregister_layout().unwrap();
    let tokens = prompt(1, 2 * T);
    assert_eq!(rig.admit(1, &tokens), 0);
    assert_eq!(rig.build(&[(1, 2 * T)]).saves().blocks(), 0);
    let memory = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(memory).unwrap();
    // Its pages were never entered: it stays out, and a new life takes part.
    rig.forward(&[(1, 2 * T)]);
    assert_eq!(rig.build(&[(1, 0)]).saves().blocks(), 0);
    rig.scheduler.reset(1);
    rig.publish(2, &tokens);
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn an_allocated_request_that_is_asked_about_again_is_settled_by_the_last_answer() {
    let mut rig = Rig::new(small());
    rig.publish(9, &prompt(1, 4 * T));
    let tokens = [prompt(1, 4 * T), prompt(2, T)].concat();
    assert_eq!(rig.offer(1, &tokens, 0), 4 * T as u64);
    rig.allocate(1, &tokens, 0, 4 * T);
    assert_eq!(rig.offer(1, &tokens, 2 * T), 2 * T as u64);
    rig.scheduler.allocated(1, 2 * T as u64, &[]).unwrap();
    let step = kvbridge::scheduler::Step {
        request_id: 1,
        new_tokens: kvbridge::keys::Tokens::I32(&tokens),
        pages: &[],
        computed_position: 2 * T as u64,
        scheduled_tokens: T as u64,
    };
    let metadata = rig.scheduler.build(&[step]).unwrap();
    let run = metadata.loads().runs()[0];
    assert_eq!((run.first_block, run.blocks), (2, 2));
}

#[test]
fn an_idle_worker_shuts_down_whatever_the_deadline() {
    for _ in 0..20 {
        let mut rig = Rig::new(Setup {
            stepped: false,
            ..small()
        });
        rig.publish(1, &prompt(1, 2 * T));
        rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap();
    }
}
