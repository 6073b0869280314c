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
    reason = "the trait's copy takes addresses on its caller's word; memory that stays pinned is kept"
)]

mod cache;
pub mod cuda;
pub mod host;
mod lent;
pub mod memory;

pub(crate) use cache::Scratch;
pub use cache::{CacheMemory, PageRef};
pub use cuda::CudaDevice;
pub use host::{HostDevice, HostMemory};
pub use lent::LentPages;

use std::fmt;
use std::mem::ManuallyDrop;

use crate::engine::DeviceChoice;
use crate::error::{Result, bail};
use crate::layout::{Backing, Layout, Range};
use crate::sync::Arc;
use memory::Memory;

/// A queue of work on the device, as the engine knows it: the raw handle, 0 for the default one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stream(pub u64);

/// A point in a stream's work that can be waited for.
pub struct Event(Option<Box<dyn Pending>>);

/// A device's own representation of work that has not ended yet. Its `Drop` gives back what the
/// device holds for it.
pub trait Pending: Send + Sync {
    /// Blocks until the work before the event has ended. `DeviceFailed` or `DeviceLost` if it never will.
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

    /// Errors: `InvalidArgument`, this is no stream that work can be ordered against here and now. Does not block.
    fn accepts(&self, _stream: Stream) -> Result<()> {
        Ok(())
    }

    /// Blocks until the work before the event has ended.
    fn wait(&self, event: &Event) -> Result<()> {
        event.0.as_ref().map_or(Ok(()), |pending| pending.wait())
    }

    /// Blocks until the work before an event of the engine's has ended, as it was recorded last: the
    /// raw handle, which must be alive. `InvalidArgument` where there are no such events.
    fn wait_foreign(&self, event: u64) -> Result<()> {
        bail!(
            InvalidArgument,
            "the event {event:#x} is one of CUDA, and the cache lies in {} memory",
            self.name()
        )
    }

    /// Whose instructions reach a cache on this device.
    fn memory(&self) -> Memory {
        Memory::Host
    }

    /// What is known of the memory at an address of the cache beyond what the layout says of it.
    fn backing(&self, _address: u64) -> Result<Option<Backing>> {
        Ok(None)
    }

    /// `DeviceLost`, with the error that told so, once the device will not work again. Does not block.
    fn usable(&self) -> Result<()> {
        Ok(())
    }

    /// Makes what others than this device, a network's adapter say, have written into the cache visible to work that is
    /// put on any stream from now on. Blocks until it is. `DeviceFailed`: it may not be.
    fn landed(&self) -> Result<()> {
        Ok(())
    }

    /// What speaks for and against others reaching the cache's memory at an address, for people; empty if nothing does.
    fn reach(&self, _address: u64) -> String {
        String::new()
    }

    /// Page-aligned host memory, zeroed, that this device copies to and from at full speed.
    /// `NoMemory` if it cannot be had; `bytes` is at least 1.
    fn stage(&self, bytes: u64) -> Result<StagingMemory>;

    /// Copies all `transfers`, in any order, and blocks until they have ended; also on an error
    /// nothing of them is running afterwards. They come behind the work that the stream `behind` has
    /// already, or, without one, behind nothing: then what they need has been waited for.
    ///
    /// # Safety
    /// During the call each cache range is valid memory of this device and each staging range
    /// valid host memory from [`stage`](Self::stage) of some device, both for the direction's
    /// access. No byte that is written is touched by anybody else, nor by a second transfer.
    unsafe fn copy(
        &self,
        behind: Option<Stream>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()>;
}

/// Errors: `NoDevice`, which says what is missing, if no cache can lie there on this machine.
///
/// Blocks: while a device's driver starts, the first time in a process.
pub fn check(choice: DeviceChoice) -> Result<()> {
    match choice {
        DeviceChoice::Host => Ok(()),
        DeviceChoice::Cuda(_) => CudaDevice::check_driver(),
    }
}

/// The device of a cache, as the engine describes it; see [`CudaDevice::adopt`] and
/// [`CudaDevice::check_layout`] for what that asks of the calling thread and of the memory.
pub fn adopt(choice: DeviceChoice, layout: &Layout) -> Result<Arc<dyn Device>> {
    match choice {
        DeviceChoice::Host => Ok(Arc::new(HostDevice)),
        DeviceChoice::Cuda(ordinal) => {
            let mut device = CudaDevice::adopt(ordinal)?;
            device.check_layout(layout)?;
            device.prepare(layout);
            Ok(Arc::new(device))
        }
    }
}

/// Host memory for staging, with what keeps it fit for its device.
pub struct StagingMemory {
    pin: Option<Box<dyn Pin>>,
    memory: ManuallyDrop<HostMemory>,
}

/// What a device did to memory.
pub trait Pin: Send + Sync {
    /// Undoes it, once, before the memory is freed. False: it could not be undone, and the memory has
    /// to be kept for ever.
    fn undo(&mut self) -> bool;
}

impl StagingMemory {
    /// Memory and what the device did to it.
    pub fn new(memory: HostMemory, pin: Option<Box<dyn Pin>>) -> Self {
        Self {
            pin,
            memory: ManuallyDrop::new(memory),
        }
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

impl Drop for StagingMemory {
    fn drop(&mut self) {
        if self.pin.as_mut().is_none_or(|pin| pin.undo()) {
            // SAFETY: once, here, and nobody uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
    }
}

impl fmt::Debug for StagingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StagingMemory")
            .field("range", &self.range())
            .finish_non_exhaustive()
    }
}
