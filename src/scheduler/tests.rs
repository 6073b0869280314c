//! The scheduler beside a worker that only pretends: every answer and report is the test's.

use std::sync::Arc;

use parking_lot::Mutex;
use proptest::prelude::*;

use super::*;
use crate::config::Config;
use crate::engine::{DeviceChoice, Drafter, Engine, Serving};
use crate::error::Kind;
use crate::link::{BlockOf, GroupInfo};
use crate::metadata::Metadata;

const T: u64 = 4;

#[derive(Default)]
struct Fake {
    /// Blocks from the head of any question that are stored, and the questions so far.
    stored: Mutex<usize>,
    asked: Mutex<Vec<usize>>,
    groups: Mutex<Option<Arc<[GroupInfo]>>>,
    report: Mutex<Report>,
    /// Lives that the scheduler forgot, with their generation.
    ended: Mutex<Vec<(u64, u64)>>,
}

impl LocalWorker for Fake {
    fn lookup(&self, hashes: &[u8]) -> usize {
        self.asked.lock().push(hashes.len() / 32);
        *self.stored.lock()
    }
    fn groups(&self) -> Option<Arc<[GroupInfo]>> {
        self.groups.lock().clone()
    }
    fn take_report(&self, into: &mut Report) {
        std::mem::swap(&mut *self.report.lock(), into);
    }
    fn life_ended(&self, request_id: u64, generation: u64) {
        self.ended.lock().push((request_id, generation));
    }
    fn source(&self) -> u64 {
        7
    }
}

struct Bench {
    fake: Arc<Fake>,
    scheduler: Scheduler,
}

fn groups(count: u32) -> Arc<[GroupInfo]> {
    (0..count)
        .map(|position| GroupInfo {
            id: position * 10,
            slots: 100,
        })
        .collect()
}

fn engine() -> Engine {
    Engine {
        tokens_per_block: T as u32,
        tp_rank: 0,
        tp_size: 1,
        pp_size: 1,
        cp_size: 1,
        ranks_on_node: 1,
        attention_dp: false,
        serving: Serving::Aggregated,
        drafter: Drafter::None,
        max_draft_len: None,
        draft_shares_cache: true,
        supplies_fences: false,
        device: DeviceChoice::Host,
    }
}

fn config(role: &str) -> Config {
    Config::from_json(format!(r#"{{"model_key": "m", "role": "{role}"}}"#).as_bytes()).unwrap()
}

fn bench_with(role: &str, engine: &Engine, group_count: u32) -> Bench {
    let fake = Arc::new(Fake::default());
    *fake.groups.lock() = Some(groups(group_count));
    let terms = engine.terms(&config(role)).unwrap();
    let scheduler = Scheduler::new(terms, Arc::clone(&fake) as Arc<dyn LocalWorker>).unwrap();
    Bench { fake, scheduler }
}

fn bench() -> Bench {
    bench_with("both", &engine(), 1)
}

fn tokens(count: u64) -> Vec<i32> {
    (0..count as i32).collect()
}

fn request(id: u64, prompt: &[i32]) -> Request<'_> {
    Request {
        id,
        prompt: Tokens::I32(prompt),
        scope: Scope::default(),
        has_media: false,
        context_only: true,
    }
}

fn pages(group: u32, indices: &[i32]) -> GroupPages<'_> {
    GroupPages {
        group,
        first_block: 0,
        indices,
        replace: false,
    }
}

fn step(id: u64, new: &[i32], computed: u64, scheduled: u64) -> Step<'_> {
    Step {
        request_id: id,
        new_tokens: Tokens::I32(new),
        pages: &[],
        computed_position: computed,
        scheduled_tokens: scheduled,
    }
}

/// Ordinals of the blocks of one direction.
fn blocks(transfers: &crate::metadata::Transfers) -> Vec<u32> {
    let runs = transfers.runs().iter();
    let mut blocks: Vec<u32> = runs
        .flat_map(|run| run.first_block..run.first_block + run.blocks)
        .collect();
    blocks.sort_unstable();
    blocks
}

fn saves(metadata: &Metadata) -> Vec<u32> {
    blocks(metadata.saves())
}

