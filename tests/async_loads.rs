//! Asynchronous loads, step by step: who waits for what, what is reported when, and that nothing is
//! written into pages that were given back. Such pages are overwritten at once, so a late write shows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use kvbridge::config::Config;
use kvbridge::device::Stream;
use kvbridge::error::{Error, Kind, Result};
use kvbridge::lane::Step as LaneStep;
use kvbridge::scheduler::{FinishReason, GroupPages};
use kvbridge::store::faulty::{Action, Call, Which};
use kvbridge::worker::{Fence, Wait};
use parking_lot::Mutex;
use rig::{Polled, Rig, Setup, T, pool, prompt, rule, two_groups};

fn parking() -> Setup {
    Setup {
        async_load: true,
        batch: 2,
        ..Setup::default()
    }
}

/// A rig whose pool holds the blocks of these tokens.
fn stocked(setup: Setup, tokens: &[i32]) -> Rig {
    let mut writer = Rig::on(setup.clone(), pool(1 << 22));
    writer.publish(1, tokens);
    let rig = Rig::on(setup, Arc::clone(&writer.pool));
    drop(writer);
    rig
}

/// Prepares and runs a pass of nothing, which carries what was settled.
fn empty_pass(rig: &mut Rig) {
    rig.pass(&[]);
}

#[test]
fn a_request_waits_outside_the_batch_and_then_runs() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
    let metadata = rig.build(&[]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.parked().blocks()),
        (0, 4)
    );
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.wait_for_save();
    assert_eq!(rig.poll_all(&[7]).unwrap(), Polled::default());
    // Travels once, however often a metadata is built or bound.
    rig.bind(&metadata);
    assert_eq!(rig.build(&[]).parked().runs().len(), 0);
    assert_eq!(rig.stepper.pending().len(), 1);
    rig.stepper.run_all();
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7]);
    assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default());
    rig.check(7);
    rig.pass(&[(7, 1)]);
    rig.check(7);
    rig.drain();
    // Nothing that was loaded is written back.
    assert_eq!(rig.stats().saved_pages, 0);
    assert!(!rig.finish(7, FinishReason::Ended));
}

#[test]
fn a_load_that_was_not_announced_is_not_reported() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default());
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
}

#[test]
fn an_offer_honoured_with_nothing_is_reported_all_the_same() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let offered = rig.offer(7, &tokens, 0);
    rig.settle(7, &tokens, offered, 0);
    let metadata = rig.build(&[]);
    assert_eq!(
        (metadata.parked().runs().len(), metadata.parked().blocks()),
        (1, 0)
    );
    rig.bind(&metadata);
    rig.drain();
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.pass(&[(7, 4 * T + 1)]);
    rig.check(7);
    rig.drain();
}

#[test]
fn part_of_an_offer_can_be_honoured_or_given_back() {
    let tokens = prompt(1, 6 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let offered = rig.offer(7, &tokens, 0);
    rig.settle(7, &tokens, offered, 4 * T);
    rig.scheduler
        .cancel_load(7, 3 * T as u64, 4 * T as u64)
        .unwrap();
    rig.parked.get_mut(&7).unwrap().0 = 3 * T;
    let metadata = rig.build(&[]);
    assert_eq!(metadata.parked().blocks(), 3);
    // From here on it is too late.
    let late = rig.scheduler.cancel_load(7, 0, T as u64).unwrap_err();
    assert_eq!(late.kind(), Kind::BadState);
    rig.bind(&metadata);
    rig.drain();
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.pass(&[(7, 3 * T + 1)]);
    rig.check(7);
}

#[test]
fn a_step_before_the_report_is_a_contradiction() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    let step = |rig: &mut Rig, computed: usize| {
        let step = kvbridge::scheduler::Step {
            request_id: 7,
            new_tokens: kvbridge::keys::Tokens::I32(&tokens),
            pages: &[],
            computed_position: computed as u64,
            scheduled_tokens: 1,
        };
        rig.scheduler.build(&[step]).map(|_| ())
    };
    assert_eq!(step(&mut rig, 0).unwrap_err().kind(), Kind::Contradiction);
    empty_pass(&mut rig);
    rig.drain();
    let error = step(&mut rig, 2 * T).unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(error.to_string().contains("request 7"), "{error}");
    rig.poll_all(&[7]).unwrap();
    step(&mut rig, 2 * T).unwrap();
}

#[test]
fn the_engine_may_throw_a_result_away() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    rig.drain();
    rig.poll_all(&[7]).unwrap();
    rig.live.get_mut(&7).unwrap().computed = 0;
    rig.pass(&[(7, 4 * T + 1)]);
    rig.check(7);
    rig.drain();
    assert_eq!(rig.stats().saved_pages, 0);
}

