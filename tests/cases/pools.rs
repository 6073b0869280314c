//! Pools that fail, lose everything, have no room, or are closed under a transfer.

use std::time::Duration;

use crate::rig::{Rig, Setup, T, prompt, rule, two_groups};
use crate::{OWN, stopped};
use kvbridge::error::Kind;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::Store;
use kvbridge::store::faulty::{Action, Call, Rule, Which};

/// The whole of it: publish, hit, go on; whatever call fails, requests finish with right pages.
fn run_with_failure(call: Call, at: u64) -> bool {
    let mut rig = Rig::new(Setup {
        groups: two_groups(),
        ..Setup::default()
    });
    rig.script(vec![Rule {
        call,
        at: at..at + 1,
        keys: Which::All,
        action: Action::Fail(-900),
    }]);
    let (long, pages) = (prompt(1, 6 * T + 3), rig.free.len());
    for (id, tokens) in [(1, &long[..4 * T + 2]), (2, &long[..]), (3, &long[..])] {
        loop {
            let offered = rig.admit(id, tokens) as usize;
            let rest = tokens.len() - offered;
            let chunks = [(id, rest.min(T)), (id, rest - rest.min(T))];
            let metadata = rig.build(&chunks[..1]);
            rig.bind(&metadata);
            rig.start_load().unwrap();
            if rig.ranks[0].worker.take_failed_loads() == [id] {
                rig.wait_for_save();
                rig.drain();
                rig.finish(id, FinishReason::Preempted);
                rig.poll();
                rig.scheduler.reset(id).unwrap();
                continue;
            }
            rig.forward(&chunks[..1]);
            rig.wait_for_save();
            rig.pass(&chunks[1..]);
            break;
        }
        rig.check(id);
        rig.drain();
        rig.finish(id, FinishReason::Ended);
        rig.poll();
    }
    assert!(rig.ending.is_empty(), "{call:?} {at}: not reported");
    assert_eq!(rig.free.len(), pages, "{call:?} {at}: pages are missing");
    assert_eq!(rig.ranks[0].worker.handle().gauges().saves_in_flight, 0);
    // What is in the pool is right, and what the failure cost was published later.
    let offered = rig.admit(4, &long);
    rig.script(Vec::new());
    rig.pass(&[(4, long.len() - offered as usize)]);
    rig.check(4);
    at < rig.faulty.count(call).calls
}

#[test]
fn case_33_any_one_call_may_fail() {
    for call in [Call::Exist, Call::Put, Call::Get] {
        let mut at = 0;
        while run_with_failure(call, at) {
            at += 1;
        }
        assert!(at > 3, "{call:?}: {at} calls");
    }
}

#[test]
fn case_56_a_pool_that_lost_everything_is_filled_again() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    rig.publish(1, &tokens);
    for block in 0..4 {
        rig.remove(&tokens, block, OWN, 0);
    }
    assert_eq!(rig.stored(), 0);
    rig.publish(2, &tokens);
    assert_eq!(rig.stored(), 4);
    assert_eq!(rig.admit(3, &tokens), 48);
    rig.pass(&[(3, T)]);
    rig.check(3);
}

#[test]
fn case_60_blocks_without_room_are_offered_again() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 8 * T);
    rig.admit(1, &tokens);
    rig.script(
        (3..6)
            .map(|block| {
                let key = rig.key(&tokens, block, OWN, 0);
                rule(Call::Put, Which::Containing(key), Action::NoSpace)
            })
            .collect(),
    );
    rig.pass(&[(1, 6 * T)]);
    rig.drain();
    assert_eq!((rig.stored(), rig.stats().no_space_pages), (3, 3));
    rig.script(Vec::new());
    let metadata = rig.pass(&[(1, T)]);
    assert_eq!(metadata.saves().blocks(), 4);
    rig.drain();
    assert_eq!(rig.stored(), 7);
    let metadata = rig.pass(&[(1, T)]);
    assert_eq!(metadata.saves().blocks(), 1, "once was enough");
    rig.drain();
    assert_eq!(rig.offer(2, &tokens, 0), 7 * T as u64);
}

#[test]
fn case_40_a_layout_is_not_unregistered_under_a_transfer() {
    for call in [Call::Put, Call::Get] {
        let setup = Setup {
            stepped: false,
            async_load: call == Call::Get,
            save_timeout_ms: 50,
            kvbridge: r#""load_timeout_ms": 50,"#,
            ..Setup::default()
        };
        let tokens = prompt(1, 3 * T + 1);
        let mut rig = Rig::new(setup);
        if call == Call::Get {
            rig.publish(1, &tokens);
        }
        let (rule, go, came) = stopped(call);
        rig.script(vec![rule]);
        let offered = rig.admit(2, &tokens) as usize;
        match call {
            Call::Get => rig.pass(&[]),
            _ => rig.pass(&[(2, tokens.len() - offered)]),
        };
        came.recv().unwrap();
        for _ in 0..2 {
            let busy = rig.ranks[0].worker.unregister_layout().unwrap_err();
            assert_eq!(busy.kind(), Kind::Busy, "{call:?}");
        }
        drop(go);
        rig.drain();
        rig.ranks[0].worker.unregister_layout().unwrap();
        let before = rig.ranks[0].cache.snapshot();
        assert!(rig.ranks[0].worker.unregister_layout().is_err());
        assert!(rig.ranks[0].cache.snapshot() == before);
    }
}

#[test]
fn case_40_a_store_that_is_closed_under_a_transfer_ends_it() {
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
    // The handle that the worker's calls go through.
    rig.faulty.close().unwrap();
    drop(go);
    rig.drain();
    assert!(rig.finish(1, FinishReason::Ended));
    assert_eq!(rig.poll(), [1]);
    let stats = rig.stats();
    assert_eq!((stats.saved_pages, stats.failed_save_pages), (0, 3));
    rig.ranks[0]
        .worker
        .shutdown(Duration::from_secs(5))
        .unwrap();
}
