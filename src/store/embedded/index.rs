//! Which objects the pool has: keys to objects, without keeping the keys.
//!
//! A page's key is a long prefix that millions of pages share and a digest. The prefix is interned
//! as a *space* and the digest kept decoded, so that one comparison of 36 bytes is an exact
//! comparison of two keys. A key of any other shape is a space of its own. What a lookup needs
//! (name, access stamp, lease) stands in the hash table itself, because at millions of
//! objects each further memory access of a lookup costs as much as the first; what only
//! transfers need stands in a slab beside it.

mod spaces;
#[cfg(test)]
mod tests;

use hashbrown::HashTable;

use super::arena::{Books, Object, Reading};
use spaces::Spaces;

const NIL: u32 = u32::MAX;
const DIGEST: usize = 32;

/// An exact name of a key: equal names are equal keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Name {
    digest: [u8; DIGEST],
    space: u32,
}

/// One key in the table.
#[derive(Debug)]
pub(super) struct Slot {
    name: Name,
    /// Its record in the slab.
    pub entry: u32,
    /// Stamp of the last access, unique in the pool; 0 while the object is being written, when
    /// the key is taken but nothing exists yet.
    pub access: u64,
    /// Leased before this time, in nanoseconds of the pool's clock.
    pub lease: u64,
}

#[derive(Debug)]
enum State {
    Unused {
        next: u32,
    },
    Writing,
    Stored(Object),
    /// Removed while being read: no key leads here, the last reader frees it.
    Doomed(Object),
}

#[derive(Debug)]
struct Entry {
    hash: u64,
    state: State,
}

/// Keys and objects; lives under the pool's lock.
#[derive(Debug)]
pub(super) struct Index {
    spaces: Spaces,
    table: HashTable<Slot>,
    entries: Vec<Entry>,
    unused: u32,
    writing: usize,
}

/// What the evictor learns about a candidate.
pub(super) enum Fate {
    /// Its bytes are free now.
    Evicted(u64),
    /// It is leased until this time.
    Leased(u64),
    /// It is being read.
    Read,
    /// The candidate was touched or removed since it was picked.
    Stale,
}

/// What became of a removal.
pub(super) enum Removal {
    Removed,
    Missing,
    Leased,
}

impl Name {
    /// The name of no key.
    pub const NONE: Self = Self {
        digest: [0; DIGEST],
        space: NIL,
    };

    /// Digests are uniformly distributed already; the rest spreads digests that users make up
    /// and the spaces that one block's pages differ in.
    fn hash(&self) -> u64 {
        let word = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&self.digest[at..at + 8]);
            u64::from_le_bytes(bytes)
        };
        let digest = word(0) ^ word(8).rotate_left(17) ^ word(24).rotate_left(39);
        let mixed = (digest ^ u64::from(self.space).wrapping_mul(0x9e37_79b9_7f4a_7c15))
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        mixed ^ (mixed >> 32)
    }
}

/// A key taken apart: prefix and bytes of its digest; the digest goes to `digest`, zeros behind it.
// By reference, since reading what was just decoded stalls the processor: the decoder writes with
// masked stores, which no load can be served from before they are in the cache.
fn split<'a>(key: &'a [u8], digest: &mut [u8; DIGEST]) -> (&'a [u8], u8) {
    *digest = [0; DIGEST];
    for width in [DIGEST, DIGEST / 2] {
        let Some(slash) = key.len().checked_sub(2 * width + 1) else {
            continue;
        };
        if key.get(slash) != Some(&b'/') {
            continue;
        }
        let (Some(prefix), Some(hex)) = (key.get(..slash), key.get(slash + 1..)) else {
            continue;
        };
        // Upper-case digits would make two spellings one key.
        let lower = faster_hex::CheckCase::Lower;
        if faster_hex::hex_decode_with_case(hex, &mut digest[..width], lower).is_ok() {
            return (prefix, width as u8);
        }
    }
    *digest = [0; DIGEST];
    (key, 0)
}

impl Index {
    pub fn new() -> Self {
        Self {
            spaces: Spaces::new(),
            table: HashTable::new(),
            entries: Vec::new(),
            unused: NIL,
            writing: 0,
        }
    }

    /// Complete objects.
    pub fn len(&self) -> usize {
        self.table.len() - self.writing
    }

    /// Makes `name` the key's name.
    pub fn name(&mut self, key: &[u8], name: &mut Name) {
        let (prefix, width) = split(key, &mut name.digest);
        name.space = self.spaces.find(prefix, width).unwrap_or(NIL);
    }

    /// The slot of that name, complete or being written.
    pub fn named(&mut self, name: &Name) -> Option<&mut Slot> {
        if name.space == NIL {
            return None;
        }
        self.table.find_mut(name.hash(), |slot| slot.name == *name)
    }

    /// The key's slot, complete or being written.
    pub fn find(&mut self, key: &[u8]) -> Option<&mut Slot> {
        let mut name = Name::NONE;
        self.name(key, &mut name);
        self.named(&name)
    }

