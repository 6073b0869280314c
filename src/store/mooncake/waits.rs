//! Bounds for the library's waits.
//!
//! By default some of its calls wait for half a minute and more. It takes bounds from environment
//! variables, some of which it reads long after a client is connected. The environment belongs to
//! the host, whose threads may read it at any time, so it is not changed: the library's own entry
//! for `getenv` is pointed at a function here that answers for those variables where the operator
//! has not set them. Nobody else sees these answers, also no program that the host starts.

use std::ffi::{CStr, c_char, c_void};
use std::ptr::NonNull;

use super::bindings::redirect;

/// Set to `off`, it leaves the library the waits that it has of its own.
const SWITCH: &CStr = c"KVBRIDGE_MOONCAKE_WAITS";

/// What the library reads where the operator says nothing.
const BOUNDS: [(&CStr, &CStr); 5] = [
    // How long a call waits for the master; 30 s otherwise.
    (c"MC_RPC_TIMEOUT_MS", c"1000"),
    // How often a client tries to connect before it says so; 90 s otherwise.
    (c"MC_STORE_CLIENT_SETUP_RETRIES", c"1"),
    // How long a transfer waits for its peer; 60 s otherwise. With 1 s a busy machine fails transfers
    // that only wait for a core, and each failure costs the memory of its call.
    (c"MC_TCP_STATUS_TIMEOUT_SEC", c"10"),
    // Enough that a batch does not wait for itself, and that no batch is too large for its peer.
    (c"MC_TCP_LANES_PER_PEER", c"16"),
    (c"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", c"65535"),
];

/// In place of the library's `getenv`.
unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    // SAFETY: called as `getenv` is.
    let set = unsafe { libc::getenv(name) };
    if !set.is_null() || name.is_null() {
        return set;
    }
    // SAFETY: as above.
    let name = unsafe { CStr::from_ptr(name) };
    let bound = BOUNDS.iter().find(|(bounded, _)| *bounded == name);
    match bound {
        // Callers of `getenv` do not write to what they get.
        Some((_, value)) if !is_off() => value.as_ptr().cast_mut(),
        _ => set,
    }
}

fn is_off() -> bool {
    // SAFETY: two texts, one of which lasts as long as nobody changes the environment, as for any
    // caller of `getenv`.
    unsafe {
        let switch = libc::getenv(SWITCH.as_ptr());
        !switch.is_null() && CStr::from_ptr(switch) == c"off"
    }
}

/// Bounds the waits of a loaded library. False if it does not read its settings in a way that can be
/// answered: then they are its own.
///
/// # Safety
/// `library` is open and stays so, and no thread is calling `getenv` through it for the first time.
pub(super) unsafe fn bound(library: NonNull<c_void>) -> bool {
    // SAFETY: the caller's promise; this answers as `getenv` does.
    unsafe { redirect(library, c"getenv", getenv as *const () as usize) > 0 }
}
