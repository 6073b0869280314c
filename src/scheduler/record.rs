//! What is known of one request: hashes, offer, page tables, watermark.

use std::ops::Range;

use super::GroupPages;
use crate::error::{Result, bail};
use crate::keys::{Chain, Seed};
use crate::link::GroupInfo;
use crate::plant::{self, Bug};

/// Records kept for their memory at most.
pub(super) const SPARES: usize = 64;

/// Where a request is between match and its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Matched; may be asked about again.
    Matched,
    /// Its pages were reported and the offer settled.
    Allocated,
    /// It was part of a pass.
    Running,
}

/// The offer and what the pool said behind it, in absolute prompt tokens.
#[derive(Debug, Clone, Default)]
pub(super) struct Offered {
    /// What the engine was last told, less what it gave back.
    pub open: Range<u64>,
    /// What the pool said is stored: the answers end where this ends.
    pub known: Range<u64>,
    /// An answer about tokens before `known`, after the local match had shrunk, that does not reach it.
    pub before: Option<Range<u64>>,
    /// The last answer was more than nothing: if it is asynchronous, the request will be parked.
    pub made: bool,
    /// Number of the pass built last when the pool was asked; `None`: it was not asked yet.
    pub asked_after: Option<u64>,
}

/// A settled offer that is not spent yet, in blocks.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Empty only for an asynchronous load, whose request waits for it all the same.
    pub blocks: Range<u32>,
    pub is_async: bool,
    pub emitted: bool,
    /// Positions behind it may be reported as computed: the local worker began it or, if it is
    /// asynchronous, reported it.
    pub counts: bool,
}

impl Load {
    /// Its tokens in the prompt.
    pub fn tokens(&self, block_tokens: u64) -> Range<u64> {
        u64::from(self.blocks.start) * block_tokens..u64::from(self.blocks.end) * block_tokens
    }
}

/// A block whose put failed, and the pass it was emitted again with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Retry {
    pub block: u32,
    pub emitted_in: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Record {
    pub generation: u64,
    pub seed: Seed,
    pub chain: Chain,
    /// Digest and number of the prompt's tokens.
    pub prompt_digest: u64,
    pub prompt_tokens: u64,
    /// Tokens reported so far; the prompt counts from the match on.
    pub tokens: u64,
    pub stage: Stage,
    pub offered: Offered,
    pub load: Option<Load>,
    /// The reservation that holds the offer.
    pub reservation: Option<u64>,
    /// Blocks that came from the pool; they are not written back.
    pub loaded: Range<u32>,
    /// Page per block, one list per layer group.
    pub pages: Vec<Vec<i32>>,
    /// Blocks below it were queued for saving, or need not be.
    pub confirmed: u32,
    pub retries: Vec<Retry>,
    /// A save was emitted: pages may be in flight on some rank until it is reported.
    pub ever_saved: bool,
    /// Pages that count as computed were lost: nothing behind them may be published.
    pub spoilt: bool,
    /// Its pages were reported while no layout was registered: it takes no part in this life.
    pub sits_out: bool,
    /// The call of `build` that saw it last.
    pub seen_in: u64,
}

impl Record {
    pub fn new(chain: Chain, seed: Seed) -> Self {
        Self {
            generation: 0,
            seed,
            chain,
            prompt_digest: 0,
            prompt_tokens: 0,
            tokens: 0,
            stage: Stage::Matched,
            offered: Offered::default(),
            load: None,
            reservation: None,
            loaded: 0..0,
            pages: Vec::new(),
            confirmed: 0,
            retries: Vec::new(),
            ever_saved: false,
            spoilt: false,
            sits_out: false,
            seen_in: 0,
        }
    }

    /// The record of a new life of some request; lists keep their memory.
    pub fn renew(mut self, generation: u64, seed: Seed) -> Self {
        self.chain.reset(seed);
        self.pages.iter_mut().for_each(Vec::clear);
        self.retries.clear();
        Self {
            generation,
            pages: self.pages,
            retries: self.retries,
            ..Self::new(self.chain, seed)
        }
    }

    /// The engine has settled the offer on these blocks.
    pub fn settle(&mut self, blocks: Range<u32>, is_async: bool) {
        self.stage = Stage::Allocated;
        self.load = (is_async || !blocks.is_empty()).then_some(Load {
            blocks,
            is_async,
            emitted: false,
            counts: false,
        });
    }