#[test]
fn a_lost_page_hands_the_request_back_and_is_not_offered_again() {
    let tokens = prompt(1, 6 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    let key = rig.key(&tokens, 3, rig.ranks[0].cache.parts()[0], 0);
    rig.script(vec![rule(
        Call::Get,
        Which::Containing(key),
        Action::Fail(-800),
    )]);
    empty_pass(&mut rig);
    assert!(rig.poll_all(&[7]).unwrap().loaded.is_empty());
    rig.drain();
    let polled = rig.poll_all(&[]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[7][..])
    );
    assert!(rig.ranks[0].worker.take_failed_async_loads().is_empty());
    assert_eq!(rig.stats().failed_load_requests, 1);
    rig.reset(7);
    assert_eq!(rig.admit(7, &tokens) as usize, 3 * T);
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.pass(&[(7, 3 * T + 1)]);
    rig.check(7);
    // Nor is it offered after another reset, until the request ended.
    rig.finish(7, FinishReason::Preempted);
    rig.drain();
    rig.poll();
    rig.scheduler.reset(7).unwrap();
    assert_eq!(rig.offer(7, &tokens, 0) as usize, 3 * T);
    rig.scheduler.finished(7, FinishReason::Ended);
    assert_eq!(rig.offer(7, &tokens, 0) as usize, 6 * T);
}

#[test]
fn nothing_of_a_damaged_or_short_batch_is_scattered() {
    let tokens = prompt(1, 2 * T + 1);
    let panics = Action::Hook(Arc::new(|| panic!("on purpose")));
    for action in [Action::Corrupt, Action::WrongLength(-1), panics] {
        let mut rig = stocked(parking(), &tokens);
        rig.admit(7, &tokens);
        let before = rig.ranks[0].cache.snapshot();
        rig.script(vec![rule(Call::Get, Which::All, action.clone())]);
        empty_pass(&mut rig);
        rig.drain();
        let polled = rig.poll_all(&[7]).unwrap();
        assert_eq!(polled.failed, [7], "{action:?}");
        assert!(rig.ranks[0].cache.snapshot() == before, "{action:?}");
        assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
    }
}

/// A fence that opens when the test says so, or fails.
#[derive(Default)]
struct Door {
    open: AtomicBool,
    broken: AtomicBool,
    asked: AtomicU64,
}

impl Wait for Door {
    fn wait(&self) -> Result<bool> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::DeviceFailed, "the door is stuck"));
        }
        Ok(self.open.load(Ordering::Relaxed))
    }
}

#[test]
fn loads_wait_for_the_fence_of_their_bind() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let door = Arc::new(Door::default());
    rig.fence = Fence::Given(Arc::clone(&door) as Arc<dyn Wait>);
    rig.admit(7, &tokens);
    rig.admit(8, &tokens);
    empty_pass(&mut rig);
    for _ in 0..5 {
        rig.stepper.step(0);
        rig.stepper.step(1);
    }
    assert_eq!(rig.asked(Call::Get), 0);
    assert!(rig.poll_all(&[7, 8]).unwrap().loaded.is_empty());
    door.open.store(true, Ordering::Relaxed);
    rig.stepper.step(0);
    let asked = door.asked.load(Ordering::Relaxed);
    rig.stepper.run_all();
    // Once for all loads of the bind.
    assert_eq!(door.asked.load(Ordering::Relaxed), asked);
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7, 8]);
}

#[test]
fn a_fence_that_fails_is_an_error_of_every_later_call() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let door = Arc::new(Door::default());
    door.broken.store(true, Ordering::Relaxed);
    rig.fence = Fence::Given(door);
    rig.admit(7, &tokens);
    let before = rig.ranks[0].cache.snapshot();
    empty_pass(&mut rig);
    rig.drain();
    for _ in 0..3 {
        let polled = rig.poll_all(&[7]).unwrap_err();
        assert_eq!(polled.kind(), Kind::DeviceFailed);
        assert!(polled.to_string().contains("stuck"), "{polled}");
        assert_eq!(rig.start_load().unwrap_err().kind(), Kind::DeviceFailed);
    }
    assert!(rig.ranks[0].cache.snapshot() == before);
}

/// An engine that supplies fences, with a request that waits for its load.
fn waiting_for_a_fence() -> Rig {
    let tokens = prompt(1, 2 * T + 1);
    let setup = Setup {
        supplies_fences: true,
        ..parking()
    };
    let mut rig = stocked(parking(), &tokens);
    rig = Rig::on(setup, Arc::clone(&rig.pool));
    rig.admit(7, &tokens);
    rig
}

