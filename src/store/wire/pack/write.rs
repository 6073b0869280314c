//! Values to bytes.

use super::literal::{Literal, code};
use super::{Answer, Text, Uuid};
use crate::store::wire::family::Family;

/// The bytes of a message as it grows.
#[derive(Debug)]
pub struct Writer<'o> {
    out: &'o mut Vec<u8>,
    family: Family,
    /// Bytes of each length.
    width: usize,
}

impl Writer<'_> {
    /// Whose layout is written.
    pub fn family(&self) -> Family {
        self.family
    }

    /// Appends plain bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends a length.
    pub fn length(&mut self, length: usize) {
        let bytes = (length as u64).to_le_bytes();
        self.bytes(bytes.get(..self.width).unwrap_or(&bytes));
    }
}

/// A type that can be written.
pub trait Pack: Literal {
    /// The longest of all lengths inside, which decides how many bytes each of them takes.
    fn longest(&self, family: Family) -> usize;

    /// Appends the value.
    fn write(&self, to: &mut Writer<'_>);
}

/// Appends a value as a message of its own.
pub fn pack<T: Pack>(value: &T, family: Family, out: &mut Vec<u8>) {
    let code = code::<T>(family);
    with_head(code, value.longest(family), family, out, |to| {
        value.write(to);
    });
}

/// Appends the head of a message whose longest length is `longest`, and what `body` writes.
pub(super) fn with_head(
    code: u32,
    longest: usize,
    family: Family,
    out: &mut Vec<u8>,
    body: impl FnOnce(&mut Writer<'_>),
) {
    let exponent = match longest {
        0..=0xFF => 0_u8,
        0x100..=0xFFFF => 1,
        0x1_0000..=0xFFFF_FFFF => 2,
        _ => 3,
    };
    // The lowest bit announces the metadata, whose third and fourth bit are the width of lengths.
    out.extend_from_slice(&(code | u32::from(exponent != 0)).to_le_bytes());
    if exponent != 0 {
        out.push(exponent << 3);
    }
    body(&mut Writer {
        out,
        family,
        width: 1 << exponent,
    });
}

macro_rules! numbers {
    ($($type:ty),+) => {
        $(impl Pack for $type {
            fn longest(&self, _: Family) -> usize {
                0
            }

            fn write(&self, to: &mut Writer<'_>) {
                to.bytes(&self.to_le_bytes());
            }
        })+
    };
}

numbers!(i32, u32, i64, u64, u8);

impl Pack for bool {
    fn longest(&self, _: Family) -> usize {
        0
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.bytes(&[u8::from(*self)]);
    }
}

impl Pack for () {
    fn longest(&self, _: Family) -> usize {
        0
    }

    fn write(&self, _: &mut Writer<'_>) {}
}

impl Pack for Uuid {
    fn longest(&self, _: Family) -> usize {
        0
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.0.write(to);
        self.1.write(to);
    }
}

impl Pack for Text<'_> {
    fn longest(&self, _: Family) -> usize {
        self.0.len()
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.length(self.0.len());
        to.bytes(self.0);
    }
}

impl<T: Pack> Pack for [T] {
    fn longest(&self, family: Family) -> usize {
        let inside = self.iter().map(|item| item.longest(family)).max();
        inside.unwrap_or(0).max(self.len())
    }

    fn write(&self, to: &mut Writer<'_>) {
        to.length(self.len());
        for item in self {
            item.write(to);
        }
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn longest(&self, family: Family) -> usize {
        self.as_slice().longest(family)
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.as_slice().write(to);
    }
}

impl<T: Pack + ?Sized> Pack for &T {
    fn longest(&self, family: Family) -> usize {
        (**self).longest(family)
    }

    fn write(&self, to: &mut Writer<'_>) {
        (**self).write(to);
    }
}

impl<T: Pack> Pack for Option<T> {
    fn longest(&self, family: Family) -> usize {
        self.as_ref().map_or(0, |value| value.longest(family))
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.is_some().write(to);
        if let Some(value) = self {
            value.write(to);
        }
    }
}

impl<T: Pack> Pack for Answer<T> {
    fn longest(&self, family: Family) -> usize {
        self.as_ref().map_or(0, |value| value.longest(family))
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.is_ok().write(to);
        match self {
            Ok(value) => value.write(to),
            Err(number) => number.write(to),
        }
    }
}
