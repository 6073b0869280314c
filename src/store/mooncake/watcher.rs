//! Keeps the library's signal thread from taking the host's signals.
//!
//! A first `create` starts a thread that waits with `sigwait` for SIGHUP, SIGINT, SIGUSR1 and
//! SIGTERM and ends the process when one comes, also when the host waits for them on a thread of
//! its own or has a handler: the kernel gives them to either. No setting turns that off. So the
//! library's own entry for `sigwait`, which the loader filled in its jump table, is pointed at a
//! function here that never returns. Nobody joins that thread: the library lets it run on when a
//! process ends.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::time::Duration;

use super::bindings::redirect;

/// In place of `sigwait`: takes no signal and never returns.
unsafe extern "C" fn wait_for_nothing(_: *const libc::sigset_t, _: *mut c_int) -> c_int {
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Has a loaded library wait for no signal. Answers how many entries were changed.
///
/// # Safety
/// `library` is open and stays so, and no thread is calling `sigwait` through it for the first time.
pub(super) unsafe fn disarm(library: NonNull<c_void>) -> usize {
    // SAFETY: the caller's promise; a thread that never comes back is what `sigwait` may be as well.
    unsafe { redirect(library, c"sigwait", wait_for_nothing as *const () as usize) }
}