#[test]
fn a_fence_may_say_that_there_is_nothing_to_wait_for() {
    let mut rig = waiting_for_a_fence();
    rig.fence = Fence::Open;
    empty_pass(&mut rig);
    rig.drain();
    let polled = rig.poll_all(&[7]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[][..])
    );
    rig.check(7);
}

#[test]
fn a_missing_fence_is_said_once_and_fails_its_loads() {
    let mut rig = waiting_for_a_fence();
    let metadata = rig.build(&[]);
    rig.bind(&metadata);
    let error = rig.poll_all(&[7]).unwrap_err();
    assert!(error.to_string().contains("fence"), "{error}");
    let polled = rig.poll_all(&[]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[7][..])
    );
    assert_eq!(rig.asked(Call::Get), 0);
}

#[test]
fn under_tp_a_lost_page_is_an_error_from_then_on() {
    let tokens = prompt(1, 3 * T + 1);
    let setup = Setup {
        world: 2,
        groups: two_groups(),
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    let key = rig.key(&tokens, 1, rig.ranks[0].cache.parts()[0], 0);
    rig.script(vec![rule(Call::Get, Which::Containing(key), Action::Lose)]);
    empty_pass(&mut rig);
    rig.drain();
    for _ in 0..2 {
        let error = rig.poll_all(&[7]).unwrap_err();
        assert_eq!(error.kind(), Kind::LoadFailed);
        assert!(error.to_string().contains("cannot restart"), "{error}");
    }
    let loaded = rig.ranks[1].worker.get_finished(&[], &[7]).unwrap().loaded;
    assert_eq!(loaded, [7]);
}

#[test]
fn under_tp_every_rank_loads_and_reports() {
    let tokens = prompt(1, 3 * T + 1);
    let setup = Setup {
        world: 4,
        groups: two_groups(),
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    rig.poll_all(&[7]).unwrap();
    // The last rank's item ends last.
    while rig.stepper.pending().len() > 1 {
        rig.stepper.step(0);
        assert!(rig.poll_all(&[]).unwrap().loaded.is_empty());
    }
    rig.drain();
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7]);
    rig.check(7);
    rig.pass(&[(7, 1)]);
    rig.drain();
}

#[test]
fn an_id_that_comes_again_is_announced_as_ended_and_as_loading_in_one_call() {
    // Other ranks can tell the two lives apart only when the next poll announces the load.
    for (world, ways) in [(1, &[false, true][..]), (2, &[false])] {
        for &separate in ways {
            let tokens = prompt(1, 4 * T + 1);
            let setup = Setup { world, ..parking() };
            let mut rig = stocked(setup, &tokens);
            // A first life that saves and is preempted, its end not announced yet.
            let other = prompt(2, 3 * T);
            rig.admit(7, &other);
            rig.pass(&[(7, 3 * T)]);
            assert!(rig.finish(7, FinishReason::Preempted));
            // The next one is parked before the engine polls.
            assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
            empty_pass(&mut rig);
            let (mut loaded, mut saved) = (Vec::new(), Vec::new());
            let calls: &[&[u64]] = if separate { &[&[], &[7]] } else { &[&[7]] };
            for loading in calls {
                let polled = rig.poll_all(loading).unwrap();
                loaded.extend(polled.loaded);
                saved.extend(polled.saved);
            }
            rig.drain();
            let polled = rig.poll_all(&[]).unwrap();
            loaded.extend(polled.loaded);
            saved.extend(polled.saved);
            assert_eq!(
                (&loaded[..], &saved[..]),
                (&[7][..], &[7][..]),
                "{world} {separate}"
            );
            rig.check(7);
        }
    }
}

/// Steps a load of four blocks in batches of two so far: fence, get, scatter, get, scatter, end.
fn advanced(steps: usize) -> Rig {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    for step in 0..steps {
        let came = rig.stepper.step(0);
        assert_eq!(came == Some(LaneStep::Done), step == 5, "{step}");
    }
    rig
}

/// Slots that no load holds are what there was before the load: another request can be loaded.
fn still_works(rig: &mut Rig) {
    rig.drain();
    assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
    let tokens = prompt(1, 4 * T + 1);
    for id in 20..24 {
        assert_eq!(rig.admit(id, &tokens) as usize, 4 * T);
    }
    empty_pass(rig);
    rig.drain();
    assert_eq!(
        rig.poll_all(&[20, 21, 22, 23]).unwrap().loaded,
        [20, 21, 22, 23]
    );
    (20..24).for_each(|id| rig.check(id));
}

