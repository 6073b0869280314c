//! Calls that are late, and those after which the pool may still use the pages of the cache.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use kvbridge::error::Kind;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::code;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use parking_lot::Mutex;

use crate::rig::{LONG, Rig, Setup, T, content, pool, prompt, rule};
use crate::strict::Strict;
use crate::{OWN, asynchronous, direct, rig_on, stocked};

/// Questions to the clock before a get or put of pages is begun and not made.
const BEFORE_PAGES: u32 = 3;
/// The same for the put of a save, before which it is asked what the pool has already.
const BEFORE_PUT: u32 = 10;

fn failing(call: Call, code: i32) -> Rule {
    Rule {
        at: 0..1,
        ..rule(call, Which::All, Action::Fail(code))
    }
}

fn page(rig: &Rig, page: i32) -> Vec<u8> {
    rig.ranks[0].cache.read(OWN, page)
}

/// A rig that has admitted request 7, whose four blocks the pool has.
fn admitted(setup: Setup) -> (Rig, Vec<i32>) {
    let tokens = prompt(1, 4 * T + 1);
    let (mut rig, _) = rig_on(setup, &stocked(direct(), &tokens), true);
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
    let pages = rig.live[&7].pages[0].clone();
    (rig, pages)
}

fn is_failed_for_good(rig: &mut Rig) {
    for _ in 0..2 {
        let error = rig.poll_all(&[7]).unwrap_err();
        assert_eq!(error.kind(), Kind::LoadFailed);
        assert!(
            error.message().contains("may still write into the cache"),
            "{error}"
        );
        let metadata = rig.build(&[]);
        rig.bind(&metadata);
        assert_eq!(rig.start_load().unwrap_err().kind(), Kind::LoadFailed);
    }
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [0; 0]);
    assert_eq!(rig.ranks[0].worker.take_failed_async_loads(), [0; 0]);
}

