//! A pool that does not answer in time, or fails so that it may still use what it was given: no page of
//! such a call reaches the cache, its memory is not used again while the pool may use it, and the engine goes on.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kvbridge::error::Kind;
use kvbridge::layout::Part;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::code;
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Action, Call, Faulty, Rule, Script, Which};
use parking_lot::Mutex;
use proptest::prelude::*;
use rig::{LONG, Lines, Rig, Setup, T, pool, prompt, rule};

/// Questions to the clock before a get or put of pages is begun and not made.
const BEFORE_PAGES: u32 = 3;
/// The same for the put of a save, before which it is asked what the pool has already.
const BEFORE_PUT: u32 = 10;
/// The same for a registration, which nothing keeps from the pool.
const BEFORE_REGISTRATION: u32 = 2;
/// The same for a lookup, which asks for its deadline first and then how much is left of it.
const BEFORE_LOOKUP: u32 = 4;

fn late(setup: Setup, pool: Arc<Pool>) -> Rig {
    let faulty = Faulty::late(pool.handle().unwrap(), Script::new());
    Rig::with(setup, pool, faulty.clone(), faulty)
}

/// A rig on a pool that can be late and holds the blocks of these tokens.
fn stocked(setup: Setup, tokens: &[i32]) -> Rig {
    let mut writer = Rig::on(setup.clone(), pool(1 << 22));
    writer.publish(1, tokens);
    late(setup, Arc::clone(&writer.pool))
}

fn unreachable(call: Call) -> Rule {
    Rule {
        at: 0..1,
        ..rule(call, Which::All, Action::Fail(code::UNREACHABLE))
    }
}

/// The bytes of all pages of a request.
fn pages(rig: &Rig, id: u64) -> Vec<Vec<u8>> {
    let rank = &rig.ranks[0];
    let kinds = rank.cache.parts();
    let pages = &rig.live[&id].pages;
    let of = |kind: (usize, _)| pages[kind.0].iter().map(move |page| (kind, *page));
    let all = kinds.into_iter().flat_map(of);
    all.map(|(kind, page)| rank.cache.read(kind, page))
        .collect()
}

/// A request that lost its pages runs again without them.
fn recompute(rig: &mut Rig, id: u64, tokens: &[i32]) {
    rig.reset(id);
    rig.allocate_fresh(id, tokens);
    rig.pass(&[(id, tokens.len())]);
    rig.check(id);
}

#[test]
fn a_late_load_is_handed_back_and_what_lands_later_lands_nowhere() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    let before = pages(&rig, 7);
    rig.clock.jump_after(BEFORE_PAGES);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [7]);
    assert_eq!(rig.asked(Call::Get), 0, "the call is begun and not made");
    rig.stepper.run_all();
    assert_eq!(rig.asked(Call::Get), 4, "now it is");
    assert_eq!(pages(&rig, 7), before);
    recompute(&mut rig, 7, &tokens);
    // The pool is asked again once the breaker lets a call through, and the slots are at home.
    rig.clock.advance(LONG);
    assert_eq!(rig.admit(8, &tokens) as usize, 4 * T);
    rig.pass(&[(8, 1)]);
    rig.check(8);
    assert_eq!(rig.stats().loaded_pages, 4);
    assert_eq!(rig.stats().failed_load_pages, 4);
}

#[test]
fn while_a_call_is_late_another_set_of_slots_is_used() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    rig.admit(7, &tokens);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    rig.clock.jump_after(BEFORE_PAGES);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [7]);
    rig.reset(7);
    rig.clock.advance(LONG);
    // The late call is made while the lookup waits, and lands in its own slots.
    let other = prompt(2, 4 * T + 1);
    rig.publish(2, &other);
    rig.admit(8, &tokens);
    rig.pass(&[(8, 1)]);
    rig.check(8);
}

