//! Direct mode: the pool reads and writes pages of the cache where they lie. See `docs/design/direct.md`.
//!
//! The cache's memory is registered with the pool in ranges. A call has its pages on *loan*: as long as the
//! loan lives, the pool may use them, and the lives that they belong to count as in flight.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::plan::PagePlan;
use super::shared::Shared;
use crate::device::memory::{Source, Target};
use crate::device::{CacheMemory, Direction, LentPages, PageRef};
use crate::error::{Error, Kind, Result, bail};
use crate::layout::{Range, Ranges};
use crate::metadata::Life;
use crate::node;
use crate::plant::{self, Bug};
use crate::store::Store;
use crate::store::guarded::{Buffers, Guarded};

/// Pieces that are under way to a pool over a network at once. More than 2,052 to one peer have lost it for
/// good in Mooncake 0.3.13; half of that leaves room for others.
const PIECES_PER_CALL: usize = 1024;

/// How long a pool that refused some ranges may take to give the others back.
const PATIENCE_AFTER_REFUSAL: Duration = Duration::from_secs(3);

/// So many ranges are named in one message.
const MOST_NAMED: usize = 8;

/// The cache's memory, registered with the pool.
pub(super) struct Direct {
    memory: Arc<CacheMemory>,
    store: Arc<Guarded>,
    ranges: Ranges,
    /// What the pool has, and has not given back.
    registered: Mutex<Vec<Range>>,
    loans: Arc<AtomicUsize>,
    /// Most pieces of a page.
    pieces: usize,
}

/// The pages of one call of the pool.
pub(super) struct Loan {
    // Goes first: once the loan is known to have ended, its share of the device has, too.
    pages: LentPages,
    _held: Held,
}

/// What ends with a loan.
struct Held {
    direction: Direction,
    /// Each once.
    lives: Vec<Life>,
    /// Whoever is gone does not ask whether pages are in flight.
    shared: Weak<Shared>,
    loans: Arc<AtomicUsize>,
}

impl Direct {
    /// Registers the cache's memory with the pool. On an error nothing of it is registered, unless it is `Busy`: then the pool
    /// has not answered or not given back what it took, and the memory has to be kept.
    ///
    /// Errors: `PoolRefused`, a page has more pieces than the pool takes; what the device says of its memory;
    /// `PoolFailed`, the pool refuses ranges: each is named.
    pub fn open(memory: Arc<CacheMemory>, store: &Arc<Guarded>, plan: &PagePlan) -> Result<Self> {
        let layout = memory.layout();
        let ranges = layout.ranges(|address| memory.device().backing(address))?;
        let can = store.capabilities();
        let mut pieces = 1;
        for kind in &plan.kinds {
            let Some(group) = layout.groups().get(usize::from(kind.group)) else {
                continue;
            };
            let (regions, most) = (
                group.regions(kind.part).len(),
                group.most_pieces(kind.part, &ranges),
            );
            if most > can.pieces_per_key {
                let mappings = match most - regions {
                    0 => String::new(),
                    cuts => format!(", {cuts} of them since pages reach over ends of mappings"),
                };
                bail!(
                    PoolRefused,
                    "stage_through_host = false: pages of layer group {} have up to {most} pieces{mappings}, the store \"{}\" takes {}; with stage_through_host = true pages are put together in memory of the host",
                    group.group().id,
                    can.name,
                    can.pieces_per_key
                );
            }
            pieces = pieces.max(most);
        }
        let direct = Self {
            memory,
            store: Arc::clone(store),
            ranges,
            registered: Mutex::default(),
            loans: Arc::default(),
            pieces,
        };
        direct.register()?;
        Ok(direct)
    }

