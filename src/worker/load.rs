//! Synchronous loads: pool → slots → verdict → cache, before the forward pass.

use std::sync::Arc;

use super::finished::Life;
use super::mover::Mover;
use super::plan::PagePlan;
use super::{EndedLife, Worker};
use crate::device::memory::recycle_targets;
use crate::device::{PageRef, Stream};
use crate::error::{Error, Kind, Result, bail};
use crate::keys::Keys;
use crate::link::BlockOf;
use crate::metadata::{Metadata, Run};
use crate::page::{Verdict, verify};
use crate::store::{GetOutcome, Pieces};

/// One page of a batch: what it is and whose.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Position in the plan's kinds.
    kind: usize,
    block: BlockOf,
}

/// The lists of one batch, kept for the next, and what is known of the loads of one metadata.
#[derive(Default)]
pub(super) struct LoadScratch {
    keys: Keys,
    pages: Vec<PageRef>,
    wanted: Vec<Wanted>,
    outcomes: Vec<GetOutcome>,
    /// Per page of the batch: it is in its slot, complete and intact.
    whole: Vec<bool>,
    /// Requests that lost a page in this metadata, each with the first block that failed.
    lost: Vec<BlockOf>,
    /// What the error of a load says: the first page that failed, and how.
    first_failure: Option<String>,
    /// Pages that the metadata asks for, and those of them that are in the cache.
    wanted_pages: u64,
    landed_pages: u64,
    landed_bytes: u64,
}

impl LoadScratch {
    fn begin(&mut self) {
        self.clear_batch();
        self.lost.clear();
        self.first_failure = None;
        self.wanted_pages = 0;
        self.landed_pages = 0;
        self.landed_bytes = 0;
    }

    fn clear_batch(&mut self) {
        self.keys.clear();
        self.pages.clear();
        self.wanted.clear();
        self.whole.clear();
    }

    fn is_lost(&self, request_id: u64) -> bool {
        self.lost.iter().any(|lost| lost.request_id == request_id)
    }

    fn lose(&mut self, block: BlockOf, why: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(why);
        match self
            .lost
            .iter_mut()
            .find(|lost| lost.request_id == block.request_id)
        {
            Some(lost) => lost.block = lost.block.min(block.block),
            None => self.lost.push(block),
        }
    }

    /// Leaves only those pages in the batch that are whole and whose request lost none so far; the
    /// bytes of their payloads.
    fn keep_whole(&mut self, plan: &PagePlan) -> u64 {
        let (mut kept, mut bytes) = (0, 0);
        for number in 0..self.pages.len() {
            let wanted = self.wanted[number];
            if self.whole[number] && !self.is_lost(wanted.block.request_id) {
                bytes += plan.kinds[wanted.kind].payload;
                self.pages[kept] = self.pages[number];
                kept += 1;
            }
        }
        self.pages.truncate(kept);
        bytes
    }
}

impl Worker {
    /// Loads what the bound metadata restores; on return the pages are in the cache, ordered before
    /// work that is put on `stream` later. A second call on one metadata starts nothing.
    ///
    /// Blocks: for the pool's reads. Errors: what `bind` could not say; under TP `LoadFailed` when a page is
    /// missing, since its tokens were already reported as computed and no rank can restart alone.
    /// On a single rank or ADP owner a lost page is no error: see [`Worker::take_failed_loads`].
    pub fn start_load(&mut self, stream: Stream) -> Result<()> {
        self.hear_of_ended_lives();
        if let Some(error) = self.deferred.take() {
            self.abandon_loads();
            return Err(error);
        }
        let Some(bound) = &mut self.bound else {
            bail!(BadState, "start_load: no metadata is bound");
        };
        if bound.loads_started {
            return Ok(());
        }
        let metadata = Arc::clone(&bound.metadata);
        if metadata.loads().runs().is_empty() {
            bound.loads_started = true;
            self.shared.report(metadata.source(), |report| {
                report.started.push(metadata.pass())
            });
            return Ok(());
        }
        if self.shared.is_closed() {
            self.abandon_loads();
            bail!(Closed, "start_load: the worker was shut down");
        }
        let Some(mover) = self.mover.clone() else {
            self.abandon_loads();
            bail!(
                BadState,
                "start_load: pages are to be loaded, but no layout is registered"
            );
        };
        bound.loads_started = true;
        let mut scratch = std::mem::take(&mut self.load_scratch);
        scratch.begin();
        self.load_runs(&mover, stream, &metadata, &mut scratch);
        self.shared.report(metadata.source(), |report| {
            report.started.push(metadata.pass())
        });
        let result = self.settle_loads(metadata.source(), &scratch);
        self.load_scratch = scratch;
        result
    }

