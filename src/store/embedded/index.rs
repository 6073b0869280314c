//! Which objects the pool has: keys to objects, without keeping the keys.
//!
//! A page's key is a long prefix that millions of pages share and a digest. The prefix is interned
//! as a *space* and the digest kept decoded, so that one comparison of 36 bytes is an exact
//! comparison of two keys. A key of any other shape is a space of its own. What a lookup needs
//! (name, access stamp, lease) stands in the hash table itself, because at millions of
//! objects each further memory access of a lookup costs as much as the first; what only
//! transfers need stands in a slab beside it.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

use super::arena::{Books, Object, Reading};

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
        self.spaces.table.len()
    }
}

/// The interned prefixes. A space lives while a key is in it, so that names which come and go
/// (models, sessions, test runs) leave nothing behind.
#[derive(Debug)]
struct Spaces {
    list: Vec<Space>,
    table: HashTable<u32>,
    unused: Vec<u32>,
    hasher: DefaultHashBuilder,
    last: u32,
}

#[derive(Debug)]
struct Space {
    prefix: Vec<u8>,
    width: u8,
    keys: u64,
    /// The space that was asked for after this one: keys come in rounds over a few spaces (one
    /// per shard and layer group), and a guess is cheaper to check than a prefix to hash.
    follower: u32,
}

impl Spaces {
    fn new() -> Self {
        Self {
            list: Vec::new(),
            table: HashTable::new(),
            unused: Vec::new(),
            hasher: DefaultHashBuilder::default(),
            last: 0,
        }
    }

    fn hash(&self, prefix: &[u8], width: u8) -> u64 {
        self.hasher.hash_one((prefix, width))
    }

    fn find(&mut self, prefix: &[u8], width: u8) -> Option<u32> {
        let is = |list: &[Space], space: u32| {
            list.get(space as usize).is_some_and(|space| {
                space.keys > 0 && space.width == width && space.prefix == prefix
            })
        };
        if let Some(last) = self.list.get(self.last as usize) {
            let guess = last.follower;
            if is(&self.list, guess) {
                self.last = guess;
                return Some(guess);
            }
        }
        let hash = self.hash(prefix, width);
        let found = *self.table.find(hash, |&space| is(&self.list, space))?;
        if let Some(last) = self.list.get_mut(self.last as usize) {
            last.follower = found;
        }
        self.last = found;
        Some(found)
    }

    /// The prefix's space with one key more.
    fn join(&mut self, prefix: &[u8], width: u8) -> Option<u32> {
        if let Some(space) = self.find(prefix, width) {
            self.list[space as usize].keys += 1;
            return Some(space);
        }
        let space = match self.unused.pop() {
            Some(space) => {
                let record = &mut self.list[space as usize];
                record.prefix.clear();
                record.prefix.extend_from_slice(prefix);
                record.width = width;
                record.keys = 1;
                space
            }
            None => {
                let space = u32::try_from(self.list.len()).ok().filter(|&s| s != NIL)?;
                self.list.push(Space {
                    prefix: prefix.to_vec(),
                    width,
                    keys: 1,
                    follower: space,
                });
                space
            }
        };
        let hash = self.hash(prefix, width);
        let (list, hasher) = (&self.list, &self.hasher);
        self.table.insert_unique(hash, space, |&space| {
            let space = &list[space as usize];
            hasher.hash_one((space.prefix.as_slice(), space.width))
        });
        Some(space)
    }

    fn leave(&mut self, space: u32) {
        let Some(record) = self.list.get_mut(space as usize) else {
            return;
        };
        record.keys -= 1;
        if record.keys > 0 {
            return;
        }
        let hash = self
            .hasher
            .hash_one((record.prefix.as_slice(), record.width));
        if let Ok(found) = self.table.find_entry(hash, |&other| other == space) {
            found.remove();
        }
        // A long prefix is not kept for a space that may never need it.
        if record.prefix.capacity() > 1024 {
            record.prefix = Vec::new();
        }
        self.unused.push(space);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(key: &str) -> (Vec<u8>, u8) {
        let (prefix, width) = split(key.as_bytes(), &mut [0; DIGEST]);
        (prefix.to_vec(), width)
    }

    #[test]
    fn only_lower_case_digests_behind_a_slash_are_taken_apart() {
        let short = "0123456789abcdef0123456789abcdef";
        let long = format!("{short}{short}");
        assert_eq!(digest(&format!("a/b/{short}")), (b"a/b".to_vec(), 16));
        assert_eq!(digest(&format!("a/b/{long}")), (b"a/b".to_vec(), 32));
        assert_eq!(digest(&format!("/{short}")), (Vec::new(), 16));
        for whole in [
            "".to_owned(),
            "a".to_owned(),
            short.to_owned(),
            long.clone(),
            format!("a/{}", short.to_uppercase()),
            format!("a/{short}0"),
            format!("a/g{}", &short[1..]),
            format!("a-{short}"),
        ] {
            assert_eq!(digest(&whole), (whole.clone().into_bytes(), 0));
        }
    }

    #[test]
    fn names_that_share_a_digest_are_different_keys() {
        let short = "0".repeat(32);
        let long = "0".repeat(64);
        let keys = [
            format!("a/{short}"),
            format!("b/{short}"),
            format!("a/{long}"),
            format!("a/{short}/{short}"),
            "a".to_owned(),
            short.clone(),
            String::new(),
        ];
        let mut index = Index::new();
        let mut entries = Vec::new();
        for key in &keys {
            assert!(index.find(key.as_bytes()).is_none(), "{key}");
            entries.push(index.begin(key.as_bytes()).unwrap());
        }
        for (key, entry) in keys.iter().zip(&entries) {
            assert_eq!(index.find(key.as_bytes()).unwrap().entry, *entry);
        }
        assert_eq!(index.space_count(), keys.len());
        for entry in entries {
            index.abandon(entry);
        }
        assert_eq!((index.space_count(), index.table.len()), (0, 0));
    }

    #[test]
    fn a_hash_that_collides_is_not_a_match() {
        let mut index = Index::new();
        let key = format!("a/{}", "0".repeat(32));
        let other = format!("a/{}1", "0".repeat(31));
        let entry = index.begin(key.as_bytes()).unwrap();
        let name = {
            let mut digest = [0; DIGEST];
            let (prefix, width) = split(other.as_bytes(), &mut digest);
            let space = index.spaces.find(prefix, width).unwrap();
            Name { digest, space }
        };
        // Files the first key's slot under the second key's hash.
        let found = index
            .table
            .find_entry(index.entries[entry as usize].hash, |s| s.entry == entry);
        let (slot, _) = found.unwrap().remove();
        index
            .table
            .insert_unique(name.hash(), slot, |s| s.name.hash());
        assert!(index.find(other.as_bytes()).is_none());
    }

    #[test]
    fn spaces_that_come_and_go_leave_nothing_behind() {
        let mut index = Index::new();
        for round in 0..1000 {
            let entry = index.begin(format!("session {round}").as_bytes()).unwrap();
            index.abandon(entry);
        }
        assert_eq!(index.space_count(), 0);
        assert!(index.spaces.list.len() <= 1 && index.entries.len() <= 1);
    }
}