    /// The asynchronous load of a request that waits for it: some rank may be writing its pages.
    pub fn is_parked(&self) -> bool {
        self.load
            .as_ref()
            .is_some_and(|load| load.is_async && load.emitted)
    }

    /// Something of it travelled: pages may be in flight on some rank until it is reported.
    pub fn may_be_in_flight(&self) -> bool {
        self.ever_saved || (self.is_parked() && !plant::is(Bug::ParkedNotPinned))
    }

    /// Checks reported page lists against the groups and what is known, without entering them.
    pub fn check_pages(
        &self,
        id: u64,
        reported: &[GroupPages<'_>],
        groups: &[GroupInfo],
    ) -> Result<()> {
        for (number, list) in reported.iter().enumerate() {
            let Some(position) = position(groups, list.group) else {
                bail!(
                    InvalidArgument,
                    "request {id}: layer group {} is not in the layout",
                    list.group
                );
            };
            if reported[..number]
                .iter()
                .any(|earlier| earlier.group == list.group)
            {
                bail!(
                    InvalidArgument,
                    "request {id}: layer group {} is listed twice",
                    list.group
                );
            }
            let slots = groups[position].slots;
            for &index in list.indices {
                if index < -1 || (index >= 0 && index as u64 >= slots) {
                    bail!(
                        OutOfRange,
                        "request {id}: page index {index} of layer group {} is neither -1 nor below its {slots} pages",
                        list.group
                    );
                }
            }
            self.check_place(id, list, position)?;
        }
        Ok(())
    }

    fn check_place(&self, id: u64, list: &GroupPages<'_>, position: usize) -> Result<()> {
        let group = list.group;
        if u32::try_from(list.indices.len())
            .ok()
            .and_then(|count| list.first_block.checked_add(count))
            .is_none()
        {
            bail!(
                OutOfRange,
                "request {id}: layer group {group}: block ordinals overflow"
            );
        }
        let first = list.first_block as usize;
        if list.replace {
            if first != 0 {
                bail!(
                    InvalidArgument,
                    "request {id}: layer group {group}: a replacement is the whole list, but begins at block {first}"
                );
            }
            return Ok(());
        }
        let known = self.pages.get(position).map_or(&[][..], Vec::as_slice);
        if first > known.len() {
            bail!(
                Contradiction,
                "request {id}: layer group {group}: pages begin at block {first}, but those of blocks {} … {} were never reported",
                known.len(),
                first - 1
            );
        }
        for (offset, (known, new)) in known[first..].iter().zip(list.indices).enumerate() {
            if known != new {
                bail!(
                    Contradiction,
                    "request {id}: layer group {group}: block {} has page {known} and is reported with page {new}; reset the request when its allocation was released, or mark a replacement",
                    first + offset
                );
            }
        }
        Ok(())
    }

    /// Enters lists that [`Record::check_pages`] accepted.
    pub fn enter_pages(&mut self, reported: &[GroupPages<'_>], groups: &[GroupInfo]) {
        if self.pages.len() < groups.len() {
            self.pages.resize_with(groups.len(), Vec::new);
        }
        for list in reported {
            let Some(known) =
                position(groups, list.group).and_then(|position| self.pages.get_mut(position))
            else {
                continue;
            };
            if list.replace && !plant::is(Bug::ReplacementAppended) {
                known.clear();
            }
            let overlap = known.len().saturating_sub(list.first_block as usize);
            known.extend_from_slice(list.indices.get(overlap..).unwrap_or_default());
        }
    }

    /// The page of `block` in the group at `position`; `None` where none was reported or it is -1.
    pub fn page(&self, position: usize, block: u32) -> Option<i32> {
        let page = *self.pages.get(position)?.get(block as usize)?;
        (page >= 0).then_some(page)
    }

    /// True when `block` has a page in each of the first `groups` groups.
    pub fn has_pages(&self, groups: usize, block: u32) -> bool {
        (0..groups).all(|position| self.page(position, block).is_some())
    }

    /// Blocks that have an entry, also -1, in each of the first `groups` groups.
    pub fn paged_blocks(&self, groups: usize) -> u64 {
        (0..groups)
            .map(|position| self.pages.get(position).map_or(0, Vec::len) as u64)
            .min()
            .unwrap_or(0)
    }
}

/// Where the group with this id stands among the layout's groups.
pub(super) fn position(groups: &[GroupInfo], id: u32) -> Option<usize> {
    groups.iter().position(|group| group.id == id)
}
