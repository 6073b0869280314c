//! What to load: the offer, how the engine settles it, and what it gives back of it.

use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::Ordering;

use super::record::{Offered, Record, position};
use super::{FailedBlock, GENERATIONS, GroupPages, Offer, Request, Scheduler};
use crate::error::{Error, Kind, Result, bail};
use crate::keys::{Chain, Scope, Seed, TokenDigest, seed};
use crate::link::GroupInfo;
use crate::plant::{self, Bug};

const NOTHING: Offer = Offer {
    tokens: 0,
    is_async: false,
};

impl Scheduler {
    /// What the pool can supply of the prompt beyond `local_tokens` tokens that are in the engine's
    /// own cache. Asked again between two builds the answer comes from memory and keeps its end.
    ///
    /// An id whose record already ran, or whose prompt or scope differs, begins a new generation.
    /// Blocks: for existence questions to the pool.
    pub fn match_request(&mut self, request: &Request<'_>, local_tokens: u64) -> Result<Offer> {
        self.take_report();
        let prompt_tokens = request.prompt.len() as u64;
        if local_tokens > prompt_tokens {
            bail!(
                InvalidArgument,
                "request {}: local_tokens = {local_tokens} of a prompt of {prompt_tokens} tokens",
                request.id
            );
        }
        if prompt_tokens / self.block_tokens() > u64::from(u32::MAX) {
            bail!(
                OutOfRange,
                "request {}: a prompt of {prompt_tokens} tokens has more than 2^32 blocks",
                request.id
            );
        }
        if self.terms.context_only && !request.context_only {
            bail!(
                InvalidArgument,
                "request {}: context_only = 0: with a drafter only prefill-only requests take part",
                request.id
            );
        }
        if request.has_media && request.scope.media_digests.is_empty() {
            warn_about_media();
            self.release_record(request.id);
            return Ok(NOTHING);
        }
        let scope = Scope {
            lookahead: self.terms.lookahead,
            ..request.scope
        };
        let seed = seed(self.terms.scheme, &scope)?;
        let mut digest = TokenDigest::new();
        digest.extend(request.prompt);
        if !self.is_same_request(request.id, seed, &digest) {
            self.begin_generation(request, seed, &digest)?;
        }
        let tokens = self.offer(request.id, local_tokens);
        Ok(Offer {
            tokens,
            is_async: tokens > 0 && self.terms.async_load,
        })
    }

    fn is_same_request(&self, id: u64, seed: Seed, digest: &TokenDigest) -> bool {
        let Some(record) = self.records.get(&id) else {
            return false;
        };
        let Some(start) = &record.start else {
            return false;
        };
        !record.is_parked()
            && record.chain.begins_with(&seed)
            && record.prompt_tokens == digest.count()
            && start.prompt_digest == digest.value()
    }

    fn begin_generation(
        &mut self,
        request: &Request<'_>,
        seed: Seed,
        digest: &TokenDigest,
    ) -> Result<()> {
        let terms = &self.terms;
        let spare = match self.spares.pop() {
            Some(record) => record,
            None => {
                let (scheme, size) = (terms.scheme, terms.tokens_per_block);
                let chain = Chain::new(scheme, size, terms.lookahead, seed)?;
                Record::new(chain, Box::default())
            }
        };
        let generation = GENERATIONS.fetch_add(1, Ordering::Relaxed) + 1;
        let mut record = spare.renew(generation, seed, || {
            self.spare_starts.pop().unwrap_or_default()
        });
        // May refuse a token: nothing was changed before it.
        record.chain.extend(request.prompt)?;
        record.prompt_tokens = digest.count();
        if let Some(start) = &mut record.start {
            start.prompt_digest = digest.value();
        }
        record.tokens = digest.count();
        // What nobody ended of an earlier life may still be in flight under this id.
        record.ever_saved = self
            .records
            .get(&request.id)
            .is_some_and(Record::may_be_in_flight);
        if let Some(failed) = self.failed_from.get(&request.id)
            && !failed.is_in(&record.chain)
        {
            self.failed_from.remove(&request.id);
        }
        self.release_record(request.id);
        self.records.insert(request.id, record);
        Ok(())
    }

    /// The offer in tokens for a record that exists and does not run.
    fn offer(&mut self, id: u64, local: u64) -> u64 {
        let size = self.block_tokens();
        let Some(record) = self.records.get(&id) else {
            return 0;
        };
        let Some(start) = &record.start else {
            return 0;
        };
        let mut offered = start.offered.clone();
        let takes_part = self.terms.role.reads() && !record.sits_out;
        let end = if takes_part && local.is_multiple_of(size) {
            self.answer(id, record, &mut offered, local)
        } else {
            local
        };
        offered.open = local..end;
        offered.made = end > local;
        // What was allocated stays settled until it is settled anew, by what was said last.
        if let Some(record) = self.records.get_mut(&id)
            && let Some(start) = &mut record.start
        {
            start.offered = offered;
        }
        end - local
    }

