//! Events: points in the work of a stream.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUevent_flags, CUstream};

use super::context::Context;
use crate::device::Pending;
use crate::error::Result;

/// Who waits sleeps, and no times are taken.
const SLEEPING_WITHOUT_TIMES: u32 =
    CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32 | CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;

/// An event of ours, destroyed when dropped.
#[derive(Debug)]
pub(super) struct OwnEvent {
    context: Arc<Context>,
    pub(super) raw: CUevent,
}

// SAFETY: the driver's functions for events may be called from any thread.
unsafe impl Send for OwnEvent {}
// SAFETY: as above; nothing of ours changes it behind a shared reference.
unsafe impl Sync for OwnEvent {}

impl OwnEvent {
    /// With the context current.
    pub(super) fn new(context: &Arc<Context>) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe {
            context
                .driver
                .event_create(&raw mut raw, SLEEPING_WITHOUT_TIMES)
        }?;
        Ok(Self {
            context: Arc::clone(context),
            raw,
        })
    }

    /// Marks the present end of a stream's work. With the context current.
    ///
    /// # Safety
    /// The stream is alive.
    pub(super) unsafe fn record(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the event is alive, and the stream by the caller's promise.
        unsafe { self.context.driver.event_record(self.raw, stream) }.map_err(|error| {
            error.within(format_args!(
                "the event behind the engine's stream {:#x}",
                stream.addr()
            ))
        })
    }
}

impl Pending for OwnEvent {
    fn wait(&self) -> Result<()> {
        self.context.run_if_usable(|_| {
            // SAFETY: the event is alive.
            unsafe { self.context.driver.event_synchronize(self.raw) }
        })
    }
}

impl Drop for OwnEvent {
    fn drop(&mut self) {
        let destroyed = self.context.run(|_| {
            // SAFETY: nobody has it any more; what waits for it on the device is the driver's.
            unsafe { self.context.driver.event_destroy(self.raw) }
        });
        if let Err(error) = destroyed {
            tracing::warn!("an event is kept: {error}");
        }
    }
}
