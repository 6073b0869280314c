//! A process that lends memory is killed, or hangs for a while.

use std::collections::BTreeSet;
use std::thread;
use std::time::{Duration, Instant};

use kvbridge::error::Kind;

use crate::engine::{Engine, PATIENCE, large, pause, setup};
use crate::real_pool::Member;
use crate::rig::{Setup, T, two_groups};
use crate::{blocks, ended_in_time, for_a_while, is_slow, is_wire, options, with_pool};

/// All bytes of all caches.
fn caches(engine: &Engine) -> Vec<Vec<u8>> {
    let ranks = engine.rig.ranks.iter();
    ranks.map(|rank| rank.cache.snapshot()).collect()
}

#[test]
fn a_lender_is_killed_and_another_comes() {
    with_pool(options(), &[], "lender::lender_killed");
}

#[test]
#[ignore = "needs a pool"]
fn lender_killed() {
    lose_lender("lender killed", setup(), || Member::Lender.kill());
}

/// Here in the middle of a load; and ranks that cannot restart a request alone throw the whole pass away.
#[test]
fn a_lender_of_two_ranks_is_killed() {
    with_pool(options(), &[], "lender::lender_of_two_killed");
}

#[test]
#[ignore = "needs a pool"]
fn lender_of_two_killed() {
    let setup = Setup {
        world: 2,
        groups: two_groups(),
        ..setup()
    };
    lose_lender("lender killed in a load, TP 2", setup, || {
        Member::Lender.stop();
        thread::spawn(|| {
            thread::sleep(Duration::from_millis(300));
            Member::Lender.kill();
        });
    });
}

fn lose_lender(fault: &str, setup: Setup, lose: impl FnOnce()) {
    let mut engine = Engine::new(setup);
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    assert_eq!(engine.serve(&known).offered, 8);
    let killed = Instant::now();
    lose();
    // Its pages are found for a while, and cannot be loaded.
    let served = engine.serve(&known);
    assert_eq!((served.offered, served.handed_back), (8, 1));
    let mut round = 0;
    while engine.stats().no_space_pages == 0 {
        assert!(killed.elapsed() < PATIENCE, "{:?}", engine.pool());
        engine.serve(&known);
        engine.serve(&blocks(1000 + round, 3));
        engine.settle();
        round += 1;
        pause();
    }
    assert_eq!(engine.pool().quarantined > 0, !is_wire());
    let began = Instant::now();
    Member::Lender.replace(&["--segment", "64"]);
    engine.resume(&known, began);
    engine.shutdown_well();
    engine.report(fault);
}

/// The lender hangs while a load is under way and wakes up after `nap`. `is_late`: the load misses its deadline and comes
/// home later; else the library has given it up by then, and writes into its memory all the same.
fn lender_stopped(fault: &str, setup: Setup, nap: Duration, is_late: bool) {
    let mut engine = Engine::new(setup);
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    engine.serve(&known);
    engine.rig.ranks[0].lent.take_addresses();
    let caught = engine.new_id();
    assert_eq!(engine.admit(caught, &known), 8 * T);
    engine.bind(&[(caught, 1)]);
    let before = caches(&engine);
    Member::Lender.stop();
    let stopped = Instant::now();
    engine.load().unwrap();
    assert_eq!(engine.rig.ranks[0].worker.take_failed_loads(), [caught]);
    assert!(caches(&engine) == before);
    let given = engine.rig.ranks[0].lent.take_addresses();
    assert!(!given.is_empty());
    engine.reset(caught);
    // It goes on meanwhile.
    for_a_while(nap.saturating_sub(stopped.elapsed()), |round| {
        engine.serve(&known);
        engine.serve(&blocks(1000 + round, 3));
        pause();
    });
    engine.settle();
    let before = caches(&engine);
    Member::Lender.wake();
    let woke = Instant::now();
    // Whatever comes late comes now.
    for_a_while(Duration::from_secs(1), |_| {
        assert!(caches(&engine) == before, "late pages reached the cache");
        pause();
    });
    let used = |engine: &Engine| engine.rig.ranks[0].lent.take_addresses();
    let meanwhile: BTreeSet<u64> = used(&engine);
    engine.resume(&known, woke);
    let pool = engine.pool();
    if is_wire() {
        // A lender is not the pool.
        assert!(pool.failures == 0 && pool.quarantined == 0 && pool.late == 0);
    } else if is_late {
        assert!(pool.deadlines > 0 && pool.returned > 0 && pool.quarantined == 0);
    } else {
        assert!(pool.failures > 0 && pool.quarantined > 0);
        assert!(meanwhile.is_disjoint(&given));
        assert!(used(&engine).is_disjoint(&given));
    }
    engine.shutdown_well();
    engine.report(fault);
}

#[test]
fn a_lender_hangs_and_answers_late() {
    with_pool(options(), &[], "lender::lender_late");
}

