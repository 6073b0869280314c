//! A fingerprint of a request's tokens, to tell whether a later report repeats an earlier one.

use super::Tokens;
use super::tokens::encode;
use crc_fast::{CrcAlgorithm, Digest};

/// How many tokens are encoded before the checksum runs over them.
const BATCH: usize = 256;
const TOKEN_BYTES: usize = 8;

/// A running CRC-64/NVME over tokens in 8-byte little-endian, closed with their number. Steps and
/// element width do not matter: the same tokens in the same order give the same value.
///
/// It tells an engine's honest contradiction from a repetition; it is no defence against tokens
/// chosen to collide, and nothing is ever named by it.
// Only the state is kept: the crate's own digest carries 200 bytes of tables along.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenDigest {
    state: u64,
    count: u64,
}

impl TokenDigest {
    /// The digest of no tokens.
    pub fn new() -> Self {
        Self {
            state: Digest::new(CrcAlgorithm::Crc64Nvme).get_state(),
            count: 0,
        }
    }

    /// Appends tokens.
    pub fn extend(&mut self, tokens: Tokens<'_>) {
        match tokens {
            Tokens::I32(tokens) => self.run(tokens, |token| i64::from(token).to_le_bytes()),
            Tokens::I64(tokens) => self.run(tokens, i64::to_le_bytes),
        }
    }

    /// How many tokens went in.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The digest of the tokens so far and of their number.
    pub fn value(&self) -> u64 {
        let mut digest = self.resume();
        digest.update(&self.count.to_le_bytes());
        digest.finalize()
    }

    fn resume(&self) -> Digest {
        Digest::new_with_init_state(CrcAlgorithm::Crc64Nvme, self.state)
    }

    fn run<E: Copy>(&mut self, tokens: &[E], bytes: impl Fn(E) -> [u8; TOKEN_BYTES]) {
        let mut digest = self.resume();
        let mut buffer = [[0; TOKEN_BYTES]; BATCH];
        for batch in tokens.chunks(BATCH) {
            encode(batch, &mut buffer, &bytes);
            digest.update(buffer[..batch.len()].as_flattened());
        }
        self.state = digest.get_state();
        self.count += tokens.len() as u64;
    }
}

impl Default for TokenDigest {
    fn default() -> Self {
        Self::new()
    }
}