    fn register(&self) -> Result<()> {
        let (mut refused, mut kind, mut first) = (Vec::new(), Kind::PoolFailed, None);
        for &range in self.ranges.list() {
            let Err(error) = self.store.register(range) else {
                self.registered.lock().push(range);
                continue;
            };
            kind = error.kind();
            refused.push(format!("{}: {error}", name(range)));
            first.get_or_insert(range.start);
            if kind == Kind::Busy {
                break;
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let mut text = format!(
            "stage_through_host = false: the pool refuses {} of the cache's {} ranges: {}; {}",
            refused.len(),
            self.ranges.list().len(),
            named(&refused),
            self.reasons(first.unwrap_or(0))
        );
        if let Err(error) = self.take_back(PATIENCE_AFTER_REFUSAL) {
            // What says that the memory has to be kept.
            kind = error.kind();
            text += &format!("; {error}");
        }
        Err(Error::new(kind, text))
    }

    /// What device, kernel and limits say about others reaching the cache's memory, there.
    fn reasons(&self, address: u64) -> String {
        let bytes: u64 = self.ranges.list().iter().map(|range| range.size).sum();
        let limit = match node::locked_memory_limit() {
            None => "no limit is known".to_owned(),
            Some(u64::MAX) => "there is no limit".to_owned(),
            Some(limit) => format!("the limit is {limit} bytes (ulimit -l)"),
        };
        let reach = self.memory.device().reach(address);
        let comma = if reach.is_empty() { "" } else { "; " };
        format!("{reach}{comma}locked memory: {bytes} bytes of the cache, {limit}")
    }

    /// Pages per call, of at most `batch`.
    pub fn batch(&self, batch: usize) -> usize {
        match self.store.capabilities().can_be_late {
            true => batch.min(PIECES_PER_CALL / self.pieces).max(1),
            false => batch,
        }
    }

    /// Has pages ready for one call that reads them (`Gather`) or writes them (`Scatter`). They belong to these lives, which
    /// count as in flight until the loan ends.
    pub fn lend(
        &self,
        shared: &Arc<Shared>,
        direction: Direction,
        pages: &[PageRef],
        lives: impl Iterator<Item = Life>,
    ) -> Result<Loan> {
        let pages = self.memory.lend(direction, pages, &self.ranges)?;
        let mut lives: Vec<Life> = lives.collect();
        lives.sort_unstable();
        lives.dedup();
        let mut finished = shared.finished.lock();
        let held = lives.iter().filter(|_| !plant::is(Bug::LoanNotHeld));
        held.for_each(|&life| finished.hold(direction, life));
        drop(finished);
        self.loans.fetch_add(1, Ordering::AcqRel);
        let held = Held {
            direction,
            lives,
            shared: Arc::downgrade(shared),
            loans: Arc::clone(&self.loans),
        };
        Ok(Loan { pages, _held: held })
    }

    /// Waits until the pool uses no page any more, at most `patience`; how many calls still may.
    pub fn wait(&self, patience: Duration) -> usize {
        let count = || self.loans.load(Ordering::Acquire);
        self.store.wait_until(patience, || count() == 0);
        count()
    }

    /// Takes the ranges back from the pool, within `patience` all together; no call may use them. Those that it does not
    /// give back are tried again by the next call of this.
    ///
    /// Errors: `Busy`, with those ranges.
    pub fn take_back(&self, patience: Duration) -> Result<()> {
        let began = Instant::now();
        let mut registered = self.registered.lock();
        let (mut kept, mut refused) = (Vec::new(), Vec::new());
        while let Some(range) = registered.pop() {
            let left = patience.saturating_sub(began.elapsed());
            let Err(error) = self.store.unregister_within(range, left) else {
                continue;
            };
            if error.kind() == Kind::Closed {
                // Ended with all that it had, or about to be by the call that leaves it last; none uses the range.
                continue;
            }
            refused.push(format!("{}: {error}", name(range)));
            kept.push(range);
            if error.kind() == Kind::Busy {
                // It does not answer, so there is no use in asking again now.
                break;
            }
        }
        registered.append(&mut kept);
        if refused.is_empty() {
            return Ok(());
        }
        bail!(
            Busy,
            "the pool does not give back {} ranges of the cache, whose memory must stay: {}",
            registered.len(),
            named(&refused)
        )
    }
}

fn name(range: Range) -> String {
    format!("{} bytes at {:#x}", range.size, range.start)
}

/// The first of some texts, and how many more there are.
fn named(texts: &[String]) -> String {
    let mut text = texts
        .iter()
        .take(MOST_NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    if texts.len() > MOST_NAMED {
        text += &format!(" and {} more", texts.len() - MOST_NAMED);
    }
    text
}

impl Buffers for Loan {
    fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> Option<&'a [usize]> {
        Some(self.pages.targets(list))
    }

    fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> Option<&'a [usize]> {
        Some(self.pages.sources(list))
    }

    /// By its end the lives are let go.
    fn come_home(self) {}
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            let mut finished = shared.finished.lock();
            let lives = self.lives.iter();
            lives.for_each(|&life| finished.release(self.direction, life));
        }
        self.loans.fetch_sub(1, Ordering::AcqRel);
    }
}