fn loads(metadata: &Metadata) -> Vec<u32> {
    blocks(metadata.loads())
}

impl Bench {
    fn store(&self, blocks: usize) {
        *self.fake.stored.lock() = blocks;
    }

    fn offer(&mut self, id: u64, prompt: &[i32], local: u64) -> u64 {
        let offer = self.scheduler.match_request(&request(id, prompt), local);
        offer.unwrap().tokens
    }

    fn questions(&self) -> Vec<usize> {
        std::mem::take(&mut self.fake.asked.lock())
    }

    /// A request with a page for each block, honouring so many blocks of what is offered.
    fn admit(&mut self, id: u64, prompt: &[i32], honoured: u64) {
        self.offer(id, prompt, 0);
        let list: Vec<i32> = (0..prompt.len().div_ceil(T as usize) as i32).collect();
        self.scheduler
            .allocated(id, honoured * T, &[pages(0, &list)])
            .unwrap();
    }

    fn build(&mut self, steps: &[Step<'_>]) -> Arc<Metadata> {
        self.scheduler.build(steps).unwrap()
    }

    fn started(&self, pass: &Metadata) {
        self.fake.report.lock().started.push(pass.pass());
    }

    fn submitted(&self, pass: &Metadata) {
        self.fake.report.lock().submitted.push(pass.pass());
    }

    /// Everything that decides later answers, in words.
    fn snapshot(&self) -> String {
        let mut records: Vec<String> = self
            .scheduler
            .records
            .iter()
            .map(|(id, record)| {
                let text = format!("{id} {record:?}");
                // The mark that a failed build leaves means nothing to the next one.
                let mark = format!("seen_in: {}", record.seen_in);
                text.replace(&mark, "")
            })
            .collect();
        records.sort();
        let mut failed: Vec<String> = self
            .scheduler
            .failed_from
            .iter()
            .map(|(id, block)| format!("{id} {block:?}"))
            .collect();
        failed.sort();
        let mut pinned: Vec<_> = self.scheduler.pinned.iter().collect();
        pinned.sort();
        format!(
            "{records:?} {failed:?} {pinned:?} {:?} {}",
            self.scheduler.logs, self.scheduler.pass
        )
    }

    fn refuses<R: std::fmt::Debug>(
        &mut self,
        kind: Kind,
        call: impl FnOnce(&mut Scheduler) -> Result<R>,
    ) {
        let before = self.snapshot();
        let error = call(&mut self.scheduler).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert_eq!(self.snapshot(), before, "{error}");
    }
}

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

#[test]
fn b5_a_pass_that_was_not_submitted_is_emitted_again() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let first = bench.build(&[step(1, &prompt, 0, 8)]);
    assert_eq!(saves(&first), [0, 1]);
    // Built and never run: the engine schedules the same again, or more.
    assert_eq!(saves(&bench.build(&[step(1, &[], 0, 8)])), [0, 1]);
    let third = bench.build(&[step(1, &[], 0, 12)]);
    assert_eq!(saves(&third), [0, 1, 2]);
    bench.submitted(&third);
    let fourth = bench.build(&[step(1, &[], 12, 4)]);
    assert_eq!(saves(&fourth), [3]);
    // A late report about a pass before it confirms nothing more, nor does one about no pass.
    bench.submitted(&first);
    bench.fake.report.lock().submitted.push(999);
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 4)])), [3, 4]);
}

#[test]
fn b5_a_report_about_an_earlier_life_confirms_nothing() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let old = bench.build(&[step(1, &prompt, 0, 8)]);
    bench.scheduler.reset(1);
    bench.admit(1, &prompt, 0);
    bench.submitted(&old);
    bench.fake.report.lock().failed_saves.push(BlockOf {
        request_id: 1,
        generation: old.saves().runs()[0].generation,
        block: 1,
    });
    let new = bench.build(&[step(1, &prompt, 0, 4)]);
    assert_eq!(saves(&new), [0]);
    assert!(new.saves().runs()[0].generation > old.saves().runs()[0].generation);
}

