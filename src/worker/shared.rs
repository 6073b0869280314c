//! The part of a worker that several threads see: the engine's, the scheduler's and the save
//! thread. Lookups live here, since they may run beside everything else.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hashbrown::HashSet;
use parking_lot::{Mutex, RwLock};

use super::finished::Finished;
use super::parked::Parked;
use super::plan::PagePlan;
use super::trouble::Trouble;
use crate::device::Direction;
use crate::engine::Terms;
use crate::error::{Error, Kind, Result};
use crate::keys::{Keys, Template};
use crate::link::{GroupInfo, Report};
use crate::metadata::Life;
use crate::plant::{self, Bug};
use crate::stats::{Counters, Gauges, Lines, Timers};
use crate::store::guarded::Guarded;
use crate::store::{Presence, Store};
use crate::sync::Clock;

/// Keys and answers of one lookup, kept for the next.
#[derive(Default)]
struct Scratch {
    keys: Keys,
    present: Vec<Presence>,
}

/// What the attached scheduler is to hear.
#[derive(Default)]
pub(super) struct Reports {
    /// Its number; 0 without one, and then nothing is kept.
    source: u64,
    report: Report,
}

impl Reports {
    pub fn add(&mut self, source: u64, add: impl FnOnce(&mut Report)) {
        if self.source != 0 && self.source == source {
            add(&mut self.report);
        }
    }
}

/// What saves ask of the pool beyond storing.
#[derive(Debug, Default)]
pub(super) struct PutWish {
    /// Keep each page this long before others are evicted.
    pub soft_pin_ttl: Option<Duration>,
    /// What names the eviction group of a block.
    pub group: Option<Template>,
}

pub(super) struct Shared {
    pub terms: Terms,
    pub store: Arc<Guarded>,
    pub put_wish: PutWish,
    pub trouble: Trouble,
    pub stats: Counters,
    pub timers: Timers,
    pub lines: Lines,
    /// Asynchronous loads that no thread has begun.
    pub queued: AtomicU64,
    /// Present while a layout is registered.
    pub plan: RwLock<Option<Arc<PagePlan>>>,
    pub finished: crate::sync::Mutex<Finished>,
    /// Locked before `reports`, when both are.
    pub parked: crate::sync::Mutex<Parked>,
    /// The first error of a load thread: nothing that is loaded can be relied on any more.
    load_error: Mutex<Option<(Kind, String)>>,
    pub reports: Mutex<Reports>,
    /// Lives that the scheduler forgot and the worker has not heard of. Held while a synchronous load
    /// writes a batch, so that nothing is written into their pages once they are in here.
    pub ended: Mutex<Vec<Life>>,
    /// Lives with queued saves whose pages are the engine's again: they are not read any more. Held
    /// while a batch is read.
    pub released: Mutex<HashSet<Life>>,
    /// Held while the pool writes into the cache itself for a synchronous load, and while it reads there for a
    /// save: who has said that a life is over passes them, and knows then that its pages are not touched any more.
    pub direct_load: Mutex<()>,
    pub direct_save: Mutex<()>,
    /// Lives that had queued transfers when the present scheduler came.
    inherited: Mutex<Vec<Life>>,
    pub closed: AtomicBool,
    lookup_chunk_blocks: usize,
    scratch: Mutex<Vec<Scratch>>,
}

