//! The master is killed and comes back empty, or hangs for a while.

use std::time::{Duration, Instant};

use crate::engine::{Engine, pause, setup};
use crate::real_pool::Member;
use crate::rig::T;
use crate::{blocks, ended_in_time, for_a_while, is_slow, options, with_pool};

/// How long it is away.
fn outage() -> Duration {
    Duration::from_secs(if is_slow() { 40 } else { 5 })
}

/// Serves while the master is away; `known` was stored before. Nothing is found.
fn without_master(engine: &mut Engine, known: &[i32]) {
    for_a_while(outage(), |round| {
        let served = engine.serve(known);
        if round > 0 {
            // The breaker is open, or the lookup itself failed.
            assert_eq!((served.offered, served.handed_back), (0, 0));
        }
        engine.serve(&blocks(1000 + round, 3));
        pause();
    });
}

fn lose_master(fault: &str, lose: impl FnOnce(), find: impl FnOnce()) {
    let mut engine = Engine::new(setup());
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    assert_eq!(engine.serve(&known).offered, 8);
    // One request lives through all of it, and is computed piece by piece.
    let (long, text) = (engine.new_id(), blocks(2, 12));
    assert_eq!(engine.admit(long, &text), 0);
    assert!(engine.pass(long, 4 * T));
    // Another one is about to be loaded.
    let caught = engine.new_id();
    assert_eq!(engine.admit(caught, &known), 8 * T);
    engine.bind(&[(caught, 1)]);
    lose();
    engine.load().unwrap();
    assert_eq!(engine.rig.ranks[0].worker.take_failed_loads(), [caught]);
    engine.reset(caught);
    assert!(engine.pass(long, 4 * T));
    without_master(&mut engine, &known);
    let found = Instant::now();
    find();
    engine.resume(&known, found);
    // What could not be saved is offered again with the next pass. A master that hung may have taken the beginning of
    // a save that was given up: it takes no other for a while, and does not say so.
    assert!(engine.stats().failed_save_pages > 0);
    assert!(engine.pass(long, 4 * T + 1));
    engine.finish(long);
    engine.settle();
    engine.await_page(&text);
    engine.shutdown_well();
    engine.report(fault);
}

#[test]
fn a_master_is_killed_and_another_comes_empty() {
    with_pool(options(), &[], "master::master_killed");
}

#[test]
#[ignore = "needs a pool"]
fn master_killed() {
    let find = || Member::Master.replace(&options()[2..]);
    lose_master("master killed", || Member::Master.kill(), find);
}

#[test]
fn a_master_hangs_and_goes_on() {
    // Either is longer than what a lookup may take here; by itself a call waits for half a minute.
    let waits = match is_slow() {
        true => ("KVBRIDGE_MOONCAKE_WAITS", "off"),
        false => ("MC_RPC_TIMEOUT_MS", "4000"),
    };
    with_pool(options(), &[waits], "master::master_stopped");
}

#[test]
#[ignore = "needs a pool"]
fn master_stopped() {
    lose_master(
        "master stopped",
        || Member::Master.stop(),
        || Member::Master.wake(),
    );
}

#[test]
fn a_worker_ends_in_time_while_the_master_hangs() {
    // Longer than a shutdown may take.
    let waits = ("MC_RPC_TIMEOUT_MS", "12000");
    with_pool(options(), &[waits], "master::shutdown_without_master");
}

#[test]
#[ignore = "needs a pool"]
fn shutdown_without_master() {
    let mut engine = Engine::new(setup());
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    Member::Master.stop();
    // Its lookup is still inside the library afterwards.
    engine.serve(&known);
    let closed = engine.shutdown(Duration::from_millis(100));
    ended_in_time(&closed);
    Member::Master.wake();
    engine.shutdown_at_last();
    engine.report("shutdown while the master hangs");
}

#[test]
fn a_worker_ends_in_time_without_a_master() {
    with_pool(options(), &[], "master::shutdown_after_master");
}

#[test]
#[ignore = "needs a pool"]
fn shutdown_after_master() {
    let mut engine = Engine::new(setup());
    engine.serve(&blocks(1, 8));
    engine.settle();
    Member::Master.kill();
    for_a_while(Duration::from_secs(3), |round| {
        engine.serve(&blocks(1000 + round, 3));
        pause();
    });
    // Its lookups are inside the library for some 4 s each, one behind the other.
    let closed = engine.shutdown(Duration::from_secs(1));
    ended_in_time(&closed);
    engine.shutdown_at_last();
    engine.report("shutdown without a master");
}
