//! Synchronous loads: pool → slots → verdict → cache, before the forward pass.

use std::sync::Arc;

use super::Worker;
use super::mover::Mover;
use crate::device::memory::recycle_targets;
use crate::device::{PageRef, Stream};
use crate::error::{Error, Kind, Result, bail};
use crate::keys::Keys;
use crate::link::BlockOf;
use crate::metadata::Metadata;
use crate::page::{Verdict, verify};
use crate::store::{GetOutcome, Pieces};

/// One page of a batch: where it goes and whose it is.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    kind: u16,
    block: u32,
    request_id: u64,
    generation: u64,
}

/// The lists of one batch, kept for the next.
#[derive(Default)]
pub(super) struct LoadScratch {
    keys: Keys,
    pages: Vec<PageRef>,
    wanted: Vec<Wanted>,
    outcomes: Vec<GetOutcome>,
    /// Requests that lost a page in this metadata, with the first block that failed.
    lost: Vec<BlockOf>,
    /// What the error of a load says: the first missing key.
    first_missing: Option<String>,
    failed_pages: u64,
    landed_bytes: u64,
}

impl LoadScratch {
    fn begin(&mut self) {
        self.clear_batch();
        self.lost.clear();
        self.first_missing = None;
        self.failed_pages = 0;
        self.landed_bytes = 0;
    }

    fn clear_batch(&mut self) {
        self.keys.clear();
        self.pages.clear();
        self.wanted.clear();
    }

    fn is_lost(&self, request_id: u64) -> bool {
        self.lost.iter().any(|lost| lost.request_id == request_id)
    }

    fn lose(&mut self, wanted: Wanted) {
        match self
            .lost
            .iter_mut()
            .find(|lost| lost.request_id == wanted.request_id)
        {
            Some(lost) => lost.block = lost.block.min(wanted.block),
            None => self.lost.push(BlockOf {
                request_id: wanted.request_id,
                generation: wanted.generation,
                block: wanted.block,
            }),
        }
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
            self.shared
                .report(|report| report.started.push(metadata.pass()));
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
        self.shared
            .report(|report| report.started.push(metadata.pass()));
        let result = self.settle_loads(&scratch);
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
        let kinds = &mover.plan.kinds;
        for view in metadata.views(metadata.loads()) {
            let run = view.run;
            let blocks = view
                .hashes
                .chunks_exact(hash_bytes)
                .zip(view.pages.chunks_exact(metadata.groups().len()));
            for (number, (hash, pages)) in blocks.enumerate() {
                if scratch.is_lost(run.request_id) {
                    break;
                }
                for (position, kind) in kinds.iter().enumerate() {
                    let wanted = Wanted {
                        kind: position as u16,
                        block: run.first_block + number as u32,
                        request_id: run.request_id,
                        generation: run.generation,
                    };
                    let index = pages.get(usize::from(kind.group)).copied().unwrap_or(-1);
                    let page = PageRef {
                        group: kind.group,
                        part: kind.part,
                        index,
                        slot: scratch.pages.len() as u32,
                    };
                    // An index that is no page was refused by the scheduler; another rank's layout may be smaller.
                    if let Err(error) = mover
                        .check(&page)
                        .and_then(|()| scratch.keys.push_key(&kind.own, hash))
                    {
                        tracing::warn!(
                            "request {}: block {}: {error}",
                            run.request_id,
                            wanted.block
                        );
                        scratch.failed_pages += 1;
                        scratch.lose(wanted);
                        break;
                    }
                    scratch.pages.push(page);
                    scratch.wanted.push(wanted);
                    if scratch.pages.len() == mover.batch {
                        self.load_batch(mover, stream, scratch);
                    }
                }
            }
        }
        self.load_batch(mover, stream, scratch);
    }

