//! The pool's memory: one anonymous mapping and the tokens that say who may touch which bytes.
//!
//! Bytes are copied outside the pool's lock, so the borrow checker cannot see why two copies never
//! meet. Three tokens carry that proof; none can be cloned or made elsewhere:
//!
//! - [`Room`]: freshly reserved bytes that only its holder knows. Filling needs it exclusively.
//! - [`Object`]: a filled room. Its bytes are never written again while it lives.
//! - [`Reading`]: a counted claim on an object. Copying out needs it.
//!
//! An object's bytes are given back only by value and only without readings. A token that is lost
//! leaks its bytes; it never frees them early.

#![allow(
    unsafe_code,
    reason = "memory outside Rust's allocator, copied while other threads hold other parts of it"
)]

use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use super::extents::{Extents, GRANULE, Spot};
use crate::device::memory::{Source, Target};
use crate::error::{Result, bail};

/// One anonymous private mapping. Its pages cost nothing until they are first written.
#[derive(Debug)]
pub(super) struct Arena {
    start: NonNull<u8>,
    length: usize,
    identity: u64,
}

/// The record of what is used in an [`Arena`]; lives under the pool's lock.
#[derive(Debug)]
pub(super) struct Books {
    extents: Extents,
    identity: u64,
}

/// Reserved bytes that nobody else can reach.
#[derive(Debug)]
pub(super) struct Room {
    spot: Spot,
    size: u64,
    identity: u64,
}

/// Stored bytes; immutable.
#[derive(Debug)]
pub(super) struct Object {
    spot: Spot,
    size: u64,
    identity: u64,
    readings: u32,
}

/// A claim that keeps an object's bytes from being given back.
#[derive(Debug)]
pub(super) struct Reading {
    spot: Spot,
    size: u64,
    identity: u64,
}

