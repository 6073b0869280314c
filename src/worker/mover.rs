//! What moves pages between the cache and the pool on the registered layout: the plan, the memory,
//! and the slots in between, one set per thread.

use std::sync::Arc;

use parking_lot::Mutex;

use super::plan::PagePlan;
use crate::device::{CacheMemory, PageRef};
use crate::error::{Result, bail};
use crate::layout::Range;
use crate::node::{self, Budget};
use crate::staging::{self, Slots};
use crate::store::Store;

/// Bytes that a core keeps in its second-level cache between two steps over them.
const HOT_BYTES: u64 = 1 << 20;

pub(super) struct Mover {
    pub plan: Arc<PagePlan>,
    pub memory: CacheMemory,
    /// Pages per call of the store.
    pub batch: usize,
    /// Slots that no load uses now: one set per load thread, or one for synchronous loads; none for
    /// roles that do not read.
    pub load_slots: Mutex<Vec<Slots>>,
    /// None for roles that do not write.
    pub save_slots: Option<Mutex<Slots>>,
    /// What is registered with the store.
    ranges: Vec<Range>,
    store: Arc<dyn Store>,
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
        store: Arc<dyn Store>,
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
        let slots = |threads: u32| {
            let sizes = sizes(threads);
            Slots::new(memory.device().as_ref(), sizes.slot_bytes, sizes.slots)
        };
        let load_slots = (0..staging.loads)
            .map(|_| slots(staging.loads))
            .collect::<Result<Vec<_>>>()?;
        let save_slots = match staging.saves {
            0 => None,
            saves => Some(slots(saves)?),
        };
        let all = load_slots.iter().chain(&save_slots);
        let wanted: Vec<_> = all.map(Slots::range).collect();
        let mut ranges = Vec::with_capacity(wanted.len());
        for range in wanted {
            if let Err(error) = store.register(range) {
                for range in ranges {
                    let _ = store.unregister(range);
                }
                return Err(error);
            }
            ranges.push(range);
        }
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
            load_slots: Mutex::new(load_slots),
            save_slots: save_slots.map(Mutex::new),
            ranges,
            store,
        })
    }

    /// Whether the layout has this page.
    pub fn check(&self, page: &PageRef) -> Result<()> {
        match self.memory.layout().groups().get(usize::from(page.group)) {
            Some(group) => group.check_index(page.index),
            None => bail!(OutOfRange, "layer group at position {}", page.group),
        }
    }

    /// Takes the slots back from the store. False: the store may still use them, and they must
    /// be kept rather than freed.
    pub fn unregister(&self) -> bool {
        let mut gone = true;
        for &range in &self.ranges {
            if let Err(error) = self.store.unregister(range) {
                tracing::error!("staging memory stays allocated: {error}");
                gone = false;
            }
        }
        gone
    }
}
