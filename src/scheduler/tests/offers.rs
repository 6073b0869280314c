//! What is offered, and what becomes of an offer until its load travels.

use super::*;

#[test]
fn b1_an_offer_is_whole_blocks_beyond_the_local_match_and_never_the_last_token() {
    let mut bench = bench();
    bench.store(100);
    for (number, (length, local, offered)) in [
        (16, 0, 12),
        (17, 0, 16),
        (16, 4, 8),
        (16, 12, 0),
        (16, 16, 0),
        (16, 3, 0),
        (16, 5, 0),
        (3, 0, 0),
        (0, 0, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let prompt = tokens(length);
        let found = bench.offer(number as u64, &prompt, local);
        assert_eq!(found, offered, "{length} tokens, {local} local");
    }
    bench.store(2);
    assert_eq!(bench.offer(100, &tokens(30), 8), 8);
    let prompt = tokens(8);
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.match_request(&request(1, &prompt), 9)
    });
}

#[test]
fn b2_only_a_whole_block_part_of_the_offer_can_be_honoured() {
    let mut bench = bench();
    bench.store(3);
    let prompt = tokens(20);
    let list: Vec<i32> = (0..5).collect();
    assert_eq!(bench.offer(1, &prompt, 0), 12);
    for (honoured, kind) in [(3, Kind::InvalidArgument), (16, Kind::InvalidArgument)] {
        bench.refuses(kind, |scheduler| {
            scheduler.allocated(1, honoured, &[pages(0, &list)])
        });
    }
    // Three blocks want three pages.
    for short in [&[][..], &[0, 1], &[0, -1, 2]] {
        bench.refuses(Kind::Contradiction, |scheduler| {
            scheduler.allocated(1, 12, &[pages(0, short)])
        });
    }
    bench.scheduler.allocated(1, 8, &[pages(0, &list)]).unwrap();
    let metadata = bench.build(&[step(1, &prompt, 0, 4)]);
    assert_eq!(loads(&metadata), [0, 1]);
    assert_eq!(saves(&metadata), [2]);
    bench.refuses(Kind::BadState, |scheduler| scheduler.allocated(1, 4, &[]));
}

#[test]
fn b2_the_end_stays_when_the_local_match_grows_or_shrinks() {
    let mut bench = bench();
    bench.store(4);
    let prompt = tokens(40);
    assert_eq!(bench.offer(1, &prompt, 8), 16);
    assert_eq!(bench.questions(), [7]);
    assert_eq!(bench.offer(1, &prompt, 16), 8);
    // Inside a block nothing is offered, and nothing is forgotten.
    assert_eq!(bench.offer(1, &prompt, 17), 0);
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.allocated(1, 8, &[])
    });
    assert_eq!(bench.offer(1, &prompt, 24), 0);
    assert_eq!(bench.offer(1, &prompt, 32), 0);
    assert_eq!(bench.offer(1, &prompt, 8), 16);
    assert!(bench.questions().is_empty());
    // Shrunk: only what was never asked is asked, and the end stays where the parts meet.
    bench.store(1);
    assert_eq!(bench.offer(1, &prompt, 0), 4);
    assert_eq!(bench.offer(1, &prompt, 0), 4);
    assert_eq!(bench.questions(), [2]);
    assert_eq!(bench.offer(1, &prompt, 8), 16);
    assert_eq!(bench.offer(1, &prompt, 4), 0);
    assert!(bench.questions().is_empty());
    bench.build(&[]);
    bench.store(2);
    assert_eq!(bench.offer(1, &prompt, 8), 8);
    assert_eq!(bench.offer(1, &prompt, 0), 16);
    assert_eq!(bench.offer(1, &prompt, 4), 12);
    assert_eq!(bench.questions(), [7, 2]);
}

#[test]
fn b2_the_head_is_given_back_before_settling() {
    // With and without asking again in between.
    for asks in [false, true] {
        let mut bench = bench();
        bench.store(4);
        let prompt = tokens(40);
        assert_eq!(bench.offer(1, &prompt, 0), 16);
        if asks {
            assert_eq!(bench.offer(1, &prompt, 8), 8);
        }
        bench.scheduler.cancel_load(1, 0, 8).unwrap();
        let list: Vec<i32> = (50..60).collect();
        bench.scheduler.allocated(1, 8, &[pages(0, &list)]).unwrap();
        let metadata = bench.build(&[step(1, &prompt, 8, 4)]);
        assert_eq!(loads(&metadata), [2, 3]);
        let view = metadata.views(metadata.loads()).next().unwrap();
        assert_eq!(view.pages, [52, 53]);
        assert_eq!(saves(&metadata), [0, 1, 4]);
    }
}

