//! Passes that are replaced, never run, come late or from another scheduler.

use std::sync::Arc;

use crate::rig::{Rig, T, prompt};
use crate::{half_known, small, verify};
use kvbridge::error::Kind;
use kvbridge::link::OPEN_PASSES;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::Call;

#[test]
fn a_bound_pass_that_is_replaced_hands_its_loads_back_and_its_saves_stay_open() {
    let mut rig = Rig::new(small());
    let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.publish(9, &one);
    rig.admit(1, &one);
    rig.admit(2, &two);
    let metadata = rig.build(&[(1, T), (2, 2 * T)]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.saves().blocks()),
        (3, 3)
    );
    rig.bind(&metadata);
    // No start_load, no forward pass, no wait_for_save: the next pass comes.
    let next = rig.build(&[(2, 3 * T)]);
    assert_eq!(next.saves().blocks(), 3, "emitted again, watermark unmoved");
    rig.bind(&next);
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [1]);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.finish(1, FinishReason::Preempted);
    rig.start_load().unwrap();
    rig.forward(&[(2, 3 * T)]);
    rig.wait_for_save();
    assert_eq!(rig.poll(), [1]);
    rig.drain();
    assert_eq!(rig.asked(Call::Get), 0);
    assert_eq!(verify(&rig, &two), 3);
}

/// The next pass was built before the engine heard that the request is handed back.
#[test]
fn a_request_that_was_handed_back_publishes_nothing_in_the_next_pass() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 2 * T);
    rig.publish(9, &tokens[..T]);
    rig.admit(1, &tokens);
    let metadata = rig.build(&[(1, 1)]);
    rig.bind(&metadata);
    let next = rig.build(&[(1, T)]);
    assert_eq!((next.loads().blocks(), next.saves().blocks()), (1, 1));
    rig.bind(&next);
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [1]);
    // It leaves the batch here: nothing is computed.
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.drain();
    assert_eq!((rig.stored(), rig.asked(Call::Get)), (1, 0));
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
}

#[test]
fn a_pass_that_never_ran_publishes_nothing() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    for _ in 0..3 {
        let metadata = rig.build(&[(1, 2 * T)]);
        assert_eq!(metadata.saves().blocks(), 2);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        rig.drain();
        assert_eq!(rig.stored(), 0);
    }
    rig.pass(&[(1, 3 * T)]);
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 3);
}

#[test]
fn a_pass_built_before_a_report_and_bound_after_it_touches_nothing() {
    // The request was bound before; or it was not, but a younger one was.
    for bound_before in [true, false] {
        let mut rig = Rig::new(small());
        let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
        rig.publish(9, &one[..2 * T]);
        rig.admit(1, &one);
        rig.admit(2, &two);
        if bound_before {
            rig.pass(&[(1, T), (2, T)]);
        } else {
            rig.pass(&[(2, T)]);
        }
        rig.drain();
        let ahead = rig.build(&[(1, T), (2, T)]);
        assert_eq!(ahead.loads().blocks(), if bound_before { 0 } else { 2 });
        // Request 1 is cancelled, reported at once, and its pages are overwritten.
        assert!(rig.finish(1, FinishReason::Cancelled));
        assert_eq!(rig.poll(), [1]);
        let gets = rig.asked(Call::Get);
        rig.bind(&ahead);
        rig.start_load().unwrap();
        rig.forward(&[(2, T)]);
        rig.wait_for_save();
        rig.drain();
        assert_eq!(
            rig.asked(Call::Get),
            gets,
            "nothing is loaded into pages that were given back"
        );
        assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
        assert_eq!(verify(&rig, &two), 2);
        let known = verify(&rig, &one);
        assert_eq!(known, if bound_before { 3 } else { 2 });
        // The next life of the id is not taken for the old one.
        rig.admit(1, &one);
        let rest = one.len() - rig.live[&1].restore;
        rig.pass(&[(1, rest)]);
        rig.drain();
        assert_eq!(verify(&rig, &one), 4);
    }
}