// SAFETY: the mapping belongs to this value alone until it is dropped; access to its bytes goes
// through the tokens, which exclude writers from everybody else's bytes.
unsafe impl Send for Arena {}
// SAFETY: as above; a shared arena gives no access without a token.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps `capacity` bytes and opens the books over them.
    ///
    /// # Errors
    /// `NoMemory` when the system refuses the mapping.
    pub fn map(capacity: u64) -> Result<(Self, Books)> {
        static IDENTITIES: AtomicU64 = AtomicU64::new(0);
        let Some(length) = usize::try_from(capacity)
            .ok()
            .filter(|&length| length >= GRANULE as usize && isize::try_from(length).is_ok())
        else {
            bail!(
                NoMemory,
                "an embedded pool of {capacity} bytes cannot be mapped"
            );
        };
        // SAFETY: a new anonymous mapping at an address of the system's choice touches no
        // memory that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let start = if start == libc::MAP_FAILED {
            None
        } else {
            NonNull::new(start.cast::<u8>())
        };
        let Some(start) = start else {
            bail!(
                NoMemory,
                "mapping {capacity} bytes for the embedded pool: {}",
                std::io::Error::last_os_error()
            );
        };
        let identity = IDENTITIES.fetch_add(1, Ordering::Relaxed);
        let arena = Self {
            start,
            length,
            identity,
        };
        let books = Books {
            extents: Extents::new(capacity),
            identity,
        };
        Ok((arena, books))
    }

    /// Copies the pieces, in order, into a room. False, with the room's bytes undefined but
    /// initialised, when the pieces are not host memory or do not add up to the room's size.
    pub fn fill(&self, room: &mut Room, sources: &[Source<'_>]) -> bool {
        let Some(start) = self.locate(room.identity, room.spot, room.size) else {
            return false;
        };
        let mut done = 0_usize;
        for source in sources {
            let Some(bytes) = source.bytes() else {
                return false;
            };
            if bytes.len() as u64 > room.size - done as u64 {
                return false;
            }
            // SAFETY: `locate` found the room's `size` bytes inside the mapping, and `done` plus
            // this piece stays within them. The room is borrowed exclusively and its bytes are
            // reachable through no other token, so no reference or copy of another thread
            // overlaps them; a source borrows other memory than the arena's, which no safe code
            // can borrow from.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start.add(done), bytes.len()) };
            done += bytes.len();
        }
        done as u64 == room.size
    }

    /// Copies an object's bytes, in order, into the pieces. False, with the pieces undefined but
    /// initialised, when they are not host memory or do not add up to the object's size.
    pub fn copy_out(&self, reading: &Reading, targets: &mut [Target<'_>]) -> bool {
        let Some(start) = self.locate(reading.identity, reading.spot, reading.size) else {
            return false;
        };
        let mut done = 0_usize;
        for target in targets {
            let Some(bytes) = target.bytes_mut() else {
                return false;
            };
            if bytes.len() as u64 > reading.size - done as u64 {
                return false;
            }
            // SAFETY: `locate` found the object's `size` bytes inside the mapping, and `done`
            // plus this piece stays within them. While the reading exists its object is neither
            // written nor given back, so nobody writes these bytes; a target borrows other
            // memory than the arena's.
            unsafe {
                ptr::copy_nonoverlapping(start.add(done), bytes.as_mut_ptr(), bytes.len());
            }
            done += bytes.len();
        }
        done as u64 == reading.size
    }

    /// The first byte of a token's range, if it is of this arena.
    fn locate(&self, identity: u64, spot: Spot, size: u64) -> Option<*mut u8> {
        let end = spot.start.checked_add(size)?;
        if identity != self.identity || end > self.length as u64 {
            return None;
        }
        let offset = usize::try_from(spot.start).ok()?;
        // SAFETY: the offset is at most `length`, checked above, so the result stays within the
        // mapping or one past its end.
        Some(unsafe { self.start.as_ptr().add(offset) })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length and is unmapped once; tokens
        // that outlive the arena find no arena of their identity any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

impl Books {
    /// Bytes that rooms and objects take up.
    pub fn used(&self) -> u64 {
        self.extents.used()
    }

    /// Reserves room for `size` bytes; `None` without a free run that is long enough.
    pub fn reserve(&mut self, size: u64) -> Option<Room> {
        Some(Room {
            spot: self.extents.take(size)?,
            size,
            identity: self.identity,
        })
    }

    /// Gives a room back unused.
    pub fn cancel(&mut self, room: Room) {
        if room.identity == self.identity {
            self.extents.give(room.spot);
        }
    }

    /// Gives an object's bytes back. An object that is being read comes back unharmed.
    pub fn release(&mut self, object: Object) -> std::result::Result<(), Object> {
        if object.readings > 0 || object.identity != self.identity {
            return Err(object);
        }
        self.extents.give(object.spot);
        Ok(())
    }
}

impl Room {
    /// Ends the writing.
    pub fn seal(self) -> Object {
        Object {
            spot: self.spot,
            size: self.size,
            identity: self.identity,
            readings: 0,
        }
    }
}

impl Object {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether somebody reads it.
    pub fn is_read(&self) -> bool {
        self.readings > 0
    }

    /// Begins a reading; `None` at the bound on readings at once.
    pub fn read(&mut self) -> Option<Reading> {
        self.readings = self.readings.checked_add(1)?;
        Some(Reading {
            spot: self.spot,
            size: self.size,
            identity: self.identity,
        })
    }

    /// Ends a reading. One of another object changes nothing: that object stays pinned for good.
    pub fn end(&mut self, reading: Reading) {
        if reading.spot == self.spot && reading.identity == self.identity {
            self.readings -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    fn stored(arena: &Arena, books: &mut Books, bytes: &[u8]) -> Object {
        let mut room = books.reserve(bytes.len() as u64).unwrap();
        assert!(arena.fill(&mut room, &[Source::from(bytes)]));
        room.seal()
    }

    #[test]
    fn an_object_is_the_concatenation_of_its_pieces() {
        let (arena, mut books) = Arena::map(4096).unwrap();
        let mut room = books.reserve(5).unwrap();
        assert!(arena.fill(
            &mut room,
            &[b"ab"[..].into(), b""[..].into(), b"cde"[..].into()]
        ));
        let mut object = room.seal();
        let reading = object.read().unwrap();
        let (mut one, mut two) = ([0; 4], [0; 1]);
        assert!(arena.copy_out(
            &reading,
            &mut [one[..].as_mut().into(), two[..].as_mut().into()]
        ));
        assert_eq!((&one, &two), (b"abcd", b"e"));
        object.end(reading);
        assert!(books.release(object).is_ok());
        assert_eq!(books.used(), 0);
    }

    #[test]
    fn an_object_that_is_read_is_not_given_back() {
        let (arena, mut books) = Arena::map(4096).unwrap();
        let mut object = stored(&arena, &mut books, b"x");
        let reading = object.read().unwrap();
        let mut object = books.release(object).unwrap_err();
        object.end(reading);
        assert!(books.release(object).is_ok());
    }

    #[test]
    fn sizes_that_do_not_add_up_and_foreign_tokens_are_refused() {
        let (arena, mut books) = Arena::map(4096).unwrap();
        let (other, mut other_books) = Arena::map(4096).unwrap();
        let mut room = books.reserve(2).unwrap();
        assert!(!arena.fill(&mut room, &[b"a"[..].into()]));
        assert!(!arena.fill(&mut room, &[b"abc"[..].into()]));
        assert!(!other.fill(&mut room, &[b"ab"[..].into()]));
        let mut object = stored(&arena, &mut books, b"ab");
        let mut foreign = stored(&other, &mut other_books, b"ab");
        let reading = object.read().unwrap();
        let mut landing = [0; 2];
        assert!(!other.copy_out(&reading, &mut [landing[..].as_mut().into()]));
        assert!(!arena.copy_out(&reading, &mut []));
        foreign.end(reading);
        assert!(books.release(object).is_err());
        assert!(books.release(foreign).is_err());
    }

    #[test]
    fn impossible_capacities_are_no_memory() {
        for capacity in [0, 63, 1 << 62, u64::MAX] {
            assert_eq!(Arena::map(capacity).unwrap_err().kind(), Kind::NoMemory);
        }
    }
}
