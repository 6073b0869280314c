//! What a pass tells the worker: the metadata to work on, and which requests ended.

use std::sync::Arc;

use super::{Bound, EndedLife, Worker};
use crate::error::{Error, Kind, Result, bail};
use crate::metadata::Metadata;

/// How many passes ahead of `bind` an engine may build: so many calls of `bind` later a life that
/// ended can no longer be named by an older metadata.
const BUILT_AHEAD: u64 = 8;

/// What `get_finished` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reported<'a> {
    /// Requests whose pages are the engine's again.
    pub saved: &'a [u64],
}

impl Worker {
    /// Binds the metadata of the next pass in place of the bound one: loads of that one that never started
    /// are reported as failed (under TP by the next `start_load`), and its saves that were not
    /// queued count as not submitted. Never fails: what is wrong is said by the next `start_load`.
    pub fn bind(&mut self, metadata: Arc<Metadata>) {
        self.hear_of_ended_lives();
        let abandoned = self.abandon_loads();
        self.deferred = self.deferred.take().or(abandoned);
        let mut bound = Bound {
            loads_started: false,
            saves_taken: false,
            dropped: Vec::new(),
            metadata,
        };
        let metadata = &bound.metadata;
        let checked = self.check(metadata);
        let is_ours = checked.is_ok();
        if let Err(error) = checked {
            self.deferred.get_or_insert(error);
            // Nothing of it means here what it meant where it was built.
            bound.saves_taken = true;
        }
        self.binds += 1;
        let binds = self.binds;
        self.ended.retain(|ended| ended.at + BUILT_AHEAD >= binds);
        let lists = [metadata.loads(), metadata.saves()];
        for run in lists.into_iter().flat_map(|list| list.runs()) {
            if is_ours {
                self.newest_bound = self.newest_bound.max(run.generation);
            }
            let life = (run.request_id, run.generation);
            let mut ended = self.ended.iter();
            let is_stale = ended.any(|ended| ended.id == life.0 && life.1 <= ended.generation);
            if is_stale && !bound.dropped.contains(&life) {
                bound.dropped.push(life);
            }
        }
        self.bound = Some(bound);
    }

    /// Takes out of the bound metadata, and of those that are bound later, what the local scheduler
    /// forgot since the last call.
    pub(super) fn hear_of_ended_lives(&mut self) {
        let mut ended = self.shared.ended.lock();
        if let Some(bound) = &mut self.bound {
            bound.drop_lives(ended.iter().copied());
        }
        let at = self.binds;
        self.ended.extend(
            ended
                .drain(..)
                .map(|(id, generation)| EndedLife { id, generation, at }),
        );
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
        let empty = metadata.loads().runs().is_empty() && metadata.saves().runs().is_empty();
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
    /// bound and not queued, and reports every announced request whose queued saves are done: each once. Announcements persist.
    ///
    /// Blocks: no. `Unsupported` when `loading` announces asynchronous loads, which this build lacks.
    pub fn get_finished(&mut self, finished: &[u64], loading: &[u64]) -> Result<Reported<'_>> {
        if let Some(id) = loading.first() {
            bail!(
                Unsupported,
                "get_finished: request {id} is announced as loading; asynchronous loads are not supported in this build"
            );
        }
        let mut queue = self.shared.finished.lock();
        for &id in finished {
            // Every life of the id that is not newer than what was bound has ended by now. One that was
            // built later and is not bound yet is known only beside its scheduler, which says so.
            queue.announce(id, self.newest_bound);
            if let Some(bound) = &mut self.bound
                && let Some(generation) = bound.newest_life(id)
            {
                bound.drop_lives(std::iter::once((id, generation)));
            }
        }
        self.saved_view.clear();
        queue.report(|id, generation| {
            self.saved_view.push(id);
            self.ended.push(EndedLife {
                id,
                generation,
                at: self.binds,
            });
        });
        drop(queue);
        self.shared.report(self.shared.source(), |report| {
            report.released.extend_from_slice(&self.saved_view);
        });
        Ok(Reported {
            saved: &self.saved_view,
        })
    }
}