#[test]
fn c9_a_late_load_fails_the_worker_and_its_request_is_not_handed_back() {
    for setup in [direct(), asynchronous()] {
        let (mut rig, pages) = admitted(setup);
        let chunks: &[(u64, usize)] = if rig.setup.async_load { &[] } else { &[(7, 1)] };
        let metadata = rig.build(chunks);
        rig.bind(&metadata);
        if rig.setup.async_load {
            rig.start_load().unwrap();
            rig.stepper.step(0);
            rig.clock.jump_after(BEFORE_PAGES);
            rig.stepper.step(0);
        } else {
            rig.clock.jump_after(BEFORE_PAGES);
            let error = rig.start_load().unwrap_err();
            assert_eq!(error.kind(), Kind::LoadFailed);
        }
        assert_eq!(rig.asked(Call::Get), 0, "begun and not made");
        is_failed_for_good(&mut rig);
        assert_eq!(page(&rig, pages[0]), [0; 128]);
        // The call has the pages until it returns; here that is while they are waited for.
        rig.ranks[0].worker.unregister_layout().unwrap();
        assert_eq!(rig.asked(Call::Get), 4);
        let wanted = content(&rig.live[&7].tokens, 0, OWN, 0, 128);
        assert_eq!(page(&rig, pages[0]), wanted, "it wrote there");
        assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
        rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn c9_a_load_that_failed_on_the_way_keeps_the_cache_for_ever() {
    for setup in [direct(), asynchronous()] {
        for unreachable in [code::UNREACHABLE, code::STILL_IN_USE] {
            let (mut rig, _) = admitted(setup.clone());
            rig.script(vec![failing(Call::Get, unreachable)]);
            let chunks: &[(u64, usize)] = if rig.setup.async_load { &[] } else { &[(7, 1)] };
            let metadata = rig.build(chunks);
            rig.bind(&metadata);
            let started = rig.start_load();
            assert_eq!(started.is_ok(), rig.setup.async_load);
            rig.stepper.run_all();
            is_failed_for_good(&mut rig);
            for _ in 0..2 {
                let error = rig.ranks[0].worker.unregister_layout().unwrap_err();
                assert_eq!(error.kind(), Kind::Busy);
                assert!(error.message().contains("1 calls of the pool"), "{error}");
            }
            for _ in 0..2 {
                let error = rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap_err();
                assert_eq!(error.kind(), Kind::Busy);
                assert!(error.message().contains("memory must stay"), "{error}");
            }
        }
    }
}

/// An engine whose worker failed gives its requests up, and goes on without it.
#[test]
fn c9_a_request_whose_load_is_late_keeps_its_pages_when_it_is_given_up() {
    for setup in [direct(), asynchronous()] {
        let (mut rig, pages) = admitted(setup);
        let chunks: &[(u64, usize)] = if rig.setup.async_load { &[] } else { &[(7, 1)] };
        let metadata = rig.build(chunks);
        rig.bind(&metadata);
        if rig.setup.async_load {
            rig.start_load().unwrap();
            rig.stepper.step(0);
            rig.clock.jump_after(BEFORE_PAGES);
            rig.stepper.step(0);
        } else {
            rig.clock.jump_after(BEFORE_PAGES);
            rig.start_load().unwrap_err();
        }
        assert!(rig.finish(7, FinishReason::Cancelled), "pinned");
        assert_eq!(rig.poll_all(&[]).unwrap_err().kind(), Kind::LoadFailed);
        assert_eq!(page(&rig, pages[0]), [0; 128], "nobody else's yet");
    }
    // Without a failure such a request is reported by the next poll.
    let (mut rig, _) = admitted(direct());
    rig.pass(&[(7, 1)]);
    rig.check(7);
    assert!(rig.finish(7, FinishReason::Ended));
    assert_eq!(rig.poll(), [7]);
}

/// An engine that goes on in spite of the error publishes nothing of the requests whose pages did not come: neither of those
/// of the late call nor of those behind it, now or later.
#[test]
fn c9_what_follows_a_late_load_is_not_saved() {
    let heads = [prompt(1, 4 * T), prompt(2, 4 * T)];
    let pool = stocked(direct(), &heads[0]);
    Rig::on(direct(), Arc::clone(&pool)).publish(1, &heads[1]);
    let (mut rig, _) = rig_on(direct(), &pool, true);
    for (id, kind) in [(7, 1), (8, 2)] {
        assert_eq!(rig.admit(id, &prompt(kind, 6 * T)) as usize, 4 * T);
    }
    let chunks = [(7, T), (8, T)];
    for pass in 0..2 {
        let metadata = rig.build(&chunks);
        rig.bind(&metadata);
        if pass == 0 {
            rig.clock.jump_after(BEFORE_PAGES);
        }
        assert_eq!(rig.start_load().unwrap_err().kind(), Kind::LoadFailed);
        rig.stepper.run_all();
        rig.clock.advance(LONG);
        rig.forward(&chunks);
        rig.wait_for_save();
        rig.drain();
        assert_eq!(rig.stored(), 8, "pass {pass}");
    }
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [0; 0]);
}

#[test]
fn c9_a_late_load_under_tp_is_the_same() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..direct()
    };
    let pool = stocked(setup.clone(), &tokens);
    let (mut rig, _) = rig_on(setup, &pool, true);
    rig.admit(7, &tokens);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    rig.clock.jump_after(BEFORE_PAGES);
    let error = rig.start_load().unwrap_err();
    assert!(error.message().contains("may still write into the cache"));
    assert_eq!(
        rig.ranks[0]
            .worker
            .get_finished(&[], &[])
            .unwrap_err()
            .kind(),
        Kind::LoadFailed
    );
}

/// A rig whose pool is late to save the blocks of request 7, and its tokens.
fn with_late_save() -> (Rig, Vec<i32>) {
    let tokens = prompt(1, 4 * T);
    let (mut rig, _) = rig_on(direct(), &pool(1 << 22), true);
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    rig.clock.jump_after(BEFORE_PUT);
    while rig.stats().failed_save_pages == 0 {
        assert!(rig.stepper.step(0).is_some());
    }
    (rig, tokens)
}

