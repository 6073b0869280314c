//! The worker half: lookups, loads, saves and their failures, with a cache and a pool.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvbridge::device::Stream;
use kvbridge::error::Kind;
use kvbridge::keys::{Scheme, Scope, Tokens, hash_blocks};
use kvbridge::layout::Part;
use kvbridge::scheduler::{FinishReason, GroupPages, Step};
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use rig::{Lines, Rig, Setup, Sick, T, prompt, rig_on, rule, two_groups};

const OWN: (usize, Part) = (0, Part::Sharded);

fn always(call: Call, keys: Which, action: Action) -> Vec<Rule> {
    vec![rule(call, keys, action)]
}

#[test]
fn c2_a_lookup_ends_with_the_first_chunk_that_misses() {
    let mut rig = Rig::new(Setup {
        chunk: 2,
        groups: two_groups(),
        ..Setup::default()
    });
    let tokens = prompt(1, 8 * T);
    rig.publish(1, &tokens[..5 * T]);
    let hashes = hash_blocks(
        Scheme::Kvb1,
        &Scope::default(),
        Tokens::I32(&tokens),
        T as u32,
    )
    .unwrap();
    let handle = rig.ranks[0].worker.handle();
    let (before, stats) = (rig.faulty.count(Call::Exist), handle.stats());
    assert_eq!(handle.lookup(&hashes).unwrap(), 5);
    let after = rig.faulty.count(Call::Exist);
    assert_eq!(
        (after.calls - before.calls, after.keys - before.keys),
        (3, 6 * 3)
    );
    let now = handle.stats();
    assert_eq!(now.lookup_blocks - stats.lookup_blocks, 6);
    assert_eq!(now.missing_keys - stats.missing_keys, 3);
    assert_eq!(now.hit_blocks - stats.hit_blocks, 5);
    // One of a block's pages is missing: no hit.
    rig.remove(&tokens, 1, (1, Part::Sharded), 0);
    assert_eq!(handle.lookup(&hashes).unwrap(), 1);
    assert_eq!(handle.lookup(&[]).unwrap(), 0);
    assert_eq!(
        handle.lookup(&hashes[1..]).unwrap_err().kind(),
        Kind::InvalidArgument
    );
    rig.ranks[0]
        .worker
        .shutdown(std::time::Duration::from_secs(9))
        .unwrap();
    assert_eq!(handle.lookup(&hashes).unwrap_err().kind(), Kind::Closed);
}

#[test]
fn c3_batches_verdicts_and_counts() {
    // 8 blocks of 3 pages in batches of 4; in the second batch (blocks 1 and 2) something is wrong.
    for (action, seals) in [
        (Action::Lose, 0),
        (Action::Fail(-1), 0),
        (Action::Truncate, 0),
        (Action::Corrupt, 4),
        (Action::WrongLength(-1), 0),
        (Action::WrongLength(3), 0),
    ] {
        let mut rig = Rig::new(Setup {
            groups: two_groups(),
            ..Setup::default()
        });
        let tokens = prompt(1, 8 * T + 1);
        rig.publish(1, &tokens);
        rig.script(vec![Rule {
            call: Call::Get,
            at: 1..2,
            keys: Which::All,
            action: action.clone(),
        }]);
        assert_eq!(rig.admit(2, &tokens), 8 * T as u64);
        let metadata = rig.build(&[(2, 1)]);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        // Nothing is asked for behind the batch that lost a page.
        assert_eq!(rig.asked(Call::Get), 8, "{action:?}");
        let stats = rig.stats();
        assert_eq!(
            (stats.loaded_pages, stats.failed_load_pages),
            (4, 20),
            "{action:?}"
        );
        assert_eq!(stats.loaded_bytes, 64 + 40 + 40 + 64);
        assert_eq!((stats.failed_load_requests, stats.bad_seals), (1, seals));
        // The first batch is in the cache, of the second nothing.
        let pages = rig.live[&2].pages.clone();
        for (block, page) in pages[0][..8].iter().enumerate() {
            let page = rig.ranks[0].cache.read(OWN, *page);
            let landed = page == rig::content(&tokens, block, OWN, 0, 64);
            assert_eq!(landed, block < 2, "{action:?} {block}");
        }
        assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
        // Block 1 lost a page of group 9: offers end before it.
        rig.finish(2, FinishReason::Preempted);
        assert_eq!(rig.offer(2, &tokens, 0), T as u64);
    }
}

#[test]
fn c3_a_page_that_comes_twice_fails_its_batch_once() {
    let mut rig = Rig::new(Setup::default());
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    rig.publish(1, &one);
    rig.publish(1, &two);
    for (id, tokens) in [(2, &one), (3, &two)] {
        assert_eq!(rig.offer(id, tokens, 0), 16);
        let list = GroupPages {
            group: 0,
            first_block: 0,
            indices: &[50],
            replace: false,
        };
        rig.scheduler.allocated(id, 16, &[list]).unwrap();
    }
    let step = |request_id, tokens| Step {
        request_id,
        new_tokens: Tokens::I32(tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 0,
    };
    let metadata = rig
        .scheduler
        .build(&[step(2, &one), step(3, &two)])
        .unwrap();
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2, 3]);
    let stats = rig.stats();
    assert_eq!((stats.loaded_pages, stats.loaded_bytes), (0, 0));
    assert_eq!(
        (stats.failed_load_pages, stats.failed_load_requests),
        (2, 2)
    );
}

