//! Faults that were reported for systems of this kind, one test per case, through the two halves
//! and the embedded pool. Numbers are those of the case list.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    unsafe_code,
    reason = "ranges of untouched memory are described by address"
)]

mod rig;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use parking_lot::Mutex;

use kvbridge::device::memory::Source;
use kvbridge::device::{HostMemory, Stream};
use kvbridge::engine::Serving;
use kvbridge::error::Kind;
use kvbridge::keys::{Keys, Scope, Tokens};
use kvbridge::layout::{Group, Layout, Part, Region};
use kvbridge::scheduler::{FinishReason, GroupPages, Request, Step};
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use kvbridge::store::{Pieces, PutOptions, PutOutcome, Store, code};
use rig::{Rig, Setup, T, pool, prompt, request, rule, two_groups};

const OWN: (usize, Part) = (0, Part::Sharded);

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
fn case_09_one_missing_shard_ends_the_prefix() {
    let mut rig = Rig::new(Setup {
        world: 8,
        ..Setup::default()
    });
    let tokens = prompt(1, 6 * T + 1);
    rig.publish(1, &tokens);
    assert_eq!(rig.stored(), 6 * 8);
    assert_eq!(rig.offer(2, &tokens, 0), 6 * T as u64);
    rig.remove(&tokens, 3, OWN, 5);
    assert_eq!(rig.offer(3, &tokens, 0), 3 * T as u64);
}

fn adapter<'a>(tokens: &'a [i32], id: u64, adapter: Option<&'a [u8]>) -> Request<'a> {
    Request {
        scope: Scope {
            cache_salt: Some(b"salt"),
            lora_identity: adapter,
            ..Scope::default()
        },
        ..request(id, tokens)
    }
}

#[test]
fn case_12_adapters_never_share_pages() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 4 * T);
    let adapters = [None, Some(&b"A"[..]), Some(b"B")];
    for (id, name) in (1..).zip(adapters) {
        let wanted = adapter(&tokens, id, name);
        assert_eq!(rig.scheduler.match_request(&wanted, 0).unwrap().tokens, 0);
        rig.allocate(id, &tokens, 0, 0);
        rig.pass(&[(id, 4 * T)]);
        rig.drain();
        assert_eq!(rig.stored(), 4 * id);
    }
    for (id, name) in (11..).zip(adapters) {
        let wanted = adapter(&tokens, id, name);
        assert_eq!(rig.scheduler.match_request(&wanted, 0).unwrap().tokens, 48);
    }
}

#[test]
fn case_17_media_without_digests_take_no_part() {
    struct Warnings(AtomicU32);
    impl tracing::Subscriber for Warnings {
        fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::WARN
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, event: &tracing::Event<'_>) {
            if event.metadata().target().contains("scheduler") {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let warnings = Arc::new(Warnings(AtomicU32::new(0)));
    let guard = tracing::Dispatch::from(
        Arc::clone(&warnings) as Arc<dyn tracing::Subscriber + Send + Sync>
    );
    tracing::dispatcher::with_default(&guard, || {
        let mut rig = Rig::new(Setup::default());
        let tokens = prompt(1, 4 * T);
        rig.publish(1, &tokens);
        let (asked, stored) = (rig.asked(Call::Any), rig.stored());
        for id in 2..5 {
            let media = Request {
                has_media: true,
                ..request(id, &tokens)
            };
            assert_eq!(rig.scheduler.match_request(&media, 0).unwrap().tokens, 0);
            rig.allocate(id, &tokens, 0, 0);
            let metadata = rig.pass(&[(id, 4 * T)]);
            assert_eq!(metadata.saves().runs().len(), 0);
            rig.drain();
            assert!(!rig.finish(id, FinishReason::Ended));
        }
        assert_eq!((rig.asked(Call::Any), rig.stored()), (asked, stored));
    });
    assert_eq!(warnings.0.load(Ordering::SeqCst), 1);
}

#[test]
fn case_18_number_formats_never_share_pages() {
    let shared = pool(1 << 20);
    let tokens = prompt(1, 4 * T);
    let formats = ["fp8_e4m3", "fp8_e5m2", "int8"];
    for (number, format) in formats.iter().enumerate() {
        let mut rig = Rig::on(
            Setup {
                format,
                ..Setup::default()
            },
            Arc::clone(&shared),
        );
        assert_eq!(rig.offer(9, &tokens, 0), 0, "{format}");
        rig.publish(1, &tokens);
        assert_eq!(rig.stored(), 4 * (number as u64 + 1));
        assert_eq!(rig.offer(2, &tokens, 0), 48);
    }
}

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
                rig.scheduler.reset(id);
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
        rig.scheduler.reset(2);
        rig.pass(&[]);
        assert_eq!(rig.offer(2, &tokens, 0), 2 * T as u64);
        assert_eq!(rig.offer(2, &tokens, 3 * T), 0);
    }
    rig.scheduler.reset(2);
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
    rig.scheduler.reset(5);
    assert_eq!(rig.offer(5, &one, 0), 0);
    rig.scheduler.reset(5);
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
    rig.scheduler.reset(2);
    assert_eq!(rig.admit(2, &tokens), T as u64);
    rig.pass(&[(2, 5 * T)]);
    rig.check(2);
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
fn case_62_only_a_definite_yes_is_a_hit() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 7 * T);
    rig.publish(1, &tokens);
    let key = |block| Which::Containing(rig.key(&tokens, block, OWN, 0));
    let before = rig.stats();
    let scripts = [
        (vec![rule(Call::Exist, key(3), Action::Lose)], 3, 1, 0),
        (vec![rule(Call::Exist, key(2), Action::Fail(-900))], 2, 0, 1),
        (
            vec![
                rule(Call::Exist, key(4), Action::Lose),
                rule(Call::Exist, key(1), Action::Fail(-900)),
            ],
            1,
            1,
            1,
        ),
        (
            vec![rule(Call::Exist, Which::All, Action::WrongLength(-1))],
            0,
            0,
            6,
        ),
        (
            vec![rule(Call::Exist, Which::All, Action::WrongLength(1))],
            0,
            0,
            6,
        ),
    ];
    let (mut missing, mut failed) = (before.missing_keys, before.failed_lookup_keys);
    for (id, (script, blocks, misses, failures)) in (2..).zip(scripts) {
        rig.script(script);
        assert_eq!(rig.offer(id, &tokens, 0), blocks * T as u64);
        missing += misses;
        failed += failures;
        let stats = rig.stats();
        assert_eq!(
            (stats.missing_keys, stats.failed_lookup_keys),
            (missing, failed)
        );
    }
}