#[test]
fn a_late_asynchronous_load_is_reported_as_failed() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        async_load: true,
        ..Setup::default()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    let before = pages(&rig, 7);
    let metadata = rig.build(&[]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.stepper.step(0);
    rig.clock.jump_after(BEFORE_PAGES);
    rig.stepper.run_all();
    let polled = rig.poll_all(&[7]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[7][..])
    );
    assert_eq!(pages(&rig, 7), before);
    recompute(&mut rig, 7, &tokens);
    rig.clock.advance(LONG);
    rig.admit(8, &tokens);
    rig.pass(&[]);
    rig.drain();
    let polled = rig.poll_all(&[8]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[8][..], &[][..])
    );
    rig.check(8);
}

#[test]
fn a_late_load_under_tp_is_an_error() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..Setup::default()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    rig.clock.jump_after(BEFORE_PAGES);
    let error = rig.start_load().unwrap_err();
    assert_eq!(error.kind(), Kind::LoadFailed);
    let deadline = code::DEADLINE.to_string();
    assert!(error.message().contains(&deadline), "{error}");
}

/// Nothing but loads uses the pool on such a rank: no lookup and no save asks whether it answers again.
#[test]
fn a_rank_that_only_loads_gets_its_pool_back() {
    let tokens = prompt(1, 4 * T + 1);
    let both = Setup {
        world: 2,
        ..Setup::default()
    };
    let mut writer = Rig::on(both.clone(), pool(1 << 22));
    writer.publish(1, &tokens);
    let reads = Setup {
        role: "consumer",
        ..both
    };
    let mut rig = late(reads, Arc::clone(&writer.pool));
    // The leader's call is the first one.
    rig.script(vec![Rule {
        at: 1..2,
        ..unreachable(Call::Get)
    }]);
    for (id, lost) in [(7, true), (8, false)] {
        assert_eq!(rig.admit(id, &tokens) as usize, 4 * T);
        let metadata = rig.build(&[(id, 1)]);
        rig.bind(&metadata);
        assert_eq!(rig.start_load().is_err(), lost, "request {id}");
        if !lost {
            rig.forward(&[(id, 1)]);
            rig.check(id);
        }
        rig.reset(id);
        rig.clock.advance(LONG);
    }
}

#[test]
fn a_late_save_is_offered_again_and_stores_what_it_was_given() {
    let (tokens, other) = (prompt(1, 5 * T), prompt(2, 4 * T));
    let mut rig = late(Setup::default(), pool(1 << 22));
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    rig.clock.jump_after(BEFORE_PUT);
    rig.stepper.step(0);
    assert_eq!(rig.asked(Call::Put), 0);
    assert_eq!(rig.stats().failed_save_pages, 4);
    // The pages are the engine's again, and are overwritten at once.
    rig.stepper.step(0);
    rig.reset(7);
    // Another save while the pool still has the slots of the first. As the pool is asked for something else, the late
    // call is made: it stores what was gathered for it.
    rig.clock.advance(LONG);
    rig.publish(8, &other);
    assert_eq!(rig.stored(), 8);
    for (id, tokens) in [(20, &tokens), (21, &other)] {
        let offered = rig.admit(id, tokens) as usize;
        assert!(offered >= 3 * T, "request {id}: {offered}");
        rig.pass(&[(id, tokens.len() - offered)]);
        rig.check(id);
        rig.drain();
    }
}

#[test]
fn blocks_of_a_late_save_are_published_with_the_next_one() {
    let tokens = prompt(1, 5 * T);
    let mut rig = late(Setup::default(), pool(1 << 22));
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    rig.clock.jump_after(BEFORE_PUT);
    rig.stepper.step(0);
    assert_eq!(
        (rig.asked(Call::Put), rig.stats().failed_save_pages),
        (0, 4)
    );
    rig.clock.advance(LONG);
    rig.pass(&[(7, T)]);
    rig.drain();
    assert_eq!(rig.stored(), 5);
    assert_eq!(rig.stats().dropped_save_pages, 0);
}

