//! What the scheduler hands the workers for one pass: plain, versioned data that every rank of the
//! same build can decode. It holds no address and nothing that belongs to one rank.
//!
//! Encoding (all integers little-endian): `"kvbm"`, version, then the fields in the order of
//! [`Metadata`], each list behind its `u32` count, and a CRC-64/NVME over all of it at the end, so
//! that a damaged broadcast is an error and never a wrong page.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::error::{Result, bail};
use crate::page::crc64;

const MAGIC: [u8; 4] = *b"kvbm";
const VERSION: u32 = 1;
const TRAILER: usize = 8;
/// Encoded size of a [`Run`].
const RUN_BYTES: usize = 8 + 8 + 4 + 4 + 32;

/// Consecutive blocks of one request that are loaded or saved together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The engine's id of the request.
    pub request_id: u64,
    /// The library's number for this life of the id; what belongs to an older one is dropped.
    pub generation: u64,
    /// Ordinal of the first block in the request.
    pub first_block: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Hash before the first block: the previous block's, or the seed. Behind the hash length: zero.
    pub parent: [u8; 32],
}

/// One direction's transfers: runs, and for all their blocks in order the hash and the pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfers {
    runs: Vec<Run>,
    hashes: Vec<u8>,
    pages: Vec<i32>,
}

/// A run with its blocks' hashes and pages.
#[derive(Debug, Clone, Copy)]
pub struct RunView<'a> {
    /// The run.
    pub run: &'a Run,
    /// `run.blocks` hashes side by side.
    pub hashes: &'a [u8],
    /// Per block one page index per layer group, in the metadata's order of groups.
    pub pages: &'a [i32],
}

impl Transfers {
    /// Begins a run; [`Transfers::push_block`] adds its blocks.
    pub fn begin_run(&mut self, request_id: u64, generation: u64, first_block: u32, parent: &[u8]) {
        let mut padded = [0; 32];
        for (to, from) in padded.iter_mut().zip(parent) {
            *to = *from;
        }
        self.runs.push(Run {
            request_id,
            generation,
            first_block,
            blocks: 0,
            parent: padded,
        });
    }

    /// Adds a block to the run begun last: its hash and its page in each layer group.
    pub fn push_block(&mut self, hash: &[u8], pages: impl Iterator<Item = i32>) {
        if let Some(run) = self.runs.last_mut() {
            run.blocks += 1;
            self.hashes.extend_from_slice(hash);
            self.pages.extend(pages);
        }
    }

    /// The runs without their blocks.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Number of blocks over all runs.
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.blocks)).sum()
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.hashes.clear();
        self.pages.clear();
    }
}

/// One pass's transfers.
#[derive(Debug, Default)]
pub struct Metadata {
    pass: u64,
    source: u64,
    fingerprint: [u8; 16],
    hash_bytes: u32,
    groups: Vec<u32>,
    loads: Transfers,
    saves: Transfers,
    home: Weak<Recycler>,
}

/// Keeps the lists of dropped metadata for the next pass, so that building one allocates nothing
/// in steady state.
#[derive(Debug, Default)]
pub struct Recycler {
    source: u64,
    spares: Mutex<Vec<(Vec<u32>, Transfers, Transfers)>>,
}

/// Metadata in flight at once in a normal engine; lists beyond this are freed.
const SPARES: usize = 4;

impl Recycler {
    /// Makes metadata of this source: the scheduler's own number.
    pub fn new(source: u64) -> Self {
        Self {
            source,
            spares: Mutex::default(),
        }
    }

