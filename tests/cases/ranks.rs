//! Ranks and owners: who writes which page, and who reads it.

use std::sync::Arc;

use crate::OWN;
use crate::rig::{Rig, Setup, T, pool, prompt, two_groups};
use kvbridge::device::Stream;
use kvbridge::engine::Serving;
use kvbridge::error::Kind;
use kvbridge::layout::Part;
use kvbridge::store::faulty::Call;

#[test]
fn tensor_parallel_ranks_move_their_own_shards() {
    for world in [2, 4] {
        let mut rig = Rig::new(Setup {
            world,
            groups: two_groups(),
            ..Setup::default()
        });
        let tokens = prompt(1, 5 * T);
        rig.publish(1, &tokens);
        // Two groups have a shard per rank, one of them a page that rank 0 writes for all.
        assert_eq!(rig.stored(), 5 * (2 * u64::from(world) + 1));
        let pages = |rig: &Rig, rank: usize| rig.ranks[rank].worker.handle().stats().saved_pages;
        assert_eq!((pages(&rig, 0), pages(&rig, 1)), (15, 10));
        assert_eq!(rig.admit(2, &tokens), 4 * T as u64);
        rig.pass(&[(2, T)]);
        rig.check(2);
        rig.drain();
        assert_eq!(rig.stored(), 5 * (2 * u64::from(world) + 1));
        for rank in &rig.ranks {
            assert!(!rank.worker.handle().declarations().reports_failed_loads);
            assert_eq!(rank.worker.handle().stats().loaded_pages, 12);
        }
        // A replicated page gone is a miss of the block.
        rig.remove(&tokens, 2, (0, Part::Replicated), 0);
        assert_eq!(rig.offer(3, &tokens, 0), 2 * T as u64);
    }
}

#[test]
fn a_lost_shard_is_an_error_under_tensor_parallelism() {
    let mut rig = Rig::new(Setup {
        world: 2,
        ..Setup::default()
    });
    let tokens = prompt(1, 5 * T);
    rig.publish(1, &tokens);
    rig.admit(2, &tokens);
    rig.remove(&tokens, 1, OWN, 1);
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    assert!(rig.ranks[0].worker.start_load(Stream::default()).is_ok());
    let error = rig.ranks[1]
        .worker
        .start_load(Stream::default())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::LoadFailed);
    let key = String::from_utf8(rig.key(&tokens, 1, OWN, 1)).unwrap();
    for part in [
        &key[..],
        "already reported as computed",
        "4 pages",
        " 0 bytes landed",
    ] {
        assert!(error.message().contains(part), "{part}: {error}");
    }
    assert!(rig.ranks[1].worker.take_failed_loads().is_empty());
    // Said once; a second start of one metadata starts nothing.
    assert!(rig.ranks[1].worker.start_load(Stream::default()).is_ok());
    // The loads of a metadata that is replaced unstarted are an error as well.
    let metadata = rig.build(&[(2, T)]);
    rig.bind(&metadata);
    let next = rig.build(&[(2, T)]);
    rig.bind(&next);
    for rank in &mut rig.ranks {
        let error = rank.worker.start_load(Stream::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::LoadFailed);
        assert!(error.message().contains("never started"), "{error}");
        assert!(rank.worker.take_failed_loads().is_empty());
    }
}

#[test]
fn owners_under_attention_dp_and_single_ranks_share_pages() {
    for scheme in ["kvb1", "trtllm"] {
        let shared = pool(1 << 20);
        let single = Setup {
            groups: two_groups(),
            scheme,
            ..Setup::default()
        };
        let owner = |owner| Setup {
            owner: Some((owner, 2)),
            serving: Serving::Context,
            ..single.clone()
        };
        let tokens = prompt(1, 5 * T);
        let mut writer = Rig::on(owner(1), Arc::clone(&shared));
        writer.publish(1, &tokens);
        assert!(
            writer.ranks[0]
                .worker
                .handle()
                .declarations()
                .reports_failed_loads
        );
        assert_eq!(
            writer.stored(),
            5 * 3,
            "owner 1 writes replicated pages too"
        );
        if scheme == "trtllm" {
            let key = String::from_utf8(writer.key(&tokens, 0, OWN, 0)).unwrap();
            assert!(key.contains("w1r0"), "{key}");
        }
        for setup in [owner(0), owner(1), single] {
            let mut rig = Rig::on(setup, Arc::clone(&shared));
            assert_eq!(rig.admit(2, &tokens), 4 * T as u64);
            assert_eq!(rig.asked(Call::Exist), 4 * 3, "one key per page of a block");
            rig.pass(&[(2, T)]);
            rig.check(2);
            rig.drain();
            assert_eq!(rig.stored(), 15);
        }
    }
}
