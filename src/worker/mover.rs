//! What moves pages between the cache and the pool on the registered layout: the plan, the memory,
//! and the slots in between.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::plan::PagePlan;
use super::sets::Sets;
use crate::device::{CacheMemory, PageRef};
use crate::error::{Result, bail};
use crate::node::{self, Budget};
use crate::staging;
use crate::store::Store;
use crate::store::guarded::Guarded;

/// Bytes that a core keeps in its second-level cache between two steps over them.
const HOT_BYTES: u64 = 1 << 20;

pub(super) struct Mover {
    pub plan: Arc<PagePlan>,
    pub memory: CacheMemory,
    /// Pages per call of the store.
    pub batch: usize,
    /// One set per load thread, or one for synchronous loads; none for roles that do not read.
    pub load_sets: Arc<Sets>,
    /// One set; none for roles that do not write.
    pub save_sets: Arc<Sets>,
}

/// How much staging there is to be, and for whom.
#[derive(Debug, Clone, Copy)]
pub(super) struct Staging {
    /// Bytes per direction.
    pub budget: u64,
    /// Pages per call of the store at most.
    pub batch: u32,
    /// Threads that load; 0 for roles that do not read.
    pub loads: u32,
    /// Threads that save; 0 for roles that do not write.
    pub saves: u32,
    pub ranks_on_node: u32,
}

impl Mover {
    /// Pins the slots and makes them known to the store. On an error nothing stays registered.
    pub fn new(
        plan: Arc<PagePlan>,
        memory: CacheMemory,
        store: &Arc<Guarded>,
        staging: Staging,
    ) -> Result<Self> {
        let page_bytes = plan.largest_payload();
        let most = u32::try_from(store.capabilities().keys_per_call).unwrap_or(u32::MAX);
        let mut batch = staging.batch.min(most);
        if !store.capabilities().can_be_late {
            // A store that answers at once gains nothing from large batches, and each page passes through
            // the CPU three times (copy, seal, copy): so much of it that it stays in the cache meanwhile.
            let hot = u32::try_from(HOT_BYTES / page_bytes.max(1)).unwrap_or(u32::MAX);
            batch = batch.min(hot.max(1));
        }
        let sizes = |threads: u32| staging::plan(staging.budget, threads, page_bytes, batch);
        let directions = [("load", staging.loads), ("save", staging.saves)];
        for (direction, threads) in directions {
            if threads > 0 && sizes(threads).raised {
                tracing::warn!(
                    "staging_buffer_bytes = {} for {threads} {direction} threads is less than one page of {page_bytes} bytes each: each gets one page",
                    staging.budget
                );
            }
        }
        let node = Budget {
            ranks: staging.ranks_on_node,
            segment: 0,
            staging: directions
                .iter()
                .map(|&(_, threads)| sizes(threads).total_bytes(threads))
                .fold(0, u64::saturating_add),
        };
        node.check(node::available_memory())?;
        let sets = |threads: u32| Sets::open(memory.device(), store, sizes(threads), threads);
        let load_sets = sets(staging.loads)?;
        let save_sets = sets(staging.saves).inspect_err(|_| load_sets.close(Duration::ZERO))?;
        // What the threads of either direction can hold at once.
        let batch = [staging.loads, staging.saves]
            .into_iter()
            .filter(|&threads| threads > 0)
            .map(|threads| sizes(threads).slots)
            .min()
            .unwrap_or(1);
        Ok(Self {
            plan,
            memory,
            batch: batch as usize,
            load_sets,
            save_sets,
        })
    }

    /// Whether the layout has this page.
    pub fn check(&self, page: &PageRef) -> Result<()> {
        match self.memory.layout().groups().get(usize::from(page.group)) {
            Some(group) => group.check_index(page.index),
            None => bail!(OutOfRange, "layer group at position {}", page.group),
        }
    }

    /// Takes the slots back from the pool, within `patience`. What the pool does not give back stays
    /// allocated.
    pub fn close(&self, patience: Duration) {
        let began = Instant::now();
        for sets in [&self.load_sets, &self.save_sets] {
            sets.close(patience.saturating_sub(began.elapsed()));
        }
    }
}
