//! What a scheduler needs of the worker in its own process, so that neither half imports the other.

use std::sync::Arc;

use crate::metadata::Life;

/// How many passes may be built and not yet bound. The scheduler waits to hear of so many, older
/// ones count as never run; the worker remembers for so many what they must not touch any more.
pub const OPEN_PASSES: usize = 64;

/// A layer group as the scheduler sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupInfo {
    /// The engine's id of the group.
    pub id: u32,
    /// Number of pages; valid indices are below it.
    pub slots: u64,
}

/// A block in one life of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockOf {
    /// The engine's id of the request.
    pub request_id: u64,
    /// The generation of the [`Life`] that the block belongs to.
    pub generation: u64,
    /// Ordinal of the block in the request.
    pub block: u32,
}

/// What became of earlier passes; the scheduler takes it and leaves it empty.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Report {
    /// Passes whose synchronous loads were started.
    pub started: Vec<u64>,
    /// Passes that reached `wait_for_save`: their saves are queued.
    pub submitted: Vec<u64>,
    /// Blocks that the pool did not take.
    pub failed_saves: Vec<BlockOf>,
    /// First block of a request that did not arrive.
    pub failed_loads: Vec<BlockOf>,
    /// Lives whose asynchronous load was reported to the engine, also when it failed.
    pub loaded: Vec<Life>,
    /// Requests that were reported as saved: their pages are the engine's again.
    pub released: Vec<u64>,
}

impl Report {
    /// True when there is nothing to take.
    pub fn is_empty(&self) -> bool {
        self.started.is_empty()
            && self.submitted.is_empty()
            && self.failed_saves.is_empty()
            && self.failed_loads.is_empty()
            && self.loaded.is_empty()
            && self.released.is_empty()
    }

    /// Empties every list and keeps its memory.
    pub fn clear(&mut self) {
        self.started.clear();
        self.submitted.clear();
        self.failed_saves.clear();
        self.failed_loads.clear();
        self.loaded.clear();
        self.released.clear();
    }
}

/// The worker of the scheduler's own process. All calls may come while the worker is in a call of
/// its own, and none of them waits for the pool but `lookup`.
pub trait LocalWorker: Send + Sync {
    /// How many of the leading blocks are stored in every layer group and shard. `hashes` holds
    /// block hashes side by side. What cannot be found out counts as missing. Blocks: for one
    /// existence question per chunk of blocks.
    fn lookup(&self, hashes: &[u8]) -> usize;

    /// The layer groups of the registered layout, or `None` while there is none.
    fn groups(&self) -> Option<Arc<[GroupInfo]>>;

    /// Moves the report into `into`, whose lists are empty.
    fn take_report(&self, into: &mut Report);

    /// The scheduler forgot this life of a request: it ended, or its allocation was released. What is
    /// bound of it and not under way, or is bound later, must not move any more; on return its
    /// asynchronous load does not write into its pages, unless the pool does that itself: such pages are
    /// pinned until its call returned. Blocks: for the copy of one batch of that load at most.
    fn life_ended(&self, request_id: u64, generation: u64);

    /// To be followed by [`LocalWorker::life_ended`], for a life whose pages are the engine's already: queued saves do
    /// not read them any more either, and its asynchronous load does not write into them. Blocks: for the copy of one batch
    /// of a load or save at most; where the pool uses the cache itself, for its call.
    fn life_released(&self, request_id: u64, generation: u64);

    /// Whether the pool may use pages of this life: where it uses the cache itself, a call of it that is late.
    fn may_use_pages(&self, _request_id: u64, _generation: u64) -> bool {
        false
    }

    /// Whether transfers of the request are queued or run that a scheduler before this one ordered.
    fn inherits_transfers(&self, request_id: u64) -> bool;

    /// What the scheduler writes into its metadata, so that this worker takes no other's. Not 0,
    /// which stands for any.
    fn source(&self) -> u64;
}
