//! The end of the process: Mooncake's library ends what it has in handlers of its own, and crashes when a call is
//! inside then, or comes later. So a handler that runs before them lets no call in any more and waits for those
//! that are. In a forked process, which has none of the library's threads, it ends the process in their place.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::fork::Process;

static INSIDE: AtomicUsize = AtomicUsize::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);

/// How long the end of the process waits for calls. Then it goes on, whatever comes of it.
const PATIENCE: Duration = Duration::from_secs(5);

unsafe extern "C" {
    /// The C library's: as `atexit`, with the status.
    fn on_exit(handler: unsafe extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
}

/// A call is inside the library for as long as this lives.
#[derive(Debug)]
pub(super) struct Inside(());

impl Inside {
    /// None when the process ends.
    pub(super) fn enter() -> Option<Self> {
        INSIDE.fetch_add(1, Ordering::SeqCst);
        // Leaves again when it is dropped.
        let inside = Self(());
        (!ENDS.load(Ordering::SeqCst)).then_some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Has the end of this process wait. Handlers run from the last to the first, so this is said again whenever the
/// library may have added one.
pub(super) fn watch(process: Process) {
    // Lives for good, as a handler cannot be taken back.
    let process: &'static Process = Box::leak(Box::new(process));
    // SAFETY: the function and what it is given stay: this library is never unloaded. Without memory for it nothing
    // is watched.
    unsafe { on_exit(ending, std::ptr::from_ref(process).cast_mut().cast()) };
}

/// # Safety
/// The argument points to a process.
unsafe extern "C" fn ending(status: c_int, process: *mut c_void) {
    // SAFETY: what `watch` gave.
    let process = unsafe { &*process.cast::<Process>() };
    if !process.is_this() {
        // SAFETY: writes out what is buffered, and ends the process without the handlers that would wait for
        // threads which are not here.
        unsafe {
            libc::fflush(std::ptr::null_mut());
            libc::_exit(status);
        }
    }
    ENDS.store(true, Ordering::SeqCst);
    let began = Instant::now();
    while INSIDE.load(Ordering::SeqCst) > 0 && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
}
