//! What becomes of local matches beside a one-model draft: the engine's cache manager shortens each of them by the prompt
//! lookahead unless it is told not to, and the pool serves whole blocks alone.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;

use kvbridge::engine::{Declarations, Drafter, Serving};
use rig::{Rig, Setup, T, prompt};

/// What the manager reuses of a match of so many tokens, by what it was told.
fn reused(declared: &Declarations, matched: usize) -> usize {
    let back = match declared.drops_reuse_match_backoff {
        true => 0,
        false => declared.prompt_lookahead as usize,
    };
    let left = matched - back;
    match declared.requires_block_aligned_reuse {
        true => left / T * T,
        false => left,
    }
}

#[test]
fn d2_a_local_match_is_continued_by_the_pool_whichever_way_it_is_shortened() {
    let tokens = prompt(1, 6 * T + 4);
    for (drafter, lookahead) in [(Drafter::Eagle3, 1), (Drafter::MtpVanilla, 3)] {
        for (more, kept) in [
            ("", 2),
            (r#""local_reuse_backoff": "off","#, 2),
            // The block that was trimmed comes from the pool with the rest.
            (r#""local_reuse_backoff": "align","#, 1),
        ] {
            let setup = Setup {
                drafter,
                serving: Serving::Context,
                more,
                ..Setup::default()
            };
            let mut writer = Rig::new(setup.clone());
            writer.publish(1, &tokens);
            assert_eq!(writer.stored(), 6, "{drafter:?}");
            let mut rig = Rig::on(setup, Arc::clone(&writer.pool));
            let declared = rig.ranks[0].worker.handle().declarations();
            assert_eq!(declared.prompt_lookahead, lookahead);
            let local = reused(&declared, 2 * T);
            assert_eq!(local, kept * T, "{more}");
            let offered = rig.offer(7, &tokens, local) as usize;
            assert_eq!(local + offered, 6 * T, "{more}: the end is the same");
            rig.allocate(7, &tokens, local, offered);
            rig.pass(&[(7, 4)]);
            rig.check(7);
            rig.drain();
            assert_eq!(rig.stats().loaded_pages as usize, 6 - kept);
            assert_eq!(rig.stats().saved_pages, 0);
            // Who neither drops nor rounds ends inside a block, where the pool has nothing.
            rig.scheduler.reset(7).unwrap();
            assert_eq!(rig.offer(7, &tokens, 2 * T - lookahead as usize), 0);
        }
    }
}
