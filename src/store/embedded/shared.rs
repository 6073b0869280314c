//! What all handles on a pool share, and the batches that work on it.
//!
//! Puts and gets run in three steps: under the lock claim bytes for every key, outside it copy,
//! under the lock again publish or let go. The lists that carry claims from step to step are
//! kept for the next call.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::arena::{Arena, Books, Reading, Room};
use super::eviction::Evictor;
use super::extents::{GRANULE, footprint};
use super::index::{Index, Name, Removal};
use crate::device::memory::{Memory, Source, Target};
use crate::error::{Result, bail};
use crate::keys::Keys;
use crate::lane::Clock;
use crate::store::{GetOutcome, Pieces, Presence, PutOutcome, RemoveOutcome, code};

/// How often a put evicts again when enough bytes are free but not in one piece.
const MORE_EVICTIONS: u32 = 4;

/// How many keys are named before their slots are looked up.
const NAMES_AT_ONCE: usize = 32;

/// Lists kept for later calls at most: more calls than this at once are not the steady state.
const SPARE_LISTS: usize = 64;

/// Numbers of a pool. Counters start with the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Complete objects now.
    pub objects: u64,
    /// Bytes taken up now, also by objects that are being written.
    pub bytes_used: u64,
    /// Most bytes that may be taken up.
    pub capacity: u64,
    /// Objects evicted.
    pub evictions: u64,
    /// Bytes that evicted objects took up.
    pub bytes_evicted: u64,
    /// Keys of puts that were answered "no space".
    pub puts_refused: u64,
    /// Leases given or renewed.
    pub leases: u64,
}

/// A pool.
pub(super) struct Shared {
    capacity: u64,
    eviction_bytes: u64,
    lease_ttl: u64,
    clock: Arc<dyn Clock>,
    arena: Arena,
    state: Mutex<State>,
}

struct State {
    index: Index,
    books: Books,
    evictor: Evictor,
    /// The last stamp given out.
    stamp: u64,
    stats: Stats,
    spare_writes: Vec<Vec<Write>>,
    spare_reads: Vec<Vec<Read>>,
}

/// A key of a put between its steps.
struct Write {
    key: usize,
    entry: u32,
    room: Room,
    filled: bool,
}

/// A key of a get between its steps.
struct Read {
    key: usize,
    entry: u32,
    reading: Reading,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The bytes of a key's pieces, if this CPU can reach all of them.
fn total(sizes: impl Iterator<Item = (u64, Memory)>) -> std::result::Result<u64, i32> {
    let mut sum = 0_u64;
    for (size, memory) in sizes {
        if memory != Memory::Host {
            return Err(code::UNREACHABLE_MEMORY);
        }
        sum = sum.checked_add(size).ok_or(code::TOO_LARGE)?;
    }
    Ok(sum)
}

impl Shared {
    pub fn new(
        capacity: u64,
        eviction_ratio: f64,
        lease_ttl: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        if capacity < GRANULE {
            bail!(
                ConfigInvalid,
                "an embedded pool needs at least {GRANULE} bytes; global_segment_size is {capacity}"
            );
        }
        if !(0.0..=1.0).contains(&eviction_ratio) {
            bail!(
                ConfigInvalid,
                "eviction_ratio is {eviction_ratio}; it is a part of the pool, from 0 to 1"
            );
        }
        let (arena, books) = Arena::map(capacity)?;
        Ok(Self {
            capacity,
            eviction_bytes: (capacity as f64 * eviction_ratio).ceil() as u64,
            lease_ttl: nanos(lease_ttl),
            clock,
            arena,
            state: Mutex::new(State {
                index: Index::new(),
                books,
                evictor: Evictor::new(),
                stamp: 0,
                stats: Stats::default(),
                spare_writes: Vec::new(),
                spare_reads: Vec::new(),
            }),
        })
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn stats(&self) -> Stats {
        let state = self.state.lock();
        Stats {
            objects: state.index.len() as u64,
            bytes_used: state.books.used(),
            capacity: self.capacity,
            ..state.stats
        }
    }

    pub fn leased(&self) -> u64 {
        let now = nanos(self.clock.now());
        let state = self.state.lock();
        let leased = state.index.slots().filter(|slot| slot.lease > now);
        leased.count() as u64
    }

    /// Whether the key is there, without counting as access.
    #[cfg(test)]
    pub fn peek(&self, key: &[u8]) -> bool {
        let mut state = self.state.lock();
        state.index.find(key).is_some_and(|slot| slot.access != 0)
    }

    pub fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        out.clear();
        out.reserve(keys.len());
        let now = nanos(self.clock.now());
        let until = now.saturating_add(self.lease_ttl);
        let mut guard = self.state.lock();
        let State {
            index,
            stamp,
            stats,
            ..
        } = &mut *guard;
        // First the names of many keys, then their slots: lookups that do not wait for a decoding
        // run side by side, and most of a lookup is waiting for memory.
        let mut names = [Name::NONE; NAMES_AT_ONCE];
        for first in (0..keys.len()).step_by(NAMES_AT_ONCE) {
            let count = NAMES_AT_ONCE.min(keys.len() - first);
            for (number, name) in names.iter_mut().take(count).enumerate() {
                index.name(keys.get(first + number), name);
            }
            for name in names.iter().take(count) {
                let presence = match index.named(name) {
                    Some(slot) if slot.access != 0 => {
                        *stamp += 1;
                        slot.access = *stamp;
                        slot.lease = slot.lease.max(until);
                        stats.leases += 1;
                        Presence::Present
                    }
                    _ => Presence::Absent,
                };
                out.push(presence);
            }
        }
    }