    fn load_runs(
        &mut self,
        mover: &Mover,
        stream: Stream,
        metadata: &Metadata,
        scratch: &mut LoadScratch,
    ) {
        let hash_bytes = self.shared.terms.hash_bytes();
        let kinds = mover.plan.kinds.len() as u64;
        for view in metadata.views(metadata.loads()) {
            let run = view.run;
            if self.is_dropped(run) {
                continue;
            }
            scratch.wanted_pages += u64::from(run.blocks) * kinds;
            let blocks = view
                .hashes
                .chunks_exact(hash_bytes)
                .zip(view.pages.chunks_exact(metadata.groups().len().max(1)));
            for ((hash, pages), number) in blocks.zip(0..) {
                if scratch.is_lost(run.request_id) {
                    break;
                }
                let block = BlockOf {
                    request_id: run.request_id,
                    generation: run.generation,
                    block: run.first_block.saturating_add(number),
                };
                self.load_block(mover, stream, scratch, block, hash, pages);
            }
        }
        self.load_batch(mover, stream, scratch);
    }

    /// Adds the pages of one block; loads the batch whenever it is full.
    fn load_block(
        &mut self,
        mover: &Mover,
        stream: Stream,
        scratch: &mut LoadScratch,
        block: BlockOf,
        hash: &[u8],
        pages: &[i32],
    ) {
        for (number, kind) in mover.plan.kinds.iter().enumerate() {
            let page = PageRef {
                group: kind.group,
                part: kind.part,
                index: pages.get(usize::from(kind.group)).copied().unwrap_or(-1),
                // Below the batch size, which is a u32.
                slot: scratch.pages.len() as u32,
            };
            // An index that is no page was refused by the scheduler; another rank's layout may be smaller.
            let checked = mover
                .check(&page)
                .and_then(|()| scratch.keys.push_key(&kind.own, hash));
            if let Err(error) = checked {
                scratch.lose(block, || error.to_string());
                return;
            }
            scratch.pages.push(page);
            scratch.wanted.push(Wanted {
                kind: number,
                block,
            });
            if scratch.pages.len() == mover.batch {
                self.load_batch(mover, stream, scratch);
                if scratch.is_lost(block.request_id) {
                    return;
                }
            }
        }
    }

    /// Gets one batch into the slots, judges every page, and scatters those that are whole.
    fn load_batch(&mut self, mover: &Mover, stream: Stream, scratch: &mut LoadScratch) {
        if scratch.pages.is_empty() {
            return;
        }
        let plan = &mover.plan;
        let stats = &self.shared.stats;
        let mut slots = mover.load_slots.lock();
        let mut targets = recycle_targets(std::mem::take(&mut *mover.load_targets.lock()));
        targets.extend(
            slots
                .slots_mut()
                .zip(&scratch.wanted)
                .map(|(slot, wanted)| {
                    (&mut slot[..plan.object_bytes(wanted.kind) as usize]).into()
                }),
        );
        self.shared.store.get(
            &scratch.keys,
            Pieces::one_each(&mut targets),
            &mut scratch.outcomes,
        );
        *mover.load_targets.lock() = recycle_targets(targets);
        stats.store_calls.add(1);
        if scratch.outcomes.len() != scratch.pages.len() {
            tracing::warn!(
                "load: {} answers to {} pages: all count as failed",
                scratch.outcomes.len(),
                scratch.pages.len()
            );
            scratch.outcomes.clear();
        }
        for number in 0..scratch.pages.len() {
            let wanted = scratch.wanted[number];
            let outcome = scratch.outcomes.get(number).copied();
            let object = plan.object_bytes(wanted.kind);
            let mut verdict = Verdict::Intact;
            if outcome == Some(GetOutcome::Landed(object)) && plan.sealed() {
                let slot = slots.slot(number as u32).unwrap_or_default();
                let bytes = slot.get(..object as usize).unwrap_or_default();
                let payload = plan.kinds[wanted.kind].payload as usize;
                verdict = verify(scratch.keys.get(number), bytes, payload);
            }
            let whole = outcome == Some(GetOutcome::Landed(object)) && verdict == Verdict::Intact;
            scratch.whole.push(whole);
            if whole {
                continue;
            }
            let key = String::from_utf8_lossy(scratch.keys.get(number)).into_owned();
            let why = match (verdict, outcome) {
                (Verdict::Intact, Some(outcome)) => format!("{key} ({outcome:?})"),
                (Verdict::Intact, None) => format!("{key} (no answer)"),
                (verdict, _) => {
                    stats.bad_seals.add(1);
                    tracing::warn!("page {key} is damaged ({verdict:?}) and was not loaded");
                    format!("{key} ({verdict:?})")
                }
            };
            scratch.lose(wanted.block, || why);
        }
        let bytes = scratch.keep_whole(plan);
        match mover.memory.scatter(stream, &scratch.pages, &mut slots) {
            Ok(()) => {
                scratch.landed_pages += scratch.pages.len() as u64;
                scratch.landed_bytes += bytes;
            }
            // Nothing of this batch can be trusted to be in the cache.
            Err(error) => {
                for number in 0..scratch.wanted.len() {
                    let block = scratch.wanted[number].block;
                    scratch.lose(block, || error.to_string());
                }
            }
        }
        scratch.clear_batch();
    }