    /// An empty metadata whose lists come from an earlier one where there is one.
    pub fn metadata(
        self: &Arc<Self>,
        pass: u64,
        fingerprint: [u8; 16],
        hash_bytes: u32,
    ) -> Metadata {
        let (groups, loads, saves) = self.spares.lock().pop().unwrap_or_default();
        Metadata {
            pass,
            source: self.source,
            fingerprint,
            hash_bytes,
            groups,
            loads,
            saves,
            home: Arc::downgrade(self),
        }
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else {
            return;
        };
        self.groups.clear();
        self.loads.clear();
        self.saves.clear();
        let mut spares = home.spares.lock();
        if spares.len() < SPARES {
            spares.push((
                std::mem::take(&mut self.groups),
                std::mem::take(&mut self.loads),
                std::mem::take(&mut self.saves),
            ));
        }
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.pass == other.pass
            && self.source == other.source
            && self.fingerprint == other.fingerprint
            && self.hash_bytes == other.hash_bytes
            && self.groups == other.groups
            && self.loads == other.loads
            && self.saves == other.saves
    }
}

impl Metadata {
    /// Number of the pass, rising per scheduler.
    pub fn pass(&self) -> u64 {
        self.pass
    }

    /// Which scheduler built it.
    pub fn source(&self) -> u64 {
        self.source
    }

    /// Digest of the settings that scheduler and worker must share.
    pub fn fingerprint(&self) -> &[u8; 16] {
        &self.fingerprint
    }

    /// The layer group ids, in the order of each block's page indices.
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Names the layer groups; only before blocks are added.
    pub fn set_groups(&mut self, groups: impl Iterator<Item = u32>) {
        self.groups.clear();
        self.groups.extend(groups);
    }

    /// Pages to load before the forward pass.
    pub fn loads(&self) -> &Transfers {
        &self.loads
    }

    /// The loads, for the scheduler that fills them in.
    pub fn loads_mut(&mut self) -> &mut Transfers {
        &mut self.loads
    }

    /// Pages to publish after the forward pass.
    pub fn saves(&self) -> &Transfers {
        &self.saves
    }

    /// The saves, for the scheduler that fills them in.
    pub fn saves_mut(&mut self) -> &mut Transfers {
        &mut self.saves
    }

    /// The runs of `transfers`, which is [`Metadata::loads`] or [`Metadata::saves`] of this metadata.
    pub fn views<'a>(&'a self, transfers: &'a Transfers) -> impl Iterator<Item = RunView<'a>> {
        let (mut hashes, mut pages) = (&transfers.hashes[..], &transfers.pages[..]);
        let (hash_bytes, groups) = (self.hash_bytes as usize, self.groups.len());
        transfers.runs.iter().map(move |run| {
            let blocks = run.blocks as usize;
            // Blocks that were pushed with too few bytes or pages leave the last runs short.
            let (own_hashes, rest) = split(hashes, blocks * hash_bytes);
            let (own_pages, other) = split(pages, blocks * groups);
            (hashes, pages) = (rest, other);
            RunView {
                run,
                hashes: own_hashes,
                pages: own_pages,
            }
        })
    }

