//! The bytes of a metadata: written by the scheduler's rank, read by all of the same build.

use std::sync::Weak;

use super::{Lists, Metadata, Run, Transfers};
use crate::error::{Result, bail};
use crate::page::crc64;

const MAGIC: [u8; 4] = *b"kvbm";
const VERSION: u32 = 2;
pub(super) const TRAILER: usize = 8;
/// Encoded size of a [`Run`].
const RUN_BYTES: usize = 8 + 8 + 4 + 4 + 8 + 32;
/// Encoded size of a life.
const LIFE_BYTES: usize = 8 + 8;

impl Metadata {
    /// Appends the encoded form to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.pass.to_le_bytes());
        out.extend_from_slice(&self.source.to_le_bytes());
        out.extend_from_slice(&self.fingerprint);
        out.extend_from_slice(&self.hash_bytes.to_le_bytes());
        put_count(out, self.lists.groups.len());
        for group in &self.lists.groups {
            out.extend_from_slice(&group.to_le_bytes());
        }
        for transfers in self.lists.transfers() {
            put_count(out, transfers.runs.len());
            for run in &transfers.runs {
                out.extend_from_slice(&run.request_id.to_le_bytes());
                out.extend_from_slice(&run.generation.to_le_bytes());
                out.extend_from_slice(&run.first_block.to_le_bytes());
                out.extend_from_slice(&run.blocks.to_le_bytes());
                out.extend_from_slice(&run.ticket.to_le_bytes());
                out.extend_from_slice(&run.parent);
            }
            out.extend_from_slice(&transfers.hashes);
            for page in &transfers.pages {
                out.extend_from_slice(&page.to_le_bytes());
            }
        }
        put_count(out, self.lists.ended.len());
        for (request_id, generation) in &self.lists.ended {
            out.extend_from_slice(&request_id.to_le_bytes());
            out.extend_from_slice(&generation.to_le_bytes());
        }
        let sum = crc64(&out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
    }

    /// Size of the encoded form in bytes.
    pub fn encoded_size(&self) -> usize {
        let list = |transfers: &Transfers| {
            4 + transfers.runs.len() * RUN_BYTES
                + transfers.hashes.len()
                + transfers.pages.len() * 4
        };
        let head = MAGIC.len() + 4 + 8 + 8 + 16 + 4;
        head + 4
            + self.lists.groups.len() * 4
            + self.lists.transfers().map(list).iter().sum::<usize>()
            + 4
            + self.lists.ended.len() * LIFE_BYTES
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
        let mut transfers = || reader.transfers(hash_bytes as usize, groups.len());
        let (loads, parked, saves) = (transfers()?, transfers()?, transfers()?);
        let ended = reader.list(LIFE_BYTES, |reader| Ok((reader.u64()?, reader.u64()?)))?;
        if !reader.rest.is_empty() {
            bail!(Malformed, "metadata: {} bytes too many", reader.rest.len());
        }
        Ok(Self {
            pass,
            source,
            fingerprint,
            hash_bytes,
            lists: Lists {
                groups,
                loads,
                parked,
                saves,
                ended,
            },
            home: Weak::new(),
        })
    }
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
                ticket: reader.u64()?,
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