    /// Counts what was loaded and draws the consequences of lost pages.
    fn settle_loads(&mut self, source: u64, scratch: &LoadScratch) -> Result<()> {
        let stats = &self.shared.stats;
        stats.loaded_pages.add(scratch.landed_pages);
        stats.loaded_bytes.add(scratch.landed_bytes);
        if scratch.lost.is_empty() {
            return Ok(());
        }
        let failed = scratch.wanted_pages.saturating_sub(scratch.landed_pages);
        stats.failed_load_pages.add(failed);
        stats.failed_load_requests.add(scratch.lost.len() as u64);
        let text = format!(
            "load: {failed} pages did not arrive, {} bytes landed; first: {}",
            scratch.landed_bytes,
            scratch.first_failure.as_deref().unwrap_or_default()
        );
        self.shared.report(source, |report| {
            report.failed_loads.extend_from_slice(&scratch.lost)
        });
        for lost in &scratch.lost {
            self.give_up((lost.request_id, lost.generation));
        }
        if !self.shared.terms.restarts_requests() {
            bail!(
                LoadFailed,
                "{text}; the tokens were already reported as computed, and one rank of {} cannot restart a request alone",
                self.shared.terms.world
            );
        }
        tracing::warn!("{text}; {} requests are handed back", scratch.lost.len());
        Ok(())
    }

    fn is_dropped(&self, run: &Run) -> bool {
        self.bound
            .as_ref()
            .is_some_and(|bound| bound.is_dropped(run))
    }

    /// Nothing more of this life is moved for the bound metadata. Where the engine is to run the
    /// request again, nothing of it ever is: also not by a metadata that was built before the
    /// engine heard of it. Under TP the error is all that the engine gets.
    fn give_up(&mut self, life: Life) {
        if let Some(bound) = &mut self.bound {
            bound.drop_lives(std::iter::once(life));
        }
        if !self.shared.terms.restarts_requests() {
            return;
        }
        // A metadata from elsewhere says nothing about lives of ours.
        if life.1 <= self.newest_bound {
            self.ended.push(EndedLife {
                id: life.0,
                generation: life.1,
                at: self.binds,
            });
        }
        if !self.failed_loads.contains(&life.0) {
            self.failed_loads.push(life.0);
        }
    }

    /// Loads of the bound metadata that never started count as failed: their requests are handed
    /// back. Under TP that is the error that is returned.
    pub(super) fn abandon_loads(&mut self) -> Option<Error> {
        let bound = self.bound.as_mut()?;
        if std::mem::replace(&mut bound.loads_started, true) {
            return None;
        }
        let metadata = Arc::clone(&bound.metadata);
        let mut requests = 0;
        for run in metadata.loads().runs() {
            if self.is_dropped(run) {
                continue;
            }
            requests += 1;
            self.give_up((run.request_id, run.generation));
        }
        self.shared.stats.failed_load_requests.add(requests);
        if requests == 0 || self.shared.terms.restarts_requests() {
            return None;
        }
        Some(Error::new(
            Kind::LoadFailed,
            format!(
                "pass {}: the loads of {requests} requests were never started, but their tokens were already reported as computed",
                metadata.pass()
            ),
        ))
    }

    /// Requests of which a page was lost: read and clear. The engine runs them again without the
    /// pages that it counted as computed. Always empty under TP.
    pub fn take_failed_loads(&mut self) -> &[u64] {
        self.failed_view.clear();
        std::mem::swap(&mut self.failed_view, &mut self.failed_loads);
        &self.failed_view
    }
}