#[test]
fn case_37_a_load_is_finished_in_each_of_its_states() {
    for announced in [false, true] {
        for steps in 0..=6 {
            let mut rig = advanced(steps);
            if announced {
                let loaded = rig.poll_all(&[7]).unwrap().loaded;
                // What was reported has no load any more.
                if !loaded.is_empty() {
                    assert_eq!((loaded, steps), (vec![7], 6));
                }
            }
            let pinned = rig.finish(7, FinishReason::Cancelled);
            assert!(pinned, "{steps}");
            let polled = rig.poll_all(&[]).unwrap();
            assert!(polled.loaded.is_empty() && polled.failed.is_empty());
            // Its pages come back only when the item has ended.
            assert_eq!(polled.saved.is_empty(), steps < 6, "{steps}");
            if steps < 6 {
                assert_eq!(rig.stepper.step(0), Some(LaneStep::Done), "{steps}");
                assert_eq!(rig.poll(), [7]);
            }
            let garbage = rig.ranks[0].cache.snapshot();
            rig.drain();
            assert!(rig.ranks[0].cache.snapshot() == garbage, "{steps}");
            assert!(rig.poll_all(&[]).unwrap().loaded.is_empty());
            still_works(&mut rig);
        }
    }
}

#[test]
fn case_37_a_load_is_reset_in_each_of_its_states() {
    for announced in [false, true] {
        for steps in 0..=6 {
            let mut rig = advanced(steps);
            if announced {
                rig.poll_all(&[7]).unwrap();
            }
            rig.reset(7);
            let garbage = rig.ranks[0].cache.snapshot();
            rig.drain();
            assert!(rig.ranks[0].cache.snapshot() == garbage, "{steps}");
            assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default(), "{steps}");
            still_works(&mut rig);
        }
    }
}

#[test]
fn a_reset_between_build_and_bind_moves_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    let metadata = rig.build(&[]);
    rig.reset(7);
    rig.admit(7, &tokens);
    let garbage = rig.ranks[0].cache.snapshot();
    rig.bind(&metadata);
    rig.drain();
    assert!(rig.ranks[0].cache.snapshot() == garbage);
    assert_eq!(rig.poll_all(&[7]).unwrap(), Polled::default());
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn other_ranks_hear_of_ended_lives_with_the_next_metadata() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    let first = rig.build(&[]);
    rig.bind(&first);
    // Ended here, and another life of the id begins before anybody polled.
    rig.scheduler.reset(7).unwrap();
    let live = rig.live.remove(&7).unwrap();
    rig.parked.remove(&7);
    rig.admit(7, &tokens);
    let second = rig.build(&[]);
    assert_eq!(second.ended().len(), 1);
    rig.bind(&second);
    let before: Vec<_> = live.pages[0]
        .iter()
        .map(|&page| {
            let kind = rig.ranks[1].cache.parts()[0];
            rig.ranks[1].cache.read(kind, page)
        })
        .collect();
    rig.drain();
    for (page, before) in live.pages[0].iter().zip(before) {
        let kind = rig.ranks[1].cache.parts()[0];
        assert!(rig.ranks[1].cache.read(kind, *page) == before);
    }
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn an_unregistered_layout_fails_what_is_on_its_way() {
    for steps in 0..=5 {
        let mut rig = advanced(steps);
        rig.ranks[0].worker.unregister_layout().unwrap();
        let after = rig.ranks[0].cache.snapshot();
        rig.stepper.run_all();
        assert!(rig.ranks[0].cache.snapshot() == after);
        let polled = rig.poll_all(&[7]).unwrap();
        assert_eq!(
            (&polled.loaded[..], &polled.failed[..]),
            (&[7][..], &[7][..])
        );
        let again = rig.ranks[0].cache.register();
        rig.ranks[0].worker.register_layout(again).unwrap();
        rig.reset(7);
        // The block that did not arrive is not asked for again.
        let tokens = prompt(1, 4 * T + 1);
        assert!(rig.admit(7, &tokens) < 4 * T as u64);
    }
}

#[test]
fn a_load_of_nothing_that_is_broken_off_lost_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let offered = rig.offer(7, &tokens, 0);
    rig.settle(7, &tokens, offered, 0);
    empty_pass(&mut rig);
    rig.ranks[0].worker.unregister_layout().unwrap();
    let polled = rig.poll_all(&[7]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[][..])
    );
    let again = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(again).unwrap();
    rig.reset(7);
    // No block failed, so all are offered again.
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
}

