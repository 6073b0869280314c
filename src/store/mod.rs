//! Pools of pages behind one trait.
//!
//! Calls are batched and answer per key; no call is made per page. Outcomes go into lists that
//! the caller owns, so that a warmed-up caller allocates nothing. A store never panics on what it
//! is given: a call whose lists do not fit together is answered with a failure for every key.
//!
//! [`embedded`] is the pool inside this process, [`mooncake`] one that many servers share, [`wire`] the same over its own protocol, [`host`] calls functions of the host, [`faulty`] wraps any store and breaks it by
//! script, [`connection`] opens the one that a configuration names, [`guarded`] bounds the time of its calls, [`conformance`] is the suite that every store has to pass.

pub mod breaker;
pub mod conformance;
pub mod connection;
pub mod embedded;
pub mod faulty;
pub mod guarded;
pub mod host;
pub mod mooncake;
pub mod wire;

use std::time::Duration;

use crate::device::memory::{Source, Target};
use crate::error::Result;
use crate::keys::Keys;
use crate::layout::Range;

/// Failure codes of our own, far from the numbers that pools answer with.
pub mod code {
    /// The lists of a call do not fit together, or a piece has an impossible size.
    pub const MALFORMED_CALL: i32 = -20_001;
    /// A put asks for an option that the store's capabilities do not list.
    pub const UNSUPPORTED_OPTION: i32 = -20_002;
    /// A piece is not memory that this store can reach.
    pub const UNREACHABLE_MEMORY: i32 = -20_003;
    /// The object can never fit into the pool.
    pub const TOO_LARGE: i32 = -20_004;
    /// This handle was closed.
    pub const CLOSED: i32 = -20_005;
    /// The read took longer than the lease that it had on the object.
    pub const LEASE_EXPIRED: i32 = -20_006;
    /// The pool did not answer before the deadline.
    pub const DEADLINE: i32 = -20_007;
    /// No call was made: the pool did not answer lately.
    pub const BREAKER_OPEN: i32 = -20_008;
    /// The call ended without an answer: the pool's code panicked or threw, or left a key out.
    pub const NO_ANSWER: i32 = -20_009;
    /// There is no memory for what the call needs.
    pub const NO_MEMORY: i32 = -20_010;
    /// The pool, or a part of it, cannot be reached; it may still use the pieces of the call.
    pub const UNREACHABLE: i32 = -20_011;
    /// The process was forked from the one in which alone the pool's library works; no call was made.
    pub const FORKED: i32 = -20_012;
    /// The call failed, and the pool may still use its pieces.
    pub const STILL_IN_USE: i32 = -20_013;
    /// A function of the host said that it failed, and nothing more.
    pub const HOST_FAILED: i32 = -20_014;
    /// The answer is none that may be given, or contradicts itself.
    pub const BAD_ANSWER: i32 = -20_015;
    /// The pool has no such call.
    pub const UNSUPPORTED_CALL: i32 = -20_016;
    /// A function of the host called, on the same thread, what would call it again.
    pub const NESTED_CALL: i32 = -20_017;
    /// The process that lends the memory does not know the address of the object.
    pub const ADDRESS_REJECTED: i32 = -20_018;
    /// The process that lends the memory of the object does not answer, or not as it may; others of the pool may.
    pub const LENDER_LOST: i32 = -20_019;
    /// The pool took a put for that of a key which somebody else is just writing, if that one lives, or evicted the page at once: the key is not
    /// there.
    pub const BEING_WRITTEN: i32 = -20_020;
}

/// Answer to "is this key in the pool?".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is there, complete; where the pool has leases, its lease was renewed.
    Present,
    /// It is not there, or not complete yet.
    Absent,
    /// The pool did not say; the code tells why. Never to be counted as a hit.
    Unknown(i32),
}

/// What became of one key of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The object is in the pool, complete. A store that does not
    /// [tell](Capabilities::tells_already_there) says so of what is [`AlreadyThere`](Self::AlreadyThere), too.
    Stored,
    /// The pool has an object of this key; ours was dropped. Where another process may be writing
    /// one, and never end, it is asked for first: what is not there is [`code::BEING_WRITTEN`].
    AlreadyThere,
    /// No room now; a later put may find some.
    NoSpace,
    /// Not stored; the code tells why.
    Failed(i32),
}

/// What became of one key of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GetOutcome {
    /// This many bytes landed: the whole object, filling its targets.
    Landed(u64),
    /// The pool has no such object.
    Missing,
    /// The object has this size in bytes, which is not that of the targets: they are untouched. A store
    /// that does not [spare](Capabilities::spares_wrong_targets) them may have written to larger ones.
    WrongSize(u64),
    /// The read failed with this code; the targets may hold anything.
    Failed(i32),
}

