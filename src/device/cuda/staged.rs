//! Pinned memory for staging, and where the device sees it.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP as SEEN_BY_DEVICES,
    CU_MEMHOSTREGISTER_PORTABLE as PINNED_FOR_ALL_CONTEXTS,
};

use super::context::Context;
use crate::device::{HostMemory, Pin, StagingMemory, Transfer};
use crate::error::Result;
use crate::layout::Range;
use crate::sync::Mutex;

/// A device's staging memory that kernels on it can reach.
#[derive(Debug, Default)]
pub(super) struct Staged {
    seen: Mutex<Vec<Seen>>,
}

/// Memory of the host, and where the device sees its start.
#[derive(Debug)]
struct Seen {
    host: Range,
    device: u64,
}

impl Staged {
    /// Pins new memory; for kernels too, where that is wanted and goes.
    pub(super) fn stage(
        self: &Arc<Self>,
        context: &Arc<Context>,
        for_kernels: bool,
        bytes: u64,
    ) -> Result<StagingMemory> {
        let memory = HostMemory::new(bytes)?;
        let range = memory.range();
        let start: *mut c_void = ptr::with_exposed_provenance_mut(range.start as usize);
        let flags = PINNED_FOR_ALL_CONTEXTS | SEEN_BY_DEVICES;
        context.run(|_| {
            let driver = context.driver;
            // SAFETY: a mapping of its own of exactly this size, which outlives the pin.
            unsafe { driver.host_register(start, range.size as usize, flags) }
                .map_err(|error| error.within(format_args!("pinning {bytes} bytes of staging")))?;
            let pin = Pinned {
                context: Arc::clone(context),
                staged: Arc::clone(self),
                start: range.start,
            };
            let mut device = 0;
            // SAFETY: writes one address; the memory is pinned.
            let asked = for_kernels.then(|| unsafe { driver.host_seen(&raw mut device, start, 0) });
            match asked.flatten() {
                Some(Ok(())) => self.seen.lock().push(Seen {
                    host: range,
                    device,
                }),
                Some(Err(error)) => tracing::warn!(
                    "small pieces travel by copies, staging cannot be seen by the device: {error}"
                ),
                None => {}
            }
            Ok(StagingMemory::new(memory, Some(Box::new(pin))))
        })
    }

    /// What to add to where the host sees the staging of these transfers, modulo 2^64, for where the device
    /// does; `None` if it is not all in one memory that the device sees.
    pub(super) fn distance(&self, transfers: &[Transfer]) -> Option<u64> {
        let seen = self.seen.lock();
        let first = transfers.first()?;
        let one = seen.iter().find(|one| holds(one.host, first))?;
        transfers
            .iter()
            .all(|transfer| holds(one.host, transfer))
            .then(|| one.device.wrapping_sub(one.host.start))
    }
}

fn holds(range: Range, transfer: &Transfer) -> bool {
    transfer
        .staging
        .checked_sub(range.start)
        .is_some_and(|offset| offset < range.size && transfer.size <= range.size - offset)
}

/// Memory that is pinned.
struct Pinned {
    context: Arc<Context>,
    staged: Arc<Staged>,
    start: u64,
}

impl Pin for Pinned {
    fn undo(&mut self) -> bool {
        let start = self.start;
        self.staged
            .seen
            .lock()
            .retain(|one| one.host.start != start);
        let unpinned = self.context.run(|_| {
            let start = ptr::with_exposed_provenance_mut(start as usize);
            // SAFETY: it was registered by this start, and no copy of ours is running.
            unsafe { self.context.driver.host_unregister(start) }
        });
        if let Err(error) = unpinned {
            tracing::warn!("staging memory stays pinned, and is kept: {error}");
            return false;
        }
        true
    }
}
