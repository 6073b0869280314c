//! struct_pack: how Mooncake's master serialises what its calls take and answer.
//!
//! A message is a *type code*, an optional byte of metadata with what it announces, and the values one behind
//! the other, without padding. The code is made of the *type literal*, a description of the type as bytes, so
//! that two sides whose structs differ in one field do not understand each other at all: that is what tells
//! versions apart. `docs/design/wire.md` has the format; it was established by exchanges with the real master,
//! some of which stand in `golden.rs`.
//!
//! Types are described once, by `record!` and `variant!`, with the versions
//! that have a field beside it. Values borrow from the message they were read from.
//!
//! | file | story |
//! | --- | --- |
//! | `literal.rs` | type literals and codes |
//! | `write.rs` | values to bytes |
//! | `read.rs` | bytes to values, nothing believed |
//! | `describe.rs` | the macros that describe structs and calls |
//! | `request.rs` | a call: which method, its arguments as bytes |

mod describe;
mod literal;
mod read;
mod request;
#[cfg(test)]
mod tests;
mod write;

pub(super) use describe::{present, readable, record, request, variant};
pub(super) use literal::mark;
pub use literal::{Literal, code};
pub use read::{Flaw, Reader, Unpack, unpack};
pub use request::Request;
pub use write::{Pack, Writer, pack};

/// A text of the protocol. Mooncake's strings are bytes; nothing says that they are UTF-8.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Text<'a>(pub &'a [u8]);

impl<'a> Text<'a> {
    /// As a string, with what is no UTF-8 replaced: for people.
    pub fn lossy(&self) -> std::borrow::Cow<'a, str> {
        String::from_utf8_lossy(self.0)
    }

    /// As a string; `None` where it is no UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        std::str::from_utf8(self.0).ok()
    }
}

impl std::fmt::Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.lossy())
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(text.as_bytes())
    }
}

/// The name of a client or segment. Random, so that no two processes share one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Uuid(pub u64, pub u64);

/// A value or the master's error number.
pub type Answer<T> = Result<T, i32>;
