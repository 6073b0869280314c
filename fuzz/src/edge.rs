//! Memory that ends where the next byte would end the process.

use std::ptr;

const PAGE: usize = 4096;

/// A mapping between two pages that nobody may touch.
pub struct Fenced {
    mapping: *mut u8,
    mapped: usize,
    room: usize,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Fenced {}

impl Fenced {
    /// Room for at least this many bytes, of which [`Fenced::put`] uses the last ones.
    pub fn new(bytes: usize) -> Self {
        let room = bytes.max(1).next_multiple_of(PAGE);
        let mapped = room + 2 * PAGE;
        // SAFETY: a new private mapping, whose inner pages are then made usable.
        let mapping = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let mapping = libc::mmap(ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0);
            assert!(mapping != libc::MAP_FAILED);
            let inner = mapping.byte_add(PAGE);
            let usable = libc::PROT_READ | libc::PROT_WRITE;
            assert_eq!(libc::mprotect(inner, room, usable), 0);
            mapping.cast()
        };
        Self {
            mapping,
            mapped,
            room,
        }
    }

    /// All of the room.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: readable and writable since `new`, and borrowed from its owner.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.add(PAGE), self.room) }
    }

    /// A copy of these bytes that ends at the fence.
    pub fn put(&mut self, bytes: &[u8]) -> &[u8] {
        assert!(bytes.len() <= self.room);
        let start = self.room - bytes.len();
        let copy = &mut self.bytes()[start..];
        copy.copy_from_slice(bytes);
        copy
    }
}

impl Drop for Fenced {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.mapping.cast(), self.mapped) };
    }
}