#[test]
fn b5_failed_saves_go_with_the_next_completed_block() {
    let mut bench = bench();
    let prompt = tokens(40);
    bench.admit(1, &prompt, 0);
    let first = bench.build(&[step(1, &prompt, 0, 16)]);
    bench.submitted(&first);
    let generation = first.saves().runs()[0].generation;
    let failed = |block| BlockOf {
        request_id: 1,
        generation,
        block,
    };
    bench
        .fake
        .report
        .lock()
        .failed_saves
        .extend([failed(2), failed(1), failed(2)]);
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 2)])), [0u32; 0]);
    // Twice built, once submitted.
    let lost = bench.build(&[step(1, &[], 18, 2)]);
    assert_eq!(saves(&lost), [1, 2, 4]);
    let second = bench.build(&[step(1, &[], 18, 2)]);
    assert_eq!(saves(&second), [1, 2, 4]);
    bench.submitted(&second);
    bench.fake.report.lock().failed_saves.push(failed(1));
    let third = bench.build(&[step(1, &[], 20, 4)]);
    assert_eq!(saves(&third), [1, 5]);
    bench.submitted(&third);
    assert_eq!(saves(&bench.build(&[step(1, &[], 24, 4)])), [6]);
    // A failure of a pass that was not reported as submitted is no reason to emit a block twice.
    bench.fake.report.lock().failed_saves.push(failed(6));
    assert_eq!(saves(&bench.build(&[step(1, &[], 28, 4)])), [6, 7]);
}

#[test]
fn b6_any_emitted_save_pins_until_the_id_is_reported() {
    let mut bench = bench();
    let prompt = tokens(10);
    bench.admit(1, &prompt, 0);
    bench.build(&[step(1, &prompt, 0, 3)]);
    assert!(!bench.scheduler.finished(1, FinishReason::Ended));
    bench.admit(1, &prompt, 0);
    bench.build(&[step(1, &prompt, 0, 4)]);
    assert!(bench.scheduler.finished(1, FinishReason::Preempted));
    assert!(bench.scheduler.finished(1, FinishReason::Ended), "again");
    bench.fake.report.lock().released.push(1);
    assert!(!bench.scheduler.finished(1, FinishReason::Ended));
    // An id that comes again without an end: saves of its earlier life still pin it.
    bench.admit(2, &prompt, 0);
    bench.build(&[step(2, &prompt, 0, 4)]);
    bench.admit(2, &prompt, 0);
    assert!(bench.scheduler.finished(2, FinishReason::Ended));
    assert_eq!(bench.scheduler.live_requests(), 0);
}

