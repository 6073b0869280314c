//! What a pass tells the worker: the metadata to work on, and which requests ended.

use std::sync::Arc;

use super::fence::Fence;
use super::{Bound, Worker};
use crate::error::{Error, Kind, Result, bail};
use crate::metadata::{Life, Metadata, Run};
use crate::plant::{self, Bug};

/// What `get_finished` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported<'a> {
    /// Requests whose pages are the engine's again.
    pub saved: &'a [u64],
    /// Requests whose asynchronous load ended; [`Worker::take_failed_async_loads`] has those of
    /// them that lost a page.
    pub loaded: &'a [u64],
}

impl Worker {
    /// Binds the metadata of the next pass in place of the bound one: loads of that one that never started
    /// are reported as failed (under TP by the next `start_load`), and its saves that were not
    /// queued count as not submitted. Its asynchronous loads are queued behind `fence`. Never fails: what
    /// is wrong is said by the next `start_load` or `get_finished`.
    pub fn bind(&mut self, metadata: Arc<Metadata>, fence: Fence) {
        self.hear_of_ended_lives();
        let abandoned = self.abandon_loads();
        self.deferred = self.deferred.take().or(abandoned);
        let checked = self.check(&metadata);
        let is_ours = checked.is_ok();
        if let Err(error) = checked {
            self.deferred.get_or_insert(error);
        }
        self.ended.next_pass();
        if is_ours {
            self.end_lives(&metadata);
            for run in metadata.runs() {
                self.ended.bound(run.life());
                self.newest_bound = self.newest_bound.max(run.generation);
            }
        }
        let over = metadata.runs().map(Run::life);
        let mut dropped: Vec<_> = over.filter(|&life| self.is_over(life)).collect();
        dropped.dedup();
        self.bound = Some(Bound {
            loads_started: false,
            // Nothing of another's means here what it meant where it was built.
            saves_taken: !is_ours,
            dropped,
            unsaved: Vec::new(),
            metadata: Arc::clone(&metadata),
        });
        if is_ours {
            let refused = self.queue_parked(&metadata, fence);
            self.deferred = self.deferred.take().or(refused);
        }
    }

    /// Lives that ended where the metadata was built. On that rank all of it is known already.
    fn end_lives(&mut self, metadata: &Metadata) {
        let mut parked = self.shared.parked.lock();
        for &(id, generation) in metadata.ended() {
            parked.discard(id, generation);
            self.ended.add((id, generation));
        }
    }

    /// Whether the pages of this life were given back already, as far as is known.
    pub(super) fn is_over(&self, life: Life) -> bool {
        !plant::is(Bug::StaleMetadata) && self.ended.has(life)
    }

    /// Takes out of the bound metadata, and of those that are bound later, what the local scheduler
    /// forgot since the last call.
    pub(super) fn hear_of_ended_lives(&mut self) {
        let mut ended = self.shared.ended.lock();
        if plant::is(Bug::ResetKeepsSaves) {
            return ended.clear();
        }
        if let Some(bound) = &mut self.bound {
            bound.drop_lives(ended.iter().copied());
        }
        for life in ended.drain(..) {
            self.ended.add(life);
        }
    }

    fn check(&self, metadata: &Metadata) -> Result<()> {
        let own = self.shared.source();
        if own != 0 && metadata.source() != own {
            bail!(
                Contradiction,
                "bind: the metadata of pass {} was built by another scheduler than the one beside this worker",
                metadata.pass()
            );
        }
        if metadata.fingerprint() != &self.shared.terms.fingerprint {
            bail!(
                Contradiction,
                "bind: the metadata of pass {} was built with another model, key scheme, block size, lookahead or world than this worker has",
                metadata.pass()
            );
        }
        let empty = metadata.runs().next().is_none();
        if let Some(plan) = &self.first_plan
            && !empty
            && !plan
                .groups
                .iter()
                .map(|group| &group.id)
                .eq(metadata.groups())
        {
            return Err(Error::new(
                Kind::Contradiction,
                format!(
                    "bind: the metadata of pass {} names the layer groups {:?}, this worker's layout has others",
                    metadata.pass(),
                    metadata.groups()
                ),
            ));
        }
        Ok(())
    }

    /// Takes announcements of requests that ended, were cancelled or preempted, drops their saves that are
    /// bound and not queued, and reports every announced request whose queued transfers are done: each once. Takes
    /// announcements of requests that wait for an asynchronous load, and reports each once when it ended. Announcements
    /// persist. Of a request that ended, no load is reported any more.
    ///
    /// Blocks: no. Errors: what `bind` could not say, once; what ended a load thread, in every call.
    /// Announcements are taken all the same, and nothing that was to be reported is lost.
    pub fn get_finished(&mut self, finished: &[u64], loading: &[u64]) -> Result<Reported<'_>> {
        self.hear_of_ended_lives();
        // Beside its scheduler a worker hears which lives end, and has ended their loads by now.
        let hears = self.shared.source() != 0;
        let mut queue = self.shared.finished.lock();
        for &id in finished {
            let newest = self.ended.newest_bound(id);
            // All that is queued under the id has ended by now, or delays the report for a while. One
            // that was built and is not bound yet is known only beside its scheduler, which says so.
            queue.announce(id, newest.unwrap_or(0));
            // Elsewhere the newest life may be a later one than that which ended; that costs it
            // saves, and never a load.
            if let (false, Some(bound), Some(newest)) = (hears, &mut self.bound, newest)
                && !plant::is(Bug::EndKeepsSaves)
            {
                bound.unsaved.push((id, newest));
            }
        }
        drop(queue);
        let mut parked = self.shared.parked.lock();
        for &id in finished.iter().filter(|_| !hears) {
            parked.request_ended(id, loading);
        }
        for &id in loading {
            parked.announce(id);
        }
        drop(parked);
        if let Some(error) = self.deferred.take_if(|_| self.shared.terms.async_load) {
            return Err(error);
        }
        self.shared.load_error()?;
        self.report_parked();
        self.saved_view.clear();
        let mut queue = self.shared.finished.lock();
        queue.report(|id, generation| {
            self.saved_view.push(id);
            // What a worker hears of ended lives is exact; one that has heard nothing of this id can only
            // take the newest that it bound.
            if !hears && !self.ended.knows(id) && generation > 0 {
                self.ended.add((id, generation));
            }
        });
        drop(queue);
        self.shared.report(self.shared.source(), |report| {
            report.released.extend_from_slice(&self.saved_view);
        });
        Ok(Reported {
            saved: &self.saved_view,
            loaded: &self.loaded_view,
        })
    }
}
