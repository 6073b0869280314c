//! The registered cache: pages move between it and staging slots, in batches.

#![allow(
    unsafe_code,
    reason = "the promise that a layout's addresses are memory is made here"
)]

use super::{Device, Direction, Stream, Transfer};
use crate::error::{Result, bail};
use crate::layout::{GroupLayout, Layout, Part};
use crate::staging::Slots;
use crate::sync::Arc;

/// A page of the cache and the staging slot that it goes to or comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRef {
    /// Position of the layer group in the layout (not its id).
    pub group: u16,
    /// Which of the group's two pages.
    pub part: Part,
    /// The page's index in the group.
    pub index: i32,
    /// The staging slot; the page lies contiguous at its start.
    pub slot: u32,
}

/// A layout whose addresses are known to be memory of a device.
///
/// Threads: gather and scatter may run on several threads at once, for different pages.
pub struct CacheMemory {
    layout: Layout,
    device: Arc<dyn Device>,
}

impl CacheMemory {
    /// Takes a layout, checked as a whole, as the cache of `device`.
    ///
    /// # Safety
    /// Until the value is dropped, every slot of every region is readable and writable memory of
    /// `device`. While a page is gathered nobody writes it, and while it is scattered nobody else
    /// reads or writes it: the engine keeps pages pinned that it was told are in flight.
    pub unsafe fn new(layout: Layout, device: Arc<dyn Device>) -> Result<Self> {
        layout.validate()?;
        Ok(Self { layout, device })
    }

    /// The layout.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The device that the cache lies on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Copies pages from the cache into their slots, behind the work that the stream `behind` has
    /// already, if there is one. Blocks until all have arrived.
    ///
    /// Every page and slot is checked before any byte moves: `OutOfRange` for a group, index or
    /// slot that is not there, `TooSmall` for a page that exceeds a slot, `InvalidArgument` for a
    /// part that the group does not have, or two pages for one slot.
    pub fn gather(
        &self,
        behind: Option<Stream>,
        pages: &[PageRef],
        slots: &mut Slots,
    ) -> Result<()> {
        self.copy(behind, Direction::Gather, pages, slots)
    }

    /// Copies pages from their slots into the cache, as [`gather`](Self::gather) does the other
    /// way. The slots stay as they are; one slot may fill several pages, but a page that comes
    /// twice is an `InvalidArgument`.
    pub fn scatter(
        &self,
        behind: Option<Stream>,
        pages: &[PageRef],
        slots: &mut Slots,
    ) -> Result<()> {
        self.copy(behind, Direction::Scatter, pages, slots)
    }

    fn copy(
        &self,
        behind: Option<Stream>,
        direction: Direction,
        pages: &[PageRef],
        slots: &mut Slots,
    ) -> Result<()> {
        let mut scratch = slots.take_scratch();
        let result = self
            .describe(direction, pages, slots, &mut scratch)
            .and_then(|()| {
                // SAFETY: the cache ranges are pieces of pages of the layout, whose memory the caller
                // of `new` answers for, and no two of them overlap in a validated layout. The staging
                // ranges lie inside the slots, which are exclusively ours here, and were checked to
                // hold their page. Nothing is written twice: no destination comes twice.
                unsafe { self.device.copy(behind, direction, &scratch.transfers) }
            });
        slots.keep_scratch(scratch);
        result
    }

    /// The layer group of a page, which has such a part.
    pub(super) fn group_with(&self, page: &PageRef) -> Result<&GroupLayout> {
        let Some(group) = self.layout.groups().get(usize::from(page.group)) else {
            let groups = self.layout.groups().len();
            bail!(
                OutOfRange,
                "layer group at position {} of {groups}",
                page.group
            );
        };
        if group.page_bytes(page.part) == 0 {
            bail!(
                InvalidArgument,
                "layer group {} has no {:?} page",
                group.group().id,
                page.part
            );
        }
        Ok(group)
    }

    /// Writes down every copy that `pages` need, or finds what is wrong with them.
    fn describe(
        &self,
        direction: Direction,
        pages: &[PageRef],
        slots: &Slots,
        scratch: &mut Scratch,
    ) -> Result<()> {
        scratch.clear();
        for page in pages {
            let group = self.group_with(page)?;
            let (id, bytes) = (group.group().id, group.page_bytes(page.part));
            let subscript = group.subscript(page.index)?;
            let Some(slot) = slots.slot_range(page.slot) else {
                bail!(
                    OutOfRange,
                    "staging slot {} of {}",
                    page.slot,
                    slots.count()
                );
            };
            if bytes > slot.size {
                bail!(
                    TooSmall,
                    "a page of layer group {id} has {bytes} bytes, a staging slot {}",
                    slot.size
                );
            }
            let mut staging = slot.start;
            for piece in group
                .regions(page.part)
                .iter()
                .map(|region| region.piece(subscript))
            {
                let (cache, size) = (piece.address, piece.size);
                scratch.transfers.push(Transfer {
                    cache,
                    staging,
                    size,
                });
                staging += size;
            }
            scratch.destinations.push(match direction {
                Direction::Gather => (0, Part::Sharded, u64::from(page.slot)),
                Direction::Scatter => (page.group, page.part, subscript),
            });
        }
        scratch.destinations.sort_unstable();
        let twice = scratch
            .destinations
            .windows(2)
            .find(|pair| pair[0] == pair[1]);
        match (twice.and_then(<[_]>::first), direction) {
            (None, _) => Ok(()),
            (Some((_, _, slot)), Direction::Gather) => {
                bail!(
                    InvalidArgument,
                    "staging slot {slot} is named for two pages"
                )
            }
            (Some((group, part, index)), Direction::Scatter) => bail!(
                InvalidArgument,
                "{part:?} page {index} of the layer group at position {group} comes twice"
            ),
        }
    }
}

/// The lists that describe a batch, kept from one to the next so that none is allocated anew.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    transfers: Vec<Transfer>,
    /// What is written: slots, or pages.
    destinations: Vec<(u16, Part, u64)>,
}

impl Scratch {
    fn clear(&mut self) {
        self.transfers.clear();
        self.destinations.clear();
    }
}

#[cfg(test)]
mod tests;
