//! A CUDA device, by its driver, which is loaded at run time. See `docs/design/cuda.md`.
//!
//! - `driver.rs`: the driver's functions
//! - `context.rs`: the engine's context, made current around our calls
//! - `event.rs`: a point in a stream's work
//! - `copies.rs`: the copies of a batch, and the ways that the driver has for them
//! - `kernel.rs`: many small ones by a kernel of ours
//! - `staged.rs`: pinned memory, and where the device sees it
//! - `transit.rs`: one batch of copies, on a stream of ours
//! - `backing.rs`: memory that others are to reach

#![allow(unsafe_code, reason = "calls the functions of a foreign library")]

mod backing;
mod context;
mod copies;
mod driver;
mod event;
mod kernel;
mod staged;
mod transit;

pub use copies::Way;
pub use kernel::{LEAST_PIECES, MOST_BYTES};

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::CUcontext;

use super::memory::Memory;
use super::{Device, Direction, Event, StagingMemory, Stream, Transfer};
use crate::error::{Result, bail};
use crate::layout::{Backing, Layout, Part, Region};
use crate::sync::Mutex;
use backing::Landing;
use context::Context;
use copies::Chosen;
use driver::Driver;
use event::OwnEvent;
use kernel::Kernel;
use staged::Staged;
use transit::Transit;

/// The device of the context that was current when this was made.
///
/// Threads: any. Every call leaves the calling thread with the context that was current before.
#[derive(Debug)]
pub struct CudaDevice {
    context: Arc<Context>,
    name: String,
    /// Streams of ours on which nothing runs.
    idle: Mutex<Vec<Transit>>,
    kernel: Option<Kernel>,
    staged: Arc<Staged>,
    /// The only way to take, where it is there.
    only: Option<Way>,
    landing: Landing,
}

impl CudaDevice {
    /// Adopts the context that is current on the calling thread; of device `wanted`, if that is given. The
    /// context must stay alive as long as the value does, its events and its staging memory.
    ///
    /// Blocks: while the driver starts, the first time in a process.
    /// Errors: `NoDevice`, the driver is missing, too old or lacks functions, which the text names, or no
    /// context is current; `InvalidArgument`, it is of another device; `DeviceFailed`.
    pub fn adopt(wanted: Option<u32>) -> Result<Self> {
        let context = Context::adopt(Driver::get()?, wanted)?;
        Ok(Self {
            name: format!("CUDA device {}", context.ordinal),
            context: Arc::new(context),
            idle: Mutex::new(Vec::new()),
            kernel: None,
            staged: Arc::default(),
            only: None,
            landing: Landing::default(),
        })
    }

    /// Makes ready what suits a layout: pages of small pieces travel by a kernel. Where it cannot be had, the
    /// log says why, and they travel by copies. Call it before anything is staged.
    ///
    /// Blocks: while the driver compiles the kernel, and it may wait for the context's work.
    pub fn prepare(&mut self, layout: &Layout) {
        let is_small = |part: &[Region]| {
            let bytes: u64 = part.iter().map(|region| region.size).sum();
            !part.is_empty() && bytes / part.len() as u64 <= MOST_BYTES
        };
        let parts = [Part::Sharded, Part::Replicated];
        let mut groups = layout.groups().iter();
        if groups.any(|group| parts.iter().any(|part| is_small(group.regions(*part)))) {
            self.load_kernel();
        }
    }

    /// Loads the kernel, see [`prepare`](Self::prepare); whether it is there now.
    pub fn load_kernel(&mut self) -> bool {
        let loaded = self.context.run(|_| {
            let Some(kernel) = Kernel::load(&self.context)? else {
                return Ok(None);
            };
            let mut transit = Transit::new(&self.context)?;
            transit.try_out(&kernel)?;
            self.idle.lock().push(transit);
            Ok(Some(kernel))
        });
        match loaded {
            Ok(kernel) => self.kernel = kernel,
            Err(error) => {
                tracing::warn!("small pieces travel by copies, the kernel cannot be had: {error}");
            }
        }
        self.kernel.is_some()
    }

    /// Whether batches can travel this way.
    pub fn has_way(&self, way: Way) -> bool {
        match way {
            Way::Kernel => self.kernel.is_some(),
            Way::Batch => self.context.driver.has_batch(),
            Way::Rows => self.context.driver.has_rows(),
            Way::Single => true,
        }
    }

    /// Takes one way for all batches, where it is there, to compare them; `None` chooses again.
    pub fn take_only(&mut self, way: Option<Way>) {
        self.only = way;
    }

    /// The way that a batch would take.
    pub fn way_of(&self, transfers: &[Transfer]) -> Way {
        match self.choose(transfers) {
            Chosen::Kernel(..) => Way::Kernel,
            Chosen::Batch => Way::Batch,
            Chosen::Rows => Way::Rows,
            Chosen::Single => Way::Single,
        }
    }