    /// The run at `position` of `transfers`, when the runs before it have `blocks_before` blocks.
    pub fn view_at<'a>(
        &'a self,
        transfers: &'a Transfers,
        position: usize,
        blocks_before: usize,
    ) -> Option<RunView<'a>> {
        let run = transfers.runs.get(position)?;
        let end = blocks_before.checked_add(run.blocks as usize)?;
        let part = |unit: usize| Some(blocks_before.checked_mul(unit)?..end.checked_mul(unit)?);
        Some(RunView {
            run,
            hashes: transfers.hashes.get(part(self.hash_bytes as usize)?)?,
            pages: transfers.pages.get(part(self.groups.len())?)?,
        })
    }

    /// Appends the encoded form to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.pass.to_le_bytes());
        out.extend_from_slice(&self.source.to_le_bytes());
        out.extend_from_slice(&self.fingerprint);
        out.extend_from_slice(&self.hash_bytes.to_le_bytes());
        put_count(out, self.groups.len());
        for group in &self.groups {
            out.extend_from_slice(&group.to_le_bytes());
        }
        for transfers in [&self.loads, &self.saves] {
            put_count(out, transfers.runs.len());
            for run in &transfers.runs {
                out.extend_from_slice(&run.request_id.to_le_bytes());
                out.extend_from_slice(&run.generation.to_le_bytes());
                out.extend_from_slice(&run.first_block.to_le_bytes());
                out.extend_from_slice(&run.blocks.to_le_bytes());
                out.extend_from_slice(&run.parent);
            }
            out.extend_from_slice(&transfers.hashes);
            for page in &transfers.pages {
                out.extend_from_slice(&page.to_le_bytes());
            }
        }
        let sum = crc64(&out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Size of the encoded form in bytes.
    pub fn encoded_size(&self) -> usize {
        let side = |transfers: &Transfers| {
            4 + transfers.runs.len() * RUN_BYTES
                + transfers.hashes.len()
                + transfers.pages.len() * 4
        };
        4 + 4
            + 8
            + 8
            + 16
            + 4
            + 4
            + self.groups.len() * 4
            + side(&self.loads)
            + side(&self.saves)
            + TRAILER
    }

    /// Decodes what [`Metadata::encode`] made. Anything else is `Malformed`, with the reason;
    /// no length in the bytes is believed before it was held against what is there.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let Some((body, trailer)) = bytes.split_last_chunk::<TRAILER>() else {
            bail!(Malformed, "metadata: {} bytes are too few", bytes.len());
        };
        let mut reader = Reader { rest: body };
        if reader.array::<4>()? != MAGIC {
            bail!(Malformed, "metadata: does not begin with \"kvbm\"");
        }
        let version = reader.u32()?;
        if version != VERSION {
            bail!(
                Malformed,
                "metadata: version {version}, this build reads {VERSION}"
            );
        }
        if u64::from_le_bytes(*trailer) != crc64(body) {
            bail!(
                Malformed,
                "metadata: the checksum does not match, the bytes were damaged"
            );
        }
        let pass = reader.u64()?;
        let source = reader.u64()?;
        let fingerprint = reader.array::<16>()?;
        let hash_bytes = reader.u32()?;
        if hash_bytes != 16 && hash_bytes != 32 {
            bail!(
                Malformed,
                "metadata: hashes of {hash_bytes} bytes; 16 and 32 exist"
            );
        }
        let groups = reader.list(4, |reader| reader.u32())?;
        let loads = reader.transfers(hash_bytes as usize, groups.len())?;
        let saves = reader.transfers(hash_bytes as usize, groups.len())?;
        if !reader.rest.is_empty() {
            bail!(Malformed, "metadata: {} bytes too many", reader.rest.len());
        }
        Ok(Self {
            pass,
            source,
            fingerprint,
            hash_bytes,
            groups,
            loads,
            saves,
            home: Weak::new(),
        })
    }
}

/// The first `count` elements, or as many as there are, and the rest.
fn split<T>(list: &[T], count: usize) -> (&[T], &[T]) {
    list.split_at(count.min(list.len()))
}

/// Lists are bounded by the 32-bit block ordinals and counts that feed them.
fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
}

