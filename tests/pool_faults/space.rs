//! The pool is full; two write one page, or one dies over it; a load takes longer than its lease.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use kvbridge::stats::Stats;

use crate::engine::{Engine, large, pause, setup};
use crate::real_pool::Member;
use crate::rig::{Setup, T};
use crate::{blocks, options, with_pool};

#[test]
fn a_full_pool_makes_room() {
    with_pool(&["--segment", "16"], &[], "space::full");
}

#[test]
#[ignore = "needs a pool"]
fn full() {
    let mut engine = Engine::new(large());
    let mut prompts: Vec<Vec<i32>> = Vec::new();
    // Two times of what it holds, and then as many as it takes.
    while prompts.len() < 10 || engine.stats().no_space_pages == 0 {
        let tokens = blocks(prompts.len() as i32, 6);
        engine.serve(&tokens);
        engine.settle();
        // What is leased cannot be evicted.
        for old in &prompts {
            engine.serve(old);
        }
        engine.settle();
        prompts.push(tokens);
        assert!(prompts.len() < 40, "there is always room");
    }
    let began = Instant::now();
    engine.resume(&blocks(1000, 6), began);
    engine.shutdown_well();
    engine.report("pool full");
}

#[test]
fn two_write_one_page() {
    with_pool(options(), &[], "space::two_writers");
}

/// A request whose pages nobody has; its life up to its save.
fn save(engine: &mut Engine, tokens: &[i32]) {
    let id = engine.new_id();
    assert_eq!(engine.admit(id, tokens), 0);
    assert!(engine.pass(id, tokens.len()));
    engine.finish(id);
}

#[test]
#[ignore = "needs a pool"]
fn two_writers() {
    let mut engines = [Engine::new(setup()), Engine::new(setup())];
    for round in 0..10 {
        let tokens = blocks(round, 8);
        let ids = engines.each_mut().map(|engine| {
            let id = engine.new_id();
            assert_eq!(engine.admit(id, &tokens), 0);
            id
        });
        for (engine, id) in engines.iter_mut().zip(ids) {
            assert!(engine.pass(id, tokens.len()));
        }
        for (engine, id) in engines.iter_mut().zip(ids) {
            engine.finish(id);
            engine.settle();
        }
        for engine in &mut engines {
            engine.await_page(&tokens);
        }
    }
    // The first one is still writing when the second one comes.
    let tokens = blocks(1000, 8);
    Member::Lender.stop();
    let stopped = Instant::now();
    save(&mut engines[0], &tokens);
    thread::sleep(Duration::from_millis(300));
    let first = engines[0].stats().saved_pages;
    let before = engines[1].stats();
    save(&mut engines[1], &tokens);
    engines[1].settle();
    is_not_saved(&before, &engines[1].stats());
    assert_eq!(engines[0].stats().saved_pages, first);
    assert_eq!(engines[1].serve(&tokens).offered, 0);
    assert!(
        stopped.elapsed() < Duration::from_secs(2),
        "the save is late"
    );
    Member::Lender.wake();
    engines[0].settle();
    assert_eq!(engines[0].stats().saved_pages, first + 8);
    let woke = Instant::now();
    for engine in &mut engines {
        engine.resume(&tokens, woke);
    }
    for mut engine in engines {
        engine.shutdown_well();
        engine.report("two writers of one page");
    }
}

/// Of the pages of a save the pool has said that it has taken them, or that somebody has them, and does not have them.
fn is_not_saved(before: &Stats, after: &Stats) {
    assert_eq!(after.saved_pages, before.saved_pages);
    assert_eq!(after.saved_bytes, before.saved_bytes);
    assert_eq!(after.already_stored_pages, before.already_stored_pages);
    assert_eq!(after.failed_save_pages, before.failed_save_pages + 8);
}

#[test]
fn a_writer_dies_over_its_page() {
    with_pool(options(), &[], "space::writer_dies");
}

/// What the other writer says when it is inside.
const WRITING: &str = "WRITING";

#[test]
#[ignore = "needs a pool"]
fn writer_dies() {
    let mut engine = Engine::new(setup());
    let tokens = blocks(1000, 8);
    Member::Lender.stop();
    let me = env::current_exe().unwrap();
    let mut other = Command::new(me)
        .args(["--exact", "space::writes", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(other.stdout.take().unwrap()).lines();
    let is_inside = lines.map_while(Result::ok).any(|line| line == WRITING);
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(is_inside, "the other writer ended");
    Member::Lender.wake();
    let began = Instant::now();
    let before = engine.stats();
    save(&mut engine, &tokens);
    engine.settle();
    is_not_saved(&before, &engine.stats());
    // Nothing of the pool has failed.
    let pool = engine.pool();
    assert_eq!((pool.failures, pool.deadlines, pool.opened), (0, 0, 0));
    // Once the master has given the other one up, what is offered again is taken.
    engine.resume(&tokens, began);
    assert!(engine.stats().saved_pages >= before.saved_pages + 8);
    engine.shutdown_well();
    engine.report("a writer dies over its page");
}

#[test]
#[ignore = "a process of its own that writer_dies ends"]
fn writes() {
    let mut engine = Engine::new(setup());
    save(&mut engine, &blocks(1000, 8));
    thread::sleep(Duration::from_millis(300));
    println!("\n{WRITING}");
    thread::sleep(Duration::from_secs(3600));
}

#[test]
fn a_load_outlasts_its_lease() {
    let lease = ["--segment", "64", "--set", "default_kv_lease_ttl=300"];
    with_pool(&lease, &[], "space::lease");
}

#[test]
#[ignore = "needs a pool"]
fn lease() {
    let mut engine = Engine::new(Setup {
        kvbridge: r#""lookup_timeout_ms": 300, "load_timeout_ms": 8000, "breaker_cooldown_ms": 200,"#,
        ..setup()
    });
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    assert_eq!(engine.serve(&known).offered, 8);
    let id = engine.new_id();
    assert_eq!(engine.admit(id, &known), 8 * T);
    engine.bind(&[(id, 1)]);
    Member::Lender.stop();
    let waker = thread::spawn(|| {
        thread::sleep(Duration::from_millis(1500));
        Member::Lender.wake();
    });
    engine.load().unwrap();
    waker.join().unwrap();
    assert_eq!(engine.rig.ranks[0].worker.take_failed_loads(), [id]);
    engine.reset(id);
    // Nobody failed but the lease: nothing is kept, and the pool is asked at once.
    let pool = engine.pool();
    assert_eq!((pool.quarantined, pool.opened), (0, 0));
    pause();
    engine.resume(&known, Instant::now());
    engine.shutdown_well();
    engine.report("lease ended during a load");
}
