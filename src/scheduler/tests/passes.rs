//! What travels with a pass.

use super::*;
use crate::keys::{Scheme, hash_blocks};

#[test]
fn b4_the_frontier_is_what_the_pass_leaves_computed() {
    let mut bench = bench();
    let prompt = tokens(18);
    bench.admit(1, &prompt, 0);
    let metadata = bench.build(&[step(1, &prompt, 0, 7)]);
    assert_eq!(saves(&metadata), [0]);
    bench.submitted(&metadata);
    let metadata = bench.build(&[step(1, &[], 7, 5)]);
    assert_eq!(saves(&metadata), [1, 2]);
    bench.submitted(&metadata);
    // A chunk that was trimmed to nothing, and the rest: bounded by what is hashed.
    assert_eq!(saves(&bench.build(&[step(1, &[], 12, 0)])), [0u32; 0]);
    let metadata = bench.build(&[step(1, &[], 12, 6)]);
    assert_eq!(saves(&metadata), [3]);
    bench.submitted(&metadata);
    // Generated: 1 token, drafts over-count, and pages have to follow.
    assert_eq!(saves(&bench.build(&[step(1, &[7], 18, 4)])), [0u32; 0]);
    assert_eq!(saves(&bench.build(&[step(1, &[8, 9, 10], 21, 1)])), [4]);
    for (computed, kind) in [(23, Kind::Contradiction), (u64::MAX, Kind::Contradiction)] {
        bench.refuses(kind, |scheduler| {
            scheduler.build(&[step(1, &[], computed, 1)])
        });
    }
    bench.refuses(Kind::OutOfRange, |scheduler| {
        scheduler.build(&[step(1, &[], 22, u64::MAX)])
    });
}

#[test]
fn a_pass_that_is_refused_late_takes_no_token() {
    let mut bench = bench();
    let prompt = tokens(5);
    for id in 1..=3 {
        bench.admit(id, &prompt, 0);
    }
    let admitted = [1, 2, 3].map(|id| step(id, &prompt, 0, 5));
    let first = bench.build(&admitted);
    bench.submitted(&first);
    bench.build(&[]);
    // Each time the requests before the wrong one were taken already.
    for (wrong, kind) in [
        (step(1, &[9], 5, 1), Kind::InvalidArgument),
        (step(3, &[9], 9, 1), Kind::Contradiction),
        (step(3, &[9], 5, u64::MAX), Kind::OutOfRange),
    ] {
        bench.refuses(kind, |scheduler| {
            scheduler.build(&[step(1, &[9], 5, 1), step(2, &[9, 9], 5, 2), wrong])
        });
    }
    // In another order than before, and with a stranger.
    let steps = [(3, 8), (77, 1), (1, 6), (2, 7)].map(|(id, token)| (id, [token]));
    bench.build(&steps.each_ref().map(|(id, new)| step(*id, new, 5, 1)));
    let last = bench.build(&[step(1, &[4, 4], 6, 2), step(2, &[4, 4], 6, 2)]);
    assert_eq!(saves(&last), [1, 1]);
    let hashes: Vec<&[u8]> = last.views(last.saves()).map(|view| view.hashes).collect();
    for (hash, generated) in hashes.iter().zip([6, 7]) {
        let mut all = prompt.clone();
        all.extend([generated, 4, 4]);
        let scope = Scope::default();
        let named = hash_blocks(Scheme::Kvb1, &scope, Tokens::I32(&all), T as u32).unwrap();
        assert_eq!(*hash, &named[32..]);
    }
}

#[test]
fn b4_a_lookahead_leaves_generated_tokens_unpublished() {
    let engine = Engine {
        drafter: Drafter::MtpVanilla,
        max_draft_len: Some(3),
        serving: Serving::Context,
        ..engine()
    };
    let mut bench = bench_with("both", &engine, 1);
    bench.store(100);
    // Blocks 0 … 3 of 18 tokens; the lookahead of block 3 runs past the prompt.
    let prompt = tokens(18);
    assert_eq!(bench.offer(1, &prompt, 0), 12);
    let list: Vec<i32> = (0..8).collect();
    bench.scheduler.allocated(1, 0, &[pages(0, &list)]).unwrap();
    let metadata = bench.build(&[step(1, &prompt, 0, 18)]);
    assert_eq!(saves(&metadata), [0, 1, 2]);
    bench.submitted(&metadata);
    let more = tokens(10);
    assert_eq!(saves(&bench.build(&[step(1, &more, 27, 4)])), [0u32; 0]);
    let aggregated = Request {
        context_only: false,
        ..request(2, &prompt)
    };
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.match_request(&aggregated, 0)
    });
}