#[test]
fn c4_a_lost_request_saves_nothing_and_the_others_go_on() {
    let mut rig = Rig::new(Setup::default());
    let (one, two) = (prompt(1, 4 * T), prompt(2, 4 * T));
    rig.publish(1, &one);
    let stored = rig.stored();
    rig.script(always(Call::Get, Which::All, Action::Fail(-1)));
    rig.admit(2, &[&one[..], &[1; T]].concat());
    rig.admit(3, &two);
    let chunks = [(2, T), (3, 4 * T)];
    let metadata = rig.build(&chunks);
    assert_eq!(metadata.saves().blocks(), 5);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    assert!(rig.ranks[0].worker.take_failed_loads().is_empty());
    rig.forward(&chunks[1..]);
    rig.wait_for_save();
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.stored(), stored + 4);
    for id in [2, 3] {
        assert!(rig.finish(id, FinishReason::Ended));
    }
    assert_eq!(rig.poll(), [2, 3]);
}

#[test]
fn c6_pages_that_are_there_are_not_put_again() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 6 * T);
    rig.publish(1, &tokens);
    rig.remove(&tokens, 4, OWN, 0);
    rig.allocate_fresh(2, &tokens);
    let puts = rig.asked(Call::Put);
    rig.pass(&[(2, 6 * T)]);
    rig.drain();
    assert_eq!(rig.asked(Call::Put), puts + 1);
    assert_eq!(rig.stats().already_stored_pages, 5);
    // A list of answers that has the wrong length says nothing; putting again changes nothing.
    rig.script(always(Call::Exist, Which::All, Action::WrongLength(-1)));
    rig.allocate_fresh(3, &tokens);
    rig.pass(&[(3, 6 * T)]);
    rig.drain();
    assert_eq!(rig.asked(Call::Put), puts + 7);
    assert_eq!((rig.stored(), rig.stats().already_stored_pages), (6, 11));
}

#[test]
fn c6_a_failed_put_costs_a_miss_and_is_made_good() {
    for action in [Action::Fail(-5), Action::NoSpace, Action::WrongLength(1)] {
        let mut rig = Rig::new(Setup {
            groups: two_groups(),
            ..Setup::default()
        });
        let tokens = prompt(1, 4 * T);
        rig.admit(1, &tokens);
        rig.script(vec![Rule {
            call: Call::Put,
            at: 1..2,
            keys: Which::All,
            action: action.clone(),
        }]);
        rig.pass(&[(1, 3 * T)]);
        rig.drain();
        let stats = rig.stats();
        assert_eq!(stats.saved_pages, 5, "{action:?}");
        assert_eq!(stats.no_space_pages + stats.failed_save_pages, 4);
        // The second batch had pages of blocks 1 and 0.
        let metadata = rig.pass(&[(1, T)]);
        assert_eq!(metadata.saves().blocks(), 3, "{action:?}");
        rig.drain();
        assert_eq!(rig.stored(), 12);
        rig.finish(1, FinishReason::Ended);
        assert_eq!(rig.poll(), [1]);
        assert_eq!(rig.admit(2, &tokens), 3 * T as u64);
        rig.pass(&[(2, T)]);
        rig.check(2);
    }
}

fn sick_rig() -> (Rig, Arc<Sick>) {
    rig_on(Setup::default(), Sick::default())
}

#[test]
fn a_device_that_fails_during_a_save_costs_that_save() {
    for (part, failed, dropped) in [("gather", 3, 0), ("wait", 0, 3)] {
        let (mut rig, sick) = sick_rig();
        let tokens = prompt(1, 4 * T);
        rig.admit(1, &tokens);
        let flag = if part == "gather" {
            &sick.gather
        } else {
            &sick.wait
        };
        flag.store(true, Ordering::SeqCst);
        rig.pass(&[(1, 3 * T)]);
        rig.drain();
        let stats = rig.stats();
        assert_eq!(
            (stats.failed_save_pages, stats.dropped_save_pages),
            (failed, dropped),
            "{part}"
        );
        assert_eq!(rig.stored(), 0);
        flag.store(false, Ordering::SeqCst);
        assert_eq!(
            rig.pass(&[(1, T)]).saves().blocks(),
            4,
            "{part}: offered again"
        );
        rig.drain();
        assert_eq!(rig.stored(), 4);
        rig.finish(1, FinishReason::Ended);
        assert_eq!(rig.poll(), [1]);
    }
}

