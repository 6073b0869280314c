//! Staging: fixed slots of host memory that pages pass through between the cache and a pool.
//!
//! A slot holds one page, contiguous, with room for a seal behind it, so that the stored object
//! (payload and footer) is one range. Each thread that moves pages has slots of its own, and
//! the budget of a direction is split between its threads before anything is allocated.

use crate::device::{Device, Scratch, StagingMemory};
use crate::error::{Error, Kind, Result, bail};
use crate::layout::Range;
use crate::page::FOOTER_BYTES;

/// Slots start at multiples of this: a cache line, and what vector copies like best.
const SLOT_ALIGNMENT: u64 = 64;

/// How the staging of one direction is divided; see [`plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Bytes of one slot.
    pub slot_bytes: u64,
    /// Slots of one thread, at least 1.
    pub slots: u32,
    /// A thread's share of the budget was below one slot and was raised to it: more memory than
    /// the budget is used, which deserves a warning.
    pub raised: bool,
}

impl Plan {
    /// Bytes that all `threads` together take.
    pub fn total_bytes(&self, threads: u32) -> u64 {
        let slots = u64::from(self.slots).saturating_mul(u64::from(threads));
        self.slot_bytes.saturating_mul(slots)
    }
}

/// Splits `budget` bytes evenly over `threads` (0 counts as 1). Each gets slots for pages of up to
/// `page_bytes`, as many as fit its share, but no more than a `batch` of pages needs.
pub fn plan(budget: u64, threads: u32, page_bytes: u64, batch: u32) -> Plan {
    let slot_bytes = slot_bytes(page_bytes);
    let share = budget / u64::from(threads.max(1));
    let fitting = share / slot_bytes;
    let slots = u32::try_from(fitting).unwrap_or(u32::MAX).min(batch).max(1);
    Plan {
        slot_bytes,
        slots,
        raised: fitting == 0,
    }
}

