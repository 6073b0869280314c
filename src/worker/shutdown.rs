//! The end of a worker, from any state.

use std::time::{Duration, Instant};

use super::Worker;
use crate::error::{Result, bail};
use crate::lane::Drain;
use crate::store::guarded::LEAST_PATIENCE;
use crate::sync::Ordering;

/// How long [`Worker::drop`] lets queued saves run.
const PATIENCE_ON_DROP: Duration = Duration::from_secs(10);

/// How long a thread without work may take to end.
const PATIENCE_IDLE: Duration = Duration::from_secs(1);

impl Worker {
    /// Ends the worker: queued loads end at once, queued saves run until the deadline, later ones are
    /// dropped and counted, the threads are joined, staging is taken back from the pool and the connection closed. After it the
    /// library does not touch the engine's memory, unless it says `Busy`: then a call of the pool is
    /// stuck, and the slots that it may use are kept for ever; pages of the cache that it may use are for the engine to keep.
    /// Calling it again is ok.
    ///
    /// Blocks: up to `deadline`, plus the pool's close.
    pub fn shutdown(&mut self, deadline: Duration) -> Result<()> {
        let end = Instant::now().checked_add(deadline);
        self.shared.closed.store(true, Ordering::Release);
        *self.shared.plan.write() = None;
        self.abandon_loads();
        self.shared.parked.lock().close_gates();
        // A thread with nothing to do ends at once, but not in no time.
        let idle = self.shared.finished.lock().in_flight() == 0;
        let patience = || match (idle, end) {
            (true, _) => deadline.max(PATIENCE_IDLE),
            (false, None) => deadline,
            (false, Some(end)) => end.saturating_duration_since(Instant::now()),
        };
        if let Some(loads) = &self.loads {
            // Only told here: it ends while the saves run.
            let _ = loads.close(Duration::ZERO, Drain::Drop);
        }
        let mut stuck = 0;
        for (lane, what) in [(&self.saves, "save"), (&self.loads, "load")] {
            let Some(lane) = lane else { continue };
            stuck += lane.close(patience(), Drain::Run).stuck;
            if let Some(panic) = lane.take_panic() {
                tracing::error!("a {what} thread lost its work to a panic: {panic}");
            }
        }
        let mut loans = 0;
        if let Some(mover) = self.mover.take().or(self.leaving.take()) {
            loans = mover.wait_for_loans(patience());
            // What the pool may still use stays registered with it, and is asked for by the next call.
            if loans > 0 {
                self.leaving = Some(mover);
            } else if let Err(error) = mover.close(patience().max(LEAST_PATIENCE)) {
                tracing::error!("{error}");
            }
        }
        self.shared
            .lines
            .flush(&self.shared.stats, &self.shared.timers);
        if stuck > 0 {
            bail!(
                Busy,
                "shutdown: {stuck} threads are still inside a call after {} ms; what they may use is kept",
                deadline.as_millis()
            );
        }
        if loans > 0 {
            // Told to the pool all the same: whoever leaves it last closes it.
            if let Err(error) = self.shared.store.close_within(patience(), LEAST_PATIENCE) {
                tracing::error!("{error}");
            }
            bail!(
                Busy,
                "shutdown: {loans} calls of the pool may still use pages of the cache, whose memory must stay"
            );
        }
        tracing::info!(
            "rank {}: the worker was shut down",
            self.shared.terms.global_rank
        );
        self.shared.store.close_within(patience(), LEAST_PATIENCE)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.shared.is_closed()
            && let Err(error) = self.shutdown(PATIENCE_ON_DROP)
        {
            tracing::error!("{error}");
        }
    }
}