#[test]
fn c9_pages_stay_pinned_until_a_late_save_returned() {
    let (mut rig, tokens) = with_late_save();
    assert_eq!(
        (rig.asked(Call::Put), rig.stats().failed_save_pages),
        (0, 4)
    );
    // The item ends; the call does not.
    let save = |rig: &Rig| {
        rig.stepper
            .pending()
            .iter()
            .position(|item| item.1 == "save")
    };
    while let Some(index) = save(&rig) {
        rig.stepper.step(index);
    }
    assert_eq!(rig.asked(Call::Put), 0);
    assert_eq!(rig.ranks[0].worker.handle().gauges().saves_in_flight, 1);
    assert!(rig.finish(7, FinishReason::Ended));
    for _ in 0..3 {
        assert_eq!(rig.poll(), [0; 0], "the pool may still read its pages");
    }
    rig.stepper.run_all();
    assert_eq!(rig.asked(Call::Put), 4);
    assert_eq!(rig.poll(), [7]);
    // What it read were the pages as they were saved.
    rig.clock.advance(LONG);
    let longer = [&tokens[..], &[1]].concat();
    assert_eq!(rig.admit(8, &longer) as usize, 4 * T);
    rig.pass(&[(8, 1)]);
    rig.check(8);
}

/// Who resets such a request is told, and asks again.
#[test]
fn c9_a_reset_says_that_a_late_save_may_still_read_the_pages() {
    let (mut rig, tokens) = with_late_save();
    let kept = rig.live.remove(&7).unwrap();
    for _ in 0..2 {
        let error = rig.scheduler.reset(7).unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert!(
            error.message().contains("request 7: the pool may"),
            "{error}"
        );
    }
    assert_eq!(rig.asked(Call::Put), 0);
    // It runs again meanwhile, elsewhere, and its new life is its own.
    rig.clock.advance(LONG);
    rig.admit(7, &prompt(2, T));
    rig.pass(&[(7, T)]);
    assert_eq!(rig.scheduler.reset(7).unwrap_err().kind(), Kind::Busy);
    rig.scheduler.reset(8).unwrap();
    rig.stepper.run_all();
    assert_eq!(rig.asked(Call::Put), 4, "of the first life alone");
    rig.reset(7);
    rig.live.insert(7, kept);
    rig.reset(7);
    let longer = [&tokens[..], &[1]].concat();
    assert_eq!(rig.admit(8, &longer) as usize, 4 * T);
    rig.pass(&[(8, 1)]);
    rig.check(8);
}

#[test]
fn c9_blocks_of_a_late_save_are_published_with_the_next_one() {
    let tokens = prompt(1, 5 * T);
    let (mut rig, _) = rig_on(direct(), &pool(1 << 22), true);
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    rig.clock.jump_after(BEFORE_PUT);
    rig.stepper.step(0);
    assert_eq!(rig.stats().failed_save_pages, 4);
    rig.clock.advance(LONG);
    rig.pass(&[(7, T)]);
    rig.drain();
    assert_eq!(rig.stored(), 5);
    assert!(rig.finish(7, FinishReason::Ended));
    assert_eq!(rig.poll(), [7]);
}

#[test]
fn c9_pages_that_the_pool_keeps_are_never_reported() {
    for (number, is_kept) in [(code::STILL_IN_USE, true), (code::UNREACHABLE, false)] {
        let tokens = prompt(1, 4 * T);
        let (mut rig, _) = rig_on(direct(), &pool(1 << 22), true);
        rig.script(vec![failing(Call::Put, number)]);
        rig.admit(7, &tokens);
        rig.pass(&[(7, 4 * T)]);
        rig.stepper.run_all();
        assert_eq!(rig.stats().failed_save_pages, 4);
        let in_flight = |rig: &Rig| rig.ranks[0].worker.handle().gauges().saves_in_flight;
        assert_eq!(in_flight(&rig), u64::from(is_kept));
        assert!(rig.finish(7, FinishReason::Ended));
        let reported: &[u64] = if is_kept { &[] } else { &[7] };
        assert_eq!(rig.poll(), reported);
        // Others are, all the same.
        rig.clock.advance(LONG);
        rig.admit(8, &prompt(2, 4 * T));
        rig.pass(&[(8, 4 * T)]);
        rig.stepper.run_all();
        assert!(rig.finish(8, FinishReason::Ended));
        assert_eq!(rig.poll(), [8]);
        let ended = rig.ranks[0].worker.unregister_layout();
        assert_eq!(
            ended.map_err(|error| error.kind()).err(),
            is_kept.then_some(Kind::Busy)
        );
    }
}