#[test]
fn memory_of_a_call_that_failed_on_the_way_is_not_used_again() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    let mut kept = BTreeSet::new();
    for round in 0..4 {
        let number = rig.faulty.count(Call::Get).calls;
        rig.script(vec![Rule {
            at: number..number + 1,
            ..unreachable(Call::Get)
        }]);
        let id = 10 + round;
        assert_eq!(rig.admit(id, &tokens) as usize, 4 * T, "round {round}");
        let metadata = rig.build(&[(id, 1)]);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        assert_eq!(rig.ranks[0].worker.take_failed_loads(), [id]);
        let given = rig.ranks[0].lent.take_addresses();
        assert!(!given.is_empty() && given.is_disjoint(&kept));
        kept.extend(given);
        rig.reset(id);
        // The breaker is open: nothing is asked, and everything is computed.
        let asked = rig.asked(Call::Exist);
        assert_eq!(rig.offer(99, &tokens, 0), 0);
        assert_eq!(rig.asked(Call::Exist), asked);
        rig.reset(99);
        rig.clock.advance(LONG);
        let id = 20 + round;
        rig.admit(id, &tokens);
        rig.pass(&[(id, 1)]);
        rig.check(id);
        rig.drain();
        rig.finish(id, FinishReason::Ended);
        rig.poll();
        let given = rig.ranks[0].lent.take_addresses();
        assert!(!given.is_empty() && given.is_disjoint(&kept));
    }
}

#[test]
fn a_pool_that_keeps_too_much_is_left_alone() {
    let lines = Lines::default();
    let _told = tracing::subscriber::set_default(lines.clone());
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    rig.script(vec![rule(
        Call::Get,
        Which::All,
        Action::Fail(code::UNREACHABLE),
    )]);
    let mut failed = 0;
    for id in 10..30 {
        let offered = rig.admit(id, &tokens) as usize;
        let metadata = rig.build(&[(id, tokens.len() - offered)]);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        failed += rig.ranks[0].worker.take_failed_loads().len();
        rig.reset(id);
        rig.clock.advance(LONG);
    }
    assert_eq!(failed, 8, "as many sets of slots as the pool may keep");
    let calls = rig.faulty.count(Call::Any).calls;
    rig.allocate_fresh(50, &tokens);
    rig.pass(&[(50, tokens.len())]);
    rig.check(50);
    rig.drain();
    assert_eq!(rig.faulty.count(Call::Any).calls, calls);
    let said = lines.take("until this worker or store is made anew");
    assert_eq!(said.len(), 1);
}

#[test]
fn the_more_memory_a_pool_has_kept_the_longer_it_is_left_alone() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    rig.script(vec![rule(
        Call::Get,
        Which::All,
        Action::Fail(code::UNREACHABLE),
    )]);
    // Seconds at which a load failed.
    let mut failed = Vec::new();
    for second in 0..40 {
        let id = 10 + second;
        let offered = rig.admit(id, &tokens) as usize;
        let metadata = rig.build(&[(id, tokens.len() - offered)]);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        if !rig.ranks[0].worker.take_failed_loads().is_empty() {
            failed.push(second);
        }
        rig.reset(id);
        rig.clock.advance(Duration::from_secs(1));
    }
    // A lender that died is asked for its pages for some 10 s more: the memory of 8 calls lasts longer.
    assert_eq!(failed, [0, 1, 3, 7, 15, 31]);
}

#[test]
fn an_outage_is_said_when_it_begins_and_when_it_ends() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let tokens = prompt(1, 4 * T + 1);
        let mut rig = stocked(Setup::default(), &tokens);
        let fail = Action::Fail(code::UNREACHABLE);
        rig.script(vec![rule(Call::Any, Which::All, fail)]);
        for id in 10..15 {
            assert_eq!(rig.offer(id, &tokens, 0), 0);
            rig.scheduler.reset(id).unwrap();
            rig.clock.advance(LONG);
        }
        let text = "until it answers again";
        assert_eq!(lines.take(text).len(), 1);
        rig.script(Script::new());
        for id in 20..25 {
            assert_eq!(rig.offer(id, &tokens, 0) as usize, 4 * T);
            rig.scheduler.reset(id).unwrap();
        }
        assert_eq!(lines.take("the pool answers again").len(), 1);
    });
}

