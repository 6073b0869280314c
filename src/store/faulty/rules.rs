//! What a script consists of: in which calls, for which keys, what goes wrong.

use std::ops::Range as Span;
use std::sync::Arc;

use crate::keys::Keys;

/// Rules in order of precedence.
pub type Script = Vec<Rule>;

/// One thing that goes wrong.
#[derive(Debug, Clone)]
pub struct Rule {
    /// In calls of this kind …
    pub call: Call,
    /// … and these numbers, counted from 0 for each kind apart …
    pub at: Span<u64>,
    /// … for these keys …
    pub keys: Which,
    /// … this happens.
    pub action: Action,
}

/// Kinds of calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// [`Store::exist`](crate::store::Store::exist).
    Exist,
    /// [`Store::put`](crate::store::Store::put).
    Put,
    /// [`Store::get`](crate::store::Store::get).
    Get,
    /// [`Store::remove`](crate::store::Store::remove).
    Remove,
    /// Each of them.
    Any,
}

/// Keys of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// All; also a call without keys.
    All,
    /// The key at this position.
    Index(usize),
    /// Keys that contain this text.
    Containing(Vec<u8>),
    /// Of the keys of the call that contain this text, the one of this number, from 0.
    Nth(usize, Vec<u8>),
}

impl Which {
    /// Positions of the keys that are meant.
    pub(super) fn of(&self, keys: &Keys) -> Vec<usize> {
        let containing = |text: &Vec<u8>| -> Vec<usize> {
            (0..keys.len())
                .filter(|&i| contains(keys.get(i), text))
                .collect()
        };
        match self {
            Self::All => (0..keys.len()).collect(),
            Self::Index(i) => (0..keys.len()).filter(|key| key == i).collect(),
            Self::Containing(text) => containing(text),
            Self::Nth(n, text) => containing(text).into_iter().skip(*n).take(1).collect(),
        }
    }
}

fn contains(key: &[u8], text: &[u8]) -> bool {
    text.is_empty() || key.windows(text.len()).any(|window| window == text)
}

/// What happens; see the table above.
#[derive(Clone)]
pub enum Action {
    /// As if the key were not there, or the put had happened.
    Lose,
    /// The key fails with this code.
    Fail(i32),
    /// The outcome list has the wrong length by this much.
    WrongLength(isize),
    /// Half of the bytes.
    Truncate,
    /// One wrong byte.
    Corrupt,
    /// The pool is full.
    NoSpace,
    /// As if the key were there.
    ClaimPresent,
    /// Runs before the call.
    Hook(Arc<dyn Fn() + Send + Sync>),
}

impl std::fmt::Debug for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lose => f.write_str("Lose"),
            Self::Fail(code) => write!(f, "Fail({code})"),
            Self::WrongLength(by) => write!(f, "WrongLength({by})"),
            Self::Truncate => f.write_str("Truncate"),
            Self::Corrupt => f.write_str("Corrupt"),
            Self::NoSpace => f.write_str("NoSpace"),
            Self::ClaimPresent => f.write_str("ClaimPresent"),
            Self::Hook(_) => f.write_str("Hook"),
        }
    }
}
