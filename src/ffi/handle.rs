//! Handles: what the host holds is a pointer to an incomplete struct, what stands behind it is a
//! [`Handle`] on our heap. All casts between the two are in this file.
//!
//! A handle has two parts. The shared part may be used by several threads at once (functions with
//! a `const` receiver). The exclusive part sits in a mutex that is only ever tried: a host that
//! calls twice at once gets `KVB_BUSY` instead of undefined behaviour. Which nouns have such a
//! part is said by their [`Access`].

use super::args::LOWEST;
use crate::error::{Error, Kind, Result, bail};
use crate::fork::{self, Process};
use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// One opaque type of the ABI. Implemented on the empty marker that the header shows as an
/// incomplete struct; nothing of a private type's layout ever reaches the ABI.
pub(super) trait Noun: Sized + 'static {
    /// Eight letters at the start of each live handle, its own for each noun.
    const TAG: u64;
    /// The name of the type in C.
    const NAME: &'static str;
    /// It has threads or a connection, which a forked process has not.
    const LIVES_IN_ONE_PROCESS: bool;
    /// [`Shared`] or [`Exclusive`].
    type Access: Access;
    /// What several threads may use at once.
    type Common: Send + Sync;
    /// What one call at a time may use; `()` for shared nouns.
    type Alone: Send;
}

/// How a noun's functions may be called; a marker.
pub(super) trait Access {}
/// By several threads at once: the noun is immutable or locks for itself.
pub(super) enum Shared {}
/// One at a time, but for functions with a `const` receiver.
pub(super) enum Exclusive {}
impl Access for Shared {}
impl Access for Exclusive {}

/// Refuses to open anything in a process that was forked while threads of this library ran.
pub(super) fn check_process() -> Result<()> {
    if fork::is_orphan() {
        bail!(
            BadState,
            "this process was forked while threads of this library ran, and can open nothing; fork before the first pool is opened, or follow the fork by exec"
        );
    }
    Ok(())
}

/// What a freed handle's tag becomes, for as long as the allocator leaves it alone.
const FREED: u64 = u64::from_be_bytes(*b"kvbfreed");

// C layout, so that the tag is the first word of every noun and can be read before the noun is known.
#[repr(C)]
struct Handle<N: Noun> {
    tag: AtomicU64,
    poisoned: AtomicBool,
    process: Process,
    /// The exclusive function that runs, for the text of `KVB_BUSY`.
    running: Mutex<&'static str>,
    common: N::Common,
    alone: Mutex<N::Alone>,
}

/// Makes a handle and hands it to the host, who owns it until it is given to [`free`].
pub(super) fn create<N: Noun>(common: N::Common, alone: N::Alone) -> *mut N {
    let handle = Box::new(Handle::<N> {
        tag: AtomicU64::new(N::TAG),
        poisoned: AtomicBool::new(false),
        process: Process::this(),
        running: Mutex::new(""),
        common,
        alone: Mutex::new(alone),
    });
    Box::into_raw(handle).cast()
}

/// The handle behind a pointer of the host's, checked as far as that is possible.
///
/// # Safety
/// `pointer` is NULL or points to at least eight readable bytes; where they are those of a live
/// handle of this noun, that handle is not freed during `'a`.
unsafe fn behind<'a, N: Noun>(pointer: *const N, argument: &str) -> Result<&'a Handle<N>> {
    if pointer.is_null() {
        bail!(NullPointer, "{argument} is NULL");
    }
    let handle = pointer.cast::<Handle<N>>();
    if pointer.addr() < LOWEST || !handle.is_aligned() {
        bail!(
            InvalidArgument,
            "{argument} ({pointer:p}) is no {}",
            N::NAME
        );
    }
    // SAFETY: aligned, and readable as the caller says.
    let tag = unsafe { &*pointer.cast::<AtomicU64>() }.load(Ordering::Relaxed);
    if tag == FREED {
        bail!(InvalidArgument, "{argument} ({pointer:p}) was freed");
    } else if tag != N::TAG {
        bail!(
            InvalidArgument,
            "{argument} ({pointer:p}) is no live {}",
            N::NAME
        );
    }
    // SAFETY: the tag is the noun's own, so this is a handle that `create::<N>` made.
    let handle = unsafe { &*handle };
    if handle.is_forked() {
        bail!(
            BadState,
            "{argument} is of the process that this one was forked from, and can be used only there"
        );
    }
    handle.check_poison(argument)?;
    Ok(handle)
}

/// The common part of a handle that is an input, not the receiver.
///
/// # Safety
/// As the header's conventions ask: NULL or a live handle that is not freed during the call.
pub(super) unsafe fn input<'a, N: Noun>(
    pointer: *const N,
    argument: &str,
) -> Result<&'a N::Common> {
    // SAFETY: passed on.
    unsafe { behind(pointer, argument) }.map(|handle| &handle.common)
}