    /// Where the stored prefix beyond `local` ends, as far as it may be offered. Asks the pool what
    /// is not remembered.
    fn answer(&self, id: u64, record: &Record, offered: &mut Offered, local: u64) -> u64 {
        let size = self.block_tokens();
        // At least one token stays to compute.
        let mut usable =
            (record.prompt_tokens.saturating_sub(1) / size).min(record.chain.block_count() as u64);
        if plant::is(Bug::LastToken) {
            usable = record.chain.block_count() as u64;
        }
        if let Some(failed) = self.failed_from.get(&id)
            && !plant::is(Bug::FailedOfferedAgain)
        {
            usable = usable.min(u64::from(failed.block));
        }
        let usable = usable * size;
        let is_settled = record.start.as_ref().is_none_or(|start| start.is_allocated);
        if !is_settled && offered.asked_after != Some(self.pass) {
            *offered = Offered {
                known: local..local + self.stored(record, local..usable),
                asked_after: Some(self.pass),
                ..Offered::default()
            };
        }
        let remembers = |before: &Range<u64>| (before.start..=before.end).contains(&local);
        if local < offered.known.start && !offered.before.as_ref().is_some_and(remembers) {
            // The local match shrank: the part before what is known is asked for.
            let end = local + self.stored(record, local..offered.known.start);
            if end == offered.known.start {
                offered.known.start = local;
            } else {
                offered.before = Some(local..end);
            }
        }
        let end = match &offered.before {
            Some(before) if local < offered.known.start => before.end,
            _ => offered.known.end,
        };
        let end = match plant::is(Bug::OfferEndMoves) {
            true => end + local.saturating_sub(offered.known.start),
            false => end,
        };
        // A failure heard of since the pool was asked cuts a remembered answer as well.
        end.min(usable).max(local)
    }

    /// Tokens of `range` (whole blocks) that are stored from its start on.
    fn stored(&self, record: &Record, range: Range<u64>) -> u64 {
        let size = self.block_tokens();
        let bytes = self.terms.hash_bytes();
        let hashes = record.chain.hashes();
        let at = |tokens: u64| (tokens / size) as usize * bytes;
        match hashes.get(at(range.start)..at(range.end)) {
            Some(wanted) if !wanted.is_empty() => {
                let blocks = self.link.lookup(wanted).min(wanted.len() / bytes);
                blocks as u64 * size
            }
            _ => 0,
        }
    }