#[test]
fn a_lookup_has_one_deadline_for_all_its_calls() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        chunk: 1,
        ..Setup::default()
    };
    let mut rig = stocked(setup, &tokens);
    let calls = || rig.faulty.count(Call::Exist).calls;
    let before = calls();
    rig.clock.jump_after(BEFORE_LOOKUP);
    let offered = rig.scheduler.match_request(&rig::request(7, &tokens), 0);
    assert_eq!(offered.unwrap().tokens, 0);
    assert_eq!(calls(), before);
    rig.scheduler.reset(7).unwrap();
    rig.clock.advance(LONG);
    assert_eq!(rig.offer(8, &tokens, 0) as usize, 4 * T);
}

#[test]
fn a_late_registration_is_refused_and_the_next_one_is_fine() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(Setup::default(), &tokens);
    rig.ranks[0].worker.unregister_layout().unwrap();
    rig.clock.jump_after(BEFORE_REGISTRATION);
    let memory = rig.ranks[0].cache.register();
    let error = rig.ranks[0].worker.register_layout(memory).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.message().contains("pool register: "), "{error}");
    rig.stepper.run_all();
    // What was registered late is nobody's: it counts for ever.
    let counts = rig.ranks[0].worker.handle().pool_counts();
    assert_eq!((counts.late, counts.quarantined), (0, 1));
    let memory = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(memory).unwrap();
    rig.admit(7, &tokens);
    rig.pass(&[(7, 1)]);
    rig.check(7);
    assert_eq!(rig.stats().loaded_pages, 4);
}

/// Ends all calls that wait, when it is dropped.
struct Plug(Arc<Mutex<mpsc::Receiver<()>>>, Option<mpsc::Sender<()>>);

impl Plug {
    fn new() -> Self {
        let (sender, receiver) = mpsc::channel();
        Self(Arc::new(Mutex::new(receiver)), Some(sender))
    }

    fn rule(&self, call: Call) -> Rule {
        let receiver = Arc::clone(&self.0);
        let wait = move || {
            let _ = receiver.lock().recv();
        };
        rule(call, Which::All, Action::Hook(Arc::new(wait)))
    }

    fn pull(&mut self) {
        self.1 = None;
    }
}

#[test]
fn a_load_that_never_returns_costs_a_thread_and_not_the_engine() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        stepped: false,
        // Time for the call to begin on a busy machine: one that has not is taken back and never late.
        kvbridge: r#""load_timeout_ms": 2000, "lookup_timeout_ms": 60000, "#,
        ..Setup::default()
    };
    let mut rig = stocked(setup, &tokens);
    let mut plug = Plug::new();
    rig.admit(7, &tokens);
    rig.script(vec![plug.rule(Call::Get)]);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    let before = pages(&rig, 7);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [7]);
    // The layout can go, and the next one come, while the pool still has the slots.
    rig.ranks[0].worker.unregister_layout().unwrap();
    let again = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(again).unwrap();
    let error = rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(
        error.message().contains("1 calls are still inside"),
        "{error}"
    );
    plug.pull();
    while rig.asked(Call::Get) == 0 || rig.ranks[0].worker.shutdown(Duration::ZERO).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(pages(&rig, 7), before);
}

/// What happens around one request.
#[derive(Debug, Clone)]
struct Turn {
    prompt: i32,
    /// The clock jumps after so many questions, so that some call is late.
    jump: Option<u32>,
    /// The next get or put fails on the way.
    unreachable: Option<bool>,
    /// So many steps of what is pending, a late call among it, between load and save, and at the end.
    steps: (usize, usize),
    /// Which of the pending items is stepped.
    order: Vec<usize>,
    /// The breaker's cooldown passes.
    cools: bool,
    /// A page is evicted.
    evicts: Option<usize>,
}

