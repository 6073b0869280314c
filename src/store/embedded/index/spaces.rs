//! The prefixes of keys, each once.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::NIL;

/// The interned prefixes. A space lives while a key is in it, so that names which come and go
/// (models, sessions, test runs) leave nothing behind.
#[derive(Debug)]
pub(super) struct Spaces {
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
    pub fn new() -> Self {
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

    pub fn find(&mut self, prefix: &[u8], width: u8) -> Option<u32> {
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
    pub fn join(&mut self, prefix: &[u8], width: u8) -> Option<u32> {
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

    pub fn leave(&mut self, space: u32) {
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

    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.table.len()
    }

    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.list.len()
    }
}
