//! Requests that end, are reset or come again while something of them is under way.

use crate::rig::{Rig, T, prompt};
use crate::{half_known, small, verify};
use kvbridge::error::Kind;
use kvbridge::lane::Step;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::Call;

#[test]
fn a_finish_while_a_save_is_half_way() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 6 * T)]);
    assert_eq!(rig.stepper.step(0), Some(Step::More));
    assert!(rig.finish(1, FinishReason::Ended));
    for _ in 0..2 {
        assert!(rig.poll().is_empty());
        assert_eq!(rig.stepper.step(0), Some(Step::More));
    }
    // All is put; the item does not know yet that it has ended.
    assert!(rig.poll().is_empty());
    assert_eq!(rig.stepper.step(0), Some(Step::Done));
    assert_eq!(rig.poll(), [1]);
    assert!(rig.poll().is_empty());
    assert_eq!(verify(&rig, &tokens), 6);
}

#[test]
fn an_id_is_used_again_while_its_earlier_save_is_pending() {
    let mut rig = Rig::new(small());
    let (old, new) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.admit(1, &old);
    rig.pass(&[(1, 4 * T)]);
    assert!(rig.finish(1, FinishReason::Preempted));
    assert!(rig.poll().is_empty());
    rig.scheduler.reset(1).unwrap();
    // The same id with another prompt, on other pages; its save is queued behind the old one.
    rig.admit(1, &new);
    let metadata = rig.pass(&[(1, 4 * T)]);
    assert_eq!(metadata.saves().blocks(), 4);
    assert!(rig.poll().is_empty());
    rig.stepper.step(0);
    assert!(rig.poll().is_empty());
    while rig.stepper.pending().len() == 2 {
        rig.stepper.step(0);
    }
    // The old life is done and its pages are overwritten; the new one goes on.
    assert_eq!(rig.poll(), [1]);
    assert!(rig.poll().is_empty());
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    assert_eq!((verify(&rig, &old), verify(&rig, &new)), (4, 4));
}

#[test]
fn announcements_persist_and_are_answered_once() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    assert!(rig.scheduler.finished(1, FinishReason::Ended));
    assert!(rig.scheduler.finished(1, FinishReason::Ended), "twice");
    let worker = &mut rig.ranks[0].worker;
    for announced in [&[1, 1][..], &[1], &[]] {
        assert!(
            worker
                .get_finished(announced, &[])
                .unwrap()
                .saved
                .is_empty()
        );
    }
    rig.stepper.run_all();
    let worker = &mut rig.ranks[0].worker;
    assert_eq!(worker.get_finished(&[], &[]).unwrap().saved, [1]);
    assert!(worker.get_finished(&[], &[]).unwrap().saved.is_empty());
    assert!(!rig.scheduler.finished(1, FinishReason::Ended));
    // Never announced: never reported.
    rig.admit(2, &tokens);
    rig.pass(&[(2, T)]);
    rig.drain();
    assert!(
        rig.ranks[0]
            .worker
            .get_finished(&[], &[])
            .unwrap()
            .saved
            .is_empty()
    );
}

#[test]
fn a_request_that_ends_between_build_and_bind_moves_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    // Pinned, announced, and reported at once, since nothing was queued: the pages are overwritten.
    assert!(rig.finish(6, FinishReason::Cancelled));
    assert_eq!(rig.poll(), [6]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.asked(Call::Get), 0, "freed pages were loaded into");
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_request_that_is_reset_between_load_and_save_publishes_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.scheduler.reset(6).unwrap();
    rig.wait_for_save();
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_request_that_is_cancelled_before_its_forward_pass_publishes_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, metadata) = half_known(&mut rig);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    // The batch runs without it, so its chunk is never computed.
    assert!(rig.finish(6, FinishReason::Cancelled));
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.poll(), [6]);
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_report_that_comes_twice_is_a_contradiction() {
    let mut rig = Rig::new(small());
    let (tokens, _) = half_known(&mut rig);
    // As an engine would that thinks the report of a pass that never ran did not count.
    let again = kvbridge::scheduler::Step {
        request_id: 6,
        new_tokens: kvbridge::keys::Tokens::I32(&tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 2 * T as u64,
    };
    let error = rig.scheduler.build(&[again]).unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(error.message().contains("new tokens"), "{error}");
    assert_eq!(rig.build(&[(6, 2 * T)]).saves().blocks(), 2);
}

#[test]
fn an_end_that_was_heard_of_is_not_reported_as_a_lost_load_later() {
    let mut rig = Rig::new(small());
    rig.publish(9, &prompt(1, 2 * T));
    let (loads, saves) = (prompt(1, 3 * T), prompt(2, 2 * T));
    rig.admit(1, &loads);
    rig.admit(2, &saves);
    let metadata = rig.build(&[(1, T), (2, 2 * T)]);
    rig.bind(&metadata);
    rig.finish(1, FinishReason::Cancelled);
    // Nothing is left to load, so the pass may go on without start_load.
    rig.forward(&[(2, 2 * T)]);
    rig.wait_for_save();
    let next = rig.build(&[]);
    rig.bind(&next);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.drain();
    assert_eq!(verify(&rig, &saves), 2);
}

#[test]
fn an_allocated_request_that_is_asked_about_again_is_settled_by_the_last_answer() {
    let mut rig = Rig::new(small());
    rig.publish(9, &prompt(1, 4 * T));
    let tokens = [prompt(1, 4 * T), prompt(2, T)].concat();
    assert_eq!(rig.offer(1, &tokens, 0), 4 * T as u64);
    rig.allocate(1, &tokens, 0, 4 * T);
    assert_eq!(rig.offer(1, &tokens, 2 * T), 2 * T as u64);
    rig.scheduler.allocated(1, 2 * T as u64, &[]).unwrap();
    let step = kvbridge::scheduler::Step {
        request_id: 1,
        new_tokens: kvbridge::keys::Tokens::I32(&tokens),
        pages: &[],
        computed_position: 2 * T as u64,
        scheduled_tokens: T as u64,
    };
    let metadata = rig.scheduler.build(&[step]).unwrap();
    let run = metadata.loads().runs()[0];
    assert_eq!((run.first_block, run.blocks), (2, 2));
}
