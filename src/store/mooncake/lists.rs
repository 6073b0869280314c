//! Lists for one call of the library, kept and refilled: addresses of keys and buffers that callers
//! lend, room for answers, and what is done about keys that come twice.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::hash::BuildHasher;
use std::ptr;

use hashbrown::DefaultHashBuilder;
use hashbrown::hash_table::{Entry, HashTable};

use crate::device::memory::{Source, Target};
use crate::keys::Keys;
use crate::store::{GetOutcome, Pieces, code};

/// What one call passes to the library, one element per key. Empty between calls, so that it holds
/// no address of what was lent.
#[derive(Debug, Default)]
pub(super) struct Lists {
    pub(super) keys: Vec<*const c_char>,
    pub(super) buffers: Vec<*mut c_void>,
    pub(super) sizes: Vec<usize>,
    pub(super) codes: Vec<c_int>,
    /// Keys that were put and are asked for, and the answers.
    pub(super) asked: Vec<*const c_char>,
    pub(super) present: Vec<c_int>,
    pub(super) landed: Vec<i64>,
    /// Keys of this batch that came before in it.
    twins: Vec<Twin>,
    /// Positions in `keys`, by key.
    seen: HashTable<usize>,
    hasher: DefaultHashBuilder,
}

/// A key that a batch has for the second time. The library is not given it: of such keys it gets one
/// alone into its buffer and says so of both, and it may mix what is put.
#[derive(Debug, Clone, Copy)]
pub(super) struct Twin {
    /// Its place in the batch.
    index: usize,
    /// The place of the first one among those that the library is given.
    first: usize,
    buffer: *mut c_void,
    size: usize,
}

// SAFETY: whoever has it uses the addresses only while they are lent.
unsafe impl Send for Lists {}

impl Lists {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
        self.buffers.clear();
        self.sizes.clear();
        self.codes.clear();
        self.asked.clear();
        self.present.clear();
        self.landed.clear();
        self.twins.clear();
        self.seen.clear();
    }

    /// Takes the [twins](Twin) out of a batch whose other lists are complete.
    pub(super) fn part_twins(&mut self, keys: &Keys) {
        let mut kept = 0;
        for index in 0..self.keys.len() {
            let key = keys.get(index);
            let hash = |key: &[u8]| self.hasher.hash_one(key);
            let entry = self.seen.entry(
                hash(key),
                |&first| keys.get(first) == key,
                |&first| hash(keys.get(first)),
            );
            match entry {
                Entry::Occupied(first) => {
                    // Those before it that were kept moved down past as many twins.
                    let before = self.twins.partition_point(|twin| twin.index < *first.get());
                    self.twins.push(Twin {
                        index,
                        first: *first.get() - before,
                        buffer: self.buffers[index],
                        size: self.sizes[index],
                    });
                }
                Entry::Vacant(place) => {
                    place.insert(index);
                    self.keys[kept] = self.keys[index];
                    self.buffers[kept] = self.buffers[index];
                    self.sizes[kept] = self.sizes[index];
                    kept += 1;
                }
            }
        }
        self.keys.truncate(kept);
        self.buffers.truncate(kept);
        self.sizes.truncate(kept);
    }

    /// Puts the answers of twins between those of the others; `answer` makes them.
    pub(super) fn join_twins<T: Copy>(&self, out: &mut Vec<T>, answer: impl Fn(&Twin, T) -> T) {
        if self.twins.is_empty() {
            return;
        }
        let firsts = out.clone();
        let mut others = out.drain(..);
        let mut joined = Vec::with_capacity(firsts.len() + self.twins.len());
        for twin in &self.twins {
            let behind = twin.index - joined.len();
            joined.extend(others.by_ref().take(behind));
            joined.extend(firsts.get(twin.first).map(|&first| answer(twin, first)));
        }
        joined.extend(others);
        *out = joined;
    }

    /// What a twin gets: a copy of what its first got.
    pub(super) fn copy_landed(&self, twin: &Twin, first: GetOutcome) -> GetOutcome {
        let (Some(&buffer), Some(&size)) =
            (self.buffers.get(twin.first), self.sizes.get(twin.first))
        else {
            return GetOutcome::Failed(code::NO_ANSWER);
        };
        match first {
            // An object has one size.
            _ if size != twin.size => GetOutcome::Failed(code::MALFORMED_CALL),
            GetOutcome::Landed(_) => {
                // SAFETY: two targets of this size that are lent to this call, each alone.
                unsafe { ptr::copy_nonoverlapping(buffer, twin.buffer, size) };
                first
            }
            _ => first,
        }
    }

    /// Keys, one per buffer. `MALFORMED_CALL` if one holds a NUL: the library would see another key.
    pub(super) fn push_keys(&mut self, keys: &Keys) -> Result<(), i32> {
        self.keys.reserve(keys.len());
        for index in 0..keys.len() {
            let key = keys.with_nul(index);
            if CStr::from_bytes_with_nul(key).is_err() {
                return Err(code::MALFORMED_CALL);
            }
            self.keys.push(key.as_ptr().cast());
        }
        Ok(())
    }

    /// Sources, one per key; the code says what is wrong with one.
    pub(super) fn push_sources(
        &mut self,
        count: usize,
        mut sources: Pieces<'_, Source<'_>>,
    ) -> Result<(), i32> {
        for key in 0..count {
            let [source] = sources.of(key) else {
                return Err(code::MALFORMED_CALL);
            };
            let size = source.bytes().ok_or(code::UNREACHABLE_MEMORY)?.len();
            self.push_buffer(source.address(), size);
        }
        Ok(())
    }

    /// Targets, one per key; the code says what is wrong with one.
    pub(super) fn push_targets(
        &mut self,
        count: usize,
        mut targets: Pieces<'_, Target<'_>>,
    ) -> Result<(), i32> {
        for key in 0..count {
            let [target] = targets.of(key) else {
                return Err(code::MALFORMED_CALL);
            };
            let size = target.bytes_mut().ok_or(code::UNREACHABLE_MEMORY)?.len();
            self.push_buffer(target.address(), size);
        }
        Ok(())
    }

    /// An address that fits this machine, as that of something with bytes was just seen to.
    fn push_buffer(&mut self, address: u64, size: usize) {
        self.buffers
            .push(ptr::with_exposed_provenance_mut(address as usize));
        self.sizes.push(size);
    }
}
