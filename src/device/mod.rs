//! Devices: where the cache lies, what orders us against the engine's work on it, and the memory
//! that pages pass through on their way to a pool and back.
//!
//! This folder is one of the few with `unsafe`: it turns the addresses of a [`Layout`] into
//! reads and writes. The promise behind that is made once, in [`CacheMemory::new`]; everything
//! else is safe and checks its indices.
//!
//! [`Layout`]: crate::layout::Layout

#![allow(
    unsafe_code,
    reason = "the trait's copy takes addresses on its caller's word"
)]

mod cache;
pub mod host;
pub mod memory;

pub(crate) use cache::Scratch;
pub use cache::{CacheMemory, PageRef};
pub use host::{HostDevice, HostMemory};

use std::fmt;

use crate::error::Result;
use crate::layout::Range;

/// A queue of work on the device, as the engine knows it: the raw handle, 0 for the default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(pub u64);

/// A point in a stream's work that can be waited for.
pub struct Event(Option<Box<dyn Pending>>);

/// A device's own representation of work that has not ended yet. Its `Drop` gives back what the
/// device holds for it.
pub trait Pending: Send + Sync {
    /// Blocks until the work before the event has ended. `DeviceFailed` if it never will.
    fn wait(&self) -> Result<()>;
}

impl Event {
    /// An event that lies in the past.
    pub fn done() -> Self {
        Self(None)
    }

    /// An event that a device has recorded.
    pub fn pending(pending: Box<dyn Pending>) -> Self {
        Self(Some(pending))
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Event(recorded)"
        } else {
            "Event(done)"
        })
    }
}

/// Which way bytes move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the cache into staging.
    Gather,
    /// From staging into the cache.
    Scatter,
}

/// One contiguous copy between the cache and staging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// Address in the cache, device memory.
    pub cache: u64,
    /// Address in staging, host memory.
    pub staging: u64,
    /// Length in bytes.
    pub size: u64,
}

/// A device that can hold a cache.
///
/// Threads: any method may be called from any thread, several at once; an implementation makes
/// its own context current where it needs one.
pub trait Device: Send + Sync {
    /// For messages.
    fn name(&self) -> &str;

    /// Marks the present end of a stream's work. Does not block.
    fn record(&self, stream: Stream) -> Result<Event>;

    /// Blocks until the work before the event has ended.
    fn wait(&self, event: &Event) -> Result<()> {
        event.0.as_ref().map_or(Ok(()), |pending| pending.wait())
    }

    /// Page-aligned host memory, zeroed, that this device copies to and from at full speed.
    /// `NoMemory` if it cannot be had; `bytes` is at least 1.
    fn stage(&self, bytes: u64) -> Result<StagingMemory>;

    /// Copies all `transfers`, in any order, behind the work that `stream` has already, and
    /// blocks until they have ended; also on an error nothing of them is running afterwards.
    ///
    /// # Safety
    /// During the call each cache range is valid memory of this device and each staging range
    /// valid host memory from [`stage`](Self::stage) of some device, both for the direction's
    /// access. No byte that is written is touched by anybody else, nor by a second transfer.
    unsafe fn copy(
        &self,
        stream: Stream,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()>;
}

/// Host memory for staging, with what keeps it fit for its device.
pub struct StagingMemory {
    /// Undoes in its `Drop` what the device did to the memory (pinning it, say); the order of the
    /// fields has that happen before the memory is freed.
    _pin: Option<Box<dyn Send + Sync>>,
    memory: HostMemory,
}

impl StagingMemory {
    /// Memory and the guard of whatever the device did to it.
    pub fn new(memory: HostMemory, pin: Option<Box<dyn Send + Sync>>) -> Self {
        Self { _pin: pin, memory }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }

    /// Where they lie.
    pub fn range(&self) -> Range {
        self.memory.range()
    }
}

impl fmt::Debug for StagingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingMemory")
            .field("range", &self.range())
            .finish_non_exhaustive()
    }
}