#[test]
fn b6_reset_forgets_the_allocation() {
    let mut bench = bench();
    bench.store(2);
    let prompt = tokens(20);
    bench.admit(1, &prompt, 2);
    bench.build(&[step(1, &prompt, 0, 12)]);
    bench.scheduler.reset(1);
    // Steps about it are skipped; pages may differ now, and it is matched anew.
    assert_eq!(loads(&bench.build(&[step(1, &[], 20, 1)])), [0u32; 0]);
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    bench
        .scheduler
        .allocated(1, 0, &[pages(0, &[90, 91, 92, 93, 94])])
        .unwrap();
    let metadata = bench.build(&[step(1, &prompt, 0, 4)]);
    let view = metadata.views(metadata.saves()).next().unwrap();
    assert_eq!((view.run.first_block, view.pages), (0, &[90][..]));
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

#[test]
fn a_request_that_lost_pages_publishes_nothing_until_it_was_reset() {
    let mut bench = bench();
    bench.store(3);
    let prompt = tokens(40);
    bench.admit(1, &prompt, 3);
    let first = bench.build(&[step(1, &prompt, 0, 4)]);
    bench.started(&first);
    bench.submitted(&first);
    bench.fake.report.lock().failed_loads.push(BlockOf {
        request_id: 1,
        generation: first.loads().runs()[0].generation,
        block: 2,
    });
    assert_eq!(saves(&bench.build(&[step(1, &[], 16, 4)])), [0u32; 0]);
    bench.scheduler.reset(1);
    bench.store(9);
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    assert_eq!(bench.offer(1, &prompt, 12), 0);
    assert!(!bench.scheduler.finished(1, FinishReason::Preempted));
    assert_eq!(bench.offer(1, &prompt, 0), 8);
    bench.scheduler.finished(1, FinishReason::Cancelled);
    assert_eq!(bench.offer(1, &prompt, 0), 36);
}

#[test]
fn without_a_layout_requests_take_no_part() {
    let mut bench = bench();
    *bench.fake.groups.lock() = None;
    let prompt = tokens(20);
    assert_eq!(bench.offer(1, &prompt, 0), 0);
    bench.scheduler.allocated(1, 0, &[]).unwrap();
    // Pages that nobody can place make it sit out; no call fails for it.
    bench.scheduler.allocated(1, 0, &[pages(0, &[1])]).unwrap();
    assert_eq!(saves(&bench.build(&[step(1, &prompt, 0, 20)])), [0u32; 0]);
    // Unregistered with a load that did not travel yet.
    *bench.fake.groups.lock() = Some(groups(1));
    bench.store(3);
    bench.admit(2, &prompt, 3);
    *bench.fake.groups.lock() = None;
    bench.refuses(Kind::BadState, |scheduler| {
        scheduler.build(&[step(2, &prompt, 0, 4)])
    });
    bench.scheduler.reset(2);
    bench.build(&[step(2, &prompt, 0, 4)]);
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

/// What a nonsensical engine may call.
#[derive(Debug, Clone)]
enum Nonsense {
    Match(u64, u64, u64, i32),
    Allocated(u64, u64, u32, u32, Vec<i32>, bool),
    Cancel(u64, u64, u64),
    Build(Vec<(u64, u64, u64, u64, bool)>),
    Finished(u64, u8),
    Reset(u64),
    Stored(usize),
    Groups(Option<u32>),
    Report(u8, u64, u64, u32),
}

fn nonsense() -> impl Strategy<Value = Nonsense> {
    let id = || 0u64..3;
    let position = || prop_oneof![6 => (0u64..8).prop_map(|block| block * T), 3 => 0u64..30, 1 => Just(u64::MAX)];
    let page = prop_oneof![8 => 0i32..12, 2 => Just(-1), 1 => prop_oneof![Just(-2), Just(100), Just(i32::MAX), Just(i32::MIN)]];
    prop_oneof![
        4 => (id(), 0u64..30, position(), 0i32..2).prop_map(|(a, b, c, d)| Nonsense::Match(a, b, c, d)),
        5 => (id(), position(), prop_oneof![9 => Just(0u32), 1 => Just(10)], prop_oneof![6 => Just(0u32), 2 => 0u32..6, 1 => Just(u32::MAX)],
              prop_oneof![3 => Just((0..8).collect::<Vec<i32>>()), 2 => prop::collection::vec(page, 0..8)], prop::bool::weighted(0.2))
            .prop_map(|(a, b, c, d, e, f)| Nonsense::Allocated(a, b, c, d, e, f)),
        2 => (id(), position(), position()).prop_map(|(a, b, c)| Nonsense::Cancel(a, b, c)),
        8 => prop::collection::vec((id(), 0u64..12, position(), position(), prop::bool::weighted(0.7)), 0..3).prop_map(Nonsense::Build),
        1 => (id(), 0u8..3).prop_map(|(a, b)| Nonsense::Finished(a, b)),
        1 => id().prop_map(Nonsense::Reset),
        1 => (0usize..1000).prop_map(Nonsense::Stored),
        1 => prop_oneof![Just(Some(1)), Just(Some(2)), Just(None)].prop_map(Nonsense::Groups),
        4 => (0u8..5, 0u64..12, id(), 0u32..9).prop_map(|(a, b, c, d)| Nonsense::Report(a, b, c, d)),
    ]
}

/// The calls that worked are the same calls without those that failed.
fn call(bench: &mut Bench, action: &Nonsense) -> Option<String> {
    let prompts: Vec<Vec<i32>> = (0..2)
        .map(|kind| (0..40).map(|i| i + kind).collect())
        .collect();
    let generation = |bench: &Bench, id: u64| {
        bench
            .scheduler
            .records
            .get(&id)
            .map_or(0, |record| record.generation)
    };
    match action {
        Nonsense::Match(id, length, local, kind) => {
            let prompt = &prompts[*kind as usize][..*length as usize];
            let result = bench.scheduler.match_request(&request(*id, prompt), *local);
            result.ok().map(|offer| format!("{offer:?}"))
        }
        Nonsense::Allocated(id, honoured, group, first_block, indices, replace) => {
            let list = GroupPages {
                group: *group,
                first_block: *first_block,
                indices,
                replace: *replace,
            };
            let result = bench.scheduler.allocated(*id, *honoured, &[list]);
            result.ok().map(|()| String::new())
        }
        Nonsense::Cancel(id, from, to) => {
            let result = bench.scheduler.cancel_load(*id, *from, *to);
            result.ok().map(|()| String::new())
        }
        Nonsense::Build(parts) => {
            let steps: Vec<Step<'_>> = parts
                .iter()
                .map(|(id, new, computed, scheduled, honest)| {
                    let record = bench.scheduler.records.get(id);
                    let first = record.filter(|record| record.stage != record::Stage::Running);
                    let new = match first {
                        Some(record) if *honest => record.prompt_tokens,
                        _ => *new,
                    };
                    step(*id, &prompts[0][..new as usize], *computed, *scheduled)
                })
                .collect();
            let metadata = bench.scheduler.build(&steps).ok()?;
            for transfers in [metadata.loads(), metadata.saves()] {
                for view in metadata.views(transfers) {
                    assert!(view.pages.iter().all(|page| (0..100).contains(page)));
                    assert_eq!(view.hashes.len(), view.run.blocks as usize * 32);
                }
            }
            let mut names: Vec<(u64, u32)> = metadata
                .saves()
                .runs()
                .iter()
                .flat_map(|run| (0..run.blocks).map(|b| (run.request_id, run.first_block + b)))
                .collect();
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "a block is saved twice in one pass");
            Some(format!("{:?} {:?}", loads(&metadata), saves(&metadata)))
        }
        Nonsense::Finished(id, reason) => {
            let reason = [
                FinishReason::Ended,
                FinishReason::Cancelled,
                FinishReason::Preempted,
            ][*reason as usize];
            Some(bench.scheduler.finished(*id, reason).to_string())
        }
        Nonsense::Reset(id) => {
            bench.scheduler.reset(*id);
            Some(String::new())
        }
        Nonsense::Stored(blocks) => {
            bench.store(*blocks);
            Some(String::new())
        }
        Nonsense::Groups(count) => {
            *bench.fake.groups.lock() = count.map(groups);
            Some(String::new())
        }
        Nonsense::Report(what, back, id, block) => {
            let pass = bench.scheduler.pass.wrapping_sub(*back);
            let block = BlockOf {
                request_id: *id,
                generation: generation(bench, *id),
                block: *block,
            };
            let mut report = bench.fake.report.lock();
            match what {
                0 => report.started.push(pass),
                1 => report.submitted.push(pass),
                2 => report.failed_saves.push(block),
                3 => report.failed_loads.push(block),
                _ => report.released.push(*id),
            }
            Some(String::new())
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Never a panic; a call that fails leaves no trace: leaving it out gives the same answers.
    #[test]
    fn nonsense_is_answered_and_errors_change_nothing(
        actions in prop::collection::vec(nonsense(), 1..60),
    ) {
        let mut one = bench();
        let mut answers = Vec::new();
        for action in &actions {
            // Reports are taken by failing calls as well.
            one.scheduler.take_report();
            let before = one.snapshot();
            let answer = call(&mut one, action);
            if answer.is_none() {
                prop_assert_eq!(one.snapshot(), before, "{:?}", action);
            }
            answers.push(answer);
        }
        let mut two = bench();
        for (action, answer) in actions.iter().zip(&answers).filter(|(_, answer)| answer.is_some()) {
            prop_assert_eq!(&call(&mut two, action), answer, "{:?}", action);
        }
    }
}
