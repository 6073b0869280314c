//! Asynchronous loads: pool → slots → verdict → cache on the load threads, while the request waits
//! outside the batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Worker;
use super::batch::{Cursor, LoadBatch, Tally};
use super::fence::{Fence, SharedFence};
use super::mover::{Mover, Way};
use super::parked::{Ending, Gate};
use super::sets::SlotSet;
use super::shared::Shared;
use crate::error::{Error, Kind};
use crate::lane::{Item, Step};
use crate::link::BlockOf;
use crate::metadata::{Metadata, Run};
use crate::plant::{self, Bug};
use crate::stats::Phase;

/// What the next step of a load does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Fence,
    Get,
    Scatter,
}

/// The load of one parked request.
struct LoadItem {
    shared: Arc<Shared>,
    mover: Arc<Mover>,
    metadata: Arc<Metadata>,
    run: Run,
    cursor: Cursor,
    fence: Arc<SharedFence>,
    gate: Arc<Gate>,
    next: Next,
    /// Since when it waits for a thread; `None` once one has begun, or without statistics.
    queued_at: Option<Instant>,
    begun: bool,
    /// Taken at the first batch and held to the end, so that nobody else writes into the slots
    /// between get and scatter.
    set: Option<SlotSet>,
    batch: LoadBatch,
    tally: Tally,
    complete: bool,
}

impl Worker {
    /// Queues the asynchronous loads of a metadata that was just bound. What cannot be queued
    /// counts as failed; the error says why.
    pub(super) fn queue_parked(&mut self, metadata: &Arc<Metadata>, fence: Fence) -> Option<Error> {
        if metadata.parked().runs().is_empty() {
            return None;
        }
        let from = (metadata.source(), metadata.pass());
        if self.parked_from.0 == from.0
            && from.1 <= self.parked_from.1
            && !plant::is(Bug::LoadsTwice)
        {
            // Bound again: each load travels once.
            return None;
        }
        self.parked_from = from;
        let refused = self.refusal(&fence);
        if let Some(error) = &refused
            && !self.shared.terms.restarts_requests()
        {
            self.shared.keep_load_error(error);
        }
        let fence = Arc::new(SharedFence::new(fence));
        let mut base = 0;
        for (position, run) in metadata.parked().runs().iter().enumerate() {
            let cursor = Cursor::new(position..position + 1, base);
            base += run.blocks as usize;
            if self.is_over(run.life()) {
                continue;
            }
            self.shared.finished.lock().begin(run.life());
            let gate = self.shared.parked.lock().begin(run.life(), run.ticket);
            match (&self.mover, &self.loads, &refused) {
                (Some(mover), Some(loads), None) => {
                    self.shared.queued.fetch_add(1, Ordering::Relaxed);
                    // A lane that was closed meanwhile gives the item back, and its end is told
                    // like that of any other.
                    drop(loads.push(Box::new(LoadItem {
                        shared: Arc::clone(&self.shared),
                        mover: Arc::clone(mover),
                        metadata: Arc::clone(metadata),
                        run: *run,
                        cursor,
                        fence: Arc::clone(&fence),
                        gate,
                        next: Next::Fence,
                        queued_at: self.shared.timers.now(),
                        begun: false,
                        set: None,
                        batch: LoadBatch::default(),
                        tally: Tally::default(),
                        complete: false,
                    })));
                }
                _ => {
                    // A request without blocks lost none.
                    let lost = (run.blocks > 0).then(|| first_block(run));
                    let mut tally = Tally::default();
                    if let Some(block) = lost {
                        tally.lose(block, || "it was never queued".to_owned());
                    }
                    end(&self.shared, metadata.source(), run, tally, false);
                }
            }
        }
        refused
    }

    /// Why no load can be queued now.
    fn refusal(&self, fence: &Fence) -> Option<Error> {
        let (kind, text) = if self.shared.is_closed() {
            (Kind::Closed, "the worker was shut down")
        } else if self.mover.is_none() || self.loads.is_none() {
            (Kind::BadState, "no layout is registered")
        } else if self.shared.terms.supplies_fences && matches!(fence, Fence::None) {
            (
                Kind::InvalidArgument,
                "the engine said that it supplies fences, and none came with this bind",
            )
        } else {
            return None;
        };
        let text = format!("bind: asynchronous loads cannot be queued: {text}");
        Some(Error::new(kind, text))
    }