    /// Gets one batch into the slots, judges every page, and scatters those that are whole.
    fn load_batch(&mut self, mover: &Mover, stream: Stream, scratch: &mut LoadScratch) {
        if scratch.pages.is_empty() {
            return;
        }
        let plan = &mover.plan;
        let stats = &self.shared.stats;
        let mut slots = mover.load_slots.lock();
        let object_bytes =
            |wanted: &Wanted| plan.object_bytes(plan.kinds[usize::from(wanted.kind)].payload);
        let mut targets = recycle_targets(std::mem::take(&mut *mover.load_targets.lock()));
        targets.extend(
            slots
                .slots_mut()
                .zip(&scratch.wanted)
                .map(|(slot, wanted)| (&mut slot[..object_bytes(wanted) as usize]).into()),
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
            let payload = plan.kinds[usize::from(wanted.kind)].payload as usize;
            let object = object_bytes(&wanted);
            let outcome = scratch.outcomes.get(number).copied();
            let whole = outcome == Some(GetOutcome::Landed(object))
                && (!plan.sealed() || {
                    let slot = slots.slot(number as u32).unwrap_or_default();
                    let bytes = slot.get(..object as usize).unwrap_or_default();
                    let verdict = verify(scratch.keys.get(number), bytes, payload);
                    if verdict != Verdict::Intact {
                        stats.bad_seals.add(1);
                        tracing::warn!(
                            "page {} is damaged ({verdict:?}) and was not loaded",
                            String::from_utf8_lossy(scratch.keys.get(number))
                        );
                    }
                    verdict == Verdict::Intact
                });
            if !whole {
                scratch.failed_pages += 1;
                stats.failed_load_pages.add(1);
                if scratch.first_missing.is_none() {
                    let key = String::from_utf8_lossy(scratch.keys.get(number));
                    scratch.first_missing = Some(format!("{key} ({outcome:?})"));
                }
                scratch.lose(wanted);
            }
            // Marked for the pass below; a lost request's other pages are left out as well.
            if !whole {
                scratch.wanted[number].kind = u16::MAX;
            }
        }
        let mut kept = 0;
        for number in 0..scratch.pages.len() {
            let wanted = scratch.wanted[number];
            if wanted.kind == u16::MAX || scratch.is_lost(wanted.request_id) {
                continue;
            }
            let payload = plan.kinds[usize::from(wanted.kind)].payload;
            scratch.landed_bytes += payload;
            stats.loaded_pages.add(1);
            stats.loaded_bytes.add(payload);
            scratch.pages[kept] = scratch.pages[number];
            kept += 1;
        }
        scratch.pages.truncate(kept);
        if let Err(error) = mover.memory.scatter(stream, &scratch.pages, &mut slots) {
            // Nothing of this batch can be trusted to be in the cache.
            tracing::error!("load: {error}");
            for number in 0..scratch.wanted.len() {
                let wanted = scratch.wanted[number];
                scratch.failed_pages += 1;
                scratch.lose(wanted);
            }
        }
        scratch.clear_batch();
    }

    /// Draws the consequences of lost pages.
    fn settle_loads(&mut self, scratch: &LoadScratch) -> Result<()> {
        if scratch.lost.is_empty() {
            return Ok(());
        }
        let missing = scratch
            .first_missing
            .as_deref()
            .unwrap_or("none was asked for");
        let text = format!(
            "load: {} pages did not arrive, {} bytes landed; first missing: {missing}",
            scratch.failed_pages, scratch.landed_bytes
        );
        self.shared
            .stats
            .failed_load_requests
            .add(scratch.lost.len() as u64);
        self.shared
            .report(|report| report.failed_loads.extend_from_slice(&scratch.lost));
        if let Some(bound) = &mut self.bound {
            bound.drop_saves(
                scratch
                    .lost
                    .iter()
                    .map(|lost| (lost.request_id, lost.generation)),
            );
        }
        if !self.shared.terms.restarts_requests() {
            bail!(
                LoadFailed,
                "{text}; the tokens were already reported as computed, and one rank of {} cannot restart a request alone",
                self.shared.terms.world
            );
        }
        tracing::warn!("{text}; {} requests are handed back", scratch.lost.len());
        self.failed_loads
            .extend(scratch.lost.iter().map(|lost| lost.request_id));
        Ok(())
    }

    /// Loads of the bound metadata that never started count as failed: their requests are handed
    /// back. Under TP that is the error that is returned.
    pub(super) fn abandon_loads(&mut self) -> Option<Error> {
        let bound = self.bound.as_mut()?;
        if std::mem::replace(&mut bound.loads_started, true) {
            return None;
        }
        let metadata = Arc::clone(&bound.metadata);
        let runs = metadata.loads().runs();
        if runs.is_empty() {
            return None;
        }
        bound.drop_saves(runs.iter().map(|run| (run.request_id, run.generation)));
        self.shared
            .stats
            .failed_load_requests
            .add(runs.len() as u64);
        if self.shared.terms.restarts_requests() {
            self.failed_loads
                .extend(runs.iter().map(|run| run.request_id));
            return None;
        }
        Some(Error::new(
            Kind::LoadFailed,
            format!(
                "pass {}: the loads of {} requests were never started, but their tokens were already reported as computed",
                metadata.pass(),
                runs.len()
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