fn turn() -> impl Strategy<Value = Turn> {
    let jump = prop_oneof![2 => Just(None), 3 => (0u32..24).prop_map(Some)];
    let unreachable = prop_oneof![5 => Just(None), 1 => any::<bool>().prop_map(Some)];
    let evicts = prop_oneof![4 => Just(None), 1 => (0usize..4).prop_map(Some)];
    let order = prop::collection::vec(0usize..8, 1..8);
    let steps = (0usize..4, 0usize..8);
    let all = (
        1i32..4,
        jump,
        unreachable,
        steps,
        order,
        any::<bool>(),
        evicts,
    );
    all.prop_map(
        |(prompt, jump, unreachable, steps, order, cools, evicts)| Turn {
            prompt,
            jump,
            unreachable,
            steps,
            order,
            cools,
            evicts,
        },
    )
}

fn step_some(rig: &Rig, turn: &Turn, count: usize) {
    for number in 0..count {
        let pending = rig.stepper.pending().len();
        if pending == 0 {
            return;
        }
        rig.stepper
            .step(turn.order[number % turn.order.len()] % pending);
    }
}

/// Serves one request; its pages are checked whatever the pool does.
fn serve(rig: &mut Rig, id: u64, turn: &Turn) {
    let tokens = prompt(turn.prompt, 4 * T + 1);
    if let Some(block) = turn.evicts {
        rig.evict(&tokens, block, (0, Part::Sharded), 0);
    }
    if let Some(gets) = turn.unreachable {
        let call = if gets { Call::Get } else { Call::Put };
        let number = rig.faulty.count(call).calls;
        rig.script(vec![Rule {
            at: number..number + 1,
            ..unreachable(call)
        }]);
    }
    if let Some(questions) = turn.jump {
        rig.clock.jump_after(questions);
    }
    let offered = rig.admit(id, &tokens) as usize;
    let parks = rig.parked.contains_key(&id);
    let chunks = [(id, tokens.len() - offered)];
    let metadata = rig.build(if parks { &[] } else { &chunks });
    rig.bind(&metadata);
    rig.start_load().unwrap();
    let mut lost = !rig.ranks[0].worker.take_failed_loads().is_empty();
    step_some(rig, turn, turn.steps.0);
    if parks {
        rig.wait_for_save();
        rig.clock.calm();
        rig.drain();
        let polled = rig.poll_all(&[id]).unwrap();
        assert_eq!(polled.loaded, [id]);
        lost = !polled.failed.is_empty();
        if !lost {
            rig.pass(&chunks);
        }
    } else if !lost {
        rig.forward(&chunks);
        rig.wait_for_save();
    }
    if lost {
        rig.reset(id);
        rig.allocate_fresh(id, &tokens);
        rig.pass(&[(id, tokens.len())]);
    }
    rig.check(id);
    step_some(rig, turn, turn.steps.1);
    rig.check(id);
    rig.finish(id, FinishReason::Ended);
    rig.poll();
    rig.clock.calm();
    if turn.cools {
        rig.clock.advance(LONG);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    /// Whatever is late, fails or is evicted, and whenever late calls return: every page that a request has is
    /// its own, every request is told, and what the pool holds in the end is right.
    #[test]
    fn no_order_of_late_calls_serves_a_wrong_page(
        turns in prop::collection::vec(turn(), 1..12), async_load in any::<bool>(),
    ) {
        let setup = Setup { async_load, batch: 2, ..Setup::default() };
        let mut rig = late(setup, pool(1 << 22));
        for (id, turn) in (1..).zip(&turns) {
            serve(&mut rig, id, turn);
        }
        rig.script(Script::new());
        rig.drain();
        rig.poll();
        prop_assert!(rig.ending.is_empty());
        let mut reader = Rig::on(Setup::default(), Arc::clone(&rig.pool));
        for kind in 1..4 {
            let tokens = prompt(kind, 4 * T + 1);
            let offered = reader.admit(kind as u64, &tokens) as usize;
            reader.pass(&[(kind as u64, tokens.len() - offered)]);
            reader.check(kind as u64);
            prop_assert_eq!(reader.ranks[0].worker.take_failed_loads(), &[] as &[u64]);
        }
    }
}
