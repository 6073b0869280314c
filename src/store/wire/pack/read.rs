//! Bytes to values. Whatever the bytes are, reading ends, takes no memory beyond a small multiple of
//! theirs, and panics nowhere.

use std::fmt;

use super::literal::{Literal, code};
use super::{Answer, Text, Uuid};
use crate::store::wire::family::Family;

/// Why bytes are no message of a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flaw {
    /// They are of another type.
    Type {
        /// The code that they begin with.
        found: u32,
        /// The code of the type that was expected.
        wanted: u32,
    },
    /// They end in the middle of a value.
    Short,
    /// Bytes are left behind the value.
    Long,
    /// A flag is neither 0 nor 1, or an alternative has a number that there is not.
    Choice,
    /// A list or text is longer than the bytes that are left.
    Length,
    /// The message's own length is another.
    Total,
}

impl fmt::Display for Flaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Type { found, wanted } => {
                write!(f, "type code {found:08x} instead of {wanted:08x}")
            }
            Self::Short => f.write_str("it ends in the middle of a value"),
            Self::Long => f.write_str("bytes are left behind the value"),
            Self::Choice => f.write_str("a flag or an alternative has an impossible number"),
            Self::Length => f.write_str("a length reaches beyond the message"),
            Self::Total => f.write_str("its length is not the one that it says"),
        }
    }
}

/// What is left of a message.
#[derive(Debug)]
pub struct Reader<'m> {
    rest: &'m [u8],
    family: Family,
    width: usize,
}

impl<'m> Reader<'m> {
    /// Whose layout is read.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'m [u8], Flaw> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Flaw::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    /// The next bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Flaw> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Flaw::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Flaw> {
        self.array().map(|[byte]| byte)
    }

    fn flag(&mut self) -> Result<bool, Flaw> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Flaw::Choice),
        }
    }

    fn number(&mut self, width: usize) -> Result<u64, Flaw> {
        let mut bytes = [0; 8];
        let taken = self.take(width)?;
        bytes
            .get_mut(..width)
            .ok_or(Flaw::Short)?
            .copy_from_slice(taken);
        Ok(u64::from_le_bytes(bytes))
    }

    /// A length, of things of at least one byte each.
    fn length(&mut self) -> Result<usize, Flaw> {
        let length = usize::try_from(self.number(self.width)?).map_err(|_| Flaw::Length)?;
        match length <= self.rest.len() {
            true => Ok(length),
            false => Err(Flaw::Length),
        }
    }
}

/// A type that can be read; it may borrow from the message. Each value but `()` takes at least one byte.
pub trait Unpack<'m>: Literal + Sized {
    /// Reads one value.
    fn read(from: &mut Reader<'m>) -> Result<Self, Flaw>;
}

/// Reads a message that is one value.
pub fn unpack<'m, T: Unpack<'m>>(message: &'m [u8], family: Family) -> Result<T, Flaw> {
    let mut from = Reader {
        rest: message,
        family,
        width: 1,
    };
    let head = u32::from_le_bytes(from.array()?);
    let (found, wanted) = (head & !1, code::<T>(family));
    if found != wanted {
        return Err(Flaw::Type { found, wanted });
    }
    let mut has_more = false;
    if head & 1 != 0 {
        let about = from.byte()?;
        from.width = 1 << ((about >> 3) & 3);
        // With fields that were added later ("compatible"), the message says its length, and they stand
        // behind everything else, where an older side does not look.
        let total = match about & 3 {
            0 => None,
            1 => Some(from.number(2)?),
            2 => Some(from.number(4)?),
            _ => Some(from.number(8)?),
        };
        has_more = total.is_some();
        if total.is_some_and(|total| total != message.len() as u64) {
            return Err(Flaw::Total);
        }
        // Builds with assertions send the literal as well.
        if about & 4 != 0 {
            while from.byte()? != 0 {}
        }
    }
    let value = T::read(&mut from)?;
    match from.rest.is_empty() || has_more {
        true => Ok(value),
        false => Err(Flaw::Long),
    }
}

macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl Unpack<'_> for $type {
            fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
                from.array().map(Self::from_le_bytes)
            }
        })+
    };
}

numbers!(i32, u32, i64, u64, u8);

impl Unpack<'_> for bool {
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        from.flag()
    }
}

impl Unpack<'_> for () {
    fn read(_: &mut Reader<'_>) -> Result<Self, Flaw> {
        Ok(())
    }
}

impl Unpack<'_> for Uuid {
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        Ok(Self(u64::read(from)?, u64::read(from)?))
    }
}

impl<'m> Unpack<'m> for Text<'m> {
    fn read(from: &mut Reader<'m>) -> Result<Self, Flaw> {
        let length = from.length()?;
        from.take(length).map(Self)
    }
}

impl<'m, T: Unpack<'m>> Unpack<'m> for Vec<T> {
    fn read(from: &mut Reader<'m>) -> Result<Self, Flaw> {
        // Grows as values are found: a length is only a claim.
        (0..from.length()?).map(|_| T::read(from)).collect()
    }
}

impl<'m, T: Unpack<'m>> Unpack<'m> for Option<T> {
    fn read(from: &mut Reader<'m>) -> Result<Self, Flaw> {
        match from.flag()? {
            true => T::read(from).map(Some),
            false => Ok(None),
        }
    }
}

impl<'m, T: Unpack<'m>> Unpack<'m> for Answer<T> {
    fn read(from: &mut Reader<'m>) -> Result<Self, Flaw> {
        match from.flag()? {
            true => T::read(from).map(Ok),
            false => i32::read(from).map(Err),
        }
    }
}