    /// All slots, in no order.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.table.iter()
    }

    /// Takes a key that is not there for an object that is being written. `None` only when the
    /// index has as many entries as it can number.
    pub fn begin(&mut self, key: &[u8]) -> Option<u32> {
        let mut digest = [0; DIGEST];
        let (prefix, width) = split(key, &mut digest);
        let entry = self.entry()?;
        let Some(space) = self.spaces.join(prefix, width) else {
            self.retire(entry);
            return None;
        };
        let name = Name { digest, space };
        let hash = name.hash();
        self.entries[entry as usize] = Entry {
            hash,
            state: State::Writing,
        };
        let slot = Slot {
            name,
            entry,
            access: 0,
            lease: 0,
        };
        self.table
            .insert_unique(hash, slot, |slot| slot.name.hash());
        self.writing += 1;
        Some(entry)
    }

    /// Makes a written object exist.
    pub fn publish(&mut self, entry: u32, object: Object, stamp: u64) {
        let Some(record) = self.entries.get_mut(entry as usize) else {
            return;
        };
        record.state = State::Stored(object);
        let hash = record.hash;
        if let Some(slot) = self.table.find_mut(hash, |slot| slot.entry == entry) {
            slot.access = stamp;
            self.writing -= 1;
        }
    }

    /// Takes [`Index::begin`] back.
    pub fn abandon(&mut self, entry: u32) {
        if matches!(self.state(entry), Some(State::Writing)) {
            self.unlink(entry);
            self.writing -= 1;
            self.retire(entry);
        }
    }

    /// The complete object of an entry.
    pub fn object(&mut self, entry: u32) -> Option<&mut Object> {
        match self.entries.get_mut(entry as usize)?.state {
            State::Stored(ref mut object) => Some(object),
            _ => None,
        }
    }

    /// Ends a reading, and with the last one of a removed object frees its bytes.
    pub fn end_reading(&mut self, entry: u32, reading: Reading, books: &mut Books) {
        let Some(record) = self.entries.get_mut(entry as usize) else {
            return;
        };
        match &mut record.state {
            State::Stored(object) => object.end(reading),
            State::Doomed(object) => {
                object.end(reading);
                if !object.is_read() {
                    self.free(entry, books);
                }
            }
            State::Writing | State::Unused { .. } => {}
        }
    }

    /// Removes a key's object; its bytes are free at once, or when its last reader is done.
    pub fn remove(&mut self, key: &[u8], force: bool, now: u64, books: &mut Books) -> Removal {
        let Some(slot) = self.find(key).filter(|slot| slot.access != 0) else {
            return Removal::Missing;
        };
        if slot.lease > now && !force {
            return Removal::Leased;
        }
        let entry = slot.entry;
        self.unlink(entry);
        self.free(entry, books);
        Removal::Removed
    }

    /// Evicts the entry if its last access is still `stamp` and nothing holds it.
    pub fn evict(&mut self, entry: u32, stamp: u64, now: u64, books: &mut Books) -> Fate {
        let Some(record) = self.entries.get(entry as usize) else {
            return Fate::Stale;
        };
        let State::Stored(object) = &record.state else {
            return Fate::Stale;
        };
        let Some(slot) = self.table.find(record.hash, |slot| slot.entry == entry) else {
            return Fate::Stale;
        };
        if slot.access != stamp {
            return Fate::Stale;
        }
        if object.is_read() {
            return Fate::Read;
        }
        if slot.lease > now {
            return Fate::Leased(slot.lease);
        }
        let before = books.used();
        self.unlink(entry);
        self.free(entry, books);
        Fate::Evicted(before - books.used())
    }

    fn state(&self, entry: u32) -> Option<&State> {
        Some(&self.entries.get(entry as usize)?.state)
    }

    /// Takes the entry's key out of the table and its use out of the key's space.
    fn unlink(&mut self, entry: u32) {
        let Some(record) = self.entries.get(entry as usize) else {
            return;
        };
        let found = self
            .table
            .find_entry(record.hash, |slot| slot.entry == entry);
        if let Ok(found) = found {
            let (slot, _) = found.remove();
            self.spaces.leave(slot.name.space);
        }
    }

    /// Gives back the bytes of an entry that no key leads to any more, or has its last reader
    /// do so.
    fn free(&mut self, entry: u32, books: &mut Books) {
        let Some(record) = self.entries.get_mut(entry as usize) else {
            return;
        };
        match std::mem::replace(&mut record.state, State::Writing) {
            State::Stored(object) | State::Doomed(object) => match books.release(object) {
                Ok(()) => self.retire(entry),
                Err(object) => record.state = State::Doomed(object),
            },
            other => record.state = other,
        }
    }

    fn entry(&mut self) -> Option<u32> {
        let entry = self.unused;
        if entry != NIL {
            if let Some(State::Unused { next }) = self.state(entry) {
                self.unused = *next;
            }
            return Some(entry);
        }
        let entry = u32::try_from(self.entries.len())
            .ok()
            .filter(|&entry| entry != NIL)?;
        self.entries.push(Entry {
            hash: 0,
            state: State::Writing,
        });
        Some(entry)
    }

    fn retire(&mut self, entry: u32) {
        self.entries[entry as usize].state = State::Unused { next: self.unused };
        self.unused = entry;
    }

    #[cfg(test)]
    pub fn space_count(&self) -> usize {
        self.spaces.in_use()
    }
}
