//! Synchronous loads: pool → slots → verdict → cache, before the forward pass.

use std::sync::Arc;

use super::Worker;
use super::batch::{Cursor, LoadBatch, Tally};
use super::direct::Direct;
use super::mover::{Mover, Way};
use crate::device::Stream;
use crate::error::{Error, Kind, Result, bail};
use crate::metadata::{Life, Metadata, Run};
use crate::plant::{self, Bug};
use crate::stats::Phase;

const DOES_NOT_READ: &str = "the role does not read";

impl Worker {
    /// Loads what the bound metadata restores; on return the pages are in the cache, ordered before
    /// work that is put on `stream` later. A second call on one metadata starts nothing.
    ///
    /// Blocks: for the pool's reads. Errors: what `bind` could not say; `InvalidArgument`, the stream cannot be used, and nothing was
    /// started; under TP `LoadFailed` when a page is
    /// missing, since its tokens were already reported as computed and no rank can restart alone; and on any rank, from
    /// then on in every call, when the pool may still write into the cache for a load that failed.
    /// On a single rank or ADP owner a lost page is no error: see [`Worker::take_failed_loads`]. `DeviceLost` on any rank
    /// from then on in every call.
    pub fn start_load(&mut self, stream: Stream) -> Result<()> {
        self.hear_of_ended_lives();
        if let Some(error) = self.deferred.take() {
            self.abandon_loads();
            return Err(error);
        }
        self.shared.load_error()?;
        if let Err(lost) = self.device_usable() {
            self.abandon_loads();
            return Err(lost);
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
        if let Err(error) = mover.memory.device().accepts(stream) {
            if error.kind() == Kind::DeviceLost {
                self.abandon_loads();
            }
            return Err(error);
        }
        bound.loads_started = true;
        let (mut batch, mut tally) = std::mem::take(&mut self.load_scratch);
        tally.clear();
        self.load_runs(&mover, stream, &metadata, &mut batch, &mut tally);
        self.shared.report(metadata.source(), |report| {
            report.started.push(metadata.pass())
        });
        let result = self.settle_loads(metadata.source(), &tally);
        let shared = &self.shared;
        shared
            .lines
            .loaded(&shared.stats, &shared.timers, || shared.gauges());
        self.load_scratch = (batch, tally);
        result
    }

    /// The pool writes into the cache itself, once what the stream has was waited for.
    fn load_direct(
        &self,
        (mover, direct): (&Mover, &Direct),
        stream: Stream,
        metadata: &Metadata,
        batch: &mut LoadBatch,
        tally: &mut Tally,
    ) {
        let loads = metadata.loads();
        let mut cursor = Cursor::new(0..loads.runs().len(), 0);
        let (shared, from) = (&self.shared, (metadata, loads));
        let device = mover.memory.device();
        let began = shared.timers.start();
        let waited = device.record(stream).and_then(|event| device.wait(&event));
        shared.timers.lap(Phase::Sync, began);
        let skip = |run: &Run| self.is_dropped(run);
        while batch.collect(shared, mover, from, &mut cursor, tally, skip) {
            if let Some(why) = &tally.kept {
                // The requests behind that call: their pages do not come, either.
                let why = why.clone();
                batch.lose_all(tally, &why);
                continue;
            }
            match &waited {
                Ok(()) if shared.terms.role.reads() => {}
                Ok(()) => {
                    batch.lose_all(tally, DOES_NOT_READ);
                    continue;
                }
                Err(error) => {
                    batch.lose_all(tally, error.message());
                    continue;
                }
            }
            let _turn = shared.direct_load.lock();
            let ended = shared.ended.lock().clone();
            let is_over = |life: Life| ended.contains(&life);
            batch.get_direct(shared, mover, direct, tally, is_over);
        }
    }

    fn load_runs(
        &self,
        mover: &Mover,
        stream: Stream,
        metadata: &Metadata,
        batch: &mut LoadBatch,
        tally: &mut Tally,
    ) {
        let sets = match &mover.way {
            Way::Staged { load_sets, .. } => load_sets,
            Way::Direct(direct) => {
                return self.load_direct((mover, direct), stream, metadata, batch, tally);
            }
        };
        let loads = metadata.loads();
        let mut cursor = Cursor::new(0..loads.runs().len(), 0);
        let (shared, from) = (&self.shared, (metadata, loads));
        let skip = |run: &Run| self.is_dropped(run);
        let mut set = None;
        while batch.collect(shared, mover, from, &mut cursor, tally, skip) {
            let taken = match set.take() {
                Some(set) => set,
                None => match sets.take() {
                    Ok(Some(set)) => set,
                    Ok(None) => {
                        // Its own scheduler offers nothing then, so this is somebody else's.
                        batch.lose_all(tally, DOES_NOT_READ);
                        continue;
                    }
                    Err(error) => {
                        batch.lose_all(tally, error.message());
                        continue;
                    }
                },
            };
            set = batch.get(shared, &mover.plan, sets, taken, tally);
            let Some(set) = &mut set else { continue };
            let ended = shared.ended.lock();
            let is_over = |life: Life| ended.contains(&life);
            batch.scatter(shared, mover, Some(stream), set, tally, is_over);
        }
    }

    /// Counts what was loaded and draws the consequences of lost pages.
    fn settle_loads(&mut self, source: u64, tally: &Tally) -> Result<()> {
        let Some(text) = tally.settle(&self.shared) else {
            return Ok(());
        };
        // So that nothing is published of what is computed behind a page that did not come.
        self.shared.report(source, |report| {
            report.failed_loads.extend_from_slice(&tally.lost)
        });
        if let Some(error) = tally.kept_error() {
            self.shared.keep_load_error(&error);
            if let Some(bound) = &mut self.bound {
                let lost = tally.lost.iter();
                bound.drop_lives(lost.map(|lost| (lost.request_id, lost.generation)));
            }
            return Err(error);
        }
        for lost in &tally.lost {
            self.give_up((lost.request_id, lost.generation));
        }
        self.device_usable()?;
        if !self.shared.terms.restarts_requests() {
            bail!(
                LoadFailed,
                "load: {text}; the tokens were already reported as computed, and one rank of {} cannot restart a request alone",
                self.shared.terms.world
            );
        }
        tracing::warn!(
            "load: {text}; {} requests are handed back",
            tally.lost.len()
        );
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
        if let Some(bound) = &mut self.bound
            && !plant::is(Bug::LostStillSaved)
        {
            bound.drop_lives(std::iter::once(life));
        }
        if !self.shared.terms.restarts_requests() {
            return;
        }
        // A metadata from elsewhere says nothing about lives of ours.
        if life.1 <= self.newest_bound {
            self.ended.add(life);
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
        if plant::is(Bug::DroppedLoadsCount) {
            return None;
        }
        let metadata = Arc::clone(&bound.metadata);
        let mut requests = 0;
        for run in metadata.loads().runs() {
            if self.is_dropped(run) {
                continue;
            }
            requests += 1;
            self.give_up(run.life());
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