/// What became of one key of a remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveOutcome {
    /// The object is gone: the key is absent and can be put again.
    Removed,
    /// There was none.
    Missing,
    /// It is leased, and the call did not force.
    Leased,
    /// Not removed, as far as is known; the code tells why.
    Failed(i32),
}

/// Whether a store can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// As far as is known.
    Up,
    /// No; the code tells why.
    Down(i32),
}

/// The pieces of all keys of one call. An object is the concatenation of its key's pieces.
///
/// Both sources and targets are lent exclusively: a list of targets that two calls could hold at
/// once would let both write the same bytes.
#[derive(Debug)]
pub struct Pieces<'a, P> {
    pieces: &'a mut [P],
    ends: Option<&'a [usize]>,
}

impl<'a, P> Pieces<'a, P> {
    /// One piece per key, in the keys' order.
    pub fn one_each(pieces: &'a mut [P]) -> Self {
        Self { pieces, ends: None }
    }

    /// Several per key: key `i` has the pieces from where key `i - 1` ended up to `ends[i]`.
    pub fn grouped(pieces: &'a mut [P], ends: &'a [usize]) -> Self {
        Self {
            pieces,
            ends: Some(ends),
        }
    }

    /// One piece per key, or several if `ends` says so, as for [`grouped`](Self::grouped).
    pub fn of_each(pieces: &'a mut [P], ends: Option<&'a [usize]>) -> Self {
        Self { pieces, ends }
    }

    /// Whether this describes exactly `keys` keys and every piece belongs to one.
    pub fn fits(&self, keys: usize) -> bool {
        match self.ends {
            None => self.pieces.len() == keys,
            Some(ends) => {
                ends.len() == keys
                    && ends.is_sorted()
                    && ends.last().copied().unwrap_or(0) == self.pieces.len()
            }
        }
    }

    /// The pieces of one key; none if the lists do not reach that far.
    pub fn of(&mut self, key: usize) -> &mut [P] {
        let range = self.range(key);
        self.pieces.get_mut(range).unwrap_or(&mut [])
    }

    /// The same pieces for a shorter time, to pass on and keep.
    pub fn reborrow(&mut self) -> Pieces<'_, P> {
        Pieces {
            pieces: self.pieces,
            ends: self.ends,
        }
    }

    /// Taken apart into the pieces of each of `keys` keys; lists that do not fit give empty ones.
    pub fn into_lists(self, keys: usize) -> Vec<&'a mut [P]> {
        let sizes: Vec<usize> = (0..keys).map(|key| self.range(key).len()).collect();
        let mut rest = self.pieces;
        let mut lists = Vec::with_capacity(keys);
        for size in sizes {
            let (list, later) = rest.split_at_mut(size.min(rest.len()));
            lists.push(list);
            rest = later;
        }
        lists
    }

    fn range(&self, key: usize) -> std::ops::Range<usize> {
        let Some(ends) = self.ends else {
            return key..key.saturating_add(1);
        };
        let start = match key.checked_sub(1) {
            None => Some(0),
            Some(before) => ends.get(before).copied(),
        };
        match (start, ends.get(key)) {
            (Some(start), Some(&end)) if start <= end => start..end,
            _ => 0..0,
        }
    }
}

/// The place of a block in its request's chain, which a pool may use to evict tails first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The hash of the block before it (the seed for the first), in the first bytes when it is
    /// shorter; the parent's key is the block's own key with this hash instead.
    pub parent: [u8; 32],
    /// How many blocks of the chain stand before it.
    pub ordinal: u32,
}

/// What a put asks for beyond storing. The default asks for nothing.
///
/// A store refuses, key by key with [`code::UNSUPPORTED_OPTION`], what it cannot do: an option
/// that is dropped silently is one that an operator believes to have.
#[derive(Debug, Clone, Copy, Default)]
pub struct PutOptions<'a> {
    /// Keep the objects this long before others are evicted.
    pub soft_pin_ttl: Option<Duration>,
    /// One eviction group per key; members go together.
    pub groups: Option<&'a Keys>,
    /// One place per key.
    pub places: Option<&'a [Place]>,
}

