//! A device that is lost for good: the worker says so in every call that would use it, and gives back what it holds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
mod rig;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use kvbridge::device::Stream;
use kvbridge::error::{Kind, Result};
use kvbridge::scheduler::FinishReason;
use rig::{Rig, Setup, Sick, T, prompt, rig_on};

/// A rig on such a device that has published `tokens`.
fn stocked(setup: Setup, tokens: &[i32]) -> (Rig, Arc<Sick>) {
    let (mut rig, device) = rig_on(setup, Sick::default());
    rig.publish(1, tokens);
    (rig, device)
}

fn kinds(rig: &mut Rig, call: impl Fn(&mut kvbridge::worker::Worker) -> Result<()>) -> Vec<Kind> {
    let ranks = rig.ranks.iter_mut();
    ranks
        .map(|rank| call(&mut rank.worker).unwrap_err().kind())
        .collect()
}

/// From now on, on every rank: no load, no save, and a shutdown that ends.
fn stays_lost(rig: &mut Rig) {
    let lost = vec![Kind::DeviceLost; rig.ranks.len()];
    for _ in 0..2 {
        let metadata = rig.build(&[]);
        rig.bind(&metadata);
        assert_eq!(kinds(rig, |worker| worker.start_load(Stream(0))), lost);
        assert_eq!(kinds(rig, |worker| worker.wait_for_save(Stream(0))), lost);
    }
    for rank in &mut rig.ranks {
        rank.worker.unregister_layout().unwrap();
        rank.worker.shutdown(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn what_was_queued_is_given_back_and_nothing_is_stored() {
    for world in [1, 2] {
        let first = prompt(1, 3 * T);
        let (mut rig, device) = stocked(
            Setup {
                world,
                ..Setup::default()
            },
            &first,
        );
        let before = rig.stored();
        let second = prompt(2, 3 * T);
        rig.admit(2, &second);
        rig.pass(&[(2, 3 * T)]);
        device.lost.store(true, Ordering::SeqCst);
        assert!(rig.finish(2, FinishReason::Ended), "its pages are pinned");
        assert_eq!(rig.poll(), [0; 0], "its saves are queued");
        rig.drain();
        assert_eq!(rig.poll(), [2]);
        assert_eq!(rig.stored(), before);
        stays_lost(&mut rig);
    }
}

#[test]
fn a_load_of_one_rank_hands_its_request_back_and_says_why() {
    let first = prompt(1, 4 * T);
    let (mut rig, device) = stocked(Setup::default(), &first);
    assert!(rig.admit(2, &first) > 0);
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    device.lost.store(true, Ordering::SeqCst);
    let error = rig.start_load().unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (Kind::DeviceLost, "by script")
    );
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    rig.reset(2);
    stays_lost(&mut rig);
}

#[test]
fn under_tp_no_rank_counts_the_pass() {
    let first = prompt(1, 4 * T);
    let setup = Setup {
        world: 2,
        ..Setup::default()
    };
    let (mut rig, device) = stocked(setup, &first);
    assert!(rig.admit(2, &first) > 0);
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    device.lost.store(true, Ordering::SeqCst);
    let lost = [Kind::DeviceLost; 2];
    assert_eq!(kinds(&mut rig, |worker| worker.start_load(Stream(0))), lost);
    assert_eq!(
        kinds(&mut rig, |worker| worker.wait_for_save(Stream(0))),
        lost
    );
    rig.finish(2, FinishReason::Cancelled);
    rig.poll();
    stays_lost(&mut rig);
}

/// The load of a parked request, at each of its steps.
#[test]
fn an_asynchronous_load_ends_as_failed_and_polls_go_on() {
    for steps in 0.. {
        let first = prompt(1, 4 * T);
        let setup = Setup {
            async_load: true,
            ..Setup::default()
        };
        let (mut rig, device) = stocked(setup, &first);
        assert!(rig.admit(2, &first) > 0);
        let metadata = rig.build(&[]);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        let more = (0..steps).all(|_| rig.stepper.step(0).is_some());
        device.lost.store(true, Ordering::SeqCst);
        rig.drain();
        let polled = rig.poll_all(&[2]).unwrap();
        assert_eq!(polled.loaded, [2], "{steps}");
        if !more {
            assert_eq!(polled.failed, [0; 0], "it was done before");
            rig.check(2);
            stays_lost(&mut rig);
            assert!(steps > 2, "{steps}");
            return;
        }
        if polled.failed == [2] {
            rig.reset(2);
        }
        stays_lost(&mut rig);
    }
}

/// Nobody can restart it, so it never runs; polls go on with the others.
#[test]
fn under_tp_an_asynchronous_load_that_lost_pages_is_never_reported() {
    let (first, second) = (prompt(1, 4 * T), prompt(3, 3 * T));
    let setup = Setup {
        world: 2,
        async_load: true,
        ..Setup::default()
    };
    let (mut rig, device) = stocked(setup, &first);
    rig.admit(3, &second);
    rig.pass(&[(3, 3 * T)]);
    assert!(rig.admit(2, &first) > 0);
    let metadata = rig.build(&[]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    device.lost.store(true, Ordering::SeqCst);
    rig.finish(3, FinishReason::Ended);
    rig.poll_all(&[2]).unwrap();
    rig.drain();
    let polled = rig.poll_all(&[2]).unwrap();
    assert_eq!((polled.loaded, polled.failed), (vec![], vec![]));
    assert!(!rig.ending.contains_key(&3), "its pages came back");
    rig.finish(2, FinishReason::Cancelled);
    rig.poll();
    stays_lost(&mut rig);
}
