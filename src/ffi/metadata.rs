//! `kvb_metadata`.

use super::args::{self, Growable};
use super::guard::{guard, guard_or};
use super::handle::{self, Noun, Shared};
use super::status::kvb_status;
use crate::error::bail;
use crate::metadata::Metadata;
use std::sync::Arc;

/// One pass's transfers, as the scheduler decided them. It holds no address and nothing that
/// belongs to one rank, so that the leader's can be broadcast to all ranks as bytes.
///
/// Threads: shared, immutable. Made by kvb_scheduler_build and kvb_metadata_decode, freed by
/// kvb_metadata_free at any time: a worker that it was bound to has its own hold on it.
pub struct kvb_metadata {
    _opaque: (),
}

impl Noun for kvb_metadata {
    const TAG: u64 = u64::from_be_bytes(*b"kvbmetad");
    const NAME: &'static str = "kvb_metadata";
    const LIVES_IN_ONE_PROCESS: bool = false;
    type Access = Shared;
    type Common = Arc<Metadata>;
    type Alone = ();
}

/// What a metadata holds.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_summary {
    /// sizeof(kvb_summary)
    pub struct_size: u32,
    /// Number of the pass, counted by the scheduler that built it.
    pub pass: u64,
    /// Requests with blocks to load.
    pub load_requests: u64,
    /// Blocks to load.
    pub load_blocks: u64,
    /// Requests with blocks to save.
    pub save_requests: u64,
    /// Blocks to save.
    pub save_blocks: u64,
    /// Requests that wait outside the batch for their load, also for none.
    pub parked_requests: u64,
    /// Blocks that they load.
    pub parked_blocks: u64,
}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_summary {}

/// Writes the metadata as bytes that kvb_metadata_decode reads on any rank with the same build.
///
/// Errors: KVB_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_metadata_encode(
    metadata: *const kvb_metadata,
    buffer: *mut u8,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_metadata_encode", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (metadata, buffer) = unsafe {
            (
                handle::shared(metadata, "metadata")?,
                args::buffer(buffer, capacity, out_needed)?,
            )
        };
        let metadata = metadata.common();
        if metadata.encoded_size() > capacity {
            return buffer.lacks(metadata.encoded_size());
        }
        let (mut bytes, needed) = (Vec::new(), metadata.encoded_size());
        if bytes.try_reserve_exact(needed).is_err() {
            bail!(NoMemory, "{needed} bytes for the encoded form");
        }
        metadata.encode(&mut bytes);
        buffer.bytes(&bytes)
    })
}

/// Reads what kvb_metadata_encode wrote. The bytes are not used any more when this returns.
///
/// Threads: any. Errors: KVB_MALFORMED for bytes of another version, or damaged ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_metadata_decode(
    bytes: *const u8,
    size: usize,
    out: *mut *mut kvb_metadata,
) -> kvb_status {
    guard("kvb_metadata_decode", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (bytes, out) = unsafe {
            let out = args::out(out, "out")?;
            (args::list(bytes, size, "bytes")?, out)
        };
        let metadata = Metadata::decode(bytes)?;
        out.write(handle::create(Arc::new(metadata), ()));
        Ok(())
    })
}

/// Counts what the metadata holds, for logs and tests.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_metadata_summary(
    metadata: *const kvb_metadata,
    out: *mut kvb_summary,
) -> kvb_status {
    guard("kvb_metadata_summary", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (metadata, out) = unsafe {
            (
                handle::shared(metadata, "metadata")?,
                args::out_growable(out, "out")?,
            )
        };
        let metadata = metadata.common();
        out.write(&kvb_summary {
            struct_size: 0,
            pass: metadata.pass(),
            load_requests: metadata.loads().requests(),
            load_blocks: metadata.loads().blocks(),
            save_requests: metadata.saves().requests(),
            save_blocks: metadata.saves().blocks(),
            parked_requests: metadata.parked().requests(),
            parked_blocks: metadata.parked().blocks(),
        });
        Ok(())
    })
}

/// Frees a metadata. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_metadata_free(metadata: *mut kvb_metadata) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_metadata_free", (), || unsafe {
        handle::free(metadata, "metadata")
    });
}
