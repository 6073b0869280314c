//! What saves ask of a pool beyond storing: soft pins, and one eviction group for all pages of a block.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::{Action, Call, Which};
use rig::{Lines, Rig, Setup, T, Wish, prompt, rule, two_groups};

fn setup(more: &'static str, world: u32) -> Setup {
    Setup {
        more,
        world,
        groups: two_groups(),
        pins: true,
        ..Setup::default()
    }
}

/// Publishes so many blocks; what the puts of all ranks asked for.
fn wishes(setup: Setup, blocks: usize) -> Vec<Wish> {
    let mut rig = Rig::new(setup);
    rig.publish(1, &prompt(1, blocks * T));
    let ranks = rig.ranks.iter();
    ranks.flat_map(|rank| rank.lent.take_wishes()).collect()
}

#[test]
fn d4_without_options_the_plain_put_is_used() {
    for wish in wishes(setup("", 1), 3) {
        assert_eq!((wish.group, wish.soft_pin_ttl), (None, None));
    }
}

#[test]
fn d4_every_page_is_pinned() {
    let all = wishes(setup(r#""soft_pin_ttl_ms": 1500, "#, 1), 3);
    // Two groups, one of which has two kinds of pages.
    assert_eq!(all.len(), 3 * 3);
    for wish in all {
        let ttl = Some(Duration::from_millis(1500));
        assert_eq!((wish.group, wish.soft_pin_ttl), (None, ttl));
    }
}

#[test]
fn d4_all_pages_of_a_block_are_one_group_on_all_ranks() {
    let all = wishes(setup(r#""group_blocks": true, "#, 2), 3);
    let mut groups = BTreeMap::<Vec<u8>, BTreeSet<Vec<u8>>>::new();
    for wish in all {
        assert_eq!(wish.soft_pin_ttl, None);
        let (group, key) = (wish.group.unwrap(), wish.key);
        // Both end with the hash of the block.
        assert_eq!(group[group.len() - 64..], key[key.len() - 64..]);
        assert!(group.starts_with(b"kvb1/ns/m/w2/"));
        groups.entry(group).or_default().insert(key);
    }
    assert_eq!(groups.len(), 3);
    // Per block two sharded pages on each of two ranks, and a replicated one.
    assert!(groups.values().all(|keys| keys.len() == 5));
}

/// Pages that are taken out of a batch take their groups with them.
#[test]
fn d4_groups_stay_with_their_keys_when_some_are_there_already() {
    let mut rig = Rig::new(setup(r#""group_blocks": true, "#, 1));
    let tokens = prompt(1, 4 * T);
    rig.publish(1, &tokens);
    for block in [1, 2] {
        rig.remove(&tokens, block, (1, kvbridge::layout::Part::Sharded), 0);
    }
    let lent = rig.ranks[0].lent.clone();
    lent.take_wishes();
    rig.allocate_fresh(2, &tokens);
    rig.pass(&[(2, tokens.len())]);
    rig.drain();
    rig.finish(2, FinishReason::Ended);
    rig.poll();
    let all = lent.take_wishes();
    assert_eq!(all.len(), 2);
    for wish in all {
        let group = wish.group.unwrap();
        assert_eq!(group[group.len() - 64..], wish.key[wish.key.len() - 64..]);
    }
}

#[test]
fn d4_a_pool_that_refuses_every_pinned_page_is_explained_once() {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || {
        let mut rig = Rig::new(setup(r#""soft_pin_ttl_ms": 90000000, "#, 1));
        rig.script(vec![rule(Call::Put, Which::All, Action::Fail(-600))]);
        for id in 1..4 {
            let tokens = prompt(id, 3 * T);
            rig.publish(id as u64, &tokens);
        }
        assert_eq!(rig.stats().failed_save_pages, 3 * 9);
    });
    assert_eq!(lines.take("soft_pin_ttl_ms").len(), 1);
}
