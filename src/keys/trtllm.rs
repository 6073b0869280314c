//! Hashing of the scheme `trtllm`: BLAKE2b with 16-byte digests, tokens as 8-byte integers.

use super::{Scope, frame};
use crate::error::{Result, bail};
use blake2b_simd::Params;

pub(super) const HASH_LEN: usize = 16;
pub(super) const TOKEN_BYTES: usize = 8;

/// BLAKE2b parameters for a block hash; made once per run of blocks.
pub(super) fn params() -> Params {
    let mut params = Params::new();
    params.hash_length(HASH_LEN);
    params
}

/// The hash of a block: `text` is its parent followed by its tokens.
pub(super) fn block(params: &Params, text: &[u8]) -> [u8; HASH_LEN] {
    digest(&params.hash(text))
}

/// The digest's bytes: as many as [`params`] asks for.
pub(super) fn digest(hash: &blake2b_simd::Hash) -> [u8; HASH_LEN] {
    let mut bytes = [0; HASH_LEN];
    bytes.copy_from_slice(hash.as_bytes());
    bytes
}

pub(super) fn seed(scope: &Scope<'_>) -> Result<[u8; HASH_LEN]> {
    if scope.lora_identity.is_some() && scope.lora_task_id.is_none() {
        bail!(
            InvalidArgument,
            "lora_identity without lora_task_id: the key scheme trtllm names an adapter by its task id"
        );
    }
    let params = params();
    let mut state = params.to_state();
    let mut sink = |bytes: &[u8]| {
        state.update(bytes);
    };
    let task = scope.lora_task_id.map(i64::to_le_bytes);
    frame(scope.cache_salt.unwrap_or_default(), &mut sink)?;
    frame(task.as_ref().map_or(&[][..], |bytes| &bytes[..]), &mut sink)?;
    for media in scope.media_digests {
        frame(media, &mut sink)?;
    }
    let seed = digest(&state.finalize());
    if scope.lookahead == 0 {
        return Ok(seed);
    }
    // A second round instead of one more part: without lookahead the peer's bytes must not change.
    let mut state = params.to_state();
    state.update(&seed);
    state.update(b"prompt-lookahead");
    state.update(&i64::from(scope.lookahead).to_le_bytes());
    Ok(digest(&state.finalize()))
}
