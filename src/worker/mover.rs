//! What moves pages between the cache and the pool on the registered layout: the plan, the memory,
//! and the slots in between, one set per direction.

use std::sync::Arc;

use parking_lot::Mutex;

use super::plan::PagePlan;
use crate::device::CacheMemory;
use crate::device::memory::{Source, Target};
use crate::error::Result;
use crate::page::FOOTER_BYTES;
use crate::staging::{self, Slots};
use crate::store::Store;

/// Keeps the memory of a list whose elements borrow from something that does not live as long.
pub(super) struct Spare<T: 'static>(Mutex<Vec<T>>);

impl<T: 'static> Spare<T> {
    fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }
}

macro_rules! spare_list {
    ($type:ident) => {
        impl Spare<$type<'static>> {
            /// The list, empty.
            pub fn take<'a>(&self) -> Vec<$type<'a>> {
                recycle(std::mem::take(&mut *self.0.lock()))
            }

            /// Returns the list; what it borrowed ends here.
            pub fn give_back(&self, list: Vec<$type<'_>>) {
                *self.0.lock() = recycle(list);
            }
        }
    };
}
spare_list!(Source);
spare_list!(Target);

/// An empty list in the memory of another: collecting an emptied list in place keeps its
/// allocation, and no element changes its type.
fn recycle<A, B>(mut list: Vec<A>) -> Vec<B> {
    list.clear();
    list.into_iter().map_while(|_| None).collect()
}

pub(super) struct Mover {
    pub plan: Arc<PagePlan>,
    pub memory: CacheMemory,
    /// Pages per call of the store.
    pub batch: usize,
    pub load_slots: Mutex<Slots>,
    pub save_slots: Mutex<Slots>,
    pub load_targets: Spare<Target<'static>>,
    pub save_sources: Spare<Source<'static>>,
    store: Arc<dyn Store>,
}

impl Mover {
    /// Pins the slots and makes them known to the store. On an error nothing stays registered.
    pub fn new(
        plan: Arc<PagePlan>,
        memory: CacheMemory,
        store: Arc<dyn Store>,
        budget: u64,
        batch: u32,
    ) -> Result<Self> {
        let object_bytes = plan.largest_payload() + FOOTER_BYTES as u64;
        let batch = batch.min(u32::try_from(store.capabilities().keys_per_call).unwrap_or(u32::MAX));
        let sizes = staging::plan(budget, 1, object_bytes, batch)?;
        if sizes.raised {
            tracing::warn!(
                "staging_buffer_bytes = {budget} is less than one page of {object_bytes} bytes: one page is used"
            );
        }
        let load_slots = Slots::new(sizes.slot_bytes, sizes.slots)?;
        let save_slots = Slots::new(sizes.slot_bytes, sizes.slots)?;
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
            load_targets: Spare::new(),
            save_sources: Spare::new(),
            store,
        })
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
