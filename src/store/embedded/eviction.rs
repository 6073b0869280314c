//! What goes when room is needed: the objects whose last access is longest ago.
//!
//! Every access gives its object a fresh stamp, one store to memory that the lookup has in hand
//! anyway; a linked list would touch three more objects. Order is made only when it is
//! needed: one scan over the index picks the oldest eighth of the stamps as candidates, oldest
//! first. Stamps only grow, so a candidate whose stamp is unchanged is still older than everything
//! that was not picked, and the order stays exact without another scan until the candidates
//! are used up.

use super::arena::Books;
use super::index::{Fate, Index};

/// Scans pick at least this many.
const LEAST_PICKED: usize = 1024;
/// Scans pick one in so many.
const PICKED_SHARE: usize = 8;

#[derive(Debug, Clone, Copy)]
struct Candidate {
    stamp: u64,
    entry: u32,
}

/// What an eviction freed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Freed {
    pub objects: u64,
    pub bytes: u64,
}

/// The order of leaving; lives under the pool's lock.
#[derive(Debug)]
pub(super) struct Evictor {
    /// Candidates that were leased or read when their turn came, oldest first. Older than all of
    /// `picked`.
    held: Vec<Candidate>,
    /// Candidates of the last scan, oldest last.
    picked: Vec<Candidate>,
    /// Every object with a stamp up to this was picked, or has a newer stamp by now.
    horizon: u64,
    /// Nothing can be evicted before this time, unless a put or a reader ends: a pool full of
    /// leased objects refuses puts without looking at every object each time.
    nothing_before: u64,
    /// Whether only readers kept something from being evicted then.
    waits_for_readers: bool,
}

impl Evictor {
    pub fn new() -> Self {
        Self {
            held: Vec::new(),
            picked: Vec::new(),
            horizon: 0,
            nothing_before: 0,
            waits_for_readers: false,
        }
    }

    /// Objects were published, which nothing protects yet.
    pub fn published(&mut self) {
        self.nothing_before = 0;
    }

    /// Readings ended.
    pub fn readings_ended(&mut self) {
        if self.waits_for_readers {
            self.nothing_before = 0;
        }
    }

    /// Evicts in order of last access, skipping what is leased at `now` or being read, until
    /// `wanted` bytes are free that were not before or nothing is left to evict.
    pub fn evict(&mut self, index: &mut Index, books: &mut Books, wanted: u64, now: u64) -> Freed {
        if now < self.nothing_before {
            return Freed::default();
        }
        let mut pass = Pass {
            index,
            books,
            now,
            freed: Freed::default(),
            soonest: u64::MAX,
            met_reader: false,
        };
        self.held
            .retain(|&candidate| pass.freed.bytes >= wanted || pass.stays(candidate));
        while pass.freed.bytes < wanted {
            if let Some(candidate) = self.picked.pop() {
                if pass.stays(candidate) {
                    self.held.push(candidate);
                }
            } else if !pick(pass.index, &mut self.picked, &mut self.horizon) {
                break;
            }
        }
        if pass.freed.objects == 0 {
            self.nothing_before = pass.soonest;
            self.waits_for_readers = pass.met_reader;
        }
        pass.freed
    }
}

/// One eviction.
struct Pass<'a> {
    index: &'a mut Index,
    books: &'a mut Books,
    now: u64,
    freed: Freed,
    /// When the first of what could not go may go.
    soonest: u64,
    met_reader: bool,
}

impl Pass<'_> {
    /// Evicts the candidate; true if it has to stay a candidate instead.
    fn stays(&mut self, candidate: Candidate) -> bool {
        let Candidate { stamp, entry } = candidate;
        match self.index.evict(entry, stamp, self.now, self.books) {
            Fate::Evicted(bytes) => {
                self.freed.objects += 1;
                self.freed.bytes += bytes;
                false
            }
            Fate::Stale => false,
            Fate::Leased(until) => {
                self.soonest = self.soonest.min(until);
                true
            }
            Fate::Read => {
                self.met_reader = true;
                true
            }
        }
    }
}

/// Refills `picked`, which is empty, with the oldest objects behind the horizon, and moves the
/// horizon. False if there are none.
fn pick(index: &Index, picked: &mut Vec<Candidate>, horizon: &mut u64) -> bool {
    let behind = index.slots().filter(|slot| slot.access > *horizon);
    picked.extend(behind.map(|slot| Candidate {
        stamp: slot.access,
        entry: slot.entry,
    }));
    let share = LEAST_PICKED.max(picked.len() / PICKED_SHARE);
    if picked.len() > share {
        picked.select_nth_unstable_by_key(share, |candidate| candidate.stamp);
        picked.truncate(share);
    }
    picked.sort_unstable_by_key(|candidate| std::cmp::Reverse(candidate.stamp));
    match picked.first() {
        Some(newest) => {
            *horizon = newest.stamp;
            true
        }
        None => false,
    }
}
