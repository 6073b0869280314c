//! A small engine for tests of the two halves: ranks with caches in host memory, one scheduler, one
//! pool that can be made to fail, and a block allocator. Page bytes are a function of what the
//! page stands for (tokens up to the block's end, layer group, shard), so that a wrong page shows.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test file uses a part of the rig"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "a cache is registered on the rig's word")]

mod cache;
mod clock;
mod device;
mod engine;
mod log;
mod setup;
mod store;

pub use cache::{Cache, content};
pub use clock::{Jumping, LONG};
pub use device::{Sick, rig_on};
pub use engine::{Live, Polled, Rank, Rig};
pub use log::Lines;
pub use setup::{GroupShape, Setup, prompt, request, two_groups};
pub use store::{Lent, Wish, pool, rule};

pub const T: usize = 16;