#[test]
#[ignore = "needs a pool"]
fn lender_late() {
    let nap = Duration::from_secs(4);
    lender_stopped("lender stopped, late", setup(), nap, true);
}

#[test]
fn a_lender_wakes_up_after_it_was_given_up() {
    // Before the load's deadline here; 10 s by itself.
    let short = [("MC_TCP_STATUS_TIMEOUT_SEC", "1")];
    with_pool(
        options(),
        if is_slow() { &[] } else { &short },
        "lender::lender_given_up",
    );
}

#[test]
#[ignore = "needs a pool"]
fn lender_given_up() {
    let setup = Setup {
        kvbridge: match is_slow() {
            true => {
                r#""lookup_timeout_ms": 300, "load_timeout_ms": 15000, "breaker_cooldown_ms": 200,"#
            }
            false => {
                r#""lookup_timeout_ms": 300, "load_timeout_ms": 4000, "breaker_cooldown_ms": 200,"#
            }
        },
        ..large()
    };
    let nap = Duration::from_secs(if is_slow() { 30 } else { 6 });
    lender_stopped("lender stopped, given up", setup, nap, false);
}

#[test]
fn a_parked_request_is_told_in_time_that_its_lender_hangs() {
    with_pool(options(), &[], "lender::parked");
}

#[test]
#[ignore = "needs a pool"]
fn parked() {
    let mut engine = Engine::new(Setup {
        async_load: true,
        ..setup()
    });
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    assert_eq!(engine.serve(&known).handed_back, 0);
    Member::Lender.stop();
    let served = engine.serve(&known);
    assert_eq!((served.offered, served.handed_back), (8, 1));
    let before = caches(&engine);
    Member::Lender.wake();
    let woke = Instant::now();
    for_a_while(Duration::from_secs(1), |_| {
        assert!(caches(&engine) == before, "late pages reached the cache");
        pause();
    });
    engine.resume(&known, woke);
    engine.shutdown_well();
    engine.report("lender stopped, asynchronous load");
}

/// One rank of several cannot restart a request: the error stays, and the engine makes its workers anew.
#[test]
fn under_tp_a_parked_request_that_is_lost_is_an_error_for_good() {
    with_pool(options(), &[], "lender::parked_tp");
}

#[test]
#[ignore = "needs a pool"]
fn parked_tp() {
    let setup = Setup {
        world: 2,
        async_load: true,
        groups: two_groups(),
        ..setup()
    };
    let mut engine = Engine::new(setup.clone());
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    Member::Lender.stop();
    let id = engine.new_id();
    assert_eq!(engine.admit(id, &known), 8 * T);
    engine.bind(&[]);
    engine.load().unwrap();
    let error = engine.await_error(id);
    assert_eq!(error.kind(), Kind::LoadFailed, "{error}");
    assert_eq!(engine.load().unwrap_err().kind(), Kind::LoadFailed);
    engine.shutdown(Duration::from_millis(100));
    Member::Lender.wake();
    let woke = Instant::now();
    engine.shutdown_at_last();
    engine.report("lender stopped, asynchronous load, TP 2");
    let mut engine = Engine::new(setup);
    engine.resume(&known, woke);
    engine.shutdown_well();
    engine.report("the same, with new workers");
}

#[test]
fn a_worker_ends_in_time_while_a_lender_hangs() {
    with_pool(options(), &[], "lender::shutdown_without_lender");
}

#[test]
#[ignore = "needs a pool"]
fn shutdown_without_lender() {
    let mut engine = Engine::new(setup());
    let (known, more) = (blocks(1, 8), blocks(2, 4));
    engine.serve(&known);
    engine.settle();
    let before = caches(&engine);
    Member::Lender.stop();
    // A load is late.
    let id = engine.new_id();
    assert_eq!(engine.admit(id, &known), 8 * T);
    engine.bind(&[(id, 1)]);
    engine.load().unwrap();
    assert_eq!(engine.rig.ranks[0].worker.take_failed_loads(), [id]);
    assert!(caches(&engine) == before);
    let deadline = Duration::from_millis(500);
    let closed = engine.shutdown(deadline);
    ended_in_time(&closed);
    Member::Lender.wake();
    engine.shutdown_at_last();
    assert!(caches(&engine) == before);
    engine.report("shutdown while a lender hangs");
    drop(engine);
    // A save is under way: it is waited for until the deadline.
    let mut engine = Engine::new(setup());
    let id = engine.new_id();
    assert_eq!(engine.admit(id, &more), 0);
    Member::Lender.stop();
    assert!(engine.pass(id, more.len()));
    let closed = engine.shutdown(deadline);
    let [Err(error)] = &closed[..] else {
        panic!("{closed:?}");
    };
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    Member::Lender.wake();
    engine.shutdown_at_last();
    engine.report("shutdown while a save hangs");
}