/// Takes values off the front of bytes that nobody vouches for.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            bail!(
                Malformed,
                "metadata: ends early, {N} more bytes expected, {} left",
                self.rest.len()
            );
        };
        self.rest = rest;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((head, rest)) = self.rest.split_at_checked(count) else {
            bail!(
                Malformed,
                "metadata: ends early, {count} more bytes expected, {} left",
                self.rest.len()
            );
        };
        self.rest = rest;
        Ok(head)
    }

    /// A counted list of elements of `size` bytes each.
    fn list<T>(
        &mut self,
        size: usize,
        mut element: impl FnMut(&mut Self) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / size {
            bail!(
                Malformed,
                "metadata: a list of {count} elements does not fit the bytes that are left"
            );
        }
        (0..count).map(|_| element(self)).collect()
    }

    fn transfers(&mut self, hash_bytes: usize, groups: usize) -> Result<Transfers> {
        let runs = self.list(RUN_BYTES, |reader| {
            Ok(Run {
                request_id: reader.u64()?,
                generation: reader.u64()?,
                first_block: reader.u32()?,
                blocks: reader.u32()?,
                parent: reader.array()?,
            })
        })?;
        let mut blocks = 0usize;
        for run in &runs {
            if run.first_block.checked_add(run.blocks).is_none() {
                bail!(
                    Malformed,
                    "metadata: block ordinals of request {} overflow",
                    run.request_id
                );
            }
            blocks += run.blocks as usize;
        }
        // Both products are held against the bytes left before anything is allocated for them.
        let hashes = self.bytes(blocks.saturating_mul(hash_bytes))?.to_vec();
        let pages = self.bytes(blocks.saturating_mul(groups).saturating_mul(4))?;
        let pages = pages
            .as_chunks::<4>()
            .0
            .iter()
            .map(|page| i32::from_le_bytes(*page))
            .collect();
        Ok(Transfers {
            runs,
            hashes,
            pages,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn example() -> Metadata {
        let recycler = Arc::new(Recycler::default());
        let mut metadata = recycler.metadata(7, [9; 16], 16);
        metadata.set_groups([0, 3].into_iter());
        metadata.loads_mut().begin_run(1, 10, 2, &[5; 16]);
        metadata
            .loads_mut()
            .push_block(&[6; 16], [1, 2].into_iter());
        metadata
            .loads_mut()
            .push_block(&[7; 16], [3, -1].into_iter());
        metadata.saves_mut().begin_run(2, 11, 0, &[8; 16]);
        metadata
            .saves_mut()
            .push_block(&[9; 16], [4, 5].into_iter());
        metadata
    }

    fn encoded(metadata: &Metadata) -> Vec<u8> {
        let mut bytes = Vec::new();
        metadata.encode(&mut bytes);
        bytes
    }

    #[test]
    fn decoding_restores_what_was_encoded() {
        let metadata = example();
        let bytes = encoded(&metadata);
        assert_eq!(bytes.len(), metadata.encoded_size());
        let decoded = Metadata::decode(&bytes).unwrap();
        assert_eq!(decoded, metadata);
        let loads: Vec<_> = decoded.views(decoded.loads()).collect();
        assert_eq!(
            (loads[0].run.first_block, loads[0].pages),
            (2, &[1, 2, 3, -1][..])
        );
        assert_eq!(&loads[0].hashes[16..], &[7; 16]);
    }

    #[test]
    fn case_76_damaged_bytes_are_a_status() {
        let bytes = encoded(&example());
        for length in 0..bytes.len() {
            let error = Metadata::decode(&bytes[..length]).unwrap_err();
            assert_eq!(error.kind(), Kind::Malformed, "cut to {length}");
        }
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Metadata::decode(&damaged).is_err(), "bit {bit}");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert!(Metadata::decode(&longer).is_err());
    }

    /// Damage that a checksum cannot see: whoever wrote these bytes summed them too.
    #[test]
    fn consistent_lies_are_a_status() {
        let bytes = encoded(&example());
        let body = bytes.len() - TRAILER;
        for position in 0..body {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut lie = bytes.clone();
                lie[position] = value;
                let sum = crc64(&lie[..body]);
                lie[body..].copy_from_slice(&sum.to_le_bytes());
                if let Ok(metadata) = Metadata::decode(&lie) {
                    for transfers in [metadata.loads(), metadata.saves()] {
                        assert_eq!(metadata.views(transfers).count(), transfers.runs().len());
                    }
                }
            }
        }
    }

    #[test]
    fn lists_come_back_to_the_recycler() {
        let recycler = Arc::new(Recycler::default());
        let mut metadata = recycler.metadata(1, [0; 16], 32);
        metadata.saves_mut().begin_run(1, 1, 0, &[0; 32]);
        metadata.saves_mut().push_block(&[1; 32], [7].into_iter());
        let list = metadata.saves.hashes.as_ptr();
        drop(metadata);
        let again = recycler.metadata(2, [0; 16], 32);
        assert_eq!(again.saves.blocks(), 0);
        assert_eq!(again.saves.hashes.as_ptr(), list);
    }
}