/// A put that waits until the sender is dropped, and says when it has come.
fn stopped(call: Call) -> (Rule, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (come, came) = mpsc::channel();
    let (go, stop) = mpsc::channel::<()>();
    let (come, stop) = (Mutex::new(come), Mutex::new(stop));
    let hook = Action::Hook(Arc::new(move || {
        let _ = come.lock().send(());
        let _ = stop.lock().recv();
    }));
    (rule(call, Which::All, hook), go, came)
}

/// An engine that takes pages back before they were reported waits for the call that reads them.
#[test]
fn c9_a_reset_waits_for_the_call_that_reads_its_pages() {
    let setup = Setup {
        stepped: false,
        ..direct()
    };
    let tokens = prompt(1, 4 * T);
    let (mut rig, _) = rig_on(setup, &pool(1 << 22), true);
    let (rule, go, came) = stopped(Call::Put);
    rig.script(vec![rule]);
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    came.recv().unwrap();
    let (told, hears) = mpsc::channel();
    std::thread::scope(|scope| {
        let rig = &mut rig;
        scope.spawn(move || {
            // Overwrites the pages.
            rig.reset(7);
            told.send(()).unwrap();
        });
        assert!(hears.recv_timeout(Duration::from_millis(50)).is_err());
        drop(go);
        hears.recv().unwrap();
    });
    rig.drain();
    assert_eq!(rig.stored(), 4);
    let longer = [&tokens[..], &[1]].concat();
    assert_eq!(rig.admit(8, &longer) as usize, 4 * T);
    rig.pass(&[(8, 1)]);
    rig.check(8);
}

/// A worker with threads, and a late load that has the cache until the sender is dropped.
fn with_a_late_load() -> (Rig, Arc<Strict>, mpsc::Sender<()>) {
    let setup = Setup {
        stepped: false,
        save_timeout_ms: 1,
        // Time for the call to begin on a busy machine: one that has not is taken back and never late.
        kvbridge: r#""page_format": "raw", "load_timeout_ms": 2000, "lookup_timeout_ms": 60000, "#,
        ..direct()
    };
    let tokens = prompt(1, 4 * T + 1);
    let pool = stocked(direct(), &tokens);
    let (mut rig, strict) = rig_on(setup, &pool, true);
    rig.admit(7, &tokens);
    let (rule, go, came) = stopped(Call::Get);
    rig.script(vec![rule]);
    let metadata = rig.build(&[(7, 1)]);
    rig.bind(&metadata);
    assert_eq!(rig.start_load().unwrap_err().kind(), Kind::LoadFailed);
    came.recv().unwrap();
    (rig, strict, go)
}

/// Case 40 with threads: a layout goes while the pool writes into its pages.
#[test]
fn case_40_unregistering_says_busy_while_a_call_has_the_cache() {
    let (mut rig, strict, go) = with_a_late_load();
    let error = rig.ranks[0].worker.unregister_layout().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(!strict.registered().is_empty());
    drop(go);
    while let Err(error) = rig.ranks[0].worker.unregister_layout() {
        assert_eq!(error.kind(), Kind::Busy);
    }
    assert_eq!(strict.registered(), []);
    // The engine may free or reuse it.
    let before = rig.ranks[0].cache.snapshot();
    rig.drain();
    assert_eq!(rig.ranks[0].cache.snapshot(), before);
}

/// A worker that was shut down meanwhile: the pool is closed by whoever leaves it last, and has nothing any more.
#[test]
fn c10_a_layout_can_be_unregistered_once_a_closed_pool_has_let_go() {
    let (mut rig, _, go) = with_a_late_load();
    let worker = &mut rig.ranks[0].worker;
    assert_eq!(
        worker.shutdown(Duration::ZERO).unwrap_err().kind(),
        Kind::Busy
    );
    let error = worker.unregister_layout().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.message().contains("1 calls of the pool"), "{error}");
    drop(go);
    let began = Instant::now();
    while let Err(error) = worker.unregister_layout() {
        assert_eq!(error.kind(), Kind::Busy);
        assert!(began.elapsed() < Duration::from_secs(60), "{error}");
    }
    worker.shutdown(Duration::ZERO).unwrap();
}
