//! What is published, when a request is done, and what may happen to its pages until then.

use std::sync::Arc;

use crate::rig::{Rig, Setup, T, prompt};
use crate::{OWN, stopped};
use kvbridge::scheduler::{FinishReason, GroupPages};
use kvbridge::store::faulty::Call;

#[test]
fn case_03_a_request_is_saved_when_its_last_save_is() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 3 * T);
    rig.admit(1, &tokens);
    for _ in 0..3 {
        rig.pass(&[(1, T)]);
    }
    assert!(rig.finish(1, FinishReason::Ended));
    assert_eq!(rig.stepper.pending().len(), 3);
    // The first save stalls, the later ones end.
    for index in [2, 1] {
        while rig.stepper.step(index) == Some(kvbridge::lane::Step::More) {}
        assert!(rig.poll().is_empty());
    }
    rig.stepper.step(0);
    assert!(rig.poll().is_empty(), "half way");
    rig.stepper.run_all();
    assert_eq!(rig.poll(), [1]);
    assert!(rig.poll().is_empty());
    assert_eq!(rig.stored(), 3);
}

#[test]
fn case_65_rejected_drafts_are_never_published() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 2 * T - 2);
    rig.admit(1, &tokens);
    rig.pass(&[(1, tokens.len())]);
    rig.drain();
    assert_eq!(rig.stored(), 1);
    // The first generated token; then a pass with it and 3 drafts, which would fill block 1 and begin block 2.
    let live = rig.live.get_mut(&1).unwrap();
    live.tokens.push(7);
    let page = rig.take_pages(1)[0];
    rig.live.get_mut(&1).unwrap().pages[0].push(page);
    rig.scheduler
        .allocated(
            1,
            0,
            &[GroupPages {
                group: 0,
                first_block: 2,
                indices: &[page],
                replace: false,
            }],
        )
        .unwrap();
    let metadata = rig.build(&[(1, 4)]);
    assert_eq!(metadata.saves().blocks(), 0, "token 31 is not reported");
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.wait_for_save();
    // One draft was accepted, two rejected; the next token is the 33rd.
    let live = rig.live.get_mut(&1).unwrap();
    live.computed = 2 * T;
    live.tokens.extend([8, 9]);
    let metadata = rig.build(&[(1, 4)]);
    assert_eq!(metadata.saves().blocks(), 1);
    let hash = metadata
        .views(metadata.saves())
        .next()
        .unwrap()
        .hashes
        .to_vec();
    let key = rig.key(&rig.live[&1].tokens[..2 * T], 1, OWN, 0);
    let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(String::from_utf8(key).unwrap().ends_with(&hex));
}

#[test]
fn case_69_pages_ahead_of_the_computation_are_not_published() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    let metadata = rig.pass(&[(1, T)]);
    assert_eq!(metadata.saves().blocks(), 1);
    rig.drain();
    assert_eq!(rig.stored(), 1);
    // A trimmed chunk publishes what it computed.
    assert_eq!(rig.pass(&[(1, T + 3)]).saves().blocks(), 1);
    assert_eq!(rig.pass(&[(1, T - 4)]).saves().blocks(), 0);
    assert_eq!(rig.pass(&[(1, 1)]).saves().blocks(), 1);
}

#[test]
fn case_71_ends_of_requests_that_never_were() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    rig.offer(1, &tokens, 0);
    for reason in [
        FinishReason::Ended,
        FinishReason::Cancelled,
        FinishReason::Preempted,
    ] {
        assert!(!rig.scheduler.finished(1, reason));
        assert!(!rig.scheduler.finished(77, reason));
    }
    rig.scheduler.reset(1).unwrap();
    rig.scheduler.reset(77).unwrap();
    rig.scheduler.cancel_load(77, 0, 16).unwrap();
    rig.scheduler.allocated(77, 16, &[]).unwrap();
    assert_eq!(rig.scheduler.live_requests(), 0);
    let reported = rig.ranks[0].worker.get_finished(&[1, 77], &[]).unwrap();
    assert_eq!(reported.saved, [1, 77]);
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
fn case_1_a_page_that_is_overwritten_while_its_put_is_paused_is_stored_as_it_was() {
    let setup = Setup {
        stepped: false,
        ..Setup::default()
    };
    let mut rig = Rig::new(setup);
    let tokens = prompt(1, 3 * T);
    rig.admit(1, &tokens);
    let (rule, go, came) = stopped(Call::Put);
    rig.script(vec![rule]);
    rig.pass(&[(1, 3 * T)]);
    came.recv().unwrap();
    let pages = rig.live[&1].pages.clone();
    assert!(
        rig.finish(1, FinishReason::Preempted),
        "its pages are pinned"
    );
    assert!(rig.poll().is_empty());
    // The engine does it all the same.
    for &page in &pages[0] {
        rig.ranks[0].cache.write(OWN, page, &[0xBB; 128]);
    }
    drop(go);
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    rig.script(Vec::new());
    // Whatever the pool holds is what it was.
    let mut reader = Rig::on(Setup::default(), Arc::clone(&rig.pool));
    let longer = [&tokens[..], &[1]].concat();
    let offered = reader.admit(2, &longer) as usize;
    reader.pass(&[(2, longer.len() - offered)]);
    reader.check(2);
    assert_eq!(offered, 3 * T, "the pages were gathered before the put");
}