    pub fn put(&self, keys: &Keys, mut sources: Pieces<'_, Source<'_>>, out: &mut Vec<PutOutcome>) {
        out.clear();
        out.reserve(keys.len());
        let now = nanos(self.clock.now());

        let mut state = self.state.lock();
        let mut writes = state.spare_writes.pop().unwrap_or_default();
        for (i, key) in keys.iter().enumerate() {
            let pieces = sources.of(i);
            let size = total(pieces.iter().map(|piece| (piece.size(), piece.memory())));
            out.push(match state.claim(key, size, self, now) {
                Ok((entry, room)) => {
                    writes.push(Write {
                        key: i,
                        entry,
                        room,
                        filled: false,
                    });
                    PutOutcome::Stored
                }
                Err(refusal) => refusal,
            });
        }
        drop(state);

        for write in &mut writes {
            write.filled = self.arena.fill(&mut write.room, sources.of(write.key));
        }

        let mut state = self.state.lock();
        for write in writes.drain(..) {
            if write.filled {
                state.stamp += 1;
                let stamp = state.stamp;
                state.index.publish(write.entry, write.room.seal(), stamp);
                state.evictor.published();
            } else {
                state.index.abandon(write.entry);
                state.books.cancel(write.room);
                if let Some(outcome) = out.get_mut(write.key) {
                    *outcome = PutOutcome::Failed(code::UNREACHABLE_MEMORY);
                }
            }
        }
        if state.spare_writes.len() < SPARE_LISTS {
            state.spare_writes.push(writes);
        }
    }

    pub fn get(&self, keys: &Keys, mut targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        out.clear();
        out.reserve(keys.len());
        let began = nanos(self.clock.now());

        let mut state = self.state.lock();
        let mut reads = state.spare_reads.pop().unwrap_or_default();
        for (i, key) in keys.iter().enumerate() {
            let pieces = targets.of(i);
            let size = total(pieces.iter().map(|piece| (piece.size(), piece.memory())));
            out.push(match state.pin(key, size) {
                Ok((entry, reading, size)) => {
                    reads.push(Read {
                        key: i,
                        entry,
                        reading,
                    });
                    GetOutcome::Landed(size)
                }
                Err(refusal) => refusal,
            });
        }
        drop(state);

        for read in &reads {
            if !self.arena.copy_out(&read.reading, targets.of(read.key))
                && let Some(outcome) = out.get_mut(read.key)
            {
                *outcome = GetOutcome::Failed(code::UNREACHABLE_MEMORY);
            }
        }
        // What is read here is pinned and cannot have changed. But a read that outlives its lease
        // is one that no other pool vouches for, and users shall meet that here first.
        let took = nanos(self.clock.now()).saturating_sub(began);
        if self.lease_ttl > 0 && took > self.lease_ttl {
            let landed = |outcome: &&mut GetOutcome| matches!(outcome, GetOutcome::Landed(_));
            for outcome in out.iter_mut().filter(landed) {
                *outcome = GetOutcome::Failed(code::LEASE_EXPIRED);
            }
        }

        let mut guard = self.state.lock();
        let state = &mut *guard;
        for read in reads.drain(..) {
            let (index, books) = (&mut state.index, &mut state.books);
            index.end_reading(read.entry, read.reading, books);
            state.evictor.readings_ended();
        }
        if state.spare_reads.len() < SPARE_LISTS {
            state.spare_reads.push(reads);
        }
    }

