//! What keeps a host's signals its own while foreign code is loaded and started.
//!
//! Mooncake's library starts a Go runtime as it is loaded, which takes over handlers, and its
//! threads inherit the mask of the thread that starts them. So it is loaded with all signals
//! blocked, the handlers are put back, and what starts threads or changes the caller's mask runs
//! on a thread that ends right after.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use tracing::dispatcher;

use crate::error::{Error, Kind, Result, bail};

/// All signals that have a number; the C library refuses its own two and SIGKILL, SIGSTOP.
const LAST: libc::c_int = 64;

/// All signals are blocked in the thread that made this until it is dropped there.
pub(super) struct Blocked {
    before: libc::sigset_t,
    /// The mask is the thread's.
    _not_send: std::marker::PhantomData<*const ()>,
}

impl Blocked {
    pub(super) fn new() -> Self {
        let mut all = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: both point to sets; the first is filled before it is read, the second by the
        // call, which cannot fail with this first argument.
        let before = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::sigemptyset(before.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            before.assume_init()
        };
        Self {
            before,
            _not_send: std::marker::PhantomData,
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        // SAFETY: a set that the same call gave.
        unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, ptr::null_mut())
        };
    }
}

/// What the process does on each signal, at one moment.
pub(super) struct Handlers(Vec<(libc::c_int, libc::sigaction)>);

impl Handlers {
    pub(super) fn now() -> Self {
        Self(
            (1..=LAST)
                .filter_map(|number| Some((number, handler(number)?)))
                .collect(),
        )
    }

    /// Puts back what has changed since; answers how many that were.
    ///
    /// A handler that another thread installs in between is lost; hosts open their pool before, or
    /// after, they install theirs.
    pub(super) fn restore(&self) -> usize {
        let mut changed = 0;
        for (number, before) in &self.0 {
            if handler(*number).is_some_and(|now| !is_same(&now, before)) {
                // SAFETY: an action that was in force for this very signal.
                unsafe { libc::sigaction(*number, before, ptr::null_mut()) };
                changed += 1;
            }
        }
        changed
    }
}

fn handler(number: libc::c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks; the pointer is to an action, for which zeros are a value.
    let asked = unsafe { libc::sigaction(number, ptr::null(), now.as_mut_ptr()) };
    // SAFETY: as above.
    (asked == 0).then(|| unsafe { now.assume_init() })
}

fn is_same(a: &libc::sigaction, b: &libc::sigaction) -> bool {
    // The C library sets a flag of its own in what it installs.
    const OF_THE_C_LIBRARY: libc::c_int = 0x0400_0000;
    a.sa_sigaction == b.sa_sigaction && (a.sa_flags ^ b.sa_flags) & !OF_THE_C_LIBRARY == 0
}

/// Runs `work` on a thread of its own with all signals blocked, which is over when this returns.
///
/// Blocks as long as `work`. Errors: `NoThread`.
pub(super) fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T> {
    let log = dispatcher::get_default(Clone::clone);
    thread::scope(|scope| {
        // A thread has the mask of the one that starts it.
        let blocked = Blocked::new();
        let thread = builder().spawn_scoped(scope, || dispatcher::with_default(&log, work));
        drop(blocked);
        thread
            .map_err(|error| not_started(&error))?
            .join()
            .map_err(|_| panicked())
    })
}

/// How many threads may be inside work that nobody waits for any more. Each keeps its stack, and what it was called with,
/// until it returns, if it ever does; a host that tries again and again would fill the process with them. Beyond that
/// are at most those that are waited for now, each by a thread of the host's.
const MOST_STUCK: usize = 8;

static STUCK: AtomicUsize = AtomicUsize::new(0);

const RUNNING: u8 = 0;
const GIVEN_UP: u8 = 1;
const OVER: u8 = 2;

/// One run of work with a deadline, which is over when the thread drops this.
struct Run(Arc<AtomicU8>);

impl Drop for Run {
    fn drop(&mut self) {
        if self.0.swap(OVER, Ordering::AcqRel) == GIVEN_UP {
            STUCK.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// Runs `work` as [`apart`] does, and waits for it no longer than `patience`. `None` then: what it
/// answers later is dropped.
///
/// Errors: `NoThread`, also while [`MOST_STUCK`] threads that were given up have not returned.
pub(in crate::store) fn apart_within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>> {
    if STUCK.load(Ordering::Acquire) >= MOST_STUCK {
        bail!(
            NoThread,
            "{MOST_STUCK} attempts to open a pool or to find a name have not returned, each with a thread; another one is \
             made when one of them does"
        );
    }
    let state = Arc::new(AtomicU8::new(RUNNING));
    let run = Run(Arc::clone(&state));
    let (sender, answer) = mpsc::sync_channel(1);
    start_apart(move || {
        let _run = run;
        // Nobody may be there to take it.
        let _ = sender.send(work());
    })?;
    match answer.recv_timeout(patience) {
        Ok(answer) => return Ok(Some(answer)),
        Err(RecvTimeoutError::Disconnected) => return Err(panicked()),
        Err(RecvTimeoutError::Timeout) => {}
    }
    // Counted before it can be over, so that the count never falls below what it is.
    STUCK.fetch_add(1, Ordering::AcqRel);
    let given_up = state.compare_exchange(RUNNING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
    if given_up.is_err() {
        // It came just now.
        STUCK.fetch_sub(1, Ordering::AcqRel);
        return answer.try_recv().map(Some).map_err(|_| panicked());
    }
    Ok(None)
}

/// Starts `work` on a thread of its own with all signals blocked, and leaves it to itself.
///
/// Errors: `NoThread`.
pub(super) fn start_apart(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let log = dispatcher::get_default(Clone::clone);
    let blocked = Blocked::new();
    let thread = builder().spawn(move || dispatcher::with_default(&log, work));
    drop(blocked);
    thread.map(drop).map_err(|error| not_started(&error))
}

fn builder() -> thread::Builder {
    thread::Builder::new().name("kvb-apart".to_owned())
}

fn not_started(error: &std::io::Error) -> Error {
    let text = format!("a thread to call Mooncake on cannot be started: {error}");
    Error::new(Kind::NoThread, text)
}

fn panicked() -> Error {
    let text = "the thread that Mooncake was called on panicked";
    Error::new(Kind::NoThread, text)
}
