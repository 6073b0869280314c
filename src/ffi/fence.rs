//! `kvb_fence`: what asynchronous loads wait for before they write into newly allocated pages.

use std::ffi::c_void;
use std::sync::Arc;

use super::args::{Plain, choice};
use crate::catch::call_host;
use crate::engine::DeviceChoice;
use crate::error::{Error, Kind, Result, bail};
use crate::worker::{Fence, Wait};

/// kvb_fence.kind: nothing to wait for, also where an engine supplies fences: no copies of its own are under way.
pub const KVB_FENCE_NONE: i32 = 0;
/// kvb_fence.kind: `event` is a CUevent.
pub const KVB_FENCE_CUDA_EVENT: i32 = 1;
/// kvb_fence.kind: `wait` is called.
pub const KVB_FENCE_CALLBACK: i32 = 2;

/// Returns when the pages may be written. It is called once per kvb_worker_bind at most, on a load
/// thread of the library, also after that call returned; other loads of the same metadata wait
/// for it. It must not call the library. What it throws fails the loads that wait
/// for it, and is the answer of every later kvb_worker_start_load and kvb_worker_get_finished. `context` must stay valid until it
/// was called, or until kvb_worker_unregister_layout or kvb_worker_shutdown returned KVB_OK.
pub type kvb_fence_wait = Option<unsafe extern "C-unwind" fn(context: *mut c_void)>;

/// What the asynchronous loads of a metadata wait for before they write into pages: copies of the
/// engine's own that may still write to them or read from them. Synchronous loads do not wait for it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_fence {
    /// KVB_FENCE_*; the fields of other kinds are ignored.
    pub kind: i32,
    /// The CUevent to wait for, as it was recorded last. It must be recorded already and alive until
    /// it was waited for, as `context` must. For a cache on a CUDA device alone.
    pub event: u64,
    /// The function to call.
    pub wait: kvb_fence_wait,
    /// What it is called with.
    pub context: *mut c_void,
}
// SAFETY: integers, a pointer that may be NULL and one that is only passed on.
unsafe impl Plain for kvb_fence {}

struct Callback {
    wait: unsafe extern "C-unwind" fn(*mut c_void),
    context: *mut c_void,
}

// SAFETY: the context is only passed on; that the function may be called with it on any thread is
// what `kvb_fence_wait` asks of the host.
unsafe impl Send for Callback {}
// SAFETY: as above.
unsafe impl Sync for Callback {}

impl Wait for Callback {
    fn wait(&self) -> Result<bool> {
        let (wait, context) = (self.wait, self.context);
        // SAFETY: the host keeps function and context valid until then, see `kvb_fence_wait`.
        match call_host(|| unsafe { wait(context) }) {
            Ok(()) => Ok(true),
            Err(text) => Err(Error::new(
                Kind::DeviceFailed,
                format!("its callback threw: {text}"),
            )),
        }
    }
}

/// The fence that the host describes, for a cache on this device; NULL is none.
pub(super) fn fence(given: Option<&kvb_fence>, device: DeviceChoice) -> Result<Fence> {
    let Some(given) = given else {
        return Ok(Fence::None);
    };
    let is_cuda = matches!(device, DeviceChoice::Cuda(_));
    let kinds = [KVB_FENCE_NONE, KVB_FENCE_CUDA_EVENT, KVB_FENCE_CALLBACK];
    match choice(given.kind, &kinds.map(|kind| (kind, kind)), "fence->kind")? {
        KVB_FENCE_CUDA_EVENT if !is_cuda => bail!(
            InvalidArgument,
            "fence->kind is KVB_FENCE_CUDA_EVENT, but the cache is no memory of a CUDA device"
        ),
        KVB_FENCE_CUDA_EVENT if given.event == 0 => bail!(
            InvalidArgument,
            "fence->event is 0, but fence->kind is KVB_FENCE_CUDA_EVENT"
        ),
        KVB_FENCE_CUDA_EVENT => Ok(Fence::Event(given.event)),
        KVB_FENCE_CALLBACK => match given.wait {
            Some(wait) => Ok(Fence::Given(Arc::new(Callback {
                wait,
                context: given.context,
            }))),
            None => bail!(
                InvalidArgument,
                "fence->wait is NULL, but fence->kind is KVB_FENCE_CALLBACK"
            ),
        },
        _ => Ok(Fence::Open),
    }
}
