//! The one error type of the library: a kind that the C ABI turns into a status, and a message
//! that names what was wrong and why. Nothing here panics.

use std::fmt;

/// What went wrong, one value per status of the C ABI (`ffi::status` pins the numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An argument has a value the function does not take.
    InvalidArgument,
    /// A required pointer is NULL.
    NullPointer,
    /// A buffer of the caller is too small; the size needed was reported.
    TooSmall,
    /// A number lies outside the range that the object it refers to has.
    OutOfRange,
    /// The feature is specified, but this build does not have it.
    Unsupported,
    /// Bytes that should decode do not.
    Malformed,
    /// The call is not allowed in the state its receiver is in.
    BadState,
    /// The receiver is doing something that must end first.
    Busy,
    /// The receiver was shut down.
    Closed,
    /// A panic was caught in an earlier call on this handle.
    Poisoned,
    /// What the engine reports contradicts what it reported before.
    Contradiction,
    /// A call to the pool failed as a whole.
    PoolFailed,
    /// Pages that the engine counts as computed did not arrive, and no request can be handed back.
    LoadFailed,
    /// The pool cannot do what the configuration asks for.
    PoolRefused,
    /// The device reported an error.
    DeviceFailed,
    /// The device that was asked for is not there.
    NoDevice,
    /// Memory could not be had.
    NoMemory,
    /// A thread could not be started.
    NoThread,
    /// The device will not work again in this process.
    DeviceLost,
    /// The configuration is wrong.
    ConfigInvalid,
    /// The configuration file cannot be read.
    ConfigUnreadable,
    /// The engine as described may not use the library this way.
    EngineRefused,
}

/// An error: its kind and the text for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    message: String,
}

/// The result type of the library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Makes an error. `message` names the argument or field, its value and the reason.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
        }
    }

    /// The kind, for decisions.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The text, for people.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The same error with the text of an outer step in front of it.
    #[must_use]
    pub fn within(self, context: impl fmt::Display) -> Self {
        Self {
            kind: self.kind,
            message: format!("{context}: {}", self.message),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Shorthand for a function's `return Err(...)`: `bail!(Kind, "format", ...)`.
macro_rules! bail {
    ($kind:ident, $($text:tt)+) => {
        return Err($crate::error::Error::new($crate::error::Kind::$kind, format!($($text)+)))
    };
}
pub(crate) use bail;
