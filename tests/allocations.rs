//! A warmed-up pass allocates nothing per page, key or idle request: with 500 pages it allocates as
//! often as with one.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "a global allocator that counts")]

mod rig;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kvbridge::device::Stream;
use kvbridge::device::memory::{Source, Target};
use kvbridge::error::Result;
use kvbridge::keys::{Keys, Tokens};
use kvbridge::lane::Mode;
use kvbridge::layout::Range;
use kvbridge::scheduler::{FinishReason, GroupPages, Scheduler, Step};
use kvbridge::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store,
};
use kvbridge::worker::{Fence, Worker};
use rig::{Cache, GroupShape, Setup, T, pool, prompt, request};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Has everything or nothing, and takes everything, without a byte of its own.
struct Hollow {
    capabilities: Capabilities,
    full: AtomicBool,
}

impl Store for Hollow {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        let presence = match self.full.load(Ordering::SeqCst) {
            true => Presence::Present,
            false => Presence::Absent,
        };
        out.clear();
        out.resize(keys.len(), presence);
    }
    fn put(
        &self,
        keys: &Keys,
        _: Pieces<'_, Source<'_>>,
        _: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        out.clear();
        out.resize(keys.len(), PutOutcome::Stored);
    }
    fn get(&self, keys: &Keys, mut targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        out.clear();
        for key in 0..keys.len() {
            let size = targets.of(key).iter().map(Target::size).sum();
            out.push(GetOutcome::Landed(size));
        }
    }
    fn remove(&self, _: &Keys, _: bool, out: &mut Vec<RemoveOutcome>) {
        out.clear();
    }
    fn register(&self, _: Range) -> Result<()> {
        Ok(())
    }
    fn unregister(&self, _: Range) -> Result<()> {
        Ok(())
    }
    fn health(&self) -> Health {
        Health::Up
    }
    fn is_outage(&self, _: i32) -> bool {
        false
    }
    fn may_still_write(&self, _: i32) -> bool {
        false
    }
    fn may_still_read(&self, _: i32) -> bool {
        false
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// Allocations of each part of a pass: lookup, the scheduler's rest, load, save.
type Counts = [u64; 4];

struct Machine {
    store: Arc<Hollow>,
    worker: Worker,
    scheduler: Scheduler,
    _cache: Cache,
    prompt: Vec<i32>,
    pages: Vec<i32>,
}

impl Machine {
    fn new() -> Self {
        let setup = Setup {
            // Without seals, which a hollow store cannot give back.
            scheme: "trtllm",
            batch: 64,
            staging: 1 << 20,
            slots: 600,
            groups: vec![GroupShape {
                id: 0,
                sharded: vec![64, 32],
                replicated: Vec::new(),
            }],
            ..Setup::default()
        };
        let store = Arc::new(Hollow {
            capabilities: pool(1 << 16).capabilities().clone(),
            full: AtomicBool::new(false),
        });
        let lent = Arc::clone(&store) as Arc<dyn Store>;
        let mut worker =
            Worker::new(&setup.config(), &setup.engine(0), lent, &Mode::Threads).unwrap();
        let cache = Cache::new(&setup);
        worker.register_layout(cache.register()).unwrap();
        let handle = worker.handle();
        let scheduler = Scheduler::new(handle.terms().clone(), handle.link().unwrap()).unwrap();
        Self {
            store,
            worker,
            scheduler,
            _cache: cache,
            prompt: prompt(1, 501 * T),
            pages: (0..501).collect(),
        }
    }

    /// One request's life: so many blocks found, loaded (`full`) or saved.
    fn live(&mut self, id: u64, blocks: usize, full: bool) -> Counts {
        self.store.full.store(full, Ordering::SeqCst);
        let tokens = &self.prompt[..blocks * T + 1];
        let mut counts = [0; 4];
        let mut last = ALLOCATIONS.load(Ordering::SeqCst);
        let mut lap = |part: usize| {
            let now = ALLOCATIONS.load(Ordering::SeqCst);
            counts[part] += now - std::mem::replace(&mut last, now);
        };
        let offer = self
            .scheduler
            .match_request(&request(id, tokens), 0)
            .unwrap();
        lap(0);
        assert_eq!(offer.tokens, if full { (blocks * T) as u64 } else { 0 });
        let list = GroupPages {
            group: 0,
            first_block: 0,
            indices: &self.pages[..blocks + 1],
            replace: false,
        };
        self.scheduler.allocated(id, offer.tokens, &[list]).unwrap();
        let metadata = self
            .scheduler
            .build(&[Step {
                request_id: id,
                new_tokens: Tokens::I32(tokens),
                pages: &[],
                computed_position: 0,
                scheduled_tokens: tokens.len() as u64 - offer.tokens,
            }])
            .unwrap();
        let moved = [metadata.loads().blocks(), metadata.saves().blocks()];
        assert_eq!(
            moved,
            if full {
                [blocks as u64, 0]
            } else {
                [0, blocks as u64]
            }
        );
        lap(1);
        self.worker.bind(metadata, Fence::None);
        self.worker.start_load(Stream::default()).unwrap();
        lap(2);
        self.worker.wait_for_save(Stream::default()).unwrap();
        while self.worker.handle().gauges().saves_in_flight > 0 {
            std::thread::yield_now();
        }
        lap(3);
        self.scheduler.finished(id, FinishReason::Ended);
        self.worker.get_finished(&[id], &[]).unwrap();
        lap(1);
        assert!(self.worker.take_failed_loads().is_empty());
        counts
    }
}

/// One test, since the counter is the process's.
#[test]
fn a_warm_pass_allocates_nothing_per_page_key_or_idle_request() {
    let mut machine = Machine::new();
    for id in 0..12 {
        // Two metadata are in turn: the bound one and the next.
        for full in [true, true, false, false] {
            machine.live(id, 500, full);
        }
    }
    for full in [true, false] {
        let one = machine.live(100, 1, full);
        let many = machine.live(101, 500, full);
        assert_eq!(one, many, "lookup, decisions, load, save; loads: {full}");
        assert_eq!(one[0], 0, "a lookup allocates nothing at all");
        assert_eq!(one[2], 0, "nor does a load");
    }
    let stats = machine.worker.handle().stats();
    assert!(stats.loaded_pages > 6000 && stats.saved_pages > 6000);

    // Decoding: a token each, nothing to save.
    let few = decode(&mut machine, 10);
    let many = decode(&mut machine, 1000);
    assert_eq!(
        few, many,
        "a build's allocations do not depend on idle requests"
    );
}

/// Allocations of one pass in which so many requests decode, after some such passes.
fn decode(machine: &mut Machine, requests: u64) -> u64 {
    machine.store.full.store(false, Ordering::SeqCst);
    let prompt = prompt(2, T + 1);
    for id in 0..requests {
        machine
            .scheduler
            .match_request(&request(id, &prompt), 0)
            .unwrap();
        let list = GroupPages {
            group: 0,
            first_block: 0,
            indices: &[1, 2],
            replace: false,
        };
        machine.scheduler.allocated(id, 0, &[list]).unwrap();
    }
    let mut counts = Vec::new();
    for pass in 0..6 {
        let token = [7];
        let computed = if pass == 0 { 0 } else { T as u64 + pass };
        let steps: Vec<Step<'_>> = (0..requests)
            .map(|request_id| Step {
                request_id,
                new_tokens: Tokens::I32(if pass == 0 { &prompt } else { &token }),
                pages: &[],
                computed_position: computed,
                scheduled_tokens: if pass == 0 { T as u64 + 1 } else { 1 },
            })
            .collect();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        let metadata = machine.scheduler.build(&steps).unwrap();
        counts.push(ALLOCATIONS.load(Ordering::SeqCst) - before);
        assert_eq!(
            metadata.saves().blocks(),
            if pass == 0 { requests } else { 0 }
        );
        machine.worker.bind(metadata, Fence::None);
        machine.worker.start_load(Stream::default()).unwrap();
        machine.worker.wait_for_save(Stream::default()).unwrap();
        while machine.worker.handle().gauges().saves_in_flight > 0 {
            std::thread::yield_now();
        }
    }
    for id in 0..requests {
        machine.scheduler.finished(id, FinishReason::Ended);
    }
    let ids: Vec<u64> = (0..requests).collect();
    machine.worker.get_finished(&ids, &[]).unwrap();
    *counts.last().unwrap()
}
