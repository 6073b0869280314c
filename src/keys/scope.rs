//! What else than its tokens decides what a block's KV is: the seed of a request's chain.

use super::{MAX_HASH_LEN, Scheme, kvb1, trtllm};
use crate::error::Result;

/// Everything that separates requests with equal tokens. Requests share pages only within a scope.
#[derive(Debug, Clone, Copy, Default)]
pub struct Scope<'a> {
    /// The salt that keeps tenants apart. With `trtllm` an empty salt is no salt.
    pub cache_salt: Option<&'a [u8]>,
    /// The adapter, as bytes the engine chooses (a digest, a name). `kvb1` prefers it to the task id.
    pub lora_identity: Option<&'a [u8]>,
    /// The adapter's task id. `trtllm` knows adapters by nothing else.
    pub lora_task_id: Option<i64>,
    /// The digests of all media items, in prompt order, duplicates kept.
    pub media_digests: &'a [[u8; 32]],
    /// How many tokens behind a block its KV depends on; 0 without one-model speculation.
    pub lookahead: u32,
}

/// The parent of a request's first block. It remembers the scheme and the lookahead it was made
/// for, so that a chain cannot be started under the wrong ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed {
    bytes: [u8; MAX_HASH_LEN],
    scheme: Scheme,
    lookahead: u32,
}

impl Seed {
    /// The seed's bytes, as many as a block hash of its scheme has.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.scheme.hash_len()]
    }

    /// The scheme it was made for.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The lookahead it was made for, in tokens.
    pub fn lookahead(&self) -> u32 {
        self.lookahead
    }
}

/// The seed of `scope` under `scheme`.
///
/// Fails with `InvalidArgument` when `trtllm` gets an adapter's byte identity without its task id,
/// or when a part is longer than 4 GiB.
pub fn seed(scheme: Scheme, scope: &Scope<'_>) -> Result<Seed> {
    let mut bytes = [0; MAX_HASH_LEN];
    match scheme {
        Scheme::Trtllm => bytes[..trtllm::HASH_LEN].copy_from_slice(&trtllm::seed(scope)?),
        Scheme::Kvb1 => bytes = kvb1::seed(scope)?,
    }
    Ok(Seed {
        bytes,
        scheme,
        lookahead: scope.lookahead,
    })
}