#[test]
fn a_scheduler_that_is_made_anew_starts_new_lives() {
    let mut rig = Rig::new(small());
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    for _ in 0..20 {
        rig.publish(1, &one);
    }
    let handle = rig.ranks[0].worker.handle();
    let terms = handle.terms().clone();
    // The first one is dropped before the second one is connected.
    struct Nobody;
    impl kvbridge::link::LocalWorker for Nobody {
        fn life_ended(&self, _: u64, _: u64) {}
        fn life_released(&self, _: u64, _: u64) {}
        fn inherits_transfers(&self, _: u64) -> bool {
            false
        }
        fn source(&self) -> u64 {
            1
        }
        fn lookup(&self, _: &[u8]) -> usize {
            0
        }
        fn groups(&self) -> Option<Arc<[kvbridge::link::GroupInfo]>> {
            None
        }
        fn take_report(&self, _: &mut kvbridge::link::Report) {}
    }
    let make = |link| kvbridge::scheduler::Scheduler::new(terms.clone(), link).unwrap();
    rig.scheduler = make(Arc::new(Nobody));
    rig.scheduler = make(handle.link().unwrap());
    rig.publish(1, &two);
    assert_eq!(verify(&rig, &two), 2);
}

#[test]
fn metadata_of_another_scheduler_is_refused() {
    let mut rig = Rig::new(small());
    let mut other = Rig::on(small(), Arc::clone(&rig.pool));
    let (_, metadata) = half_known(&mut rig);
    other.bind(&metadata);
    let error = other.start_load().unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(error.message().contains("another scheduler"), "{error}");
    other.wait_for_save();
    other.drain();
    assert_eq!(other.asked(Call::Put), 0);
}

#[test]
fn what_became_of_another_schedulers_pass_moves_no_watermark() {
    let mut rig = Rig::new(small());
    let handle = rig.ranks[0].worker.handle();
    let terms = handle.terms().clone();
    let old = prompt(1, 2 * T);
    rig.admit(1, &old);
    let metadata = rig.build(&[(1, 2 * T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.forward(&[(1, 2 * T)]);
    // Another scheduler comes; its first pass has the same number as the bound one.
    struct Nobody;
    impl kvbridge::link::LocalWorker for Nobody {
        fn lookup(&self, _: &[u8]) -> usize {
            0
        }
        fn groups(&self) -> Option<Arc<[kvbridge::link::GroupInfo]>> {
            None
        }
        fn take_report(&self, _: &mut kvbridge::link::Report) {}
        fn life_ended(&self, _: u64, _: u64) {}
        fn life_released(&self, _: u64, _: u64) {}
        fn inherits_transfers(&self, _: u64) -> bool {
            false
        }
        fn source(&self) -> u64 {
            1
        }
    }
    let make = |link| kvbridge::scheduler::Scheduler::new(terms.clone(), link).unwrap();
    rig.scheduler = make(Arc::new(Nobody));
    rig.scheduler = make(handle.link().unwrap());
    let new = prompt(2, 2 * T);
    rig.admit(2, &new);
    assert_eq!(rig.build(&[(2, 2 * T)]).saves().blocks(), 2);
    rig.wait_for_save();
    // Its own pass never ran, so it is built again.
    assert_eq!(rig.build(&[(2, 2 * T)]).saves().blocks(), 2);
}

#[test]
fn without_a_layout_requests_sit_out_and_no_call_fails() {
    let mut rig = Rig::new(small());
    rig.ranks[0].worker.unregister_layout().unwrap();
    let tokens = prompt(1, 2 * T);
    assert_eq!(rig.admit(1, &tokens), 0);
    assert_eq!(rig.build(&[(1, 2 * T)]).saves().blocks(), 0);
    let memory = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(memory).unwrap();
    // Its pages were never entered: it stays out, and a new life takes part.
    rig.forward(&[(1, 2 * T)]);
    assert_eq!(rig.build(&[(1, 0)]).saves().blocks(), 0);
    rig.scheduler.reset(1).unwrap();
    rig.publish(2, &tokens);
    assert_eq!(verify(&rig, &tokens), 2);
}

#[test]
fn a_pass_that_is_bound_as_late_as_one_can_be_touches_nothing() {
    let mut rig = Rig::new(small());
    let (tokens, late) = half_known(&mut rig);
    assert!(rig.finish(6, FinishReason::Cancelled));
    assert_eq!(rig.poll(), [6]);
    // All that may be built ahead, this one last.
    for _ in 1..OPEN_PASSES {
        rig.pass(&[]);
    }
    let before = rig.ranks[0].cache.snapshot();
    rig.bind(&late);
    rig.start_load().unwrap();
    rig.wait_for_save();
    rig.drain();
    assert!(rig.ranks[0].cache.snapshot() == before);
    assert_eq!(verify(&rig, &tokens), 2);
}