#[test]
fn b3_heads_and_tails_can_be_given_back_and_nothing_else() {
    let mut bench = bench();
    bench.store(6);
    let prompt = tokens(40);
    assert_eq!(bench.offer(1, &prompt, 8), 24);
    for (from, to) in [
        (12, 16), // a hole
        (8, 11),
        (9, 12),
        (12, 12),
        (16, 12),
        (0, 4),
        (28, 40),
        (36, 40),
        (0, u64::MAX),
    ] {
        bench.refuses(Kind::InvalidArgument, |scheduler| {
            scheduler.cancel_load(1, from, to)
        });
    }
    bench.scheduler.cancel_load(1, 28, 32).unwrap();
    bench.scheduler.cancel_load(1, 8, 12).unwrap();
    let list: Vec<i32> = (0..10).collect();
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.allocated(1, 20, &[pages(0, &list)])
    });
    bench
        .scheduler
        .allocated(1, 16, &[pages(0, &list)])
        .unwrap();
    // Also after the settlement, as long as nothing travelled.
    bench.refuses(Kind::InvalidArgument, |scheduler| {
        scheduler.cancel_load(1, 16, 20)
    });
    bench.scheduler.cancel_load(1, 24, 28).unwrap();
    bench.scheduler.cancel_load(1, 12, 16).unwrap();
    let metadata = bench.build(&[step(1, &prompt, 16, 4)]);
    assert_eq!(loads(&metadata), [4, 5]);
    bench.refuses(Kind::BadState, |scheduler| scheduler.cancel_load(1, 16, 24));
    // All of it.
    bench.admit(2, &prompt, 6);
    bench.scheduler.cancel_load(2, 0, 24).unwrap();
    let metadata = bench.build(&[step(2, &prompt, 0, 8)]);
    assert_eq!((loads(&metadata), saves(&metadata)), (vec![], vec![0, 1]));
}

#[test]
fn b8_a_repeated_question_is_answered_from_memory_until_a_build() {
    let mut bench = bench();
    bench.store(3);
    let prompt = tokens(40);
    for _ in 0..3 {
        assert_eq!(bench.offer(1, &prompt, 0), 12);
        bench.store(5);
    }
    assert_eq!(bench.questions(), [9]);
    bench.build(&[]);
    assert_eq!(bench.offer(1, &prompt, 0), 20);
    bench.store(1);
    assert_eq!(bench.offer(1, &prompt, 0), 20);
    bench.build(&[]);
    assert_eq!(bench.offer(1, &prompt, 0), 4);
    assert_eq!(bench.questions(), [9, 9]);
    // Once allocated, the settled offer does not change any more.
    bench.admit(1, &prompt, 1);
    bench.store(9);
    bench.build(&[]);
    assert_eq!(bench.offer(1, &prompt, 0), 4);
    assert!(bench.questions().is_empty());
    assert_eq!(loads(&bench.build(&[step(1, &prompt, 0, 4)])), [0]);
    // Another prompt under the id is another request.
    assert_eq!(bench.offer(1, &tokens(41), 0), 36);
}

#[test]
fn d1_roles_decide_what_travels() {
    let prompt = tokens(20);
    for (role, offered, saved) in [("producer", 0, 5), ("consumer", 16, 0), ("both", 16, 5)] {
        let mut bench = bench_with(role, &engine(), 1);
        bench.store(9);
        assert_eq!(bench.offer(1, &prompt, 0), offered, "{role}");
        bench.admit(1, &prompt, 0);
        let metadata = bench.build(&[step(1, &prompt, 0, 20)]);
        assert_eq!(metadata.saves().blocks(), saved, "{role}");
        assert_eq!(bench.scheduler.finished(1, FinishReason::Ended), saved > 0);
    }
    let terms = engine().terms(&config("capacity")).unwrap();
    let refused = Scheduler::new(terms, Arc::new(Fake::default()))
        .err()
        .unwrap();
    assert_eq!(refused.kind(), Kind::EngineRefused);
}

#[test]
fn page_lists_that_contradict_are_refused() {
    let mut bench = bench_with("both", &engine(), 2);
    let prompt = tokens(20);
    bench.offer(1, &prompt, 0);
    bench
        .scheduler
        .allocated(1, 0, &[pages(0, &[1, 2, 3])])
        .unwrap();
    let at = |first_block, indices| GroupPages {
        first_block,
        ..pages(0, indices)
    };
    for (lists, kind) in [
        (&[pages(7, &[1])][..], Kind::InvalidArgument),
        (&[pages(10, &[1]), pages(10, &[1])], Kind::InvalidArgument),
        (&[pages(0, &[1, 9])], Kind::Contradiction),
        (&[pages(0, &[1, -1])], Kind::Contradiction),
        (&[at(4, &[1])], Kind::Contradiction),
        (&[at(u32::MAX, &[1, 2])], Kind::OutOfRange),
        (&[at(3, &[100])], Kind::OutOfRange),
        (&[at(3, &[-2])], Kind::OutOfRange),
        (
            &[GroupPages {
                replace: true,
                ..at(1, &[5])
            }],
            Kind::InvalidArgument,
        ),
    ] {
        bench.refuses(kind, |scheduler| scheduler.allocated(1, 0, lists));
        bench.refuses(kind, |scheduler| {
            scheduler.build(&[Step {
                pages: lists,
                ..step(1, &prompt, 0, 4)
            }])
        });
    }
    // Overlap with what is known is normal.
    bench
        .scheduler
        .allocated(1, 0, &[at(1, &[2, 3, 4]), at(4, &[5])].as_slice()[..1])
        .unwrap();
}
