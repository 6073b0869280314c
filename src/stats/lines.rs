//! The two lines that are logged at intervals: what prefix holes cost, and what loads did. Each says
//! what was added since the one before it, so that all lines add up to the counters.

use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::{Counters, Gauges, PHASES, PhaseTimes, Stats, Timers};
use crate::sync::Clock;

/// When which line is due. Off, no clock is read.
pub struct Lines {
    interval: Option<Duration>,
    clock: Arc<dyn Clock>,
    rank: u32,
    holes: Mutex<Line>,
    loads: Mutex<Line>,
}

/// What a line said last, and when.
#[derive(Default)]
struct Line {
    at: Option<Duration>,
    stats: Stats,
    times: PhaseTimes,
}

impl Lines {
    /// Lines at most once per interval each; none without one.
    pub fn new(interval: Option<Duration>, clock: Arc<dyn Clock>, rank: u32) -> Self {
        Self {
            interval,
            clock,
            rank,
            holes: Mutex::default(),
            loads: Mutex::default(),
        }
    }

    /// A lookup was counted.
    pub fn looked_up(&self, counters: &Counters) {
        self.write_holes(counters, false);
    }

    /// A load was counted.
    pub fn loaded(&self, counters: &Counters, timers: &Timers, gauges: impl FnOnce() -> Gauges) {
        self.write_loads(counters, timers, gauges, false);
    }

    /// The worker ends: what was not said yet is.
    pub fn flush(&self, counters: &Counters, timers: &Timers) {
        self.write_holes(counters, true);
        self.write_loads(counters, timers, Gauges::default, true);
    }

    /// Whether a line is due. The first one is, an interval after the first event.
    fn is_due(&self, line: &mut Line, last: bool) -> bool {
        let Some(interval) = self.interval else {
            return false;
        };
        let now = self.clock.now();
        let at = *line.at.get_or_insert(now);
        let due = last || now.saturating_sub(at) >= interval;
        if due {
            line.at = Some(now);
        }
        due
    }

    fn write_holes(&self, counters: &Counters, last: bool) {
        if self.interval.is_none() {
            return;
        }
        let mut line = self.holes.lock();
        if !self.is_due(&mut line, last) {
            return;
        }
        let now = counters.snapshot();
        let then = std::mem::replace(&mut line.stats, now);
        drop(line);
        let lookups = now.lookups - then.lookups;
        if lookups == 0 {
            return;
        }
        tracing::info!(
            "prefix-hole stats: rank {}: lookups {lookups}, blocks {}, hit blocks {}, holes {}, missing blocks in them {}, tokens stored behind them {}",
            self.rank,
            now.lookup_blocks - then.lookup_blocks,
            now.hit_blocks - then.hit_blocks,
            now.holes - then.holes,
            now.hole_blocks - then.hole_blocks,
            now.tokens_behind_holes - then.tokens_behind_holes,
        );
    }

    fn write_loads(
        &self,
        counters: &Counters,
        timers: &Timers,
        gauges: impl FnOnce() -> Gauges,
        last: bool,
    ) {
        if self.interval.is_none() {
            return;
        }
        let mut line = self.loads.lock();
        if !self.is_due(&mut line, last) {
            return;
        }
        let (now, times) = (counters.snapshot(), timers.snapshot());
        let then = std::mem::replace(&mut line.stats, now);
        let spent = times.since(&std::mem::replace(&mut line.times, times));
        drop(line);
        let (pages, failed) = (
            now.loaded_pages - then.loaded_pages,
            now.failed_load_pages - then.failed_load_pages,
        );
        if pages + failed == 0 {
            return;
        }
        let mut text = String::new();
        for phase in PHASES {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                ", {} {:.3}/{:.3} ms",
                phase.name(),
                spent.wall(phase).as_secs_f64() * 1e3,
                spent.cpu(phase).as_secs_f64() * 1e3
            );
        }
        tracing::info!(
            "load stats: rank {}: pages {pages}, failed pages {failed}, store calls {}, bytes {}, transfer {:.3} ms; wall/CPU{text}; queued {}, queue wait {:.3} ms",
            self.rank,
            now.load_calls - then.load_calls,
            now.loaded_bytes - then.loaded_bytes,
            spent.transfer().as_secs_f64() * 1e3,
            gauges().loads_queued,
            spent.queued.as_secs_f64() * 1e3,
        );
    }
}