    /// Reports loads that ended and were announced.
    pub(super) fn report_parked(&mut self) {
        self.loaded_view.clear();
        let mut lives = Vec::new();
        let mut parked = self.shared.parked.lock();
        parked.report(|ended| {
            self.loaded_view.push(ended.ticket);
            lives.push(ended.life);
            if ended.ending == Ending::Failed {
                self.failed_async.push(ended.ticket);
                self.ended.add(ended.life);
            }
        });
        drop(parked);
        if !lives.is_empty() {
            self.shared.report(self.shared.source(), |report| {
                report.loaded.append(&mut lives);
            });
        }
    }

    /// Requests that get_finished reported as loaded although a page was lost: read and clear. The
    /// engine runs them again. Always empty under TP.
    pub fn take_failed_async_loads(&mut self) -> &[u64] {
        self.failed_async_view.clear();
        std::mem::swap(&mut self.failed_async_view, &mut self.failed_async);
        &self.failed_async_view
    }
}

impl LoadItem {
    /// It is queued no more.
    fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.shared.queued.fetch_sub(1, Ordering::Relaxed);
            self.shared.timers.waited(self.queued_at.take());
        }
    }

    /// The pool writes one batch into the cache itself.
    fn get_direct(&mut self) -> Step {
        let (shared, mover) = (&self.shared, &self.mover);
        let Way::Direct(direct) = &mover.way else {
            return Step::Done;
        };
        let from = (&*self.metadata, self.metadata.parked());
        let (cursor, tally) = (&mut self.cursor, &mut self.tally);
        if !self
            .batch
            .collect(shared, mover, from, cursor, tally, |_| false)
        {
            self.complete = true;
            return Step::Done;
        }
        // Held during the call: who passes the gate knows that nothing is written any more.
        let Some(_held) = self.gate.enter() else {
            return Step::Done;
        };
        self.batch
            .get_direct(shared, mover, direct, tally, |_| false);
        match tally.kept {
            None => Step::More,
            Some(_) => Step::Done,
        }
    }

    fn get(&mut self) -> Step {
        let mover = Arc::clone(&self.mover);
        let sets = match &mover.way {
            Way::Staged { load_sets, .. } => load_sets,
            Way::Direct(_) => return self.get_direct(),
        };
        if self.set.is_none() {
            match sets.take() {
                // There are as many sets of slots as threads; only a test has more items under way.
                Ok(None) => return Step::More,
                Ok(set) => self.set = set,
                Err(error) => {
                    self.tally
                        .lose(first_block(&self.run), || error.to_string());
                    return Step::Done;
                }
            }
        }
        let shared = &self.shared;
        let from = (&*self.metadata, self.metadata.parked());
        let (cursor, tally) = (&mut self.cursor, &mut self.tally);
        if !self
            .batch
            .collect(shared, &mover, from, cursor, tally, |_| false)
        {
            self.complete = true;
            return Step::Done;
        }
        let Some(set) = self.set.take() else {
            return Step::More;
        };
        self.set = self.batch.get(shared, &mover.plan, sets, set, tally);
        if self.set.is_none() {
            // The pool has kept the slots, and the request has lost its pages.
            return Step::Done;
        }
        if plant::is(Bug::LoadedEarly) && tally.lost.is_empty() {
            self.shared
                .parked
                .lock()
                .end(self.run.life(), Ending::Landed);
        }
        self.next = Next::Scatter;
        Step::More
    }

    fn scatter(&mut self) -> Step {
        let Some(set) = &mut self.set else {
            return Step::Done;
        };
        let Some(_held) = self.gate.enter() else {
            return Step::Done;
        };
        let (shared, mover) = (&self.shared, &self.mover);
        self.batch
            .scatter(shared, mover, None, set, &mut self.tally, |_| false);
        self.next = Next::Get;
        Step::More
    }
}