/// The common part of a `const` receiver. A panic while it is held poisons the handle.
///
/// # Safety
/// As for [`input`].
pub(super) unsafe fn shared<'a, N: Noun>(
    pointer: *const N,
    argument: &str,
) -> Result<Receiver<'a, N>> {
    // SAFETY: passed on.
    unsafe { behind(pointer, argument) }.map(Receiver::new)
}

/// Both parts of a receiver, for one call at a time. A panic while they are held poisons the
/// handle.
///
/// # Safety
/// As for [`input`].
pub(super) unsafe fn exclusive<'a, N: Noun<Access = Exclusive>>(
    pointer: *mut N,
    argument: &str,
    function: &'static str,
) -> Result<Alone<'a, N>> {
    // SAFETY: passed on.
    let handle = unsafe { behind(pointer.cast_const(), argument) }?;
    handle.alone(argument, function)
}

/// The exclusive part of a handle that is an input: it must not change while it is read.
///
/// # Safety
/// As for [`input`].
pub(super) unsafe fn input_alone<'a, N: Noun<Access = Exclusive>>(
    pointer: *const N,
    argument: &str,
    function: &'static str,
) -> Result<Alone<'a, N>> {
    // SAFETY: passed on.
    unsafe { behind(pointer, argument) }?.alone(argument, function)
}

/// Takes a handle back and drops what stands behind it. NULL is fine. A handle on which a call is
/// running is not freed, and neither is what was no handle: the text says so.
///
/// # Safety
/// As for [`input`], and the host uses the handle no more.
pub(super) unsafe fn free<N: Noun>(pointer: *mut N, argument: &str) -> Result<()> {
    if pointer.is_null() {
        return Ok(());
    }
    // SAFETY: passed on.
    match unsafe { behind(pointer.cast_const(), argument) } {
        Ok(handle) if handle.alone.is_locked() => {
            bail!(
                Busy,
                "{} is running on {argument}; it is not freed",
                handle.running.lock()
            );
        }
        // What stands behind it is the other process's to end: here it is left alone.
        Err(error) if error.kind() == Kind::BadState => return Ok(()),
        Err(error) if error.kind() != Kind::Poisoned => return Err(error),
        Ok(handle) => handle.tag.store(FREED, Ordering::Relaxed),
        // SAFETY: poisoned is answered only for live handles of this noun.
        Err(_) => unsafe { &*pointer.cast::<Handle<N>>() }
            .tag
            .store(FREED, Ordering::Relaxed),
    }
    // SAFETY: made by `create::<N>`, live until now, and given up by the host.
    drop(unsafe { Box::from_raw(pointer.cast::<Handle<N>>()) });
    Ok(())
}

impl<N: Noun> Handle<N> {
    fn is_forked(&self) -> bool {
        N::LIVES_IN_ONE_PROCESS && !self.process.is_this()
    }

    fn check_poison(&self, argument: &str) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            bail!(
                Poisoned,
                "an earlier call on {argument} panicked; only {}_free still works",
                N::NAME
            );
        }
        Ok(())
    }

    fn alone(&self, argument: &str, function: &'static str) -> Result<Alone<'_, N>> {
        let Some(alone) = self.alone.try_lock() else {
            return Err(Error::new(
                Kind::Busy,
                format!(
                    "{} is running on {argument}, and {function} may not run beside it",
                    self.running.lock()
                ),
            ));
        };
        *self.running.lock() = function;
        let receiver = Receiver::new(self);
        // The call before this one may have panicked after this one had passed the first check.
        self.check_poison(argument)?;
        Ok(Alone {
            _receiver: receiver,
            alone,
        })
    }
}

/// The common part of a receiver during one call.
pub(super) struct Receiver<'a, N: Noun> {
    handle: &'a Handle<N>,
    /// The call came while this thread was already unwinding from somewhere else.
    unwinding: bool,
}

impl<'a, N: Noun> Receiver<'a, N> {
    fn new(handle: &'a Handle<N>) -> Self {
        Self {
            handle,
            unwinding: std::thread::panicking(),
        }
    }

    pub(super) fn common(&self) -> &'a N::Common {
        &self.handle.common
    }
}

impl<N: Noun> Drop for Receiver<'_, N> {
    fn drop(&mut self) {
        if !self.unwinding && std::thread::panicking() {
            self.handle.poisoned.store(true, Ordering::Release);
        }
    }
}

/// Both parts of a receiver during one call.
pub(super) struct Alone<'a, N: Noun> {
    /// First, so that a panic has poisoned the handle before the next call can have the lock.
    _receiver: Receiver<'a, N>,
    alone: MutexGuard<'a, N::Alone>,
}

impl<N: Noun> std::ops::Deref for Alone<'_, N> {
    type Target = N::Alone;
    fn deref(&self) -> &N::Alone {
        &self.alone
    }
}

