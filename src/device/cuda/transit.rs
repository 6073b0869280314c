//! One batch of copies, on a stream of ours.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream, CUstream_flags,
};

use super::context::Context;
use super::event::OwnEvent;
use crate::device::{Direction, Stream, Transfer};
use crate::error::{Error, Result, bail};

/// Not ordered against the legacy stream, which would wait for everything of the engine's.
const NON_BLOCKING: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

/// A stream of ours with what its batches need, destroyed when dropped.
#[derive(Debug)]
pub(super) struct Transit {
    context: Arc<Context>,
    stream: CUstream,
    /// The engine's work that a batch comes behind.
    behind: OwnEvent,
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
    /// The stream could not be waited for: it is not to be used again.
    pub(super) is_lost: bool,
}

// SAFETY: the driver's functions for streams may be called from any thread.
unsafe impl Send for Transit {}

impl Transit {
    /// With the context current.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let behind = OwnEvent::new(context)?;
        let mut stream = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { context.driver.stream_create(&raw mut stream, NON_BLOCKING) }?;
        Ok(Self {
            context: Arc::clone(context),
            stream,
            behind,
            to: Vec::new(),
            from: Vec::new(),
            sizes: Vec::new(),
            is_lost: false,
        })
    }

    /// Copies, and waits until nothing of it is running, also on an error. With the context current.
    ///
    /// # Safety
    /// As [`Device::copy`](crate::device::Device::copy) says.
    pub(super) unsafe fn copy(
        &mut self,
        behind: Option<Stream>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        self.describe(direction, transfers)?;
        if let Some(stream) = behind {
            let stream = ptr::with_exposed_provenance_mut(address(stream.0));
            // SAFETY: the engine's stream is alive by the caller's promise, ours and the event are.
            unsafe {
                self.behind.record(stream)?;
                self.context
                    .driver
                    .stream_wait(self.stream, self.behind.raw, 0)?;
            }
        }
        // SAFETY: the caller's promise.
        let queued = unsafe { self.queue() };
        let ended = self.drain();
        queued.and(ended).map_err(|error| {
            let bytes: usize = self.sizes.iter().sum();
            let copies = self.sizes.len();
            error.within(format_args!(
                "{direction:?} of {copies} copies, {bytes} bytes"
            ))
        })
    }

    /// Writes the lists that the driver takes.
    fn describe(&mut self, direction: Direction, transfers: &[Transfer]) -> Result<()> {
        self.to.clear();
        self.from.clear();
        self.sizes.clear();
        for transfer in transfers {
            let (from, to) = match direction {
                Direction::Gather => (transfer.cache, transfer.staging),
                Direction::Scatter => (transfer.staging, transfer.cache),
            };
            let Ok(size) = usize::try_from(transfer.size) else {
                bail!(OutOfRange, "a copy of {} bytes", transfer.size);
            };
            self.to.push(to);
            self.from.push(from);
            self.sizes.push(size);
        }
        Ok(())
    }

    /// Puts the copies on our stream, in one call where the driver can.
    ///
    /// # Safety
    /// As [`Device::copy`](crate::device::Device::copy) says.
    unsafe fn queue(&mut self) -> Result<()> {
        let driver = self.context.driver;
        let (to, from) = (self.to.as_mut_ptr(), self.from.as_mut_ptr());
        let (sizes, count) = (self.sizes.as_mut_ptr(), self.sizes.len());
        // SAFETY: plain data in which zero is a value of each field: no hint where memory lies, no
        // flags.
        let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        // A source is read when the stream gets there, not at once.
        attributes.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let attributes = &raw mut attributes;
        let mut first = 0;
        let first = &raw mut first;
        let mut failed = usize::MAX;
        // SAFETY: lists of `count`, one attribute that begins at the first copy, and what the caller
        // promises of the ranges.
        let batched = unsafe {
            driver
                .batch_v2(to, from, sizes, count, attributes, first, 1, self.stream)
                .or_else(|| {
                    let failed = &raw mut failed;
                    driver.batch(
                        to,
                        from,
                        sizes,
                        count,
                        attributes,
                        first,
                        1,
                        failed,
                        self.stream,
                    )
                })
        };
        if let Some(batched) = batched {
            return batched.map_err(|error| self.about(error, failed));
        }
        for at in 0..count {
            // SAFETY: the caller's promise.
            unsafe { driver.copy(self.to[at], self.from[at], self.sizes[at], self.stream) }
                .map_err(|error| self.about(error, at))?;
        }
        Ok(())
    }

    /// An error with the operands of the copy that it is about, if that is known.
    fn about(&self, error: Error, at: usize) -> Error {
        match (self.to.get(at), self.from.get(at), self.sizes.get(at)) {
            (Some(to), Some(from), Some(size)) => error.within(format_args!(
                "copy {at}, {size} bytes from {from:#x} to {to:#x}"
            )),
            _ => error,
        }
    }

    /// Waits until our stream has nothing to do.
    fn drain(&mut self) -> Result<()> {
        let driver = self.context.driver;
        // SAFETY: the stream is alive and the context current, here and below.
        let waited = unsafe { driver.stream_synchronize(self.stream) };
        let Err(error) = &waited else { return waited };
        // The error may be an earlier one that is only told here. Nothing may run when we return, so
        // this has to be sure of it.
        // SAFETY: as above.
        let settled = unsafe {
            driver
                .stream_synchronize(self.stream)
                .or_else(|_| driver.context_synchronize())
        };
        if settled.is_err() {
            self.is_lost = true;
            tracing::error!(
                "CUDA device {}: a stream cannot be waited for, its context is lost: {error}",
                self.context.ordinal
            );
        }
        waited
    }
}

impl Drop for Transit {
    fn drop(&mut self) {
        let destroyed = self.context.run(|_| {
            // SAFETY: nobody has it any more, and nothing runs on it.
            unsafe { self.context.driver.stream_destroy(self.stream) }
        });
        if let Err(error) = destroyed {
            tracing::warn!("a stream is kept: {error}");
        }
    }
}

/// Handles fit the machine's words.
fn address(value: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    value as usize
}
