//! What foreign code may have changed of this process' signals.

#![allow(unsafe_code, reason = "asks the system about signals")]

use std::{mem, ptr};

/// For each signal its handler, and whether that has a stack of its own.
pub fn handlers() -> Vec<(usize, i32)> {
    let handler = |number| {
        // SAFETY: only asks.
        unsafe {
            let mut now: libc::sigaction = mem::zeroed();
            libc::sigaction(number, ptr::null(), &raw mut now);
            (now.sa_sigaction, now.sa_flags & libc::SA_ONSTACK)
        }
    };
    (1..=64).map(handler).collect()
}

/// The signals that this thread blocks.
pub fn blocked() -> Vec<i32> {
    // SAFETY: only asks.
    unsafe {
        let mut now: libc::sigset_t = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut now);
        (1..=64)
            .filter(|&n| libc::sigismember(&raw const now, n) == 1)
            .collect()
    }
}