impl Shared {
    pub fn new(
        terms: Terms,
        store: Arc<Guarded>,
        put_wish: PutWish,
        lookup_chunk_blocks: usize,
        stats_interval: Option<Duration>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            timers: Timers::new(stats_interval.is_some()),
            lines: Lines::new(stats_interval, clock, terms.global_rank),
            terms,
            store,
            put_wish,
            trouble: Trouble::default(),
            stats: Counters::default(),
            queued: AtomicU64::new(0),
            plan: RwLock::new(None),
            finished: crate::sync::Mutex::default(),
            parked: crate::sync::Mutex::default(),
            load_error: Mutex::default(),
            reports: Mutex::default(),
            ended: Mutex::default(),
            released: Mutex::default(),
            direct_load: Mutex::default(),
            direct_save: Mutex::default(),
            inherited: Mutex::default(),
            closed: AtomicBool::new(false),
            lookup_chunk_blocks,
            scratch: Mutex::default(),
        }
    }

    /// Lets one scheduler take the reports; false when one does already.
    pub fn attach_scheduler(&self) -> bool {
        let mut reports = self.reports.lock();
        let free = reports.source == 0;
        if free {
            *self.inherited.lock() = self.finished.lock().lives().collect();
            // From the process's random source, since metadata comes from other processes too.
            reports.source = RandomState::new().hash_one(std::process::id()).max(1);
        }
        free
    }

    /// Ends it; what was not taken is forgotten.
    pub fn detach_scheduler(&self) {
        let mut reports = self.reports.lock();
        reports.source = 0;
        reports.report.clear();
    }

    /// Adds to the report of the attached scheduler what concerns its own metadata; what became of
    /// another one's is nobody's business.
    pub fn report(&self, source: u64, add: impl FnOnce(&mut Report)) {
        self.reports.lock().add(source, add);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Blocks per existence question, each with so many keys.
    pub fn chunk_blocks(&self, keys_per_block: usize) -> usize {
        let most = self.store.capabilities().keys_per_call / keys_per_block.max(1);
        self.lookup_chunk_blocks.min(most).max(1)
    }

    fn lookup_chunks(&self, plan: &PagePlan, hashes: &[u8], scratch: &mut Scratch) -> usize {
        let per_block = plan.lookup.len();
        let chunk_blocks = self.chunk_blocks(per_block);
        let mut hits = 0;
        let deadline = self.store.lookup_deadline();
        for chunk in hashes.chunks(chunk_blocks * self.terms.hash_bytes()) {
            let blocks = chunk.len() / self.terms.hash_bytes();
            scratch.keys.clear();
            if let Err(error) = scratch.keys.fill(&plan.lookup, chunk) {
                // Only hashes of another scheme get here: nothing of ours is stored under them.
                tracing::warn!("lookup: {error}");
                return hits;
            }
            self.store
                .exist_by(deadline, &scratch.keys, &mut scratch.present);
            self.stats.store_calls.add(1);
            self.stats.lookup_blocks.add(blocks as u64);
            self.stats.lookup_keys.add(scratch.keys.len() as u64);
            let present = &scratch.present[..];
            if present.len() != scratch.keys.len() && !plant::is(Bug::ShortAnswerHits) {
                // A broken answer says nothing about any key.
                self.stats.failed_lookup_keys.add(scratch.keys.len() as u64);
                tracing::warn!(
                    store = self.store.capabilities().name,
                    "{} answers to {} existence questions: all count as missing",
                    present.len(),
                    scratch.keys.len()
                );
                return hits;
            }
            let count = |wanted: fn(&Presence) -> bool| {
                present.iter().filter(|one| wanted(one)).count() as u64
            };
            self.stats
                .missing_keys
                .add(count(|one| *one == Presence::Absent));
            let failed = count(|one| matches!(one, Presence::Unknown(_)));
            if failed > 0 {
                self.stats.failed_lookup_keys.add(failed);
                self.trouble.hear_of_lookup(&*self.store, present);
            }
            let is_miss = |one: &Presence| match one {
                Presence::Present => false,
                Presence::Absent => true,
                Presence::Unknown(_) => !plant::is(Bug::UnknownHits),
            };
            match present.iter().position(is_miss) {
                None => hits += blocks,
                Some(miss) => {
                    self.count_holes(present, miss / per_block, per_block);
                    return hits + miss / per_block;
                }
            }
        }
        hits
    }

    /// Counts what lies stored behind the first missing block of an answer.
    fn count_holes(&self, present: &[Presence], first_missing: usize, per_block: usize) {
        let (mut holes, mut missing, mut behind, mut run) = (0, 0, 0, 0);
        for block in present.chunks_exact(per_block).skip(first_missing) {
            if block.iter().any(|one| *one != Presence::Present) {
                run += 1;
                continue;
            }
            behind += 1;
            if run > 0 {
                holes += 1;
                missing += std::mem::take(&mut run);
            }
        }
        self.stats.holes.add(holes);
        self.stats.hole_blocks.add(missing);
        self.stats
            .tokens_behind_holes
            .add(behind * u64::from(self.terms.tokens_per_block));
    }
}

