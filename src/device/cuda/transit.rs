//! One batch of copies, on a stream of ours.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUstream, CUstream_flags};

use super::context::Context;
use super::copies::{Chosen, Copies};
use super::event::OwnEvent;
use super::kernel::Kernel;
use crate::device::{Direction, Stream, Transfer};
use crate::error::Result;

/// Not ordered against the legacy stream, which would wait for everything of the engine's.
const NON_BLOCKING: u32 = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;

/// A stream of ours with what its batches need, destroyed when dropped.
#[derive(Debug)]
pub(super) struct Transit {
    context: Arc<Context>,
    stream: CUstream,
    /// The engine's work that a batch comes behind.
    behind: OwnEvent,
    copies: Copies,
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
            copies: Copies::default(),
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
        chosen: Chosen<'_>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        self.copies.fill(chosen, direction, transfers)?;
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
        let queued = unsafe { self.copies.queue(self.context.driver, self.stream, chosen) };
        let ended = self.drain();
        queued.and(ended).map_err(|error| {
            let (copies, bytes) = (self.copies.count(), self.copies.bytes());
            error.within(format_args!(
                "{direction:?} of {copies} copies, {bytes} bytes"
            ))
        })
    }

    /// Launches the kernel for nothing and waits for it, so that it is loaded, and shows that it runs, before
    /// the engine's work does. With the context current.
    pub(super) fn try_out(&mut self, kernel: &Kernel) -> Result<()> {
        // SAFETY: no copies.
        let launched = unsafe { kernel.copy(self.stream, &[], &[], &[]) };
        let ended = self.drain();
        launched.and(ended)
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
