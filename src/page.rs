//! The seal of a stored page: a footer that ties a payload to its key, so that a page which is
//! torn, truncated, foreign or stale is recognised before any of its bytes reach the cache.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..4 | `"kvb1"` |
//! | 4..8 | version 1, little-endian |
//! | 8..16 | payload length, little-endian |
//! | 16..32 | first 16 bytes of the BLAKE3 digest of the key |
//! | 32..40 | CRC-64/NVME of the payload, little-endian |
//! | 40..48 | CRC-64/NVME of bytes 0..40, little-endian |
//!
//! The footer has a checksum of its own so that damage to the footer is never taken for damage to
//! the payload or for another page's seal.

use std::ops::Range;

/// Bytes that a seal adds behind a payload.
pub const FOOTER_BYTES: usize = 48;

const MAGIC: [u8; 4] = *b"kvb1";
const VERSION: u32 = 1;

const LENGTH: Range<usize> = 8..16;
const DIGEST: Range<usize> = 16..32;
const PAYLOAD_CRC: Range<usize> = 32..40;
const FOOTER_CRC: Range<usize> = 40..48;

/// What the check of a stored object found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The payload is what was sealed under this key.
    Intact,
    /// The object, or the payload that its footer speaks of, has another length than the page.
    WrongLength,
    /// The last bytes are no footer of this version, or a damaged one.
    NotASeal,
    /// A sound footer of another key.
    ForeignKey,
    /// The payload is not what was sealed.
    BadChecksum,
}

/// CRC-64/NVME of `bytes`.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::crc64_nvme(bytes)
}

/// The footer for `payload` stored under `key` (the key's bytes, without any terminator).
pub fn seal(key: &[u8], payload: &[u8]) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[..4].copy_from_slice(&MAGIC);
    footer[4..8].copy_from_slice(&VERSION.to_le_bytes());
    footer[LENGTH].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    footer[DIGEST].copy_from_slice(&key_digest(key));
    footer[PAYLOAD_CRC].copy_from_slice(&crc64(payload).to_le_bytes());
    let own = crc64(&footer[..FOOTER_CRC.start]);
    footer[FOOTER_CRC].copy_from_slice(&own.to_le_bytes());
    footer
}

/// Checks an `object` as it came from the pool (payload and footer) against the key it was asked
/// for and the payload length of its page. Reads the payload once, and only when all else fits.
pub fn verify(key: &[u8], object: &[u8], payload_len: usize) -> Verdict {
    if payload_len.checked_add(FOOTER_BYTES) != Some(object.len()) {
        return Verdict::WrongLength;
    }
    let (payload, footer) = object.split_at(payload_len);
    let sound = footer[..4] == MAGIC
        && footer[4..8] == VERSION.to_le_bytes()
        && footer[FOOTER_CRC] == crc64(&footer[..FOOTER_CRC.start]).to_le_bytes();
    if !sound {
        return Verdict::NotASeal;
    }
    if footer[LENGTH] != (payload_len as u64).to_le_bytes() {
        return Verdict::WrongLength;
    }
    if footer[DIGEST] != key_digest(key) {
        return Verdict::ForeignKey;
    }
    if footer[PAYLOAD_CRC] != crc64(payload).to_le_bytes() {
        return Verdict::BadChecksum;
    }
    Verdict::Intact
}

fn key_digest(key: &[u8]) -> [u8; 16] {
    let mut first = [0; 16];
    first.copy_from_slice(&blake3::hash(key).as_bytes()[..16]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealed(key: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut object = payload.to_vec();
        object.extend_from_slice(&seal(key, payload));
        object
    }

    #[test]
    fn each_fault_has_its_verdict() {
        let object = sealed(b"key", b"payload");
        assert_eq!(verify(b"key", &object, 7), Verdict::Intact);
        assert_eq!(verify(b"kez", &object, 7), Verdict::ForeignKey);
        assert_eq!(verify(b"key", &object[..54], 7), Verdict::WrongLength);
        assert_eq!(verify(b"key", &object, usize::MAX), Verdict::WrongLength);
        assert_eq!(verify(b"key", &[], 0), Verdict::WrongLength);

        let mut torn = object.clone();
        torn[3] ^= 1;
        assert_eq!(verify(b"key", &torn, 7), Verdict::BadChecksum);
        let mut damaged = object.clone();
        damaged[7 + 33] ^= 1;
        assert_eq!(verify(b"key", &damaged, 7), Verdict::NotASeal);
        assert_eq!(verify(b"key", &[0; 55], 7), Verdict::NotASeal);
    }

    /// A whole object that is longer than its page's, cut so that a sound footer stays at the end.
    #[test]
    fn a_footer_that_speaks_of_another_length_is_refused() {
        let object = sealed(b"key", b"longer payload");
        let tail = &object[object.len() - (7 + FOOTER_BYTES)..];
        assert_eq!(verify(b"key", tail, 7), Verdict::WrongLength);
    }

    #[test]
    fn a_later_version_is_no_seal_of_ours() {
        let mut object = sealed(b"key", b"payload");
        object[7 + 4] = 2;
        let own = crc64(&object[7..7 + 40]).to_le_bytes();
        object[7 + 40..].copy_from_slice(&own);
        assert_eq!(verify(b"key", &object, 7), Verdict::NotASeal);
    }

    proptest! {
        #[test]
        fn no_single_bit_flip_truncation_or_other_key_is_intact(
            key in proptest::collection::vec(any::<u8>(), 1..80),
            payload in proptest::collection::vec(any::<u8>(), 0..300),
            at in any::<proptest::sample::Index>(),
        ) {
            let object = sealed(&key, &payload);
            let len = payload.len();
            prop_assert_eq!(verify(&key, &object, len), Verdict::Intact);

            let bit = at.index(object.len() * 8);
            let mut flipped = object.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(verify(&key, &flipped, len), Verdict::Intact);

            let cut = at.index(object.len());
            prop_assert_ne!(verify(&key, &object[..cut], len), Verdict::Intact);
            if let Some(shorter) = cut.checked_sub(FOOTER_BYTES) {
                prop_assert_ne!(verify(&key, &object[..cut], shorter), Verdict::Intact);
            }

            let bit = at.index(key.len() * 8);
            let mut other = key.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(verify(&other, &object, len), Verdict::ForeignKey);
        }
    }
}
