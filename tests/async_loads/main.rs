//! Asynchronous loads, step by step: who waits for what, what is reported when, and that nothing is
//! written into pages that were given back. Such pages are overwritten at once, so a late write shows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod ends;
mod fences;
#[path = "../rig/mod.rs"]
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
