//! The caller's tokens, in the width it has them.

use std::ops::Range;

/// A borrowed list of token ids. Both widths mean the same tokens: equal values hash equally.
#[derive(Debug, Clone, Copy)]
pub enum Tokens<'a> {
    /// 32-bit ids.
    I32(&'a [i32]),
    /// 64-bit ids.
    I64(&'a [i64]),
}

impl<'a> Tokens<'a> {
    /// How many tokens there are.
    pub const fn len(&self) -> usize {
        match self {
            Self::I32(tokens) => tokens.len(),
            Self::I64(tokens) => tokens.len(),
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The token at `index`, or `None` behind the end.
    pub fn get(&self, index: usize) -> Option<i64> {
        match self {
            Self::I32(tokens) => tokens.get(index).copied().map(i64::from),
            Self::I64(tokens) => tokens.get(index).copied(),
        }
    }

    /// The tokens of `range`, or `None` where it is not within the list.
    pub fn slice(&self, range: Range<usize>) -> Option<Tokens<'a>> {
        match self {
            Self::I32(tokens) => tokens.get(range).map(Tokens::I32),
            Self::I64(tokens) => tokens.get(range).map(Tokens::I64),
        }
    }
}

/// Encodes as many tokens as `out` has room for.
pub(super) fn encode<E: Copy, const WIDTH: usize>(
    tokens: &[E],
    out: &mut [[u8; WIDTH]],
    bytes: impl Fn(E) -> [u8; WIDTH],
) {
    for (out, token) in out.iter_mut().zip(tokens) {
        *out = bytes(*token);
    }
}