/// Whether a step is taken at once or not, it is refused for the same reasons: here one enters a page and the other none.
#[test]
fn a_token_that_the_scheme_cannot_hash_is_refused_also_where_none_is_hashed() {
    let drafter = Engine {
        // A lookahead of one token, so that block 0 of the prompt is saved as without one.
        drafter: Drafter::Eagle3,
        serving: Serving::Context,
        ..engine()
    };
    for engine in [engine(), drafter] {
        let mut bench = bench_with("both", &engine, 1);
        let prompt = tokens(5);
        bench.admit(1, &prompt, 0);
        let first = bench.build(&[step(1, &prompt, 0, 5)]);
        assert_eq!(saves(&first), [0]);
        bench.submitted(&first);
        bench.build(&[]);
        let page = GroupPages {
            first_block: 2,
            ..pages(0, &[7])
        };
        for pages in [&[][..], &[page]] {
            bench.refuses(Kind::InvalidArgument, |scheduler| {
                scheduler.build(&[Step {
                    new_tokens: Tokens::I64(&[1 << 40]),
                    pages,
                    ..step(1, &[], 5, 1)
                }])
            });
        }
    }
}

#[test]
fn b9_blocks_without_a_page_in_one_group_are_skipped_in_all() {
    let mut bench = bench_with("both", &engine(), 2);
    let prompt = tokens(20);
    bench.offer(1, &prompt, 0);
    bench
        .scheduler
        .allocated(
            1,
            0,
            &[pages(0, &[1, 2, -1, 4, 5]), pages(10, &[-1, 7, 8, 9])],
        )
        .unwrap();
    let metadata = bench.build(&[step(1, &prompt, 0, 20)]);
    // Block 4 has no entry in group 10 yet, which is not the same as having no page.
    assert_eq!(saves(&metadata), [1, 3]);
    let lists: Vec<&[i32]> = metadata
        .views(metadata.saves())
        .map(|view| view.pages)
        .collect();
    assert_eq!(lists, [&[2, 7][..], &[4, 9]]);
    bench.submitted(&metadata);
    let late = GroupPages {
        first_block: 4,
        ..pages(10, &[6])
    };
    let metadata = bench.build(&[Step {
        pages: &[late],
        ..step(1, &[], 20, 0)
    }]);
    assert_eq!(saves(&metadata), [4]);
}

#[test]
fn a_first_report_is_the_matched_prompt() {
    let mut bench = bench();
    let prompt = tokens(12);
    bench.admit(1, &prompt, 0);
    let mut other = prompt.clone();
    other[3] += 1;
    for wrong in [&prompt[..11], &other, &[]] {
        bench.refuses(Kind::Contradiction, |scheduler| {
            scheduler.build(&[step(1, wrong, 0, 4)])
        });
    }
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.build(&[step(1, &prompt, 0, 4), step(1, &prompt, 0, 4)])
    });
    bench.build(&[step(1, &prompt, 0, 4)]);
    let wide = [1_i64 << 40];
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.build(&[Step {
            new_tokens: Tokens::I64(&wide),
            ..step(1, &[], 4, 4)
        }])
    });
}

#[test]
fn a_load_travels_with_the_pass_that_begins_at_its_start() {
    let mut bench = bench();
    bench.store(3);
    let prompt = tokens(40);
    bench.admit(1, &prompt, 3);
    for position in [4, 8] {
        bench.refuses(Kind::Contradiction, |scheduler| {
            scheduler.build(&[step(1, &prompt, position, 4)])
        });
    }
    // Positions behind the load are a lie until it was started.
    bench.refuses(Kind::Contradiction, |scheduler| {
        scheduler.build(&[step(1, &prompt, 12, 4)])
    });
    let first = bench.build(&[step(1, &prompt, 0, 4)]);
    assert_eq!((loads(&first), saves(&first)), (vec![0, 1, 2], vec![3]));
    bench.refuses(Kind::Contradiction, |scheduler| {
        scheduler.build(&[step(1, &[], 16, 4)])
    });
    // Never bound: it travels again.
    let second = bench.build(&[step(1, &[], 0, 4)]);
    assert_eq!((loads(&second), saves(&second)), (vec![0, 1, 2], vec![3]));
    bench.started(&second);
    bench.submitted(&second);
    let third = bench.build(&[step(1, &[], 16, 4)]);
    assert_eq!((loads(&third), saves(&third)), (vec![], vec![4]));
}