/// Bytes of a slot for a page: payload, footer, and padding to the alignment.
fn slot_bytes(page_bytes: u64) -> u64 {
    let used = page_bytes.saturating_add(FOOTER_BYTES as u64);
    used.saturating_add(SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT
}

/// Fixed slots of one size in page-aligned memory of a device.
///
/// Threads: exclusive; every thread that moves pages has its own.
#[derive(Debug)]
pub struct Slots {
    memory: StagingMemory,
    slot_bytes: usize,
    count: u32,
    scratch: Scratch,
}

impl Slots {
    /// Allocates `count` slots of `slot_bytes` each, rounded up to whole cache lines. `NoMemory`
    /// if there is not so much, `InvalidArgument` for no slots or slots without bytes.
    pub fn new(device: &dyn Device, slot_bytes: u64, count: u32) -> Result<Self> {
        if slot_bytes == 0 || count == 0 {
            bail!(
                InvalidArgument,
                "{count} staging slots of {slot_bytes} bytes"
            );
        }
        let no_memory = || {
            let text = format!("{count} staging slots of {slot_bytes} bytes cannot be addressed");
            Error::new(Kind::NoMemory, text)
        };
        let rounded = slot_bytes
            .checked_next_multiple_of(SLOT_ALIGNMENT)
            .ok_or_else(no_memory)?;
        let total = rounded
            .checked_mul(u64::from(count))
            .ok_or_else(no_memory)?;
        let slot_size = usize::try_from(rounded).map_err(|_| no_memory())?;
        let memory = device
            .stage(total)
            .map_err(|error| error.within(format_args!("{count} slots of {rounded} bytes")))?;
        Ok(Self {
            memory,
            slot_bytes: slot_size,
            count,
            scratch: Scratch::default(),
        })
    }

    /// Bytes of one slot.
    pub fn slot_bytes(&self) -> u64 {
        self.slot_bytes as u64
    }

    /// Number of slots.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The bytes of slot `index`.
    pub fn slot(&self, index: u32) -> Option<&[u8]> {
        self.slots().nth(index as usize)
    }

    /// The bytes of slot `index`, for writing.
    pub fn slot_mut(&mut self, index: u32) -> Option<&mut [u8]> {
        self.slots_mut().nth(index as usize)
    }

    /// All slots, in order.
    pub fn slots(&self) -> std::slice::ChunksExact<'_, u8> {
        self.memory.bytes().chunks_exact(self.slot_bytes)
    }

    /// All slots at once, in order, to fill several in one call.
    pub fn slots_mut(&mut self) -> std::slice::ChunksExactMut<'_, u8> {
        self.memory.bytes_mut().chunks_exact_mut(self.slot_bytes)
    }

    /// The memory of all slots, for registration with a pool.
    pub fn range(&self) -> Range {
        self.memory.range()
    }

    /// Where slot `index` lies.
    pub fn slot_range(&self, index: u32) -> Option<Range> {
        if index >= self.count {
            return None;
        }
        // Inside the memory, so nothing can overflow.
        let size = self.slot_bytes as u64;
        Some(Range {
            start: self.range().start + size * u64::from(index),
            size,
        })
    }

    /// The lists of the last batch, to be refilled; give them back with `keep_scratch`.
    pub(crate) fn take_scratch(&mut self) -> Scratch {
        std::mem::take(&mut self.scratch)
    }

    pub(crate) fn keep_scratch(&mut self, scratch: Scratch) {
        self.scratch = scratch;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostDevice;
    use proptest::prelude::*;

    #[test]
    fn slots_are_apart_aligned_and_cover_the_range() {
        let mut slots = Slots::new(&HostDevice, 100, 3).unwrap();
        assert_eq!((slots.slot_bytes(), slots.count()), (128, 3));
        assert_eq!(slots.range().size, 384);
        for (value, slot) in (1..).zip(slots.slots_mut()) {
            slot.fill(value);
        }
        slots.slot_mut(1).unwrap()[0] = 9;
        for index in 0..3 {
            let range = slots.slot_range(index).unwrap();
            let slot = slots.slot(index).unwrap();
            assert_eq!(range.start, slot.as_ptr().addr() as u64);
            assert_eq!((range.size, range.start % 64), (128, 0));
            assert_eq!(slot[0], if index == 1 { 9 } else { index as u8 + 1 });
            assert!(slot[1..].iter().all(|byte| *byte == index as u8 + 1));
        }
        assert_eq!(slots.slots_mut().len(), 3);
        for index in [3, u32::MAX] {
            assert!(slots.slot(index).is_none());
            assert!(slots.slot_mut(index).is_none());
            assert!(slots.slot_range(index).is_none());
        }
    }

    #[test]
    fn slots_that_cannot_be_are_refused() {
        let refusal = |bytes, count| Slots::new(&HostDevice, bytes, count).unwrap_err().kind();
        assert_eq!(refusal(0, 1), Kind::InvalidArgument);
        assert_eq!(refusal(64, 0), Kind::InvalidArgument);
        assert_eq!(refusal(1 << 60, 1), Kind::NoMemory);
        assert_eq!(refusal(1 << 60, 16), Kind::NoMemory);
        assert_eq!(refusal(u64::MAX, 1), Kind::NoMemory);
    }

    #[test]
    fn a_plan_is_bounded_by_share_and_batch() {
        let plan_of = |budget, threads, page, batch| {
            let plan = plan(budget, threads, page, batch);
            (plan.slot_bytes, plan.slots, plan.raised)
        };
        // 1000 + 48 rounded up to 64.
        assert_eq!(plan_of(1 << 30, 4, 1000, 128), (1088, 128, false));
        assert_eq!(plan_of(4 * 1088 * 10, 4, 1000, 128), (1088, 10, false));
        assert_eq!(plan_of(4 * 1088 * 10 - 1, 4, 1000, 128), (1088, 9, false));
        assert_eq!(plan_of(4 * 1088, 4, 1000, 128), (1088, 1, false));
        assert_eq!(plan_of(4 * 1088 - 1, 4, 1000, 128), (1088, 1, true));
        assert_eq!(plan_of(0, 0, 16, 0), (64, 1, true));
        assert!(plan(u64::MAX, 1, u64::MAX, 1).slot_bytes > u64::MAX - 64);
    }

    proptest! {
        #[test]
        fn a_plan_keeps_the_budget_unless_raised(
            budget in 0u64..1 << 40, threads in 1u32..64, page in 0u64..1 << 30, batch in 1u32..4096,
        ) {
            let plan = plan(budget, threads, page, batch);
            prop_assert!(plan.slot_bytes >= page + FOOTER_BYTES as u64);
            prop_assert!((1..=batch).contains(&plan.slots));
            prop_assert_eq!(plan.raised, plan.total_bytes(threads) > budget);
            // One slot more would not fit, unless the batch is what limits.
            let more = Plan { slots: plan.slots + 1, ..plan };
            prop_assert!(plan.slots == batch || more.total_bytes(threads) > budget);
        }
    }
}