impl Shared {
    pub fn lookup(&self, hashes: &[u8]) -> usize {
        let plan = self.plan.read().clone();
        let Some(plan) = plan.filter(|plan| !plan.lookup.is_empty() && !self.is_closed()) else {
            return 0;
        };
        let mut scratch = self.scratch.lock().pop().unwrap_or_default();
        let hits = self.lookup_chunks(&plan, hashes, &mut scratch);
        self.stats.lookups.add(1);
        self.stats.hit_blocks.add(hits as u64);
        self.scratch.lock().push(scratch);
        self.lines.looked_up(&self.stats);
        hits
    }

    /// What is under way.
    pub fn gauges(&self) -> Gauges {
        // A load is in both counts, and leaves this one first: held together they never say too little.
        let parked = self.parked.lock();
        let loads = parked.running();
        let finished = self.finished.lock();
        // A request has one or the other: it runs only after its load was reported.
        let saves = finished.in_flight().saturating_sub(loads);
        Gauges {
            saves_in_flight: (saves + finished.left(Direction::Gather)) as u64,
            loads_in_flight: (loads + finished.left(Direction::Scatter)) as u64,
            loads_queued: self.queued.load(Ordering::Relaxed),
        }
    }

    pub fn groups(&self) -> Option<Arc<[GroupInfo]>> {
        self.plan.read().as_ref().map(|plan| plan.groups.clone())
    }

    pub fn take_report(&self, into: &mut Report) {
        let report = &mut self.reports.lock().report;
        if !report.is_empty() {
            std::mem::swap(report, into);
        }
    }

    /// Keeps the first error of a load thread. Nothing is logged here: the caller may hold a lock.
    pub fn keep_load_error(&self, error: &Error) {
        let mut kept = self.load_error.lock();
        kept.get_or_insert_with(|| (error.kind(), error.message().to_owned()));
    }

    /// Ends all asynchronous loads that are not done, because their pages go away.
    pub fn give_up_loads(&self) {
        let mut parked = self.parked.lock();
        if self.terms.restarts_requests() {
            parked.close_gates();
        } else {
            // A lost load is an error for good; but these are not lost, they are given up, on every
            // rank.
            parked.discard_all();
        }
    }

    /// The error that every call answers from now on, if there is one.
    pub fn load_error(&self) -> Result<()> {
        match &*self.load_error.lock() {
            None => Ok(()),
            Some((kind, text)) => Err(Error::new(*kind, text.clone())),
        }
    }

    pub fn life_ended(&self, request_id: u64, generation: u64) {
        let gate = self.parked.lock().withdraw(request_id, generation);
        // The pool's own call may take long, and the pages are pinned; who gets them back at once waits below.
        if let Some(gate) = gate
            && !self.terms.direct
        {
            gate.pass();
        }
        // Nobody takes them out after the end.
        if !self.is_closed() {
            self.ended.lock().push((request_id, generation));
            drop(self.direct_load.lock());
        }
    }

    pub fn inherits_transfers(&self, id: u64) -> bool {
        let mut inherited = self.inherited.lock();
        if inherited.is_empty() {
            return false;
        }
        let finished = self.finished.lock();
        inherited.retain(|life| finished.is_queued(*life) || finished.is_held(*life));
        inherited.iter().any(|life| life.0 == id)
    }

    pub fn life_released(&self, life: Life) {
        // Elsewhere the end of the life, which follows, waits for its load.
        if self.terms.direct {
            let gate = self.parked.lock().withdraw(life.0, life.1);
            if let Some(gate) = gate {
                gate.pass();
            }
        }
        if self.finished.lock().is_queued(life) && !plant::is(Bug::ReleasedRead) {
            self.released.lock().insert(life);
            drop(self.direct_save.lock());
        }
        if self.finished.lock().is_held(life) {
            tracing::error!(
                "request {}: its pages were given back before it was reported, and the pool may still use them: what it stores of them, or what the cache holds there, may be wrong",
                life.0
            );
        }
    }

    pub fn source(&self) -> u64 {
        self.reports.lock().source
    }
}