    /// The way of a batch, with what it needs.
    fn choose(&self, transfers: &[Transfer]) -> Chosen<'_> {
        let may = |way| self.only.is_none_or(|only| only == way) && self.has_way(way);
        if let Some(kernel) = &self.kernel
            && may(Way::Kernel)
            && (self.only.is_some() || is_for_kernel(transfers))
            && let Some(distance) = self.staged.distance(transfers)
        {
            return Chosen::Kernel(kernel, distance);
        }
        if may(Way::Batch) {
            Chosen::Batch
        } else if may(Way::Rows) {
            Chosen::Rows
        } else {
            Chosen::Single
        }
    }

    /// Whether there is a driver that can be used; `NoDevice` says what is missing.
    ///
    /// Blocks: while the driver starts, the first time in a process.
    pub fn check_driver() -> Result<()> {
        Driver::get().map(drop)
    }

    /// Whether a layout's regions begin and end in memory of this device: `InvalidArgument` if not.
    pub fn check_layout(&self, layout: &Layout) -> Result<()> {
        self.context.run(|_| {
            for group in layout.groups() {
                let regions = [Part::Sharded, Part::Replicated].map(|part| group.regions(part));
                for region in regions.into_iter().flatten() {
                    let last = region
                        .slots
                        .saturating_sub(1)
                        .saturating_mul(region.stride)
                        .saturating_add(region.size.saturating_sub(1));
                    for address in [region.base, region.base.saturating_add(last)] {
                        self.context.check_address(address).map_err(|error| {
                            let id = group.group().id;
                            error.within(format_args!("layer group {id}, a region's memory"))
                        })?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Refuses a handle that means a stream of another context here, and a stream whose work is captured: an event that is
    /// recorded there becomes a part of the engine's graph, and ours, once it waits for that, too. With the context current.
    fn check_stream(&self, stream: Stream, before: CUcontext) -> Result<()> {
        if self.context.is_strange(stream.0, before) {
            bail!(
                InvalidArgument,
                "stream {:#x} means one of the context that is current, and that is not the one of the registration",
                stream.0
            );
        }
        let handle = ptr::with_exposed_provenance_mut(stream.0 as usize);
        // SAFETY: who hands out a stream's handle promises that it is alive.
        let captures = unsafe { self.context.driver.captures(handle) }
            .map_err(|error| error.within(format_args!("the engine's stream {:#x}", stream.0)))?;
        if captures {
            bail!(
                InvalidArgument,
                "stream {:#x} is being captured into a graph; pages can be moved outside of a capture alone",
                stream.0
            );
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.context.run_if_usable(|before| {
            self.check_stream(stream, before)?;
            let event = OwnEvent::new(&self.context)?;
            // SAFETY: who hands out a stream's handle promises that it is alive.
            unsafe { event.record(ptr::with_exposed_provenance_mut(stream.0 as usize)) }?;
            Ok(Event::pending(Box::new(event)))
        })
    }

    fn accepts(&self, stream: Stream) -> Result<()> {
        self.context
            .run_if_usable(|before| self.check_stream(stream, before))
    }

    fn wait_foreign(&self, event: u64) -> Result<()> {
        let event = ptr::with_exposed_provenance_mut(event as usize);
        self.context.run_if_usable(|_| {
            // SAFETY: who hands out an event's handle promises that it is alive.
            unsafe { self.context.driver.event_synchronize(event) }
        })
    }

    fn memory(&self) -> Memory {
        Memory::Device
    }

    fn backing(&self, address: u64) -> Result<Option<Backing>> {
        self.context
            .run(|_| backing::backing(&self.context, address))
    }

    fn landed(&self) -> Result<()> {
        self.context
            .run_if_usable(|_| self.landing.flush(&self.context))
    }

    fn usable(&self) -> Result<()> {
        self.context.usable()
    }

    fn reach(&self, address: u64) -> String {
        match self.context.run(|_| backing::reach(&self.context, address)) {
            Ok(text) => format!("{}: {text}", self.name),
            Err(error) => error.to_string(),
        }
    }

    fn stage(&self, bytes: u64) -> Result<StagingMemory> {
        self.staged
            .stage(&self.context, self.kernel.is_some(), bytes)
    }

    unsafe fn copy(
        &self,
        behind: Option<Stream>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        if transfers.is_empty() {
            return Ok(());
        }
        self.context.run_if_usable(|before| {
            if let Some(stream) = behind {
                self.check_stream(stream, before)?;
            }
            let idle = self.idle.lock().pop();
            let mut transit = match idle {
                Some(transit) => transit,
                None => Transit::new(&self.context)?,
            };
            // SAFETY: the caller's promise.
            let copied =
                unsafe { transit.copy(behind, self.choose(transfers), direction, transfers) };
            if !transit.is_lost {
                self.idle.lock().push(transit);
            }
            copied
        })
    }
}

/// Whether there are many pieces, and small ones.
fn is_for_kernel(transfers: &[Transfer]) -> bool {
    let bytes: u64 = transfers.iter().map(|transfer| transfer.size).sum();
    transfers.len() >= LEAST_PIECES && bytes / transfers.len() as u64 <= MOST_BYTES
}
