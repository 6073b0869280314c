//! Finished keys side by side in one piece of memory.

use super::{MAX_HASH_LEN, Template};
use crate::error::{Result, bail};

/// How many blocks' hashes turn into hex at a time, at most.
const BATCH_BLOCKS: usize = 16;
/// Records are copied about so many bytes at a time: long enough for memcpy to run, short enough
/// that the hex is patched in while the bytes are in the first cache.
const BATCH_BYTES: usize = 4096;

/// A list of keys, one behind the other, each followed by one NUL, so that stores with a C interface
/// get them without a copy. Cleared and refilled, it keeps its memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    bytes: Vec<u8>,
    /// Where each key ends in `bytes`: the position of its NUL.
    ends: Vec<usize>,
}

impl Keys {
    /// An empty list without memory.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops all keys and keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Key `index` without its NUL; empty behind the last key.
    pub fn get(&self, index: usize) -> &[u8] {
        self.with_nul(index)
            .split_last()
            .map_or(&[], |(_, key)| key)
    }

    /// Key `index` with its NUL; empty, even without a NUL, behind the last key.
    pub fn with_nul(&self, index: usize) -> &[u8] {
        let Some(&end) = self.ends.get(index) else {
            return &[];
        };
        self.bytes.get(self.start(index)..=end).unwrap_or_default()
    }

    /// The keys in order, without their NULs.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// Appends a key. Where it contains a NUL itself, readers of C strings see its front only.
    pub fn push(&mut self, key: &[u8]) {
        self.bytes.extend_from_slice(key);
        self.end_key();
    }

    /// Appends the key that `template` and `hash` make.
    ///
    /// Fails with `InvalidArgument` when the hash has another length than the template's scheme.
    pub fn push_key(&mut self, template: &Template, hash: &[u8]) -> Result<()> {
        if hash.len() != template.hash_len() {
            bail!(
                InvalidArgument,
                "a hash of {} bytes in a key that takes {}",
                hash.len(),
                template.hash_len()
            );
        }
        self.fill(std::slice::from_ref(template), hash)
    }

    /// Appends, for each hash in `hashes`, one key per template in the templates' order.
    ///
    /// Fails with `InvalidArgument`, and appends nothing, when the templates are of different
    /// schemes or `hashes` is not a whole number of their hashes.
    pub fn fill(&mut self, templates: &[Template], hashes: &[u8]) -> Result<()> {
        let Some(first) = templates.first() else {
            return Ok(());
        };
        if templates
            .iter()
            .any(|template| template.hash_len() != first.hash_len())
        {
            bail!(InvalidArgument, "templates of different key schemes");
        }
        if !hashes.len().is_multiple_of(first.hash_len()) {
            bail!(
                InvalidArgument,
                "{} bytes are not a whole number of hashes of {} bytes",
                hashes.len(),
                first.hash_len()
            );
        }
        let record: usize = templates
            .iter()
            .map(|template| template.key_len() + 1)
            .sum();
        let blocks = hashes.len() / first.hash_len();
        let (bytes, ends) = (
            record.saturating_mul(blocks),
            templates.len().saturating_mul(blocks),
        );
        if self.bytes.try_reserve(bytes).is_err() || self.ends.try_reserve(ends).is_err() {
            bail!(NoMemory, "{bytes} bytes for the keys of {blocks} blocks");
        }
        // The length of the hex as a constant: patching it in is then two or four moves.
        match first.hash_len() {
            16 => self.fill_records::<16, 32>(templates, hashes),
            _ => self.fill_records::<32, 64>(templates, hashes),
        }
        Ok(())
    }

    fn fill_records<const HASH: usize, const HEX: usize>(
        &mut self,
        templates: &[Template],
        hashes: &[u8],
    ) {
        let (hashes, _) = hashes.as_chunks::<HASH>();
        let record: usize = templates
            .iter()
            .map(|template| template.key_len() + 1)
            .sum();
        let batch = (BATCH_BYTES / record).clamp(1, BATCH_BLOCKS);
        // The first batch is spelled out and is the pattern that the others are copied from.
        let (bytes, ends) = (self.bytes.len(), self.ends.len());
        let mut hex = [0; BATCH_BLOCKS * 2 * MAX_HASH_LEN];
        for (index, hashes) in hashes.chunks(batch).enumerate() {
            let first = self.ends.len();
            if index == 0 {
                for template in templates {
                    self.bytes.extend_from_slice(template.prefix());
                    self.bytes.resize(self.bytes.len() + HEX, b'0');
                    self.end_key();
                }
                for block in 1..hashes.len() {
                    self.repeat(bytes, record, ends, templates.len(), block * record);
                }
            } else {
                self.repeat(
                    bytes,
                    record * hashes.len(),
                    ends,
                    templates.len() * hashes.len(),
                    index * batch * record,
                );
            }
            // The buffer holds the hex of a whole batch, so this cannot fail.
            let _ = faster_hex::hex_encode(hashes.as_flattened(), &mut hex);
            let records = self.ends[first..].chunks_exact(templates.len());
            for (ends, hex) in records.zip(hex.as_chunks::<HEX>().0) {
                for end in ends {
                    self.bytes[end - HEX..*end].copy_from_slice(hex);
                }
            }
        }
    }

    /// Appends a copy of the `count` bytes at `bytes` and of their `keys` keys from number `ends`
    /// on; the copy lies `distance` bytes behind the original.
    fn repeat(&mut self, bytes: usize, count: usize, ends: usize, keys: usize, distance: usize) {
        self.bytes.extend_from_within(bytes..bytes + count);
        let first = self.ends.len();
        self.ends.extend_from_within(ends..ends + keys);
        for end in &mut self.ends[first..] {
            *end += distance;
        }
    }

    /// Appends all keys of another list.
    pub fn extend(&mut self, other: &Keys) {
        let base = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| base + end));
    }

    /// Keeps the keys whose index `keep` says yes to, in order; asked once per key, in order.
    pub fn retain(&mut self, mut keep: impl FnMut(usize) -> bool) {
        let (mut kept, mut length, mut start) = (0, 0, 0);
        for index in 0..self.ends.len() {
            let end = self.ends[index];
            if keep(index) {
                if length != start {
                    self.bytes.copy_within(start..=end, length);
                }
                length += end + 1 - start;
                self.ends[kept] = length - 1;
                kept += 1;
            }
            start = end + 1;
        }
        self.bytes.truncate(length);
        self.ends.truncate(kept);
    }

    fn start(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before).map_or(0, |end| end + 1),
        }
    }

    fn end_key(&mut self) {
        self.ends.push(self.bytes.len());
        self.bytes.push(0);
    }
}
