//! Counters of a worker: one list that names each once, for the struct of the C ABI, the
//! Prometheus text and the code that counts.

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

impl Stats {
    /// The counters in Prometheus' text format, each with the label `rank`.
    pub fn prometheus(&self, rank: u32) -> String {
        let mut text = String::new();
        for (name, help, value) in self.entries() {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP kvbridge_{name}_total {help}\n# TYPE kvbridge_{name}_total counter\nkvbridge_{name}_total{{rank=\"{rank}\"}} {value}\n"
            );
        }
        text
    }
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
        let text = stats.prometheus(3);
        assert!(text.contains("kvbridge_loaded_bytes_total{rank=\"3\"} 42\n"));
        assert!(text.contains("# HELP kvbridge_lookups_total Lookups of a chain of blocks.\n"));
        assert_eq!(text.lines().count(), 3 * stats.entries().count());
    }
}
