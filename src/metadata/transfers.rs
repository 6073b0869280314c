//! One list of transfers: whose blocks they are, and each block's hash and pages.

/// Consecutive blocks of one request that are loaded or saved together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The engine's id of the request.
    pub request_id: u64,
    /// Which [`Life`] of the id; what belongs to an older one is dropped.
    pub generation: u64,
    /// Ordinal of the first block in the request.
    pub first_block: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// The id under which `get_finished` knows an asynchronous load: the request's, or its
    /// reservation's.
    pub ticket: u64,
    /// Hash before the first block: the previous block's, or the seed. Behind the hash length: zero.
    pub parent: [u8; 32],
}

/// One life of a request id, from its first offer to its end or reset: the id and the life's
/// generation. Generations are numbers of this process and grow, over all ids and schedulers.
pub type Life = (u64, u64);

impl Run {
    /// Whose blocks these are.
    pub fn life(&self) -> Life {
        (self.request_id, self.generation)
    }
}

/// Runs, and for all their blocks in order the hash and the pages.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transfers {
    pub(super) runs: Vec<Run>,
    pub(super) hashes: Vec<u8>,
    pub(super) pages: Vec<i32>,
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
    pub(super) hash_bytes: usize,
    pub(super) groups: usize,
}

/// One block of a run.
#[derive(Debug, Clone, Copy)]
pub struct Block<'a> {
    /// Ordinal in the request.
    pub ordinal: u32,
    /// Its hash.
    pub hash: &'a [u8],
    /// Its page in each layer group.
    pub pages: &'a [i32],
}

impl<'a> RunView<'a> {
    /// The block at `position` of the run; nothing behind its end.
    pub fn block(&self, position: usize) -> Option<Block<'a>> {
        let part = |unit: usize| {
            let start = position.checked_mul(unit)?;
            Some(start..start.checked_add(unit)?)
        };
        Some(Block {
            ordinal: self
                .run
                .first_block
                .checked_add(u32::try_from(position).ok()?)?,
            hash: self.hashes.get(part(self.hash_bytes)?)?,
            pages: self.pages.get(part(self.groups)?)?,
        })
    }
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
            ticket: request_id,
            parent: padded,
        });
    }

    /// Has the run begun last reported under another id than its request's.
    pub fn set_ticket(&mut self, ticket: u64) {
        if let Some(run) = self.runs.last_mut() {
            run.ticket = ticket;
        }
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

    /// Requests with a run in the list; a request's runs stand side by side.
    pub fn requests(&self) -> u64 {
        self.runs
            .chunk_by(|one, next| one.request_id == next.request_id)
            .count() as u64
    }

    pub(super) fn clear(&mut self) {
        self.runs.clear();
        self.hashes.clear();
        self.pages.clear();
    }
}