#[test]
fn under_tp_an_unregistered_layout_forgets_what_is_on_its_way() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    rig.poll_all(&[7]).unwrap();
    rig.stepper.step(0);
    for rank in &mut rig.ranks {
        rank.worker.unregister_layout().unwrap();
        rank.worker.register_layout(rank.cache.register()).unwrap();
    }
    assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default());
    rig.reset(7);
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn a_shutdown_in_each_state_touches_nothing_afterwards() {
    for steps in 0..=6 {
        let mut rig = advanced(steps);
        rig.ranks[0]
            .worker
            .shutdown(std::time::Duration::from_secs(5))
            .unwrap();
        let after = rig.ranks[0].cache.snapshot();
        rig.stepper.run_all();
        assert!(rig.ranks[0].cache.snapshot() == after, "{steps}");
        assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
        assert!(rig.stepper.pending().is_empty());
    }
}

#[test]
fn a_load_that_is_stuck_in_the_pool_outlives_the_shutdown_and_writes_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        stepped: false,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    let (come, came) = mpsc::channel();
    let (go, stop) = mpsc::channel::<()>();
    let (come, stop) = (Mutex::new(come), Mutex::new(stop));
    let hook = Action::Hook(Arc::new(move || {
        let _ = come.lock().send(());
        // An error is the sender's end.
        let _ = stop.lock().recv();
    }));
    rig.script(vec![rule(Call::Get, Which::All, hook)]);
    rig.admit(7, &tokens);
    let before = rig.ranks[0].cache.snapshot();
    empty_pass(&mut rig);
    came.recv().unwrap();
    let worker = &mut rig.ranks[0].worker;
    let busy = worker.shutdown(Duration::from_millis(50)).unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    drop(go);
    worker.shutdown(Duration::from_secs(60)).unwrap();
    assert_eq!(worker.handle().gauges().loads_in_flight, 0);
    assert!(rig.ranks[0].cache.snapshot() == before);
}

#[test]
fn real_threads_load_many_requests() {
    let setup = Setup {
        stepped: false,
        groups: two_groups(),
        slots: 2048,
        ..parking()
    };
    let tokens = prompt(1, 8 * T + 1);
    let mut rig = stocked(setup, &tokens);
    let ids: Vec<u64> = (1..=100).collect();
    for &id in &ids {
        rig.admit(id, &tokens);
    }
    empty_pass(&mut rig);
    let mut loaded = rig.poll_all(&ids).unwrap().loaded;
    rig.drain();
    loaded.extend(rig.poll_all(&[]).unwrap().loaded);
    loaded.sort_unstable();
    assert_eq!(loaded, ids);
    ids.iter().for_each(|&id| rig.check(id));
    rig.pass(&ids.iter().map(|&id| (id, 1)).collect::<Vec<_>>());
    rig.drain();
}

#[test]
fn more_pages_of_a_waiting_request_may_be_reported() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    let page = rig.take_pages(1);
    let more = [GroupPages {
        group: 0,
        first_block: 3,
        indices: &page,
        replace: false,
    }];
    rig.scheduler.allocated(7, 0, &more).unwrap();
    let error = rig.scheduler.allocated(7, T as u64, &more).unwrap_err();
    assert_eq!(error.kind(), Kind::BadState);
    rig.drain();
    rig.poll_all(&[7]).unwrap();
    rig.check(7);
}

#[test]
fn halves_that_disagree_about_asynchronous_loads_refuse_each_other() {
    let tokens = prompt(1, 2 * T + 1);
    let mut parked = stocked(parking(), &tokens);
    let mut direct = Rig::on(
        Setup {
            async_load: false,
            ..parking()
        },
        Arc::clone(&parked.pool),
    );
    parked.admit(7, &tokens);
    let metadata = parked.build(&[]);
    direct.bind(&metadata);
    assert_eq!(direct.start_load().unwrap_err().kind(), Kind::Contradiction);
    assert!(direct.stepper.pending().is_empty());
}

#[test]
fn a_producer_neither_offers_nor_starts_load_threads() {
    let text = r#"{"model_key": "m", "role": "producer", "async_load": true}"#;
    let config = Config::from_json(text.as_bytes()).unwrap();
    let terms = parking().engine(0).terms(&config).unwrap();
    assert!(!terms.async_load);
    let mut rig = stocked(parking(), &prompt(1, T));
    assert_eq!(rig.start_load().unwrap_err().kind(), Kind::BadState);
    rig.ranks[0]
        .worker
        .start_load(Stream::default())
        .unwrap_err();
}
