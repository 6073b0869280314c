//! Sets of staging slots, as many per direction as threads that move pages, and what replaces a set that
//! a pool keeps.
//!
//! A set belongs to whoever has it: a thread of the worker's, a call of the pool, or the list of those
//! at home, to which dropping it returns it. A call that is late has its set until it returns; a call
//! that failed so that the pool may still use its buffers has it for ever. Such a set is not at hand: another
//! is allocated in its place when one is needed. The guard of the pool bounds how often that can happen.

use std::time::Duration;

use crate::device::Device;
use crate::device::memory::{Source, Target};
use crate::error::{Kind, Result, bail};
use crate::node::{self, Budget};
use crate::staging::{Plan, Slots};
use crate::store::Store;
use crate::store::guarded::{Buffers, Guarded};
use crate::sync::{Arc, Mutex, Weak, keep_for_ever};

/// How long a set that takes the place of a lost one may take to be known to the pool: a load waits for it.
const PATIENCE_FOR_SPARE: Duration = Duration::from_secs(1);

/// The sets of one direction.
pub(super) struct Sets {
    device: Arc<dyn Device>,
    store: Arc<Guarded>,
    plan: Plan,
    /// So many are to be at hand.
    wanted: usize,
    state: Mutex<State>,
}

struct State {
    home: Vec<Own>,
    /// Sets that are at home or with a thread of the worker's.
    at_hand: usize,
    is_closed: bool,
}

/// One set. Dropping it returns it.
pub(super) struct SlotSet {
    /// `None` once it was returned.
    own: Option<Own>,
    sets: Weak<Sets>,
    /// Its caller has gone without it.
    is_late: bool,
}

struct Own {
    slots: Slots,
    /// Bytes of the object in each slot that is used, from the first slot on.
    objects: Vec<u64>,
}

impl Sets {
    /// Allocates `count` sets and makes them known to the pool. On an error nothing is known to it, or
    /// its memory is kept.
    pub fn open(
        device: &Arc<dyn Device>,
        store: &Arc<Guarded>,
        plan: Plan,
        count: u32,
    ) -> Result<Arc<Self>> {
        let sets = Arc::new(Self {
            device: Arc::clone(device),
            store: Arc::clone(store),
            plan,
            wanted: count as usize,
            state: Mutex::new(State {
                home: Vec::new(),
                at_hand: count as usize,
                is_closed: false,
            }),
        });
        for _ in 0..count {
            let made = sets.make(|range| store.register(range));
            match made {
                Ok(own) => sets.state.lock().home.push(own),
                Err(error) => {
                    sets.close(PATIENCE_FOR_SPARE);
                    return Err(error);
                }
            }
        }
        Ok(sets)
    }

    fn make(&self, register: impl FnOnce(crate::layout::Range) -> Result<()>) -> Result<Own> {
        let Plan {
            slot_bytes, slots, ..
        } = self.plan;
        let slots = Slots::new(self.device.as_ref(), slot_bytes, slots)?;
        if let Err(error) = register(slots.range()) {
            if error.kind() == Kind::Busy {
                // The pool may take the range into use whenever it answers.
                keep_for_ever(slots);
            }
            return Err(error);
        }
        Ok(Own {
            slots,
            objects: Vec::new(),
        })
    }

    /// A set for one batch or several. `None` while others have them all: with a thread per set that does
    /// not happen. Errors: the pool keeps one, and there can be no other now.
    ///
    /// Blocks: no; where the pool keeps a set, for a question to it and up to a second more.
    pub fn take(self: &Arc<Self>) -> Result<Option<SlotSet>> {
        let mut state = self.state.lock();
        if let Some(own) = state.home.pop() {
            return Ok(Some(self.lend(own)));
        }
        if state.at_hand >= self.wanted || state.is_closed {
            return Ok(None);
        }
        state.at_hand += 1;
        drop(state);
        let made = self.make_spare();
        match made {
            Ok(own) => Ok(Some(self.lend(own))),
            Err(error) => {
                self.state.lock().at_hand -= 1;
                Err(error.within("staging memory in place of what the pool keeps"))
            }
        }
    }

    fn make_spare(&self) -> Result<Own> {
        // A pool that does not answer would cost another set, and nothing could be moved anyway.
        if !self.store.is_passable() {
            bail!(PoolFailed, "the pool does not answer");
        }
        let budget = Budget {
            ranks: 1,
            segment: 0,
            staging: self.plan.total_bytes(1),
        };
        budget.check(node::available_memory())?;
        self.make(|range| self.store.register_within(range, PATIENCE_FOR_SPARE))
    }

    fn lend(self: &Arc<Self>, own: Own) -> SlotSet {
        SlotSet {
            own: Some(own),
            sets: Arc::downgrade(self),
            is_late: false,
        }
    }

    /// A set that was given to a call did not come back with it.
    pub fn lost_one(&self) {
        let mut state = self.state.lock();
        // May go below what there is for a moment: a late set can be home before this is said.
        state.at_hand = state.at_hand.wrapping_sub(1);
    }

    /// Takes the sets that are at home back from the pool, within `patience` all together, and frees them; those
    /// that are elsewhere or that the pool does not give back stay allocated for ever.
    pub fn close(&self, patience: Duration) {
        let mut home = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::take(&mut state.home)
        };
        let began = std::time::Instant::now();
        while let Some(own) = home.pop() {
            let left = patience.saturating_sub(began.elapsed());
            let Err(error) = self.store.unregister_within(own.slots.range(), left) else {
                continue;
            };
            tracing::error!("staging memory stays allocated: {error}");
            keep_for_ever(own);
            if error.kind() == Kind::Busy {
                // It does not answer, so there is no use in asking again.
                home.drain(..).for_each(keep_for_ever);
            }
        }
    }
}

impl SlotSet {
    /// The slots; `None` only while the set is dropped.
    pub fn slots(&mut self) -> Option<&mut Slots> {
        self.own.as_mut().map(|own| &mut own.slots)
    }

    /// The bytes of a slot.
    pub fn slot(&self, index: u32) -> &[u8] {
        let own = self.own.as_ref();
        own.and_then(|own| own.slots.slot(index))
            .unwrap_or_default()
    }

    /// Says how large the objects in the first slots are, in bytes; the other slots are not used.
    pub fn hold(&mut self, objects: impl Iterator<Item = u64>) {
        if let Some(own) = &mut self.own {
            own.objects.clear();
            own.objects.extend(objects);
        }
    }
}

impl Buffers for SlotSet {
    fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> Option<&'a [usize]> {
        let own = self.own.as_mut()?;
        let slots = own.slots.slots_mut().zip(&own.objects);
        list.extend(
            slots.filter_map(|(slot, &object)| Some(slot.get_mut(..object as usize)?.into())),
        );
        None
    }

    fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> Option<&'a [usize]> {
        let own = self.own.as_ref()?;
        let slots = own.slots.slots().zip(&own.objects);
        list.extend(
            slots.filter_map(|(slot, &object)| slot.get(..object as usize).map(Source::from)),
        );
        None
    }

    fn come_home(mut self) {
        self.is_late = true;
    }
}

impl Drop for SlotSet {
    fn drop(&mut self) {
        let Some(own) = self.own.take() else { return };
        let Some(sets) = self.sets.upgrade() else {
            return keep_for_ever(own);
        };
        let mut state = sets.state.lock();
        if self.is_late {
            state.at_hand = state.at_hand.wrapping_add(1);
        }
        match state.is_closed {
            // Still registered, and who closed has gone.
            true => keep_for_ever(own),
            false => state.home.push(own),
        }
    }
}
