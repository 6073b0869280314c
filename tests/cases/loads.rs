//! Loads that find nothing, lose pages or come too late.

use std::sync::Arc;
use std::time::Duration;

use crate::OWN;
use crate::rig::{Rig, Setup, T, prompt, rule};
use kvbridge::scheduler::FinishReason;
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Action, Call, Which};

#[test]
fn case_05_a_load_of_nothing_is_a_success() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    rig.publish(1, &tokens);
    rig.admit(2, &tokens);
    let metadata = rig.build(&[(2, T)]);
    assert_eq!(metadata.loads().blocks(), 3);
    rig.bind(&metadata);
    // Cancelled meanwhile: every page is filtered out.
    rig.finish(2, FinishReason::Cancelled);
    rig.poll();
    let gets = rig.asked(Call::Get);
    rig.start_load().unwrap();
    assert_eq!(rig.asked(Call::Get), gets);
    assert_eq!(
        (rig.stats().loaded_pages, rig.stats().failed_load_pages),
        (0, 0)
    );
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.wait_for_save();
    // And a pass without any transfer.
    rig.pass(&[]);
}

#[test]
fn case_34_a_request_that_loads_and_saves_in_one_pass() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 6 * T);
    rig.publish(1, &tokens[..3 * T]);
    assert_eq!(rig.admit(2, &tokens), 3 * T as u64);
    let metadata = rig.pass(&[(2, 3 * T)]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.saves().blocks()),
        (3, 3)
    );
    rig.check(2);
    assert!(rig.finish(2, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    rig.drain();
    assert_eq!(rig.poll(), [2]);
    assert!(rig.poll().is_empty());
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    assert_eq!(rig.stored(), 6);
    assert_eq!((rig.stats().loaded_pages, rig.stats().saved_pages), (3, 6));
}

#[test]
fn case_47_a_page_that_exists_and_cannot_be_read_is_offered_once() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 6 * T);
    rig.publish(1, &tokens);
    rig.script(vec![rule(
        Call::Get,
        Which::Containing(rig.key(&tokens, 2, OWN, 0)),
        Action::Fail(-7),
    )]);
    assert_eq!(rig.admit(2, &tokens), 5 * T as u64);
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    assert!(
        rig.finish(2, FinishReason::Preempted),
        "block 5 was emitted"
    );
    assert_eq!(rig.poll(), [2], "and was dropped with the request");
    for _ in 0..3 {
        rig.scheduler.reset(2).unwrap();
        rig.pass(&[]);
        assert_eq!(rig.offer(2, &tokens, 0), 2 * T as u64);
        assert_eq!(rig.offer(2, &tokens, 3 * T), 0);
    }
    rig.scheduler.reset(2).unwrap();
    assert_eq!(rig.admit(2, &tokens), 2 * T as u64);
    rig.pass(&[(2, 4 * T)]);
    rig.check(2);
    rig.drain();
    rig.finish(2, FinishReason::Ended);
    rig.poll();
    // Forgotten with the request, and never true of another prompt.
    assert_eq!(rig.offer(2, &tokens, 0), 5 * T as u64);
}

#[test]
fn case_47_what_failed_says_nothing_about_another_prompt_under_the_same_id() {
    let mut rig = Rig::new(Setup::default());
    let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.publish(1, &one);
    rig.publish(1, &two);
    rig.script(vec![rule(Call::Get, Which::All, Action::Fail(-7))]);
    rig.admit(5, &one);
    let metadata = rig.build(&[(5, T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.scheduler.reset(5).unwrap();
    assert_eq!(rig.offer(5, &one, 0), 0);
    rig.scheduler.reset(5).unwrap();
    assert_eq!(rig.offer(5, &two, 0), 48);
}

#[test]
fn case_48_a_page_that_vanished_costs_a_restart() {
    let mut rig = Rig::new(Setup::default());
    let (tokens, other) = (prompt(1, 6 * T), prompt(2, 4 * T));
    rig.publish(1, &tokens);
    rig.publish(1, &other);
    assert_eq!(rig.admit(2, &tokens), 5 * T as u64);
    assert_eq!(rig.admit(3, &other), 3 * T as u64);
    rig.remove(&tokens, 1, OWN, 0);
    let metadata = rig.build(&[(2, T), (3, T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    // The batch holds pages of both; the other's have landed.
    rig.forward(&[(3, T)]);
    rig.check(3);
    // Nothing of the lost request is published any more, whatever the engine does next.
    rig.wait_for_save();
    rig.drain();
    let before = rig.stored();
    rig.live.get_mut(&2).unwrap().computed = 5 * T;
    rig.live.get_mut(&2).unwrap().restore = 0;
    let metadata = rig.build(&[(2, T)]);
    assert_eq!(metadata.saves().blocks(), 0);
    assert_eq!(rig.stored(), before);
    rig.finish(2, FinishReason::Preempted);
    rig.scheduler.reset(2).unwrap();
    assert_eq!(rig.admit(2, &tokens), T as u64);
    rig.pass(&[(2, 5 * T)]);
    rig.check(2);
}

/// A clock that moves on by itself, by as much each time it is asked.
struct Running {
    now: std::sync::atomic::AtomicU64,
    by: std::sync::atomic::AtomicU64,
}

impl kvbridge::lane::Clock for Running {
    fn now(&self) -> Duration {
        use std::sync::atomic::Ordering::Relaxed;
        Duration::from_millis(self.now.fetch_add(self.by.load(Relaxed), Relaxed))
    }
}

#[test]
fn case_49_bytes_that_are_read_after_the_lease_are_not_scattered() {
    use std::sync::atomic::Ordering::Relaxed;
    for async_load in [false, true] {
        let clock = Arc::new(Running {
            now: 0.into(),
            by: 0.into(),
        });
        let lease = Duration::from_millis(50);
        let pool = Pool::new(1 << 22, 0.05, lease, Arc::clone(&clock) as Arc<_>).unwrap();
        let tokens = prompt(1, 4 * T + 1);
        let setup = Setup {
            async_load,
            ..Setup::default()
        };
        Rig::on(setup.clone(), Arc::clone(&pool)).publish(1, &tokens);
        let mut rig = Rig::on(setup, pool);
        assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
        let before = rig.ranks[0].cache.snapshot();
        // The transfer takes 100 ms.
        clock.by.store(100, Relaxed);
        let metadata = rig.build(if async_load { &[] } else { &[(7, 1)] });
        rig.bind(&metadata);
        rig.start_load().unwrap();
        rig.drain();
        clock.by.store(0, Relaxed);
        let failed = match async_load {
            true => rig.poll_all(&[7]).unwrap().failed,
            false => rig.ranks[0].worker.take_failed_loads().to_vec(),
        };
        assert_eq!(failed, [7]);
        assert!(rig.ranks[0].cache.snapshot() == before);
        let stats = rig.stats();
        assert_eq!((stats.loaded_pages, stats.failed_load_pages), (0, 4));
    }
}