impl Item for LoadItem {
    fn name(&self) -> &'static str {
        "load"
    }

    fn step(&mut self) -> Step {
        self.begin();
        if self.gate.is_closed() {
            return Step::Done;
        }
        match self.next {
            Next::Fence if self.run.blocks == 0 => {
                self.complete = true;
                Step::Done
            }
            Next::Fence => {
                let began = self.shared.timers.start();
                let opened = self.fence.wait(self.mover.memory.device().as_ref());
                self.shared.timers.lap(Phase::Fence, began);
                match opened {
                    Ok(true) => self.next = Next::Get,
                    Ok(false) => {}
                    Err(error) => {
                        let error = error.within("asynchronous load: its fence");
                        self.tally
                            .lose(first_block(&self.run), || error.to_string());
                        // A lost device says so itself, and requests go on being given back.
                        if error.kind() != Kind::DeviceLost {
                            // For good, whatever kind it had for the driver.
                            let lasting = Error::new(Kind::DeviceFailed, error.message());
                            self.shared.keep_load_error(&lasting);
                        }
                        tracing::error!("{error}; nothing can be loaded any more");
                        return Step::Done;
                    }
                }
                Step::More
            }
            Next::Get => self.get(),
            Next::Scatter => self.scatter(),
        }
    }
}

impl Drop for LoadItem {
    /// Runs when the item is done, was refused or dropped, or panicked: the request is told in any case.
    fn drop(&mut self) {
        self.begin();
        let set = self.set.take();
        if plant::is(Bug::SlotsKept) && !self.complete {
            std::mem::forget(set);
        }
        // A request without blocks lost none.
        if !self.complete && self.tally.lost.is_empty() && self.run.blocks > 0 {
            self.tally
                .lose(first_block(&self.run), || "it was given up".to_owned());
        }
        let pages = u64::from(self.run.blocks) * self.mover.plan.kinds.len() as u64;
        self.tally.wanted_pages = pages;
        let tally = std::mem::take(&mut self.tally);
        let device_lost = self.mover.memory.device().usable().is_err();
        end(
            &self.shared,
            self.metadata.source(),
            &self.run,
            tally,
            device_lost,
        );
    }
}

/// Tells everybody how a load ended. The scheduler hears of a failure before the engine can, so
/// that the next offer ends before the block; and a failure that nobody can restart from is kept
/// before the load could be reported. On a lost device that is the device's own error: such a load is never reported.
fn end(shared: &Shared, source: u64, run: &Run, mut tally: Tally, device_lost: bool) {
    let kept = tally.kept_error();
    if let Some(error) = &kept {
        shared.keep_load_error(error);
        tracing::error!("request {}: asynchronous {error}", run.request_id);
    }
    let mut parked = shared.parked.lock();
    if !parked.is_wanted(run.life()) {
        // Of a load that nobody waits for, only what landed counts.
        tally.lost.clear();
    }
    let failure = tally.settle(shared);
    if let Some(text) = &failure {
        shared.report(source, |report| match plant::is(Bug::FailedUntold) {
            true => {}
            false => report.failed_loads.extend_from_slice(&tally.lost),
        });
        if !shared.terms.restarts_requests() && !device_lost {
            shared.keep_load_error(&Error::new(
                Kind::LoadFailed,
                format!(
                    "asynchronous load of request {}: {text}; one rank of {} cannot restart a request alone",
                    run.request_id, shared.terms.world
                ),
            ));
        }
    }
    match failure {
        // Whoever ran it again could be overwritten.
        _ if kept.is_some() => parked.strand(),
        Some(_) if device_lost && !shared.terms.restarts_requests() => parked.strand(),
        Some(_) if !plant::is(Bug::FailedLands) => parked.end(run.life(), Ending::Failed),
        _ => parked.end(run.life(), Ending::Landed),
    }
    drop(parked);
    shared.finished.lock().end(run.life());
    shared
        .lines
        .loaded(&shared.stats, &shared.timers, || shared.gauges());
    if let Some(text) = failure {
        tracing::warn!("request {}: asynchronous load: {text}", run.request_id);
    }
}

pub(super) fn first_block(run: &Run) -> BlockOf {
    BlockOf {
        request_id: run.request_id,
        generation: run.generation,
        block: run.first_block,
    }
}