/// What a store can do. Fixed for the life of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The store's kind, as in the configuration.
    pub name: &'static str,
    /// Most pieces per key.
    pub pieces_per_key: usize,
    /// Most keys per call.
    pub keys_per_call: usize,
    /// [`PutOptions::soft_pin_ttl`] is honoured.
    pub soft_pin_ttl: bool,
    /// [`PutOptions::groups`] is honoured.
    pub groups: bool,
    /// [`PutOptions::places`] is honoured.
    pub places: bool,
    /// Keys of different tenants are kept apart.
    pub tenant: bool,
    /// Objects can be kept in several places.
    pub replicas: bool,
    /// Pieces may be device memory.
    pub device_memory: bool,
    /// A call that was given up may still read or write its pieces.
    pub can_be_late: bool,
    /// Of a store that is called late all the same: each get and put ends by a deadline of its own, before that of its caller, and
    /// nothing uses its pieces afterwards. A guard lets callers make such calls themselves where they only lend their memory.
    pub ends_by_itself: bool,
    /// A put tells [`PutOutcome::AlreadyThere`] from [`PutOutcome::Stored`].
    pub tells_already_there: bool,
    /// A get leaves targets alone that are larger than the object, as it always does smaller ones.
    pub spares_wrong_targets: bool,
    /// The log has a line when its calls begin to fail, with the reason: who makes them says nothing more.
    pub logs_failures: bool,
}

/// A pool.
///
/// Threads: any number at once, on any method. Every method that takes `out` empties it and
/// leaves one outcome per key in the keys' order; since a broken store might not, callers check
/// the length.
pub trait Store: Send + Sync {
    /// What this store can do.
    fn capabilities(&self) -> &Capabilities;

    /// Asks which keys are in the pool.
    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>);

    /// Stores one object per key. A key that is in the pool keeps its bytes. An object becomes
    /// visible only when it is complete.
    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    );

    /// Reads one object per key into targets of exactly its size.
    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>);

    /// Removes objects; leased ones only with `force`.
    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>);

    /// Makes a range known to the pool before pieces lie in it.
    fn register(&self, range: Range) -> Result<()>;

    /// Takes a registration back. No piece in the range may be in use.
    fn unregister(&self, range: Range) -> Result<()>;

    /// Whether the store can be used, as far as is known without asking anyone.
    fn health(&self) -> Health;

    /// Whether a failure code of this store means that the pool, or a part of it, cannot be reached: it opens the
    /// breaker. Asked only where a store [can be late](Capabilities::can_be_late), as the two below; say yes, too, for
    /// those of [`code`] that this store answers with in such a case.
    fn is_outage(&self, code: i32) -> bool;

    /// Whether after a get that failed with this code the pool may write to the pieces of the call, which are
    /// not used again then.
    fn may_still_write(&self, code: i32) -> bool;

    /// Whether after a put that failed with this code the pieces of the call must not change, though nobody waits for the
    /// put any more. A pool that only sends them late, to where nobody looks for that key, does not care.
    fn may_still_read(&self, code: i32) -> bool;

    /// Ends the use of this handle: later calls fail with [`code::CLOSED`]. Closing again is ok.
    fn close(&self) -> Result<()>;
}

/// Leaves `count` times the same outcome in `out`.
pub(crate) fn answer_all<T: Clone>(out: &mut Vec<T>, count: usize, outcome: T) {
    out.clear();
    out.resize(count, outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_piece_per_key() {
        let mut list = [10, 20];
        let mut pieces = Pieces::one_each(&mut list);
        assert!(pieces.fits(2) && !pieces.fits(1) && !pieces.fits(3));
        assert_eq!(pieces.of(1), [20]);
        assert!(pieces.of(2).is_empty());
        assert!(pieces.of(usize::MAX).is_empty());
    }

    #[test]
    fn grouped_pieces() {
        let mut list = [1, 2, 3];
        let ends = [2, 2, 3];
        let mut pieces = Pieces::grouped(&mut list, &ends);
        assert!(pieces.fits(3));
        assert_eq!(pieces.of(0), [1, 2]);
        assert!(pieces.of(1).is_empty());
        assert_eq!(pieces.reborrow().of(2), [3]);
        assert!(pieces.of(3).is_empty());
    }

    #[test]
    fn lists_that_contradict_themselves_do_not_fit() {
        let mut list = [1, 2, 3];
        for ends in [&[2, 1, 3][..], &[1, 2, 2], &[1, 2, 4], &[3], &[]] {
            let mut pieces = Pieces::grouped(&mut list, ends);
            assert!(!pieces.fits(3), "{ends:?}");
            for key in 0..4 {
                let _ = pieces.of(key);
            }
        }
        assert!(Pieces::<u8>::grouped(&mut [], &[]).fits(0));
    }
}
