//! Pages of the cache that a pool reads or writes where they lie.

#![allow(
    unsafe_code,
    reason = "pieces of the cache become memory that a store may use"
)]

use super::memory::{Memory, Source, Target};
use super::{CacheMemory, Direction, PageRef};
use crate::error::{Result, bail};
use crate::layout::{Piece, Ranges};
use crate::sync::Arc;

/// The pieces of some pages of the cache, for one call of a pool that reads them (`Gather`) or writes them
/// (`Scatter`). To be kept as long as the pool may do so.
pub struct LentPages {
    direction: Direction,
    /// Its maker promised that the addresses are memory as long as it lives.
    memory: Arc<CacheMemory>,
    pieces: Vec<Piece>,
    ends: Vec<usize>,
}

impl CacheMemory {
    /// Lends pages, in this order, each as its pieces, none of which reaches over an end of `ranges`.
    ///
    /// Every page is checked: `OutOfRange` for a group or index that is not there, `InvalidArgument` for a part that the
    /// group does not have, or a page that is to be written twice.
    pub fn lend(
        self: &Arc<Self>,
        direction: Direction,
        pages: &[PageRef],
        ranges: &Ranges,
    ) -> Result<LentPages> {
        let mut lent = LentPages {
            direction,
            memory: Arc::clone(self),
            pieces: Vec::new(),
            ends: Vec::with_capacity(pages.len()),
        };
        let mut whole = Vec::new();
        for page in pages {
            let group = self.group_with(page)?;
            whole.clear();
            group.pieces(page.part, page.index, &mut whole)?;
            for &piece in &whole {
                ranges.split(piece, &mut lent.pieces);
            }
            lent.ends.push(lent.pieces.len());
        }
        if direction == Direction::Gather {
            return Ok(lent);
        }
        let mut places: Vec<_> = pages
            .iter()
            .map(|page| (page.group, page.part, page.index))
            .collect();
        places.sort_unstable();
        if let Some(twice) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            let (group, part, index) = twice[0];
            bail!(
                InvalidArgument,
                "{part:?} page {index} of the layer group at position {group} comes twice"
            );
        }
        Ok(lent)
    }
}

impl LentPages {
    /// Appends the pieces for writing, none if the pages are to be read; where those of each page end.
    pub fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> &'a [usize] {
        if self.direction != Direction::Scatter {
            return &[];
        }
        let kind = self.memory.device().memory();
        list.extend(self.pieces.iter().map(|piece| {
            // SAFETY: whole or cut pieces of pages of a validated layout, no two of which overlap, and none
            // comes twice. The maker of the memory promised that they are memory of the device, and that nobody
            // else touches pages that are loaded; `self` is borrowed exclusively as long as the targets live.
            unsafe {
                match kind {
                    Memory::Host => Target::from_raw(piece.address, piece.size),
                    Memory::Device => Target::from_device(piece.address, piece.size),
                }
            }
        }));
        &self.ends
    }

    /// Appends the pieces for reading; where those of each page end.
    pub fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> &'a [usize] {
        let kind = self.memory.device().memory();
        list.extend(self.pieces.iter().map(|piece| {
            // SAFETY: as above; nobody writes pages that are saved.
            unsafe {
                match kind {
                    Memory::Host => Source::from_raw(piece.address, piece.size),
                    Memory::Device => Source::from_device(piece.address, piece.size),
                }
            }
        }));
        &self.ends
    }
}
