//! Statuses: the numbers that the ABI pins, and which kind of error each stands for.

use crate::error::Kind;

/// What a function answers: `KVB_OK` or the reason why it did nothing. Numbers are pinned and
/// never reused: 1-9 the caller's arguments, 10-19 state, 20-29 pool, 30-39 device and machine,
/// 40-49 configuration and engine, 90 panic. Treat a number you do not know as a failure.
pub type kvb_status = i32;

/// Done; the outputs are written.
pub const KVB_OK: kvb_status = 0;
/// An argument has a value that the function does not take.
pub const KVB_INVALID_ARGUMENT: kvb_status = 1;
/// A required pointer is NULL; the text names it.
pub const KVB_NULL_POINTER: kvb_status = 2;
/// A buffer is too small. The size needed was written, nothing else, and nothing was consumed.
pub const KVB_TOO_SMALL: kvb_status = 3;
/// A number lies outside what its object has (a page index, a group id, a position).
pub const KVB_OUT_OF_RANGE: kvb_status = 4;
/// The feature is specified, but this build does not have it.
pub const KVB_UNSUPPORTED: kvb_status = 5;
/// Bytes that should decode do not.
pub const KVB_MALFORMED: kvb_status = 6;
/// The call is not allowed in the state its receiver is in.
pub const KVB_BAD_STATE: kvb_status = 10;
/// Another call on the same handle is running, and this one may not run beside it.
pub const KVB_BUSY: kvb_status = 11;
/// The receiver was shut down.
pub const KVB_CLOSED: kvb_status = 12;
/// An earlier call on this handle ended in KVB_PANIC. Only its free function still works.
pub const KVB_POISONED: kvb_status = 13;
/// What the engine reports contradicts what it reported before. Nothing was changed.
pub const KVB_CONTRADICTION: kvb_status = 14;
/// A call to the pool failed as a whole.
pub const KVB_POOL_FAILED: kvb_status = 20;
/// Pages that the engine counts as computed did not arrive, and no request can be handed back
/// (tensor parallelism): the batch must not run. To go on, throw the pass away on all ranks, preempt
/// the requests that load and allocate them with 0 honoured tokens, and describe the others again.
/// With async_load every later call answers this too: the worker must be made anew.
pub const KVB_LOAD_FAILED: kvb_status = 21;
/// The pool cannot do what the configuration asks for; the text names what is missing.
pub const KVB_POOL_REFUSED: kvb_status = 22;
/// The device reported an error.
pub const KVB_DEVICE_FAILED: kvb_status = 30;
/// The device that was asked for is not there.
pub const KVB_NO_DEVICE: kvb_status = 31;
/// Memory could not be had.
pub const KVB_NO_MEMORY: kvb_status = 32;
/// A thread could not be started.
pub const KVB_NO_THREAD: kvb_status = 33;
/// The device reported an error after which it works no more in this process.
pub const KVB_DEVICE_LOST: kvb_status = 34;
/// The configuration is wrong; the text lists every problem found.
pub const KVB_CONFIG_INVALID: kvb_status = 40;
/// The configuration file cannot be read.
pub const KVB_CONFIG_UNREADABLE: kvb_status = 41;
/// The engine as described may not use the library this way.
pub const KVB_ENGINE_REFUSED: kvb_status = 42;
/// A defect of the library, caught at the boundary. The handle is poisoned.
pub const KVB_PANIC: kvb_status = 90;

/// Makes the translation and, for the test, the list of all kinds: `match` proves it complete.
macro_rules! statuses {
    ($($kind:ident => $status:ident,)+) => {
        /// The status that stands for `kind`.
        pub(super) fn of(kind: Kind) -> kvb_status {
            match kind {
                $(Kind::$kind => $status,)+
            }
        }

        #[cfg(test)]
        const ALL: &[(Kind, &str)] = &[$((Kind::$kind, stringify!($status)),)+];
    };
}

statuses! {
    InvalidArgument => KVB_INVALID_ARGUMENT,
    NullPointer => KVB_NULL_POINTER,
    TooSmall => KVB_TOO_SMALL,
    OutOfRange => KVB_OUT_OF_RANGE,
    Unsupported => KVB_UNSUPPORTED,
    Malformed => KVB_MALFORMED,
    BadState => KVB_BAD_STATE,
    Busy => KVB_BUSY,
    Closed => KVB_CLOSED,
    Poisoned => KVB_POISONED,
    Contradiction => KVB_CONTRADICTION,
    PoolFailed => KVB_POOL_FAILED,
    LoadFailed => KVB_LOAD_FAILED,
    PoolRefused => KVB_POOL_REFUSED,
    DeviceFailed => KVB_DEVICE_FAILED,
    NoDevice => KVB_NO_DEVICE,
    NoMemory => KVB_NO_MEMORY,
    NoThread => KVB_NO_THREAD,
    DeviceLost => KVB_DEVICE_LOST,
    ConfigInvalid => KVB_CONFIG_INVALID,
    ConfigUnreadable => KVB_CONFIG_UNREADABLE,
    EngineRefused => KVB_ENGINE_REFUSED,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Released numbers. A line may be added, never changed.
    const PINNED: &[(&str, kvb_status)] = &[
        ("KVB_INVALID_ARGUMENT", 1),
        ("KVB_NULL_POINTER", 2),
        ("KVB_TOO_SMALL", 3),
        ("KVB_OUT_OF_RANGE", 4),
        ("KVB_UNSUPPORTED", 5),
        ("KVB_MALFORMED", 6),
        ("KVB_BAD_STATE", 10),
        ("KVB_BUSY", 11),
        ("KVB_CLOSED", 12),
        ("KVB_POISONED", 13),
        ("KVB_CONTRADICTION", 14),
        ("KVB_POOL_FAILED", 20),
        ("KVB_LOAD_FAILED", 21),
        ("KVB_POOL_REFUSED", 22),
        ("KVB_DEVICE_FAILED", 30),
        ("KVB_NO_DEVICE", 31),
        ("KVB_NO_MEMORY", 32),
        ("KVB_NO_THREAD", 33),
        ("KVB_DEVICE_LOST", 34),
        ("KVB_CONFIG_INVALID", 40),
        ("KVB_CONFIG_UNREADABLE", 41),
        ("KVB_ENGINE_REFUSED", 42),
    ];

    #[test]
    fn every_kind_has_its_own_pinned_number() {
        let mapped: Vec<_> = ALL.iter().map(|&(kind, name)| (name, of(kind))).collect();
        assert_eq!(mapped, PINNED);

        let mut numbers: HashSet<_> = mapped.iter().map(|&(_, number)| number).collect();
        assert!(numbers.insert(KVB_OK) && numbers.insert(KVB_PANIC));
        assert_eq!(numbers.len(), PINNED.len() + 2);
        assert_eq!((KVB_OK, KVB_PANIC), (0, 90));
    }
}