/// The engine may end its context as soon as the layout is unregistered: what a save held of it has to be gone by then, also
/// where the save was counted as done before.
#[test]
fn c10_nothing_of_the_device_is_left_when_a_layout_is_unregistered() {
    let gone = Arc::new(AtomicBool::new(false));
    let setup = Setup {
        stepped: false,
        ..Setup::default()
    };
    let sick = Sick {
        slow_events: Some(Arc::clone(&gone)),
        ..Sick::default()
    };
    let (mut rig, sick) = rig_on(setup, sick);
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    rig.drain();
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert!(gone.load(Ordering::SeqCst), "the event");
    assert_eq!(Arc::strong_count(&sick), 1, "the device");
}

#[test]
fn an_event_that_cannot_be_recorded_is_an_error_and_forgets_nothing() {
    let (mut rig, sick) = sick_rig();
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    rig.admit(1, &one);
    rig.admit(2, &two);
    let chunks = [(1, 2 * T), (2, 2 * T)];
    let metadata = rig.build(&chunks);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    rig.forward(&chunks);
    // Request 1 is cancelled: its saves leave the metadata, its pages are overwritten.
    rig.finish(1, FinishReason::Cancelled);
    assert_eq!(rig.poll(), [1]);
    sick.record.store(true, Ordering::SeqCst);
    let error = rig.ranks[0]
        .worker
        .wait_for_save(Stream::default())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::DeviceFailed);
    sick.record.store(false, Ordering::SeqCst);
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.stored(), 2);
    assert_eq!(rig.offer(9, &one, 0), 0);
    assert_eq!(rig.offer(10, &two, 0), T as u64);
}

#[test]
fn a_scatter_that_fails_hands_the_batch_back() {
    let (mut rig, sick) = sick_rig();
    let tokens = prompt(1, 4 * T);
    rig.publish(1, &tokens);
    sick.scatter.store(true, Ordering::SeqCst);
    rig.admit(2, &tokens);
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    assert_eq!(
        (rig.stats().loaded_pages, rig.stats().failed_load_pages),
        (0, 3)
    );
}

#[test]
fn c8_a_budget_below_one_page_is_raised_to_one() {
    let mut rig = Rig::new(Setup {
        staging: 1,
        groups: two_groups(),
        ..Setup::default()
    });
    let tokens = prompt(1, 4 * T);
    rig.publish(1, &tokens);
    let puts = rig.faulty.count(Call::Put);
    assert_eq!((puts.calls, puts.keys), (12, 12));
    assert_eq!(rig.admit(2, &tokens), 3 * T as u64);
    rig.pass(&[(2, T)]);
    rig.check(2);
    assert_eq!(rig.faulty.count(Call::Get).calls, 9);
}

/// Pages of 128 bytes with their seals take slots of 192.
#[test]
fn c8_the_budget_of_a_direction_is_split_evenly_over_its_threads() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let staged = |async_load: bool, role: &'static str, staging: u64| {
        let mut rig = Rig::new(Setup {
            async_load,
            role,
            staging,
            more: r#""async_load_workers": 3,"#,
            ..Setup::default()
        });
        let sizes = rig.ranks[0].lent.known_sizes();
        rig.ranks[0].worker.unregister_layout().unwrap();
        assert!(rig.ranks[0].lent.known_sizes().is_empty());
        (sizes, lines.take_warnings())
    };
    let none = Vec::<String>::new;
    // Two slots for each load thread, and no set for synchronous loads beside them; a batch of four for saves.
    for budget in [6 * 192, 9 * 192 - 1] {
        assert_eq!(
            staged(true, "both", budget),
            (vec![2 * 192, 2 * 192, 2 * 192, 4 * 192], none())
        );
    }
    assert_eq!(
        staged(false, "both", 6 * 192),
        (vec![4 * 192, 4 * 192], none())
    );
    assert_eq!(staged(true, "consumer", 3 * 192), (vec![192; 3], none()));
    assert_eq!(staged(true, "producer", 3 * 192), (vec![3 * 192], none()));
    // A share below a page: the direction is named, and the other one, with one thread, has enough.
    let (sizes, said) = staged(true, "both", 3 * 192 - 1);
    assert_eq!(sizes, [192, 192, 192, 2 * 192]);
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("staging_buffer_bytes = 575 for 3 load threads is less than one page"),
        "{said:?}"
    );
    let (sizes, said) = staged(true, "both", 1);
    assert_eq!(sizes, [192; 4]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[1].contains("for 1 save threads"), "{said:?}");
}

#[test]
fn a_damaged_page_is_recomputed() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 3 * T + 1);
    rig.script(vec![Rule {
        call: Call::Put,
        at: 0..1,
        keys: Which::Index(1),
        action: Action::Corrupt,
    }]);
    rig.publish(1, &tokens);
    rig.script(Vec::new());
    assert_eq!(rig.admit(2, &tokens), 3 * T as u64);
    let metadata = rig.build(&[(2, 1)]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [2]);
    assert_eq!(rig.stats().bad_seals, 1);
}
