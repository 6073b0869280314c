//! What belongs to the library as a whole: versions, the last error, the log.

use super::args::LOWEST;
use super::guard::guard;
use super::log::{self, KVB_LOG_ERROR, KVB_LOG_TRACE, kvb_log_callback};
use super::message;
use super::status::{KVB_OK, KVB_TOO_SMALL, kvb_status};
use crate::error::bail;
use std::ffi::{c_char, c_void};

/// The version of this interface. It grows by appending alone; a number that changes means that
/// hosts must be built anew, and is the library's SONAME.
pub const KVB_ABI_VERSION: u32 = 1;

/// The library's version, "major.minor.patch", as a terminated string that lives as long as the
/// process.
#[unsafe(no_mangle)]
pub extern "C" fn kvb_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The KVB_ABI_VERSION that the library was built with. Compare it with the header's.
#[unsafe(no_mangle)]
pub extern "C" fn kvb_abi_version() -> u32 {
    KVB_ABI_VERSION
}

/// Copies the text of the calling thread's latest failed call: the function, what was wrong, why.
/// Calls that succeed leave it as it is; it is empty when none failed yet.
///
/// Unlike other buffers this one is also written when it is too small: the text is cut, at a whole
/// character, and terminated all the same, so that a fixed array is enough for printing.
/// `out_needed` may be NULL.
///
/// Returns KVB_TOO_SMALL when the text was cut. No status of this function replaces the text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_last_error(
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    // Not through `guard`, which would replace the text; a panic here could only come from a
    // failed allocation, and those abort.
    message::with(|text| {
        if out_needed.addr() >= LOWEST && out_needed.is_aligned() {
            // SAFETY: the caller's promise; NULL was ruled out.
            unsafe { out_needed.write(text.len() + 1) };
        }
        if buffer.addr() < LOWEST || capacity == 0 {
            return KVB_TOO_SMALL;
        }
        let mut fits = text.len().min(capacity - 1);
        while !text.is_char_boundary(fits) {
            fits -= 1;
        }
        // SAFETY: `fits` bytes and the NUL lie within the capacity that the caller promised.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), fits);
            buffer.add(fits).write(0);
        }
        if fits == text.len() {
            KVB_OK
        } else {
            KVB_TOO_SMALL
        }
    })
}

/// Sets the one callback that receives the library's log, or with NULL removes it. Without one
/// nothing is logged; nothing ever goes to standard output or error. `max_level` is the finest
/// level wanted, one of KVB_LOG_*; it is ignored when there is no callback.
///
/// The callback is the process's: the last call wins. When this returns, the callback set before
/// is not running and is never called again, so that its context may be freed.
///
/// Threads: any. Blocks: until lines that are being delivered are through.
/// Errors: KVB_INVALID_ARGUMENT, a level that is none; KVB_BUSY, called from the callback.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_set_log(
    callback_or_null: kvb_log_callback,
    context: *mut c_void,
    max_level: i32,
) -> kvb_status {
    guard("kvb_set_log", || {
        if callback_or_null.is_some() && !(KVB_LOG_ERROR..=KVB_LOG_TRACE).contains(&max_level) {
            bail!(
                InvalidArgument,
                "max_level is {max_level}, which is no KVB_LOG_ level"
            );
        }
        log::set(callback_or_null, context, max_level)
    })
}
