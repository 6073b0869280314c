//! What moves pages between the cache and the pool on the registered layout: the plan, the memory,
//! and the slots in between, or none where the pool uses the cache itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::direct::Direct;
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
    pub memory: Arc<CacheMemory>,
    /// Pages per call of the store.
    pub batch: usize,
    pub way: Way,
}

/// How pages get from the cache to the pool and back.
pub(super) enum Way {
    /// Through memory of the host.
    Staged {
        /// One set per load thread, or one for synchronous loads; none for roles that do not read.
        load_sets: Arc<Sets>,
        /// One set; none for roles that do not write.
        save_sets: Arc<Sets>,
    },
    /// The pool does it itself.
    Direct(Direct),
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
    pub fn staged(
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
            memory: Arc::new(memory),
            batch: batch as usize,
            way: Way::Staged {
                load_sets,
                save_sets,
            },
        })
    }

    /// Makes the cache's memory known to the store, of whose calls each has `batch` pages at most; errors as
    /// [`Direct::open`].
    pub fn direct(
        plan: Arc<PagePlan>,
        memory: CacheMemory,
        store: &Arc<Guarded>,
        batch: u32,
    ) -> Result<Self> {
        let memory = Arc::new(memory);
        let direct = Direct::open(Arc::clone(&memory), store, &plan)?;
        let most = store.capabilities().keys_per_call.max(1);
        Ok(Self {
            plan,
            memory,
            batch: direct.batch((batch as usize).min(most)),
            way: Way::Direct(direct),
        })
    }

    /// Whether the layout has this page.
    pub fn check(&self, page: &PageRef) -> Result<()> {
        match self.memory.layout().groups().get(usize::from(page.group)) {
            Some(group) => group.check_index(page.index),
            None => bail!(OutOfRange, "layer group at position {}", page.group),
        }
    }

    /// Waits, at most `patience`, until the pool uses no page of the cache itself; how many of its calls still may.
    pub fn wait_for_loans(&self, patience: Duration) -> usize {
        match &self.way {
            Way::Staged { .. } => 0,
            Way::Direct(direct) => direct.wait(patience),
        }
    }

    /// Takes slots or the cache back from the pool, within `patience`. Slots that the pool does not give back stay allocated.
    ///
    /// Errors: `Busy`, parts of the cache are not given back: they must stay, and another call of this tries them again.
    pub fn close(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        match &self.way {
            Way::Direct(direct) => return direct.take_back(patience),
            Way::Staged {
                load_sets,
                save_sets,
            } => {
                for sets in [load_sets, save_sets] {
                    sets.close(patience.saturating_sub(began.elapsed()));
                }
            }
        }
        Ok(())
    }
}
