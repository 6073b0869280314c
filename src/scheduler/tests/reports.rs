//! What became of earlier passes, and what ends a life.

use super::*;

#[test]
fn b5_a_pass_that_was_not_submitted_is_emitted_again() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let first = bench.build(&[step(1, &prompt, 0, 8)]);
    assert_eq!(saves(&first), [0, 1]);
    // Built and never run: the engine schedules the same again, or more.
    assert_eq!(saves(&bench.build(&[step(1, &[], 0, 8)])), [0, 1]);
    let third = bench.build(&[step(1, &[], 0, 12)]);
    assert_eq!(saves(&third), [0, 1, 2]);
    bench.submitted(&third);
    let fourth = bench.build(&[step(1, &[], 12, 4)]);
    assert_eq!(saves(&fourth), [3]);
    // A late report about a pass before it confirms nothing more, nor does one about no pass.
    bench.submitted(&first);
    bench.fake.report.lock().submitted.push(999);
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 4)])), [3, 4]);
}

#[test]
fn b5_a_report_about_an_earlier_life_confirms_nothing() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let old = bench.build(&[step(1, &prompt, 0, 8)]);
    bench.scheduler.reset(1).unwrap();
    bench.admit(1, &prompt, 0);
    bench.submitted(&old);
    bench.fake.report.lock().failed_saves.push(BlockOf {
        request_id: 1,
        generation: old.saves().runs()[0].generation,
        block: 1,
    });
    let new = bench.build(&[step(1, &prompt, 0, 4)]);
    assert_eq!(saves(&new), [0]);
    assert!(new.saves().runs()[0].generation > old.saves().runs()[0].generation);
}

#[test]
fn b5_failed_saves_go_with_the_next_completed_block() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let first = bench.build(&[step(1, &prompt, 0, 16)]);
    bench.submitted(&first);
    let generation = first.saves().runs()[0].generation;
    let failed = |block| BlockOf {
        request_id: 1,
        generation,
        block,
    };
    bench
        .fake
        .report
        .lock()
        .failed_saves
        .extend([failed(2), failed(1), failed(2)]);
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 2)])), [0u32; 0]);
    // Twice built, once submitted.
    let lost = bench.build(&[step(1, &[], 18, 2)]);
    assert_eq!(saves(&lost), [1, 2, 4]);
    let second = bench.build(&[step(1, &[], 18, 2)]);
    assert_eq!(saves(&second), [1, 2, 4]);
    bench.submitted(&second);
    bench.fake.report.lock().failed_saves.push(failed(1));
    let third = bench.build(&[step(1, &[], 20, 4)]);
    assert_eq!(saves(&third), [1, 5]);
    bench.submitted(&third);
    assert_eq!(saves(&bench.build(&[step(1, &[], 24, 4)])), [6]);
    // A failure of a pass that was not reported as submitted is no reason to emit a block twice.
    bench.fake.report.lock().failed_saves.push(failed(6));
    assert_eq!(saves(&bench.build(&[step(1, &[], 28, 4)])), [6, 7]);
}

#[test]
fn b6_any_emitted_save_pins_until_the_id_is_reported() {
    let mut bench = bench();
    let prompt = tokens(10);
    bench.admit(1, &prompt, 0);
    bench.build(&[step(1, &prompt, 0, 3)]);
    assert!(!bench.scheduler.finished(1, FinishReason::Ended));
    bench.admit(1, &prompt, 0);
    bench.build(&[step(1, &prompt, 0, 4)]);
    assert!(bench.scheduler.finished(1, FinishReason::Preempted));
    assert!(bench.scheduler.finished(1, FinishReason::Ended), "again");
    bench.fake.report.lock().released.push(1);
    assert!(!bench.scheduler.finished(1, FinishReason::Ended));
    // An id that comes again without an end: saves of its earlier life still pin it.
    bench.admit(2, &prompt, 0);
    bench.build(&[step(2, &prompt, 0, 4)]);
    bench.admit(2, &prompt, 0);
    assert!(bench.scheduler.finished(2, FinishReason::Ended));
    assert_eq!(bench.scheduler.live_requests(), 0);
}

#[test]
fn b6_reset_forgets_the_allocation() {
    let mut bench = bench();
    bench.store(2);
    let prompt = tokens(20);
    bench.admit(1, &prompt, 2);
    bench.build(&[step(1, &prompt, 0, 12)]);
    bench.scheduler.reset(1).unwrap();
    // Steps about it are skipped; pages may differ now, and it is matched anew.
    assert_eq!(loads(&bench.build(&[step(1, &[], 20, 1)])), [0u32; 0]);
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    bench
        .scheduler
        .allocated(1, 0, &[pages(0, &[90, 91, 92, 93, 94])])
        .unwrap();
    let metadata = bench.build(&[step(1, &prompt, 0, 4)]);
    let view = metadata.views(metadata.saves()).next().unwrap();
    assert_eq!((view.run.first_block, view.pages), (0, &[90][..]));
}

#[test]
fn a_request_that_lost_pages_publishes_nothing_until_it_was_reset() {
    let mut bench = bench();
    bench.store(3);
    let prompt = tokens(40);
    bench.admit(1, &prompt, 3);
    let first = bench.build(&[step(1, &prompt, 0, 4)]);
    bench.started(&first);
    bench.submitted(&first);
    bench.fake.report.lock().failed_loads.push(BlockOf {
        request_id: 1,
        generation: first.loads().runs()[0].generation,
        block: 2,
    });
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 4)])), [0u32; 0]);
    bench.scheduler.reset(1).unwrap();
    bench.store(9);
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    assert_eq!(bench.offer(1, &prompt, 12), 0);
    assert!(!bench.scheduler.finished(1, FinishReason::Preempted));
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    bench.scheduler.finished(1, FinishReason::Cancelled);
    assert_eq!(bench.offer(1, &prompt, 0), 36);
}

#[test]
fn without_a_layout_requests_take_no_part() {
    let mut bench = bench();
    *bench.fake.groups.lock() = None;
    let prompt = tokens(20);
    assert_eq!(bench.offer(1, &prompt, 0), 0);
    bench.scheduler.allocated(1, 0, &[]).unwrap();
    // Pages that nobody can place make it sit out; no call fails for it.
    bench.scheduler.allocated(1, 0, &[pages(0, &[1])]).unwrap();
    assert_eq!(saves(&bench.build(&[step(1, &prompt, 0, 20)])), [0u32; 0]);
    // Unregistered with a load that did not travel yet.
    *bench.fake.groups.lock() = Some(groups(1));
    bench.store(3);
    bench.admit(2, &prompt, 3);
    *bench.fake.groups.lock() = None;
    bench.refuses(Kind::BadState, |scheduler| {
        scheduler.build(&[step(2, &prompt, 0, 4)])
    });
    bench.scheduler.reset(2).unwrap();
    bench.build(&[step(2, &prompt, 0, 4)]);
}
