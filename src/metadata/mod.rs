//! What the scheduler hands the workers for one pass: plain, versioned data that every rank of the
//! same build can decode. It holds no address and nothing that belongs to one rank.
//!
//! Encoding (all integers little-endian): `"kvbm"`, version, then the fields in the order of
//! [`Metadata`], each list behind its `u32` count, and a CRC-64/NVME over all of it at the end, so
//! that a damaged broadcast is an error and never a wrong page.

mod codec;
#[cfg(test)]
mod tests;
mod transfers;

pub use transfers::{Block, Life, Run, RunView, Transfers};

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// One pass's transfers.
#[derive(Debug, Default)]
pub struct Metadata {
    pass: u64,
    source: u64,
    fingerprint: [u8; 16],
    hash_bytes: u32,
    lists: Lists,
    home: Weak<Recycler>,
}

/// The lists of a metadata.
#[derive(Debug, Default, PartialEq, Eq)]
struct Lists {
    groups: Vec<u32>,
    loads: Transfers,
    parked: Transfers,
    saves: Transfers,
    ended: Vec<Life>,
}

impl Lists {
    fn transfers(&self) -> [&Transfers; 3] {
        [&self.loads, &self.parked, &self.saves]
    }

    fn clear(&mut self) {
        self.groups.clear();
        self.loads.clear();
        self.parked.clear();
        self.saves.clear();
        self.ended.clear();
    }
}

/// Keeps the lists of dropped metadata for the next pass, so that building one allocates nothing
/// in steady state.
#[derive(Debug, Default)]
pub struct Recycler {
    source: u64,
    spares: Mutex<Vec<Lists>>,
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
        Metadata {
            pass,
            source: self.source,
            fingerprint,
            hash_bytes,
            lists: self.spares.lock().pop().unwrap_or_default(),
            home: Arc::downgrade(self),
        }
    }
}

impl Drop for Metadata {
    fn drop(&mut self) {
        let Some(home) = self.home.upgrade() else {
            return;
        };
        self.lists.clear();
        let mut spares = home.spares.lock();
        if spares.len() < SPARES {
            spares.push(std::mem::take(&mut self.lists));
        }
    }
}

impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.pass == other.pass
            && self.source == other.source
            && self.fingerprint == other.fingerprint
            && self.hash_bytes == other.hash_bytes
            && self.lists == other.lists
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
        &self.lists.groups
    }

    /// Names the layer groups; only before blocks are added.
    pub fn set_groups(&mut self, groups: impl Iterator<Item = u32>) {
        self.lists.groups.clear();
        self.lists.groups.extend(groups);
    }

    /// Pages to load before the forward pass.
    pub fn loads(&self) -> &Transfers {
        &self.lists.loads
    }

    /// The loads, for the scheduler that fills them in.
    pub fn loads_mut(&mut self) -> &mut Transfers {
        &mut self.lists.loads
    }

    /// Asynchronous loads: one run per request that waits outside the batch, also without blocks.
    pub fn parked(&self) -> &Transfers {
        &self.lists.parked
    }

    /// The asynchronous loads, for the scheduler that fills them in.
    pub fn parked_mut(&mut self) -> &mut Transfers {
        &mut self.lists.parked
    }

    /// Pages to publish after the forward pass.
    pub fn saves(&self) -> &Transfers {
        &self.lists.saves
    }

    /// The saves, for the scheduler that fills them in.
    pub fn saves_mut(&mut self) -> &mut Transfers {
        &mut self.lists.saves
    }

    /// Lives of requests that ended since the metadata before this one: what is bound or queued of
    /// them must not begin any more, on any rank.
    pub fn ended(&self) -> &[Life] {
        &self.lists.ended
    }

    /// Says which lives ended.
    pub fn set_ended(&mut self, lives: impl Iterator<Item = Life>) {
        self.lists.ended.clear();
        self.lists.ended.extend(lives);
    }

    /// The runs of all lists.
    pub fn runs(&self) -> impl Iterator<Item = &Run> {
        self.lists
            .transfers()
            .into_iter()
            .flat_map(|list| list.runs())
    }

    /// The runs of one of this metadata's lists, with their blocks.
    pub fn views<'a>(&'a self, transfers: &'a Transfers) -> impl Iterator<Item = RunView<'a>> {
        let mut base = 0;
        // Blocks that were pushed with too few bytes or pages end the list early.
        (0..transfers.runs.len()).map_while(move |position| {
            let view = self.view_at(transfers, position, base)?;
            base += view.run.blocks as usize;
            Some(view)
        })
    }

    /// The run at `position` of one of this metadata's lists, when the runs before it have
    /// `blocks_before` blocks.
    pub fn view_at<'a>(
        &'a self,
        transfers: &'a Transfers,
        position: usize,
        blocks_before: usize,
    ) -> Option<RunView<'a>> {
        let run = transfers.runs.get(position)?;
        let (hash_bytes, groups) = (self.hash_bytes as usize, self.lists.groups.len());
        let end = blocks_before.checked_add(run.blocks as usize)?;
        let part = |unit: usize| Some(blocks_before.checked_mul(unit)?..end.checked_mul(unit)?);
        Some(RunView {
            run,
            hashes: transfers.hashes.get(part(hash_bytes)?)?,
            pages: transfers.pages.get(part(groups)?)?,
            hash_bytes,
            groups,
        })
    }
}
