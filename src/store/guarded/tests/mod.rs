//! Calls that end in time, late and never, in stepped order and on threads. No test waits for time to pass.

mod inline;
mod rig;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{OnceLock, Weak};

use super::*;
use crate::device::memory::nowhere;
use crate::error::Kind;
use crate::lane::{Item, ManualClock, Step, Stepper, SystemClock};
use crate::store::faulty::{Action, Call as Kinds, Faulty, Rule, Which};
use crate::store::{conformance, embedded};
use rig::*;

/// Longer than any test; passes only by the manual clock.
const HOUR: Duration = Duration::from_secs(3600);
const COOLDOWN: Duration = Duration::from_secs(2 * 3600);
const SIZE: usize = 16;
const TRANSPORT: i32 = code::UNREACHABLE;

fn settings(bound: usize) -> Settings {
    Settings {
        lookup: HOUR,
        load: HOUR,
        save: HOUR,
        registration: HOUR,
        close: HOUR,
        cooldown: COOLDOWN,
        bound,
        callers: 1,
    }
}

fn pool() -> Arc<embedded::Pool> {
    let clock = Arc::new(ManualClock::new());
    embedded::Pool::new(1 << 20, 0.05, Duration::ZERO, clock).unwrap()
}

#[test]
fn a_guarded_store_is_a_store() {
    conformance::check(&|| {
        let clock = Arc::new(SystemClock::new());
        Guarded::start(
            Faulty::late(pool(), Vec::new()),
            settings(4),
            clock,
            &Mode::Threads,
        )
        .unwrap()
    })
    .unwrap();
}

#[test]
fn a_store_that_cannot_be_late_is_called_inline() {
    let pool = Faulty::new(pool(), Vec::new());
    let caller = std::thread::current().id();
    let (said, heard) = channel();
    pool.set_script(vec![Rule {
        call: Kinds::Exist,
        at: 0..1,
        keys: Which::All,
        action: Action::Hook(Arc::new(move || {
            said.send(std::thread::current().id()).unwrap()
        })),
    }]);
    let clock = Arc::new(ManualClock::new());
    let inner = Arc::clone(&pool) as Arc<dyn Store>;
    // No thread could be started.
    let guard = Guarded::start(inner, settings(1), clock, &Mode::FailAfter(0)).unwrap();
    let mut out = Vec::new();
    guard.exist(&key("a"), &mut out);
    assert_eq!(out, [Presence::Absent]);
    assert_eq!(heard.recv().unwrap(), caller);
    let (life, buffer) = watched(7);
    let call = back(guard.put_owned(Put::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [PutOutcome::Stored]);
    assert_eq!(life.seen(), (0, 0));
    assert_eq!(guard.counts(), PoolCounts::default());
    guard.close().unwrap();
    assert_eq!(guard.health(), Health::Down(code::CLOSED));
}

#[test]
fn threads_that_cannot_be_started_are_an_error() {
    let clock = Arc::new(ManualClock::new());
    let mode = Mode::FailAfter(1);
    let error =
        Guarded::start(Faulty::late(pool(), Vec::new()), settings(1), clock, &mode).unwrap_err();
    assert_eq!(error.kind(), Kind::NoThread);
}

#[test]
fn a_late_lookup_is_unknown_and_opens_and_frees_its_place_when_it_returns() {
    let rig = stepped(2);
    rig.deadline_after(1);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::DEADLINE));
    let late = PoolCounts {
        state: State::Open,
        deadlines: 1,
        opened: 1,
        late: 1,
        ..PoolCounts::default()
    };
    assert_eq!(rig.guard.counts(), late);
    assert_eq!(rig.stepper.step(0), Some(Step::Done));
    assert_eq!(rig.calls(Kinds::Exist), 1);
    let returned = PoolCounts {
        late: 0,
        returned: 1,
        ..late
    };
    assert_eq!(rig.guard.counts(), returned);
    assert!(rig.stepper.pending().is_empty());
}