    pub fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        out.clear();
        out.reserve(keys.len());
        let now = nanos(self.clock.now());
        let mut guard = self.state.lock();
        let State { index, books, .. } = &mut *guard;
        for key in keys.iter() {
            out.push(match index.remove(key, force, now, books) {
                Removal::Removed => RemoveOutcome::Removed,
                Removal::Missing => RemoveOutcome::Missing,
                Removal::Leased => RemoveOutcome::Leased,
            });
        }
    }
}

impl State {
    /// Takes the key and bytes for it, or says why not.
    fn claim(
        &mut self,
        key: &[u8],
        size: std::result::Result<u64, i32>,
        pool: &Shared,
        now: u64,
    ) -> std::result::Result<(u32, Room), PutOutcome> {
        if let Some(slot) = self.index.find(key) {
            if slot.access != 0 {
                self.stamp += 1;
                slot.access = self.stamp;
            }
            return Err(PutOutcome::AlreadyThere);
        }
        let size = size.map_err(PutOutcome::Failed)?;
        let footprint = footprint(size)
            .filter(|&footprint| footprint <= pool.capacity)
            .ok_or(PutOutcome::Failed(code::TOO_LARGE))?;
        let Some(room) = self.make_room(size, footprint.max(pool.eviction_bytes), now) else {
            self.stats.puts_refused += 1;
            return Err(PutOutcome::NoSpace);
        };
        match self.index.begin(key) {
            Some(entry) => Ok((entry, room)),
            None => {
                self.books.cancel(room);
                self.stats.puts_refused += 1;
                Err(PutOutcome::NoSpace)
            }
        }
    }

    fn make_room(&mut self, size: u64, eviction: u64, now: u64) -> Option<Room> {
        if let Some(room) = self.books.reserve(size) {
            return Some(room);
        }
        for _ in 0..=MORE_EVICTIONS {
            let (index, books) = (&mut self.index, &mut self.books);
            let freed = self.evictor.evict(index, books, eviction, now);
            self.stats.evictions += freed.objects;
            self.stats.bytes_evicted += freed.bytes;
            if freed.objects == 0 {
                return None;
            }
            if let Some(room) = self.books.reserve(size) {
                return Some(room);
            }
        }
        None
    }

    /// Pins the key's object if it has the wanted size, or says why not.
    fn pin(
        &mut self,
        key: &[u8],
        wanted: std::result::Result<u64, i32>,
    ) -> std::result::Result<(u32, Reading, u64), GetOutcome> {
        let Some(slot) = self.index.find(key).filter(|slot| slot.access != 0) else {
            return Err(GetOutcome::Missing);
        };
        self.stamp += 1;
        slot.access = self.stamp;
        let entry = slot.entry;
        let object = self.index.object(entry).ok_or(GetOutcome::Missing)?;
        let size = object.size();
        match wanted {
            Ok(wanted) if wanted == size => {}
            Ok(_) => return Err(GetOutcome::WrongSize(size)),
            Err(code) => return Err(GetOutcome::Failed(code)),
        }
        // Without a reading left, more than four thousand million gets of the object are running.
        let reading = object.read().ok_or(GetOutcome::Missing)?;
        Ok((entry, reading, size))
    }
}

#[cfg(test)]
mod tests;
