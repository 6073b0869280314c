//! Direct mode: the pool reads and writes pages of the cache where they lie.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "a cache is registered on the test's word")]

mod late;
mod refused;
#[path = "../rig/mod.rs"]
mod rig;
mod strict;
mod trips;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use kvbridge::layout::Part;
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Faulty, Script};
use rig::{Rig, Setup, pool};
use strict::Strict;

const OWN: (usize, Part) = (0, Part::Sharded);

fn direct() -> Setup {
    Setup {
        more: r#""stage_through_host": false, "#,
        kvbridge: r#""page_format": "raw", "#,
        ..Setup::default()
    }
}

/// The same pages, through staging memory.
fn staged() -> Setup {
    Setup {
        more: "",
        ..direct()
    }
}

fn asynchronous() -> Setup {
    Setup {
        async_load: true,
        ..direct()
    }
}

/// A rig whose pool takes only pieces that lie in ranges it was told of, and can be late if that is wanted.
fn rig_on(setup: Setup, pool: &Arc<Pool>, can_be_late: bool) -> (Rig, Arc<Strict>) {
    let handle = pool.handle().unwrap();
    let faulty = match can_be_late {
        true => Faulty::late(handle, Script::new()),
        false => Faulty::new(handle, Script::new()),
    };
    let strict = Strict::new(Arc::clone(&faulty) as _);
    let rig = Rig::with(setup, Arc::clone(pool), faulty, Arc::clone(&strict) as _);
    (rig, strict)
}

/// A pool that holds the blocks of these tokens.
fn stocked(setup: Setup, tokens: &[i32]) -> Arc<Pool> {
    let mut writer = Rig::on(setup, pool(1 << 22));
    writer.publish(1, tokens);
    Arc::clone(&writer.pool)
}

/// The addresses of all slots.
fn cache_ranges(rig: &Rig) -> Vec<Range<u64>> {
    let mut ranges = Vec::new();
    for group in rig.ranks[0].cache.layout.groups() {
        for part in [Part::Sharded, Part::Replicated] {
            for region in group.regions(part) {
                ranges.push(region.base..region.base + region.stride * region.slots);
            }
        }
    }
    ranges
}

fn are_in_the_cache(rig: &Rig, addresses: &BTreeSet<u64>) -> bool {
    let ranges = cache_ranges(rig);
    let inside = |address: &u64| ranges.iter().any(|range| range.contains(address));
    !addresses.is_empty() && addresses.iter().all(inside)
}