#[test]
fn a_call_that_no_thread_took_by_its_deadline_is_never_made() {
    let rig = stepped(2);
    rig.deadline_after(0);
    let (life, buffer) = watched(7);
    let call = back(rig.guard.get_owned(Get::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [GetOutcome::Failed(code::DEADLINE)]);
    assert_eq!((rig.guard.counts().late, rig.state()), (0, State::Open));
    rig.stepper.run_all();
    assert_eq!(rig.calls(Kinds::Any), 0);
    assert_eq!(life.seen(), (0, 0), "the buffers are the caller's");
    assert_eq!(call.buffers.bytes, [7; SIZE]);
}

#[test]
fn one_lookup_probes_after_the_cooldown() {
    let rig = stepped(2);
    rig.fill("a", 1);
    rig.script(Kinds::Exist, Action::Fail(TRANSPORT));
    assert_eq!(rig.exist("a"), Presence::Unknown(TRANSPORT));
    assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    rig.clock.advance(COOLDOWN);
    assert_eq!(rig.exist("a"), Presence::Unknown(TRANSPORT));
    rig.clock.advance(COOLDOWN - Duration::from_nanos(1));
    rig.pool.set_script(Vec::new());
    assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    assert_eq!(rig.guard.health(), Health::Down(code::BREAKER_OPEN));
    rig.clock.advance(Duration::from_nanos(1));
    assert_eq!(rig.exist("a"), Presence::Present);
    assert_eq!(rig.guard.health(), Health::Up);
    let counts = PoolCounts {
        failures: 2,
        opened: 2,
        refused: 2,
        ..PoolCounts::default()
    };
    assert_eq!(rig.guard.counts(), counts);
    assert_eq!(rig.calls(Kinds::Exist), 3);
}

#[test]
fn other_failures_of_a_key_do_not_open() {
    let rig = stepped(2);
    rig.script(Kinds::Any, Action::Fail(-704));
    assert_eq!(rig.exist("a"), Presence::Unknown(-704));
    let (life, buffer) = watched(7);
    let call = back(rig.guard.get_owned(Get::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [GetOutcome::Failed(-704)]);
    assert_eq!((life.seen(), rig.state()), ((0, 0), State::Closed));
}

#[test]
fn a_late_get_keeps_its_buffers_until_it_returns() {
    let rig = stepped(2);
    rig.fill("a", 9);
    rig.deadline_after(1);
    let (life, buffer) = watched(7);
    let made = rig.guard.get_owned(Get::new(key("a"), buffer));
    assert_eq!(kept(made), code::DEADLINE);
    assert_eq!(life.seen(), (0, 0), "neither reused nor freed");
    rig.stepper.run_all();
    assert_eq!(
        *life.home.lock(),
        [vec![9; SIZE]],
        "written after the deadline"
    );
    assert_eq!(
        (rig.guard.counts().late, rig.guard.counts().returned),
        (0, 1)
    );
}

#[test]
fn a_late_put_stores_what_it_was_given() {
    let rig = stepped(2);
    rig.deadline_after(1);
    let (life, buffer) = watched(5);
    assert_eq!(
        kept(rig.guard.put_owned(Put::new(key("a"), buffer))),
        code::DEADLINE
    );
    assert_eq!(life.seen(), (0, 0));
    rig.stepper.run_all();
    assert_eq!(life.seen(), (1, 1));
    rig.clock.advance(COOLDOWN);
    let (_, buffer) = watched(0);
    let call = back(rig.guard.get_owned(Get::new(key("a"), buffer)));
    assert_eq!(call.buffers.bytes, [5; SIZE]);
}

/// What a pool sends late it sends to where nobody looks for it, unless the pool says otherwise.
#[test]
fn a_put_that_failed_on_the_way_costs_no_buffers() {
    let rig = stepped(2);
    rig.script(Kinds::Put, Action::Fail(TRANSPORT));
    for _ in 0..5 {
        let (_, buffer) = watched(7);
        let Made::Back(call) = rig.guard.put_owned(Put::new(key("a"), buffer)) else {
            panic!("its buffers are the caller's");
        };
        assert_eq!(call.outcomes, [PutOutcome::Failed(TRANSPORT)]);
        assert_eq!(rig.state(), State::Open);
        rig.clock.advance(COOLDOWN);
    }
    let counts = rig.guard.counts();
    assert_eq!((counts.quarantined, counts.failures), (0, 5));
}

#[test]
fn buffers_of_a_transport_error_are_never_used_again() {
    let rig = stepped(2);
    rig.script(Kinds::Get, Action::Fail(TRANSPORT));
    let (life, buffer) = watched(7);
    assert_eq!(
        kept(rig.guard.get_owned(Get::new(key("a"), buffer))),
        TRANSPORT
    );
    rig.script(Kinds::Put, Action::Fail(code::STILL_IN_USE));
    rig.clock.advance(COOLDOWN);
    let (second, buffer) = watched(7);
    assert_eq!(
        kept(rig.guard.put_owned(Put::new(key("a"), buffer))),
        code::STILL_IN_USE
    );
    // Two are held: that is the bound, whatever the pool says now.
    rig.pool.set_script(Vec::new());
    rig.clock.advance(COOLDOWN);
    let calls = rig.calls(Kinds::Any);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    assert_eq!(rig.calls(Kinds::Any), calls);
    let counts = rig.guard.counts();
    assert_eq!(
        (counts.quarantined, counts.late, counts.failures),
        (2, 0, 2)
    );
    drop(rig);
    assert_eq!((life.seen(), second.seen()), ((0, 0), (0, 0)));
}

#[test]
fn a_late_call_that_returns_with_a_transport_error_does_not_give_its_buffers_back() {
    let rig = stepped(2);
    rig.script(Kinds::Get, Action::Fail(TRANSPORT));
    rig.deadline_after(1);
    let (life, buffer) = watched(7);
    assert_eq!(
        kept(rig.guard.get_owned(Get::new(key("a"), buffer))),
        code::DEADLINE
    );
    rig.stepper.run_all();
    let counts = rig.guard.counts();
    assert_eq!(
        (counts.late, counts.returned, counts.quarantined),
        (0, 1, 1)
    );
    assert_eq!(life.seen(), (0, 0));
}

#[test]
fn a_panic_of_the_pool_is_no_answer() {
    let rig = stepped(3);
    rig.script(Kinds::Any, Action::Hook(Arc::new(|| panic!("as asked"))));
    assert_eq!(rig.exist("a"), Presence::Unknown(code::NO_ANSWER));
    assert_eq!((rig.state(), rig.guard.counts().late), (State::Open, 0));
    rig.script(Kinds::Get, Action::Hook(Arc::new(|| panic!("as asked"))));
    rig.clock.advance(COOLDOWN);
    let (life, buffer) = watched(7);
    assert_eq!(
        kept(rig.guard.get_owned(Get::new(key("a"), buffer))),
        code::NO_ANSWER
    );
    assert_eq!((life.seen(), rig.guard.counts().quarantined), ((0, 0), 1));
    rig.guard.close().unwrap();
}

#[test]
fn pages_are_not_risked_as_a_probe() {
    let rig = stepped(2);
    rig.fill("a", 3);
    rig.script(Kinds::Exist, Action::Fail(TRANSPORT));
    assert_eq!(rig.exist("a"), Presence::Unknown(TRANSPORT));
    rig.clock.advance(COOLDOWN);
    let (life, buffer) = watched(7);
    let call = back(rig.guard.get_owned(Get::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [GetOutcome::Failed(code::BREAKER_OPEN)]);
    assert_eq!((rig.calls(Kinds::Exist), rig.calls(Kinds::Get)), (2, 0));
    rig.pool.set_script(Vec::new());
    rig.clock.advance(COOLDOWN);
    let call = back(rig.guard.get_owned(call));
    assert_eq!(call.outcomes, [GetOutcome::Landed(SIZE as u64)]);
    assert_eq!(call.buffers.bytes, [3; SIZE]);
    assert_eq!((rig.calls(Kinds::Exist), rig.calls(Kinds::Get)), (3, 1));
    assert_eq!((life.seen(), rig.state()), ((0, 0), State::Closed));
}

#[test]
fn at_the_bound_no_probe_is_made_until_a_late_call_returns() {
    let rig = stepped(1);
    rig.deadline_after(1);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::DEADLINE));
    rig.clock.advance(COOLDOWN);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    assert_eq!(rig.guard.counts().late, 1);
    rig.stepper.run_all();
    assert_eq!(rig.exist("a"), Presence::Absent);
    assert_eq!(rig.state(), State::Closed);
}

#[test]
fn a_closed_guard_refuses_and_makes_no_call() {
    let rig = stepped(2);
    rig.guard.close().unwrap();
    rig.guard.close().unwrap();
    assert_eq!(rig.pool.health(), Health::Down(code::CLOSED));
    assert_eq!(rig.exist("a"), Presence::Unknown(code::CLOSED));
    let (_, buffer) = watched(7);
    let call = back(rig.guard.put_owned(Put::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [PutOutcome::Failed(code::CLOSED)]);
    assert_eq!(rig.guard.health(), Health::Down(code::CLOSED));
    assert_eq!(rig.calls(Kinds::Any), 0);
}

#[test]
fn a_close_that_no_thread_took_can_be_tried_again() {
    let rig = stepped(2);
    rig.deadline_after(0);
    let error = rig.guard.close().unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    assert_eq!(rig.pool.health(), Health::Up);
    rig.guard.close().unwrap();
    assert_eq!(rig.pool.health(), Health::Down(code::CLOSED));
}

#[test]
fn memory_that_cannot_be_copied_is_refused() {
    let rig = stepped(2);
    let (source, _) = nowhere();
    let mut out = Vec::new();
    let mut sources = [source];
    let pieces = Pieces::one_each(&mut sources);
    rig.guard
        .put(&key("a"), pieces, &PutOptions::default(), &mut out);
    assert_eq!(out, [PutOutcome::Failed(code::UNREACHABLE_MEMORY)]);
    assert_eq!(rig.calls(Kinds::Put), 0);
}

#[test]
fn a_lent_target_is_untouched_by_a_late_get() {
    let rig = stepped(2);
    rig.fill("a", 9);
    rig.deadline_after(1);
    let (mut landing, mut out) = ([7_u8; SIZE], Vec::new());
    let mut targets = [Target::from(&mut landing[..])];
    rig.guard
        .get(&key("a"), Pieces::one_each(&mut targets), &mut out);
    assert_eq!(out, [GetOutcome::Failed(code::DEADLINE)]);
    rig.stepper.run_all();
    assert_eq!(rig.calls(Kinds::Get), 1);
    assert_eq!(landing, [7; SIZE]);
}

/// A pool on threads that takes calls and does not answer them.
struct Hung {
    rig: Rig,
    /// Dropped: all calls return.
    gate: Option<Sender<()>>,
    inside: Receiver<std::thread::ThreadId>,
}

fn hung(settings: Settings, call: Kinds) -> Hung {
    let rig = rig(settings, true);
    let (gate, closed) = channel::<()>();
    let (said, inside) = channel();
    let guard = OnceLock::<Weak<Guarded>>::new();
    let _ = guard.set(Arc::downgrade(&rig.guard));
    let (clock, closed) = (Arc::clone(&rig.clock), Mutex::new(closed));
    let hang = move || {
        said.send(std::thread::current().id()).unwrap();
        clock.advance(HOUR);
        // Wakes the caller, which finds its deadline passed.
        if let Some(guard) = guard.get().and_then(Weak::upgrade) {
            let _ = guard.lane.as_ref().unwrap().push(Box::new(Nudge));
        }
        let _ = closed.lock().recv();
    };
    rig.script(call, Action::Hook(Arc::new(hang)));
    Hung {
        rig,
        gate: Some(gate),
        inside,
    }
}

/// A pool that accepts and never answers: one lookup pays its deadline, later ones pay nothing.
#[test]
fn case_54_a_pool_that_never_answers() {
    let mut hung = hung(settings(2), Kinds::Any);
    let rig = &hung.rig;
    assert_eq!(rig.exist("a"), Presence::Unknown(code::DEADLINE));
    assert_ne!(hung.inside.recv().unwrap(), std::thread::current().id());
    for _ in 0..100 {
        assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    }
    let (_, buffer) = watched(7);
    let call = back(rig.guard.put_owned(Put::new(key("a"), buffer)));
    assert_eq!(call.outcomes, [PutOutcome::Failed(code::BREAKER_OPEN)]);
    let counts = PoolCounts {
        state: State::Open,
        deadlines: 1,
        opened: 1,
        refused: 101,
        late: 1,
        ..PoolCounts::default()
    };
    assert_eq!(rig.guard.counts(), counts);
    assert_eq!(rig.calls(Kinds::Any), 1);

    // The probe hangs as well; that is the bound, and nothing is tried any more.
    rig.clock.advance(COOLDOWN);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::DEADLINE));
    rig.clock.advance(COOLDOWN);
    assert_eq!(rig.exist("a"), Presence::Unknown(code::BREAKER_OPEN));
    assert_eq!((rig.guard.counts().late, rig.calls(Kinds::Any)), (2, 2));

    // The pool comes back.
    rig.pool.set_script(Vec::new());
    hung.gate = None;
    let all_returned = || rig.guard.counts().returned == 2;
    assert!(rig.lane().wait_until(None, all_returned));
    assert_eq!(rig.exist("a"), Presence::Absent);
    let counts = rig.guard.counts();
    assert_eq!((counts.state, counts.late), (State::Closed, 0));
    rig.guard.close().unwrap();
}

#[test]
fn a_close_leaves_stuck_calls_alone_and_the_last_one_out_closes() {
    let impatient = Settings {
        close: Duration::ZERO,
        ..settings(2)
    };
    let mut hung = hung(impatient, Kinds::Get);
    let (life, buffer) = watched(7);
    let made = hung.rig.guard.get_owned(Get::new(key("a"), buffer));
    assert_eq!(kept(made), code::DEADLINE);
    let error = hung.rig.guard.close().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    assert_eq!(
        hung.rig.pool.health(),
        Health::Up,
        "not closed under a call"
    );
    let core = Arc::clone(&hung.rig.guard.core);
    let Rig { pool, guard, .. } = hung.rig;
    // Nothing waits for the stuck thread.
    drop(guard);
    assert_eq!(life.seen(), (0, 0));
    hung.gate = None;
    // Everything that a stuck thread keeps alive goes with it.
    while Arc::strong_count(&core) > 1 {
        std::thread::yield_now();
    }
    assert_eq!(life.seen(), (1, 1));
    assert_eq!(pool.health(), Health::Down(code::CLOSED));
    assert_eq!(core.state.lock().inside, 0);
}