impl<N: Noun> std::ops::DerefMut for Alone<'_, N> {
    fn deref_mut(&mut self) -> &mut N::Alone {
        &mut self.alone
    }
}

#[cfg(test)]
mod tests {
    use super::super::guard::guard;
    use super::super::message;
    use super::super::status::*;
    use super::*;
    use std::ptr;
    use std::sync::Arc;

    enum Apple {}
    impl Noun for Apple {
        const TAG: u64 = u64::from_be_bytes(*b"kvbapple");
        const NAME: &'static str = "kvb_apple";
        const LIVES_IN_ONE_PROCESS: bool = true;
        type Access = Exclusive;
        type Common = Arc<()>;
        type Alone = u32;
    }

    enum Pear {}
    impl Noun for Pear {
        const TAG: u64 = u64::from_be_bytes(*b"kvb_pear");
        const NAME: &'static str = "kvb_pear";
        const LIVES_IN_ONE_PROCESS: bool = false;
        type Access = Shared;
        type Common = u8;
        type Alone = ();
    }

    fn add(apple: *mut Apple, amount: u32) -> kvb_status {
        guard("kvb_apple_add", || {
            // SAFETY: the tests pass live handles, NULL, or live handles of another noun.
            let mut apple = unsafe { exclusive(apple, "apple", "kvb_apple_add") }?;
            *apple = apple.checked_add(amount).unwrap();
            Ok(())
        })
    }

    fn said(expected: &str) {
        message::with(|text| assert!(text.contains(expected), "{text:?} lacks {expected:?}"));
    }

    #[test]
    fn a_pointer_that_is_no_handle_is_told_apart() {
        assert_eq!(add(ptr::null_mut(), 1), KVB_NULL_POINTER);
        said("kvb_apple_add: apple is NULL");

        let pear = create::<Pear>(0, ());
        assert_eq!(add(pear.cast(), 1), KVB_INVALID_ARGUMENT);
        said("is no live kvb_apple");
        assert_eq!(
            add(pear.wrapping_byte_add(1).cast(), 1),
            KVB_INVALID_ARGUMENT
        );
        // SAFETY: live, and used no more.
        unsafe { free(pear, "pear") }.unwrap();

        let freed = [FREED; 8];
        assert_eq!(
            add(freed.as_ptr().cast_mut().cast(), 1),
            KVB_INVALID_ARGUMENT
        );
        said("was freed");
    }

    #[test]
    fn free_takes_null_and_drops_what_stands_behind_once() {
        // SAFETY: NULL.
        unsafe { free(ptr::null_mut::<Apple>(), "apple") }.unwrap();
        let counted = Arc::new(());
        let apple = create::<Apple>(Arc::clone(&counted), 1);
        assert_eq!(Arc::strong_count(&counted), 2);
        // SAFETY: live, and used no more.
        unsafe { free(apple, "apple") }.unwrap();
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn two_calls_at_once_answer_busy_and_name_both() {
        let apple = create::<Apple>(Arc::new(()), 1);
        // SAFETY: live.
        let running = unsafe { exclusive(apple, "apple", "kvb_apple_peel") }.unwrap();
        assert_eq!(add(apple, 1), KVB_BUSY);
        said("kvb_apple_peel is running on apple, and kvb_apple_add may not run beside it");
        // SAFETY: live; a const receiver may run beside it.
        assert!(unsafe { shared(apple.cast_const(), "apple") }.is_ok());
        // SAFETY: live.
        let refused = unsafe { free(apple, "apple") }.unwrap_err();
        assert_eq!(refused.kind(), Kind::Busy);
        drop(running);
        assert_eq!(add(apple, 1), KVB_OK);
        // SAFETY: live, and used no more.
        unsafe { free(apple, "apple") }.unwrap();
    }

    #[test]
    fn a_panic_poisons_the_handle_until_it_is_freed() {
        let apple = create::<Apple>(Arc::new(()), u32::MAX);
        assert_eq!(add(apple, 1), KVB_PANIC);
        assert_eq!(add(apple, 0), KVB_POISONED);
        said("only kvb_apple_free still works");
        // SAFETY: live, and used no more.
        unsafe { free(apple, "apple") }.unwrap();
    }

    #[test]
    fn a_call_made_while_unwinding_does_not_poison() {
        struct Late(*mut Apple);
        impl Drop for Late {
            fn drop(&mut self) {
                assert_eq!(add(self.0, 1), KVB_OK);
            }
        }
        let apple = create::<Apple>(Arc::new(()), 0);
        let _ = guard("outer", || {
            let _late = Late(apple);
            panic!("elsewhere");
        });
        assert_eq!(add(apple, 1), KVB_OK);
        // SAFETY: live, and used no more.
        unsafe { free(apple, "apple") }.unwrap();
    }
}
