//! Hashing of the scheme `kvb1`: keyed BLAKE3 with 32-byte digests, tokens as 4-byte integers.

use super::{Scope, Tokens, frame};
use crate::error::{Result, bail};

pub(super) const HASH_LEN: usize = 32;
pub(super) const TOKEN_BYTES: usize = 4;

/// The hash of a block: `text` is its parent (the key) followed by its tokens.
///
/// Up to 1,024 bytes of tokens are a single BLAKE3 chunk: no tree, no more state than the stack's.
pub(super) fn block(text: &[u8]) -> [u8; HASH_LEN] {
    let (key, tokens) = text.split_first_chunk().unwrap_or((&[0; HASH_LEN], text));
    *blake3::keyed_hash(key, tokens).as_bytes()
}

/// Refuses tokens that do not fit the scheme's 4 bytes.
pub(super) fn check(tokens: Tokens<'_>) -> Result<()> {
    let Tokens::I64(tokens) = tokens else {
        return Ok(());
    };
    let outside = |token: &i64| i64::from(*token as i32) != *token;
    // Without an early exit the scan runs many tokens at a time; the position is for the message.
    if !tokens.iter().fold(false, |any, token| any | outside(token)) {
        return Ok(());
    }
    let index = tokens.iter().position(outside).unwrap_or_default();
    bail!(
        InvalidArgument,
        "token {} at position {index} does not fit int32, which the key scheme kvb1 needs",
        tokens.get(index).copied().unwrap_or_default()
    );
}

pub(super) fn seed(scope: &Scope<'_>) -> Result<[u8; HASH_LEN]> {
    let mut hasher = blake3::Hasher::new_derive_key("kvbridge 1 scope");
    let mut sink = |bytes: &[u8]| {
        hasher.update(bytes);
    };
    let task = scope.lora_task_id.map(i64::to_le_bytes);
    let adapter = scope
        .lora_identity
        .or(task.as_ref().map(|bytes| &bytes[..]));
    for part in [scope.cache_salt, adapter] {
        frame(&[u8::from(part.is_some())], &mut sink)?;
        frame(part.unwrap_or_default(), &mut sink)?;
    }
    frame(&i64::from(scope.lookahead).to_le_bytes(), &mut sink)?;
    for media in scope.media_digests {
        frame(media, &mut sink)?;
    }
    Ok(*hasher.finalize().as_bytes())
}
