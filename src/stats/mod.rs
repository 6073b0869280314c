//! Counters of a worker: one list that names each once, for the struct of the C ABI, the
//! Prometheus text and the code that counts.
//!
//! - `phases.rs`: where a load spends its time
//! - `pool.rs`: deadlines, breaker and late calls
//! - `lines.rs`: the two lines that are logged at intervals

mod lines;
mod phases;
mod pool;

pub use lines::Lines;
pub use phases::{Lap, PHASES, Phase, PhaseTimes, Timers};
pub use pool::{BreakerState, PoolCounts};

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Live counters; every thread of a worker adds to them.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)+
        }

        /// The counters at one moment.
        #[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl Counters {
            /// Reads all counters. Each is exact; together they may straddle an event.
            pub fn snapshot(&self) -> Stats {
                Stats { $($name: self.$name.get(),)+ }
            }
        }

        impl Stats {
            /// Name, meaning and value of each counter.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), concat!($($doc),+).trim_ascii(), self.$name),)+].into_iter()
            }
        }
    };
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `amount`.
    pub fn add(&self, amount: u64) {
        self.0.fetch_add(amount, Ordering::Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

counters! {
    /// Lookups of a chain of blocks.
    lookups,
    /// Blocks whose existence was asked for.
    lookup_blocks,
    /// Blocks at the head of a lookup that were stored everywhere.
    hit_blocks,
    /// Keys whose existence was asked for by lookups.
    lookup_keys,
    /// Keys of lookups that the pool does not hold.
    missing_keys,
    /// Keys of lookups that got no definite answer; they count as misses.
    failed_lookup_keys,
    /// Runs of missing blocks with a stored block behind them, in the answers to lookups.
    holes,
    /// Missing blocks in them.
    hole_blocks,
    /// Tokens of stored blocks behind the first missing one: they are computed all the same.
    tokens_behind_holes,
    /// Pages that were loaded into the cache.
    loaded_pages,
    /// Payload bytes of the loaded pages.
    loaded_bytes,
    /// Pages that should have been loaded and were not.
    failed_load_pages,
    /// Pages whose seal did not match; they count as failed too.
    bad_seals,
    /// Requests that lost a page.
    failed_load_requests,
    /// Calls of the store that loads made.
    load_calls,
    /// Pages that the pool took.
    saved_pages,
    /// Payload bytes of the saved pages.
    saved_bytes,
    /// Pages to save that were in the pool already.
    already_stored_pages,
    /// Pages that the pool had no room for.
    no_space_pages,
    /// Pages that the pool did not take for another reason.
    failed_save_pages,
    /// Pages whose save was queued and never tried.
    dropped_save_pages,
    /// Calls of the store.
    store_calls,
}

/// What is under way at one moment.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Gauges {
    /// Requests with saves in flight.
    pub saves_in_flight: u64,
    /// Asynchronous loads that have not ended.
    pub loads_in_flight: u64,
    /// Those of them that no thread has begun.
    pub loads_queued: u64,
}

impl Gauges {
    /// Name, meaning and value of each.
    pub fn entries(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "saves_in_flight",
                "Requests with saves in flight.",
                self.saves_in_flight,
            ),
            (
                "loads_in_flight",
                "Asynchronous loads that have not ended.",
                self.loads_in_flight,
            ),
            (
                "loads_queued",
                "Asynchronous loads that no thread has begun.",
                self.loads_queued,
            ),
        ]
    }
}

/// All numbers in Prometheus' text format (version 0.0.4), each with the label `rank`.
pub fn prometheus(
    stats: &Stats,
    gauges: &Gauges,
    pool: &PoolCounts,
    times: &PhaseTimes,
    rank: u32,
) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    for (name, help, value) in stats.entries().chain(pool.counters()) {
        let _ = write!(
            text,
            "# HELP kvbridge_{name}_total {help}\n# TYPE kvbridge_{name}_total counter\nkvbridge_{name}_total{{rank=\"{rank}\"}} {value}\n"
        );
    }
    for (name, help, value) in gauges.entries().into_iter().chain(pool.gauges()) {
        let _ = write!(
            text,
            "# HELP kvbridge_{name} {help}\n# TYPE kvbridge_{name} gauge\nkvbridge_{name}{{rank=\"{rank}\"}} {value}\n"
        );
    }
    let _ = write!(
        text,
        "# HELP kvbridge_load_phase_seconds_total Time of loads by phase, on the wall and on the CPU of the thread.\n# TYPE kvbridge_load_phase_seconds_total counter\n"
    );
    for phase in PHASES {
        for (clock, time) in [("wall", times.wall(phase)), ("cpu", times.cpu(phase))] {
            let _ = writeln!(
                text,
                "kvbridge_load_phase_seconds_total{{rank=\"{rank}\",phase=\"{}\",clock=\"{clock}\"}} {}",
                phase.name(),
                time.as_secs_f64()
            );
        }
    }
    let _ = write!(
        text,
        "# HELP kvbridge_load_queue_seconds_total Time that asynchronous loads waited for a thread.\n# TYPE kvbridge_load_queue_seconds_total counter\nkvbridge_load_queue_seconds_total{{rank=\"{rank}\"}} {}\n",
        times.queued.as_secs_f64()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_reaches_snapshot_and_text() {
        let counters = Counters::default();
        counters.loaded_bytes.add(40);
        counters.loaded_bytes.add(2);
        let stats = counters.snapshot();
        assert_eq!(stats.loaded_bytes, 42);
        assert_eq!(stats.entries().map(|entry| entry.2).sum::<u64>(), 42);
        let gauges = Gauges {
            loads_queued: 7,
            ..Gauges::default()
        };
        let pool = PoolCounts {
            state: BreakerState::Probing,
            refused: 9,
            ..PoolCounts::default()
        };
        let text = prometheus(&stats, &gauges, &pool, &PhaseTimes::default(), 3);
        assert!(text.contains("kvbridge_breaker_refusals_total{rank=\"3\"} 9\n"));
        assert!(text.contains("kvbridge_breaker_state{rank=\"3\"} 2\n"));
        assert!(text.contains("kvbridge_loaded_bytes_total{rank=\"3\"} 42\n"));
        assert!(text.contains("kvbridge_loads_queued{rank=\"3\"} 7\n"));
        assert!(text.contains("# HELP kvbridge_lookups_total Lookups of a chain of blocks.\n"));
        let families = stats.entries().count() + gauges.entries().len() + 2;
        let families = families + pool.counters().len() + pool.gauges().len();
        let samples = families - 1 + 2 * PHASES.len();
        assert_eq!(text.lines().count(), 2 * families + samples);
    }
}
