//! Type literals: each type as bytes, and the code that is made of them.

use super::{Answer, Text, Uuid};
use crate::store::wire::family::Family;

/// The marks of struct_pack's types, as far as Mooncake's calls need them.
pub(in crate::store::wire) mod mark {
    pub const I32: u8 = 1;
    pub const U32: u8 = 2;
    pub const I64: u8 = 3;
    pub const U64: u8 = 4;
    pub const U8: u8 = 6;
    pub const BOOL: u8 = 11;
    pub const CHAR: u8 = 12;
    pub const STRING: u8 = 128;
    pub const LIST: u8 = 132;
    pub const OPTIONAL: u8 = 133;
    pub const VARIANT: u8 = 134;
    pub const EXPECTED: u8 = 135;
    pub const NOTHING: u8 = 250;
    pub const STRUCT: u8 = 253;
    pub const END: u8 = 255;
}

/// An alignment of 8 in a literal: numbers below 127 are one byte, with 129 added.
const ALIGNED_8: u8 = 8 + 129;

/// A type that has a literal, which may depend on the master's version.
pub trait Literal {
    /// Appends the literal.
    fn literal(family: Family, out: &mut Vec<u8>);
}

/// The code of a type: 32 bits of its literal's MD5 with the lowest one cleared, which says whether
/// metadata follows.
pub fn code<T: Literal + ?Sized>(family: Family) -> u32 {
    let mut literal = Vec::with_capacity(128);
    T::literal(family, &mut literal);
    code_of(&literal)
}

/// [`code`] of a finished literal.
pub(super) fn code_of(literal: &[u8]) -> u32 {
    let [a, b, c, d, ..] = md5::compute(literal).0;
    u32::from_be_bytes([a, b, c, d]) & !1
}

macro_rules! marks {
    ($($type:ty = $mark:expr;)+) => {
        $(impl Literal for $type {
            fn literal(_: Family, out: &mut Vec<u8>) {
                out.extend_from_slice(&$mark);
            }
        })+
    };
}

marks! {
    i32 = [mark::I32];
    u32 = [mark::U32];
    i64 = [mark::I64];
    u64 = [mark::U64];
    u8 = [mark::U8];
    bool = [mark::BOOL];
    () = [mark::NOTHING];
    Text<'_> = [mark::STRING, mark::CHAR];
    // A pair is copied as it lies in memory, so that its size and alignment belong to it.
    Uuid = [mark::STRUCT, mark::U64, mark::U64, ALIGNED_8, ALIGNED_8, mark::END];
}

impl<T: Literal> Literal for [T] {
    fn literal(family: Family, out: &mut Vec<u8>) {
        out.push(mark::LIST);
        T::literal(family, out);
    }
}

impl<T: Literal> Literal for Vec<T> {
    fn literal(family: Family, out: &mut Vec<u8>) {
        <[T]>::literal(family, out);
    }
}

impl<T: Literal + ?Sized> Literal for &T {
    fn literal(family: Family, out: &mut Vec<u8>) {
        T::literal(family, out);
    }
}

impl<T: Literal> Literal for Option<T> {
    fn literal(family: Family, out: &mut Vec<u8>) {
        out.push(mark::OPTIONAL);
        T::literal(family, out);
    }
}

impl<T: Literal> Literal for Answer<T> {
    fn literal(family: Family, out: &mut Vec<u8>) {
        out.push(mark::EXPECTED);
        T::literal(family, out);
        i32::literal(family, out);
    }
}
