//! What is known of one request: hashes, offer, page tables, watermark.

use std::ops::Range;

use super::lines::Limits;
use super::{GroupPages, Step};
use crate::engine::Terms;
use crate::error::{Result, bail};
use crate::keys::{Chain, Seed, Tokens};
use crate::link::GroupInfo;
use crate::plant::{self, Bug};

/// Records, and starts of records, kept for their memory at most.
pub(super) const SPARES: usize = 64;

/// What is of interest until a request was part of a pass.
#[derive(Debug, Clone, Default)]
pub(super) struct Start {
    /// Its pages were reported and the offer settled; until then it may be asked about again.
    pub is_allocated: bool,
    /// Digest of the prompt's tokens.
    pub prompt_digest: u64,
    pub offered: Offered,
    /// The reservation that holds the offer.
    pub reservation: Option<u64>,
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

/// What decides whether a step is plain, the same for all steps of a pass.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plain {
    pub block_tokens: u64,
    /// Beyond that, blocks have no 32-bit number.
    pub most_tokens: u64,
    /// With a lookahead only prompt tokens count: what is generated is never hashed.
    pub hashes: bool,
}

impl Plain {
    pub fn new(terms: &Terms) -> Self {
        let block_tokens = u64::from(terms.tokens_per_block);
        Self {
            block_tokens,
            most_tokens: u64::from(u32::MAX) * block_tokens,
            hashes: terms.lookahead == 0,
        }
    }
}

/// What is known of one request, all of its life. There are thousands of them, so it is kept small.
#[derive(Debug, Clone)]
pub(super) struct Record {
    /// `None` once it was part of a pass.
    pub start: Option<Box<Start>>,
    /// Tokens reported so far; the prompt counts from the match on.
    pub tokens: u64,
    pub prompt_tokens: u64,
    pub generation: u64,
    pub chain: Chain,
    /// Page per block, one list per layer group.
    pub pages: Vec<Vec<i32>>,
    pub retries: Vec<Retry>,
    pub load: Option<Load>,
    /// Blocks that came from the pool; they are not written back.
    pub loaded: Range<u32>,
    /// Blocks below it were queued for saving, or need not be.
    pub confirmed: u32,
    /// Pages that count as computed were lost: nothing behind them may be published.
    pub spoilt: bool,
    /// Its pages were reported while no layout was registered: it takes no part in this life.
    pub sits_out: bool,
    /// A save was emitted, or a synchronous load for which the pool writes into the cache itself: pages may be in flight
    /// on some rank until it is reported.
    pub ever_saved: bool,
}

impl Record {
    pub fn new(chain: Chain, start: Box<Start>) -> Self {
        Self {
            start: Some(start),
            tokens: 0,
            prompt_tokens: 0,
            generation: 0,
            chain,
            pages: Vec::new(),
            retries: Vec::new(),
            load: None,
            loaded: 0..0,
            confirmed: 0,
            spoilt: false,
            sits_out: false,
            ever_saved: false,
        }
    }

    /// The record of a new life of some request; lists keep their memory. `spare` is taken where it has no memory for its
    /// start.
    pub fn renew(
        mut self,
        generation: u64,
        seed: Seed,
        spare: impl FnOnce() -> Box<Start>,
    ) -> Self {
        let mut start = self.start.take().unwrap_or_else(spare);
        *start = Start::default();
        self.chain.reset(seed);
        self.pages.iter_mut().for_each(Vec::clear);
        self.retries.clear();
        Self {
            generation,
            pages: self.pages,
            retries: self.retries,
            ..Self::new(self.chain, start)
        }
    }

    /// It was part of a pass.
    pub fn runs(&self) -> bool {
        self.start.is_none()
    }

    /// The reservation that holds the offer.
    pub fn reservation(&self) -> Option<u64> {
        self.start.as_ref()?.reservation
    }

    /// Takes a step that has nothing to check against the offer, enters no pages and completes no block, as most steps of
    /// decoding requests are. False: it is another one, perhaps a wrong one, and nothing changed.
    pub fn take_plain(&mut self, step: &Step<'_>, plain: Plain) -> bool {
        let count = step.new_tokens.len() as u64;
        let takes = |chain: &mut Chain| match plain.hashes {
            true => chain.extend_open(step.new_tokens),
            false => chain.can_hash(step.new_tokens),
        };
        if !step.pages.is_empty()
            || !self.is_plain(count, step.computed_position, step.scheduled_tokens, plain)
            || !takes(&mut self.chain)
        {
            return false;
        }
        self.tokens += count;
        true
    }

    /// Up to where [`take_plain`](Self::take_plain) would take steps of one new token each, at most `most` of them.
    pub fn limits(&self, most: u16, plain: Plain) -> Option<Limits> {
        if !self.may_be_plain() {
            return None;
        }
        let room = match plain.hashes {
            true => self.chain.open_room().min(usize::from(most)) as u16,
            false => most,
        };
        // Within 32 bits there are never more blocks than have a number.
        let beyond = self.tokens + u64::from(room) + 1;
        Some(Limits {
            room,
            left: room,
            beyond: u32::try_from(beyond).ok()?,
            first: u32::try_from(self.prompt_tokens).ok()?,
            end: u32::try_from(self.first_saved(plain)).unwrap_or(u32::MAX),
        })
    }

    /// Takes tokens that are within its [`limits`](Self::limits).
    pub fn take_kept(&mut self, tokens: &[i32], plain: Plain) {
        self.tokens += tokens.len() as u64;
        if plain.hashes && !tokens.is_empty() {
            let done = self.chain.extend_open(Tokens::I32(tokens));
            debug_assert!(done, "they complete no block");
        }
    }

    /// No step of it is plain otherwise, whatever it says.
    fn may_be_plain(&self) -> bool {
        self.runs() && self.load.is_none() && !self.sits_out && !plant::is(Bug::PagesCount)
    }

    /// With so many tokens computed there is a block to save.
    fn first_saved(&self, plain: Plain) -> u64 {
        (u64::from(self.confirmed) + 1) * plain.block_tokens
    }

    fn is_plain(&self, count: u64, position: u64, scheduled: u64, plain: Plain) -> bool {
        let known = self.tokens + count;
        let Some(computed) = position.checked_add(scheduled) else {
            return false;
        };
        self.may_be_plain()
            && position <= known
            && known <= plain.most_tokens
            && (count == 0 || position >= self.prompt_tokens)
            && computed < self.first_saved(plain)
    }

    /// Takes back [`take_plain`](Self::take_plain) of a step with so many new tokens.
    pub fn take_plain_back(&mut self, count: usize, plain: Plain) {
        self.tokens -= count as u64;
        if plain.hashes {
            self.chain.retract_open(count);
        }
    }

    /// The engine has settled the offer on these blocks.
    pub fn settle(&mut self, blocks: Range<u32>, is_async: bool) {
        if let Some(start) = &mut self.start {
            start.is_allocated = true;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// With its line a request takes 200 bytes beyond its blocks' hashes and pages, and the tokens of the block that is open.
    #[test]
    fn a_record_is_small() {
        assert!(size_of::<Record>() <= 168, "{}", size_of::<Record>());
    }
}