#[test]
fn case_63_a_replacement_is_the_whole_table() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 5 * T);
    rig.offer(1, &tokens, 0);
    let list = |indices, replace| GroupPages {
        group: 0,
        first_block: 0,
        indices,
        replace,
    };
    let first = list(&[1, 2, 3, 4, 5, 6, 7], false);
    rig.scheduler.allocated(1, 0, &[first]).unwrap();
    let new = [21, 22, 23, 24, 25];
    let refused = rig.scheduler.allocated(1, 0, &[list(&new, false)]);
    assert_eq!(refused.unwrap_err().kind(), Kind::Contradiction);
    let metadata = rig
        .scheduler
        .build(&[Step {
            request_id: 1,
            new_tokens: Tokens::I32(&tokens),
            pages: &[list(&new, true)],
            computed_position: 0,
            scheduled_tokens: 5 * T as u64,
        }])
        .unwrap();
    let pages: Vec<&[i32]> = metadata
        .views(metadata.saves())
        .map(|view| view.pages)
        .collect();
    assert_eq!(pages, [&new[..]]);
}

#[test]
fn case_64_the_last_token_is_never_offered() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 6 * T);
    rig.publish(1, &tokens);
    for (id, (length, offered)) in
        (2..).zip([(64, 48), (65, 64), (15, 0), (0, 0), (16, 0), (17, 16)])
    {
        assert_eq!(
            rig.offer(id, &tokens[..length], 0),
            offered,
            "{length} tokens"
        );
    }
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
    rig.scheduler.reset(1);
    rig.scheduler.reset(77);
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
fn case_73_pages_of_two_groups_with_one_index_are_two_pages() {
    let mut rig = Rig::new(Setup {
        groups: two_groups(),
        ..Setup::default()
    });
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    rig.publish(1, &one);
    rig.publish(1, &two);
    for (id, tokens, pages) in [(2, &one, [7, 8]), (3, &two, [9, 7])] {
        assert_eq!(rig.offer(id, tokens, 0), 16);
        let lists: Vec<GroupPages<'_>> = [3, 9]
            .into_iter()
            .zip(pages.chunks(1))
            .map(|(group, indices)| GroupPages {
                group,
                first_block: 0,
                indices,
                replace: false,
            })
            .collect();
        rig.scheduler.allocated(id, 16, &lists).unwrap();
    }
    let step = |request_id, tokens| Step {
        request_id,
        new_tokens: Tokens::I32(tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 16,
    };
    let metadata = rig
        .scheduler
        .build(&[step(2, &one), step(3, &two)])
        .unwrap();
    rig.script(vec![rule(
        Call::Get,
        Which::Containing(rig.key(&two, 0, (1, Part::Sharded), 0)),
        Action::Lose,
    )]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [3]);
    let kind = (0, Part::Sharded);
    assert_eq!(
        rig.ranks[0].cache.read(kind, 7),
        rig::content(&one, 0, kind, 0, 64)
    );
}

#[test]
fn case_80_pages_beyond_4_gib_are_accounted_or_refused() {
    const GIB: u64 = 1 << 30;
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 0,
            window: 0,
            number_format: "bfloat16".into(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    // Reserved, never touched.
    let memory = [
        HostMemory::new(3 * GIB).unwrap(),
        HostMemory::new(2 * GIB).unwrap(),
    ];
    for memory in &memory {
        let range = memory.range();
        layout
            .add_region(
                0,
                Region {
                    base: range.start,
                    size: range.size,
                    stride: range.size,
                    slots: 1,
                    reservation_base: 0,
                },
            )
            .unwrap();
    }
    assert_eq!(layout.groups()[0].page_bytes(Part::Sharded), 5 * GIB);
    let mut sources: Vec<Source<'_>> = memory
        .iter()
        // SAFETY: the memory is mapped until the end of the test, and nobody writes it.
        .map(|memory| unsafe { Source::from_raw(memory.range().start, memory.range().size) })
        .collect();
    let mut keys = Keys::new();
    keys.push(b"large");
    let mut out = Vec::new();
    // 5 GiB cut to 32 bits would be 1 GiB, and would fit.
    let pool = pool(4 * GIB);
    pool.put(
        &keys,
        Pieces::grouped(&mut sources, &[2]),
        &PutOptions::default(),
        &mut out,
    );
    assert_eq!(out, [PutOutcome::Failed(code::TOO_LARGE)]);
    assert_eq!(pool.stats().unwrap().bytes_used, 0);
}

#[test]
fn case_81_addresses_have_64_bits_and_indices_a_range() {
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 0,
            window: 0,
            number_format: "bfloat16".into(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    let stride = 1_002_240;
    let region = Region {
        base: 1 << 40,
        size: stride,
        stride,
        slots: 2144,
        reservation_base: 0,
    };
    layout.add_region(0, region).unwrap();
    let mut pieces = Vec::new();
    layout.groups()[0]
        .pieces(Part::Sharded, 2143, &mut pieces)
        .unwrap();
    assert_eq!(pieces[0].address, (1 << 40) + 2_147_800_320);
    for index in [2144, i32::MAX, -1, i32::MIN] {
        let refused = layout.groups()[0].pieces(Part::Sharded, index, &mut pieces);
        assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
    }
    // The scheduler refuses it before it travels.
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 2 * T);
    rig.offer(1, &tokens, 0);
    for index in [256, i32::MAX, -2, i32::MIN] {
        let list = GroupPages {
            group: 0,
            first_block: 0,
            indices: &[index],
            replace: false,
        };
        let refused = rig.scheduler.allocated(1, 0, &[list]);
        assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange, "{index}");
    }
}

#[test]
fn case_88_a_block_is_asked_for_once_per_purpose() {
    for chunk in [7, 512] {
        let mut rig = Rig::new(Setup {
            chunk,
            ..Setup::default()
        });
        let tokens = prompt(1, 64 * T);
        // Nothing is stored: the lookup ends with the first chunk of blocks.
        rig.admit(1, &tokens);
        assert_eq!(rig.asked(Call::Exist), u64::from(chunk.min(63)));
        let lookups = rig.asked(Call::Exist);
        for _ in 0..64 {
            rig.pass(&[(1, T)]);
            rig.drain();
        }
        assert_eq!(rig.asked(Call::Exist), lookups + 64);
        assert_eq!((rig.asked(Call::Put), rig.asked(Call::Get)), (64, 0));
        // Everything is stored: each block once, not once per chunk; repeats cost nothing.
        let before = rig.asked(Call::Exist);
        for _ in 0..3 {
            assert_eq!(rig.offer(2, &tokens, 0), 63 * T as u64);
        }
        assert_eq!(rig.offer(2, &tokens, 5 * T), 58 * T as u64);
        assert_eq!(rig.asked(Call::Exist), before + 63);
    }
}

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
            assert!(!rank.worker.declarations().reports_failed_loads);
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
        assert!(writer.ranks[0].worker.declarations().reports_failed_loads);
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

/// A rule that stops calls of one kind until the sender is dropped, and tells when one has come.
fn stopped(call: Call) -> (Rule, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (come, came) = mpsc::channel();
    let (go, stop) = mpsc::channel::<()>();
    let (come, stop) = (Mutex::new(come), Mutex::new(stop));
    let hook = Action::Hook(Arc::new(move || {
        let _ = come.lock().send(());
        // An error is the sender's end.
        let _ = stop.lock().recv();
    }));
    (rule(call, Which::All, hook), go, came)
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
