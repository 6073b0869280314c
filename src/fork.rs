//! Whether this process was forked since a moment: threads do not survive that, and neither does what
//! waits for one.

#![allow(
    unsafe_code,
    reason = "the system calls a function of ours in a forked process"
)]

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

static FORKS: AtomicU64 = AtomicU64::new(0);
/// Threads of ours that run in this process.
static THREADS: AtomicUsize = AtomicUsize::new(0);
/// They ran as this process was forked from theirs.
static IS_ORPHAN: AtomicBool = AtomicBool::new(false);
static WATCH: Once = Once::new();

/// The process, as long as nobody forks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Process {
    forks: u64,
    id: u32,
}

impl Process {
    /// This one.
    pub(crate) fn this() -> Self {
        watch();
        Self {
            forks: FORKS.load(Ordering::Relaxed),
            id: std::process::id(),
        }
    }

    /// Whether it is still the one that runs this.
    pub(crate) fn is_this(self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// Its number, for messages.
    pub(crate) fn id(self) -> u32 {
        self.id
    }
}

fn watch() {
    WATCH.call_once(|| {
        // SAFETY: the function is async-signal-safe and stays where it is: this library is never
        // unloaded. Without memory for it nothing is watched, and forks go unseen.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    });
}

extern "C" fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    if THREADS.load(Ordering::Relaxed) > 0 {
        IS_ORPHAN.store(true, Ordering::Relaxed);
    }
}

/// A thread of ours, from before it starts until it ends.
#[derive(Debug)]
pub(crate) struct Thread(());

impl Thread {
    /// One more.
    pub(crate) fn begin() -> Self {
        watch();
        THREADS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        THREADS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this process was forked while threads of ours ran in the one before. What they waited for as it
/// happened is written in this one's memory still, and would be waited for here.
pub(crate) fn is_orphan() -> bool {
    IS_ORPHAN.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_another_process() {
        let here = Process::this();
        // SAFETY: the child calls only what is async-signal-safe.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(here.is_this());
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(status) };
        }
        assert!(child > 0);
        let mut status = -1;
        // SAFETY: waits for the child, into a number.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(here.is_this());
    }
}