    /// The engine allocated pages and honours `honoured_tokens` of the offer, counted from its head.
    /// A request that is not known is skipped. Nothing changes on an error: `InvalidArgument` when the
    /// tokens are not a whole-block part of the offer, `Contradiction` when an honoured block has no
    /// page or pages contradict earlier ones, `BadState` once it runs.
    pub fn allocated(
        &mut self,
        request_id: u64,
        honoured_tokens: u64,
        pages: &[GroupPages<'_>],
    ) -> Result<()> {
        self.take_report();
        let size = self.block_tokens();
        let Some(record) = self.records.get_mut(&request_id) else {
            return Ok(());
        };
        let groups = self.link.groups();
        let Some(groups) = groups.as_deref() else {
            if honoured_tokens == 0 {
                record.sits_out |= !pages.is_empty();
                return Ok(());
            }
            bail!(
                BadState,
                "request {request_id}: {honoured_tokens} tokens are honoured, but no layout is registered"
            );
        };
        if record.sits_out && honoured_tokens == 0 {
            return Ok(());
        }
        if record.runs() && honoured_tokens > 0 {
            bail!(
                BadState,
                "request {request_id}: {honoured_tokens} tokens are honoured, but it is already running"
            );
        }
        if record.is_parked() {
            if honoured_tokens > 0 {
                bail!(
                    BadState,
                    "request {request_id}: {honoured_tokens} tokens are honoured, but its asynchronous load travelled already"
                );
            }
            record.check_pages(request_id, pages, groups)?;
            if !plant::is(Bug::MorePagesLost) {
                record.enter_pages(pages, groups);
            }
            return Ok(());
        }
        let (offered, was_made) = match &record.start {
            Some(start) => (start.offered.open.clone(), start.offered.made),
            None => (0..0, false),
        };
        if !honoured_tokens.is_multiple_of(size) || honoured_tokens > offered.end - offered.start {
            bail!(
                InvalidArgument,
                "request {request_id}: honoured_tokens = {honoured_tokens} is not a whole-block part of the {} tokens offered from token {} on (block: {size} tokens)",
                offered.end - offered.start,
                offered.start
            );
        }
        record.check_pages(request_id, pages, groups)?;
        let honoured = offered.start..offered.start + honoured_tokens;
        let blocks = as_blocks(&honoured, size);
        check_destinations(request_id, record, pages, groups, blocks.clone())?;
        record.enter_pages(pages, groups);
        if !record.runs() {
            // An engine that was made an asynchronous offer parks the request however little of it
            // it honours.
            let is_async = self.terms.async_load
                && was_made
                && !(plant::is(Bug::NothingParked) && blocks.is_empty());
            if is_async {
                self.to_park.push(request_id);
            }
            record.settle(blocks, is_async);
        }
        Ok(())
    }

    /// Gives back the prompt tokens `from … to` of an offer that was not consumed: a part at its
    /// head or its tail. A request that is not known is skipped. `InvalidArgument` for a hole in the
    /// middle, a part outside the offer or not in whole blocks; `BadState` once the load travelled.
    pub fn cancel_load(&mut self, request_id: u64, from: u64, to: u64) -> Result<()> {
        self.take_report();
        let size = self.block_tokens();
        let Some(record) = self.records.get_mut(&request_id) else {
            return Ok(());
        };
        let travelled = record.load.as_ref().is_some_and(|load| load.emitted);
        let Some(start) = record.start.as_mut().filter(|_| !travelled) else {
            bail!(
                BadState,
                "request {request_id}: tokens {from} … {to}: the offer was consumed"
            );
        };
        let offered = &mut start.offered;
        let open = match &record.load {
            Some(load) => load.tokens(size),
            None if start.is_allocated => offered.open.start..offered.open.start,
            None => offered.open.clone(),
        };
        let left = remaining(&open, from..to, size).ok_or_else(|| {
            Error::new(
                Kind::InvalidArgument,
                format!(
                    "request {request_id}: tokens {from} … {to} are no whole-block head or tail of the offer {} … {}",
                    open.start, open.end
                ),
            )
        })?;
        match &mut record.load {
            Some(load) => {
                load.blocks = as_blocks(&left, size);
                if load.blocks.is_empty() && !load.is_async {
                    record.load = None;
                }
            }
            None => offered.open = left,
        }
        Ok(())
    }
}

/// Whole blocks of prompt tokens as block ordinals.
pub(super) fn as_blocks(tokens: &Range<u64>, size: u64) -> Range<u32> {
    // A prompt has less than 2^32 blocks.
    (tokens.start / size) as u32..(tokens.end / size) as u32
}

/// `open` without `given`, where that is its head, its tail or all of it. A head that was given
/// back before, because the local match grew between two answers, is nothing.
pub(super) fn remaining(open: &Range<u64>, given: Range<u64>, size: u64) -> Option<Range<u64>> {
    let whole = given.start.is_multiple_of(size) && given.end.is_multiple_of(size);
    if !whole || given.start >= given.end {
        return None;
    }
    if given.end == open.start {
        return Some(open.clone());
    }
    if given.end > open.end {
        return None;
    }
    if given.start <= open.start && given.end > open.start {
        return Some(given.end..open.end);
    }
    (given.end == open.end && given.start > open.start).then_some(open.start..given.start)
}

/// Every honoured block needs a page in every group: one that was known or that is reported now.
pub(super) fn check_destinations(
    id: u64,
    record: &Record,
    reported: &[GroupPages<'_>],
    groups: &[GroupInfo],
    blocks: Range<u32>,
) -> Result<()> {
    for group in groups {
        let list = reported.iter().find(|list| list.group == group.id);
        let known = position(groups, group.id);
        for block in blocks.clone() {
            let new = list
                .filter(|list| block >= list.first_block)
                .and_then(|list| list.indices.get((block - list.first_block) as usize))
                .is_some_and(|&page| page >= 0);
            let replaced = list.is_some_and(|list| list.replace);
            let old =
                !replaced && known.is_some_and(|position| record.page(position, block).is_some());
            if !new && !old {
                bail!(
                    Contradiction,
                    "request {id}: block {block} is honoured but has no page in layer group {} to load into",
                    group.id
                );
            }
        }
    }
    Ok(())
}

impl FailedBlock {
    /// The block of `chain` with this ordinal.
    pub(super) fn new(block: u32, chain: &Chain) -> Option<Self> {
        let known = chain.hash(block as usize)?;
        let mut hash = [0; 32];
        hash.get_mut(..known.len())?.copy_from_slice(known);
        Some(Self { block, hash })
    }

    /// Whether the chain goes through the block that failed.
    fn is_in(&self, chain: &Chain) -> bool {
        let hash = chain.hash(self.block as usize).unwrap_or_default();
        !hash.is_empty() && self.hash.starts_with(hash)
    }
}

fn warn_about_media() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!(
            "a request carries media without digests: such requests take no part (said once)"
        );
    });
}
