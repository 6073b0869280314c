//! What asynchronous loads wait for before they write into newly allocated pages: copies of the
//! engine's own that are not ordered against us.

use crate::device::Device;
use crate::error::{Error, Kind, Result};
use crate::plant::{self, Bug};
use crate::sync::{Arc, Mutex};

/// Something to wait for, given by the engine with `bind`.
pub trait Wait: Send + Sync {
    /// Waits; true: the pages may be written. False: not yet, it will be asked again (for a test
    /// that steps, where waiting would block everything). An error says that it never will be.
    fn wait(&self) -> Result<bool>;
}

/// The allocation fence of one `bind`.
#[derive(Clone, Default)]
pub enum Fence {
    /// Nothing to wait for; an engine that said it supplies fences must not leave one out.
    #[default]
    None,
    /// The engine says that there is nothing to wait for.
    Open,
    /// To be waited for once, on a load thread.
    Given(Arc<dyn Wait>),
    /// An event of the engine's on the cache's device, to be waited for like that; the raw handle.
    Event(u64),
}

/// The fence of one `bind`, shared by its loads: the first one waits, and the others for it.
pub(super) struct SharedFence {
    fence: Fence,
    /// What waiting came to; of an error kind and text, for each load that asks.
    known: Mutex<Option<std::result::Result<(), (Kind, String)>>>,
}

impl SharedFence {
    pub fn new(fence: Fence) -> Self {
        Self {
            fence,
            known: Mutex::new(None),
        }
    }

    /// Waits; false: not yet.
    pub fn wait(&self, device: &dyn Device) -> Result<bool> {
        if matches!(self.fence, Fence::None | Fence::Open) || plant::is(Bug::FenceSkipped) {
            return Ok(true);
        }
        let mut known = self.known.lock();
        if known.is_none() {
            let waited = match &self.fence {
                Fence::None | Fence::Open => Ok(true),
                Fence::Given(fence) => fence.wait(),
                Fence::Event(event) => device.wait_foreign(*event).map(|()| true),
            };
            *known = match waited {
                Ok(false) => return Ok(false),
                Ok(true) => Some(Ok(())),
                Err(error) => Some(Err((error.kind(), error.message().to_owned()))),
            };
        }
        match &*known {
            Some(Err((kind, text))) => Err(Error::new(*kind, text.clone())),
            _ => Ok(true),
        }
    }
}
