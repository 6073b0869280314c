//! Request ids that come again while something of an earlier life is under way, and pages that are
//! released without a handshake. Such pages are overwritten at once.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;

use kvbridge::lane::Step;
use kvbridge::scheduler::{FinishReason, Scheduler};
use rig::{Rig, Setup, T, pool, prompt};

/// A rig whose pool holds these tokens' blocks.
fn stocked(setup: Setup, tokens: &[i32]) -> Rig {
    let mut writer = Rig::on(setup.clone(), pool(1 << 22));
    writer.publish(1, tokens);
    Rig::on(setup, Arc::clone(&writer.pool))
}

fn setup(world: u32) -> Setup {
    Setup {
        world,
        batch: 2,
        ..Setup::default()
    }
}

#[test]
fn the_end_of_an_earlier_life_leaves_the_next_ones_load_alone() {
    for world in [1, 2] {
        for when in 0..3 {
            let tokens = prompt(1, 4 * T + 1);
            let mut rig = stocked(setup(world), &tokens);
            rig.admit(7, &prompt(2, 3 * T));
            rig.pass(&[(7, 3 * T)]);
            assert!(rig.finish(7, FinishReason::Preempted));
            // It comes again; before it is allocated another request, matched later, has its pass.
            let offered = rig.offer(7, &tokens, 0);
            assert_eq!(offered as usize, 4 * T);
            rig.admit(8, &prompt(3, 2 * T));
            rig.pass(&[(8, 2 * T)]);
            rig.drain();
            if when == 0 {
                assert_eq!(rig.poll(), [7]);
            }
            rig.settle(7, &tokens, offered, offered as usize);
            let metadata = rig.build(&[(7, 1)]);
            rig.bind(&metadata);
            if when == 1 {
                assert_eq!(rig.poll(), [7]);
            }
            rig.start_load().unwrap();
            rig.forward(&[(7, 1)]);
            rig.check(7);
            if when == 2 {
                assert_eq!(rig.poll(), [7]);
            }
            rig.wait_for_save();
            rig.drain();
            assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
            assert_eq!(rig.stats().loaded_pages, 4, "{world} {when}");
        }
    }
}

#[test]
fn pages_that_a_reset_releases_are_read_no_more() {
    for steps in 0..4 {
        let mut rig = Rig::new(setup(1));
        let tokens = prompt(1, 6 * T);
        rig.admit(1, &tokens);
        rig.pass(&[(1, 6 * T)]);
        for _ in 0..steps {
            assert_eq!(rig.stepper.step(0), Some(Step::More));
        }
        rig.reset(1);
        rig.drain();
        let stats = rig.stats();
        assert_eq!(stats.saved_pages, 2 * steps.min(3));
        assert_eq!(stats.dropped_save_pages, 6 - 2 * steps.min(3));
        // What the pool has is right, and its last blocks were put first.
        let mut reader = Rig::on(setup(1), Arc::clone(&rig.pool));
        let longer = [&tokens[..], &[1]].concat();
        let offered = reader.admit(2, &longer) as usize;
        assert_eq!(offered, if steps < 3 { 0 } else { 6 * T });
        reader.pass(&[(2, longer.len() - offered)]);
        reader.check(2);
        // Another life of the id is not hindered.
        rig.publish(1, &tokens);
        assert_eq!(rig.stored(), 6);
    }
}

#[test]
fn what_an_earlier_scheduler_queued_pins() {
    let mut rig = Rig::new(setup(1));
    let tokens = prompt(1, 4 * T);
    rig.admit(2, &tokens);
    rig.pass(&[(2, 4 * T)]);
    let handle = rig.ranks[0].worker.handle();
    // Only one at a time: the first one's link goes before the next one comes.
    let terms = handle.terms().clone();
    let placeholder = Rig::new(setup(1)).scheduler;
    drop(std::mem::replace(&mut rig.scheduler, placeholder));
    rig.scheduler = Scheduler::new(terms, handle.link().unwrap()).unwrap();
    assert!(rig.finish(2, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    rig.drain();
    assert_eq!(rig.poll(), [2]);
    assert!(!rig.scheduler.finished(2, FinishReason::Ended));
}
