//! Which page is it? From tokens to the names of pages in the pool.
//!
//! The way through: a [`Scope`] (salt, adapter, media, lookahead) gives the [`seed()`]; a [`Chain`]
//! hashes tokens into one digest per block; a [`Template`] is a key without its digest, made once per
//! layer group and shard; [`Keys`] holds the finished keys side by side. Two [`Scheme`]s share all
//! of it: `trtllm` spells the keys that TensorRT-LLM's Python connector spells, `kvb1` is ours.
//!
//! Everything here is pure: no clock, no lock, nothing that differs between machines or processes.

mod arena;
mod chain;
mod digest;
mod identity;
mod kvb1;
mod scope;
mod template;
mod tokens;
mod trtllm;

#[cfg(test)]
mod cases;
#[cfg(test)]
mod promises;
#[cfg(test)]
mod properties;

pub use arena::Keys;
pub use chain::{Chain, extend_many, hash_blocks};
pub use digest::TokenDigest;
pub use identity::{Geometry, Naming, PageFormat, Shard, is_number_format, percent_escape};
pub use scope::{Scope, Seed, seed};
pub use template::{MAX_KEY_BYTES, Template};
pub use tokens::Tokens;

use crate::error::{Result, bail};

/// The longest block hash of any scheme, in bytes.
const MAX_HASH_LEN: usize = 32;

/// How blocks are hashed and pages are named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// Hashes and keys of TensorRT-LLM's Python connector: BLAKE2b, 16-byte digests.
    Trtllm,
    /// Our own scheme: keyed BLAKE3, 32-byte digests, every part of the identity length-framed.
    Kvb1,
}

impl Scheme {
    /// The names of all schemes.
    pub const NAMES: &'static [&'static str] = &["kvb1", "trtllm"];

    /// The page format where a configuration names none.
    pub const fn default_page_format(self) -> PageFormat {
        match self {
            Self::Kvb1 => PageFormat::Sealed,
            Self::Trtllm => PageFormat::Raw,
        }
    }

    /// The length of a block hash, in bytes.
    pub const fn hash_len(self) -> usize {
        match self {
            Self::Trtllm => trtllm::HASH_LEN,
            Self::Kvb1 => kvb1::HASH_LEN,
        }
    }

    /// How many bytes a token takes in the hashed text.
    const fn token_bytes(self) -> usize {
        match self {
            Self::Trtllm => trtllm::TOKEN_BYTES,
            Self::Kvb1 => kvb1::TOKEN_BYTES,
        }
    }

    /// The name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trtllm => "trtllm",
            Self::Kvb1 => "kvb1",
        }
    }

    /// The scheme of that [`name`](Self::name), exactly as spelled there.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Trtllm, Self::Kvb1]
            .into_iter()
            .find(|scheme| scheme.name() == name)
    }
}

/// Feeds `part` to `sink` behind its length (4 bytes, little-endian), so that the boundaries of
/// parts are part of what is hashed. Fails with `InvalidArgument` where the length does not fit.
fn frame(part: &[u8], mut sink: impl FnMut(&[u8])) -> Result<()> {
    let Ok(length) = u32::try_from(part.len()) else {
        bail!(
            InvalidArgument,
            "a part of an identity has {} bytes, more than 4 GiB",
            part.len()
        );
    };
    sink(&length.to_le_bytes());
    sink(part);
    Ok(())
}
