//! What moves pages between the cache and the pool on the registered layout: the plan, the memory,
//! and the slots in between, one set per direction.

use std::sync::Arc;

use parking_lot::Mutex;

use super::plan::PagePlan;
use crate::device::memory::{Source, Target};
use crate::device::{CacheMemory, PageRef};
use crate::error::{Result, bail};
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
    pub load_slots: Mutex<Slots>,
    pub save_slots: Mutex<Slots>,
    /// Empty lists, kept for their memory between batches.
    pub load_targets: Mutex<Vec<Target<'static>>>,
    pub save_sources: Mutex<Vec<Source<'static>>>,
    store: Arc<dyn Store>,
}

impl Mover {
    /// Pins the slots and makes them known to the store. On an error nothing stays registered.
    pub fn new(
        plan: Arc<PagePlan>,
        memory: CacheMemory,
        store: Arc<dyn Store>,
        ranks_on_node: u32,
        budget: u64,
        batch: u32,
    ) -> Result<Self> {
        let page_bytes = plan.largest_payload();
        let batch =
            batch.min(u32::try_from(store.capabilities().keys_per_call).unwrap_or(u32::MAX));
        // A store that answers at once gains nothing from large batches, and each page passes through
        // the CPU three times (copy, seal, copy): so much of it that it stays in the cache meanwhile.
        let hot = u32::try_from(HOT_BYTES / page_bytes.max(1)).unwrap_or(u32::MAX);
        let batch = if store.capabilities().can_be_late {
            batch
        } else {
            batch.min(hot.max(1))
        };
        let sizes = staging::plan(budget, 1, page_bytes, batch);
        if sizes.raised {
            tracing::warn!(
                "staging_buffer_bytes = {budget} is less than one page of {page_bytes} bytes: one page is used"
            );
        }
        let node = Budget {
            ranks: ranks_on_node,
            segment: 0,
            staging: sizes.total_bytes(1).saturating_mul(2),
        };
        node.check(node::available_memory())?;
        let load_slots = Slots::new(memory.device().as_ref(), sizes.slot_bytes, sizes.slots)?;
        let save_slots = Slots::new(memory.device().as_ref(), sizes.slot_bytes, sizes.slots)?;
        store.register(load_slots.range())?;
        if let Err(error) = store.register(save_slots.range()) {
            let _ = store.unregister(load_slots.range());
            return Err(error);
        }
        Ok(Self {
            plan,
            memory,
            batch: sizes.slots as usize,
            load_slots: Mutex::new(load_slots),
            save_slots: Mutex::new(save_slots),
            load_targets: Mutex::default(),
            save_sources: Mutex::default(),
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
        for slots in [&self.load_slots, &self.save_slots] {
            if let Err(error) = self.store.unregister(slots.lock().range()) {
                tracing::error!("staging memory stays allocated: {error}");
                gone = false;
            }
        }
        gone
    }
}
