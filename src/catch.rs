//! The way out: every function of the host is called through here, so that an exception that it
//! throws ends in a text and not in the process.

#![allow(unsafe_code, reason = "a function of C++ is called, and calls back")]

use std::ffi::{CStr, c_char, c_void};

/// Bytes of an exception's text that are kept.
const ROOM: usize = 256;

unsafe extern "C-unwind" {
    /// In `catch.cc`.
    fn kvbridge_call_host(
        call: unsafe extern "C-unwind" fn(*mut c_void),
        argument: *mut c_void,
        is_panicking: extern "C" fn() -> bool,
        text: *mut c_char,
        room: usize,
    ) -> bool;
}

/// Runs `call`, which calls a function of the host; what that throws is answered as its text. A
/// panic goes on up.
///
/// A closure that is `Copy` has nothing to drop, so that an exception passes its frame without
/// running any code of ours; the closure should do nothing beside the call.
pub(crate) fn call_host<F: FnOnce() + Copy>(call: F) -> Result<(), String> {
    let mut text: [c_char; ROOM] = [0; ROOM];
    // SAFETY: the trampoline gets the closure that it was made for, which lives during the call;
    // the text has the room that is said and is terminated.
    unsafe {
        let argument = (&raw const call).cast_mut().cast();
        let (start, room) = (text.as_mut_ptr(), text.len());
        if kvbridge_call_host(trampoline::<F>, argument, is_panicking, start, room) {
            return Ok(());
        }
        Err(CStr::from_ptr(start).to_string_lossy().into_owned())
    }
}

/// # Safety
/// The argument points to an `F`.
unsafe extern "C-unwind" fn trampoline<F: FnOnce() + Copy>(argument: *mut c_void) {
    // SAFETY: the caller's promise.
    let call = unsafe { *argument.cast::<F>() };
    call();
}

extern "C" fn is_panicking() -> bool {
    std::thread::panicking()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_call_that_returns_is_made_once() {
        let calls = Cell::new(0);
        let count = &calls;
        assert_eq!(call_host(|| count.set(count.get() + 1)), Ok(()));
        assert_eq!(calls.get(), 1);
    }

    #[test]
    fn a_panic_passes_through_and_the_next_call_is_fine() {
        let end = catch_unwind(AssertUnwindSafe(|| call_host(|| panic!("seven"))));
        assert_eq!(end.unwrap_err().downcast_ref(), Some(&"seven"));
        assert_eq!(call_host(|| ()), Ok(()));
    }
}
