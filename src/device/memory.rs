//! Address ranges that a store may read ([`Source`]) or write ([`Target`]) during one call.
//!
//! Both are borrows in disguise: made from a slice they carry its lifetime, so safe code cannot
//! hand out memory that is gone or that somebody else writes. Ranges of an engine's cache have no
//! slice to borrow from; they enter through the unsafe constructors, whose caller makes the same
//! promise in words. Code behind them (stores, the fault injector) then needs no `unsafe` to pass
//! them on, and host memory can be read and written here without any.

#![allow(
    unsafe_code,
    reason = "the one place where an address range becomes readable or writable memory"
)]

use std::marker::PhantomData;
use std::ptr;

/// Whose instructions can reach a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// The CPU's.
    Host,
    /// Only a device's; a store needs the `device_memory` capability for it.
    Device,
}

/// A range of bytes that may be read for `'a`.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    address: u64,
    size: u64,
    memory: Memory,
    borrow: PhantomData<&'a [u8]>,
}

/// A range of bytes that may be written for `'a`, by its holder alone.
#[derive(Debug)]
pub struct Target<'a> {
    address: u64,
    size: u64,
    memory: Memory,
    borrow: PhantomData<&'a mut [u8]>,
}

/// Address and size of a range that can be a slice on this machine: host memory, not beyond its
/// addresses, and only without bytes at address 0.
fn host_range(address: u64, size: u64, memory: Memory) -> Option<(usize, usize)> {
    if memory != Memory::Host {
        return None;
    }
    let (start, size) = (usize::try_from(address).ok()?, usize::try_from(size).ok()?);
    isize::try_from(size).ok()?;
    (size == 0 || start != 0).then_some((start, size))
}

impl<'a> Source<'a> {
    /// A range of host memory, by address and size in bytes.
    ///
    /// # Safety
    /// For `'a` the range is readable initialised host memory that nobody writes, and it does not
    /// wrap around the end of the address space. `size` 0 permits any address.
    pub const unsafe fn from_raw(address: u64, size: u64) -> Self {
        Self {
            address,
            size,
            memory: Memory::Host,
            borrow: PhantomData,
        }
    }

    /// A range of device memory, by device address and size in bytes.
    ///
    /// # Safety
    /// For `'a` the range is readable by the device that stores are set up for, and nobody
    /// writes it.
    pub const unsafe fn from_device(address: u64, size: u64) -> Self {
        Self {
            address,
            size,
            memory: Memory::Device,
            borrow: PhantomData,
        }
    }

    /// The first address.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whose memory it is.
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// The bytes; `None` for device memory and for sizes beyond this machine's addresses.
    pub fn bytes(&self) -> Option<&'a [u8]> {
        let (start, size) = host_range(self.address, self.size, self.memory)?;
        if size == 0 {
            return Some(&[]);
        }
        let start = ptr::with_exposed_provenance::<u8>(start);
        // SAFETY: both constructors for host memory promise readable, initialised bytes that
        // nobody writes for 'a; the size was checked to fit a slice.
        Some(unsafe { std::slice::from_raw_parts(start, size) })
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            address: bytes.as_ptr().expose_provenance() as u64,
            size: bytes.len() as u64,
            memory: Memory::Host,
            borrow: PhantomData,
        }
    }
}

impl<'a> Target<'a> {
    /// A range of host memory, by address and size in bytes.
    ///
    /// # Safety
    /// For `'a` the range is writable initialised host memory that nobody else reads or writes,
    /// also not through another target, and it does not wrap around the end of the address
    /// space. `size` 0 permits any address.
    pub const unsafe fn from_raw(address: u64, size: u64) -> Self {
        Self {
            address,
            size,
            memory: Memory::Host,
            borrow: PhantomData,
        }
    }

    /// A range of device memory, by device address and size in bytes.
    ///
    /// # Safety
    /// For `'a` the range is writable by the device that stores are set up for, and nobody else
    /// reads or writes it.
    pub const unsafe fn from_device(address: u64, size: u64) -> Self {
        Self {
            address,
            size,
            memory: Memory::Device,
            borrow: PhantomData,
        }
    }

    /// The first address.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The size in bytes.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whose memory it is.
    pub const fn memory(&self) -> Memory {
        self.memory
    }

    /// The same range for a shorter time, to pass on and keep.
    pub const fn reborrow(&mut self) -> Target<'_> {
        Target {
            address: self.address,
            size: self.size,
            memory: self.memory,
            borrow: PhantomData,
        }
    }

    /// The bytes; `None` for device memory and for sizes beyond this machine's addresses.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        let (start, size) = host_range(self.address, self.size, self.memory)?;
        if size == 0 {
            return Some(&mut []);
        }
        let start = ptr::with_exposed_provenance_mut::<u8>(start);
        // SAFETY: both constructors for host memory promise writable, initialised bytes that are
        // this target's alone for 'a, and &mut self lends them once at a time; the size was
        // checked to fit a slice.
        Some(unsafe { std::slice::from_raw_parts_mut(start, size) })
    }
}

impl<'a> From<&'a mut [u8]> for Target<'a> {
    fn from(bytes: &'a mut [u8]) -> Self {
        Self {
            address: bytes.as_mut_ptr().expose_provenance() as u64,
            size: bytes.len() as u64,
            memory: Memory::Host,
            borrow: PhantomData,
        }
    }
}

/// Writes bytes over the pieces, as far as they reach. False when one is not host memory.
pub(crate) fn write_over(mut bytes: &[u8], pieces: &mut [Target<'_>]) -> bool {
    for piece in pieces {
        let Some(target) = piece.bytes_mut() else {
            return false;
        };
        let (now, later) = bytes.split_at(target.len().min(bytes.len()));
        if let Some(start) = target.get_mut(..now.len()) {
            start.copy_from_slice(now);
        }
        bytes = later;
    }
    true
}

/// Device memory that is nobody's, for tests of those who must refuse it.
#[cfg(test)]
pub(crate) fn nowhere() -> (Source<'static>, Target<'static>) {
    // SAFETY: who gets these has to refuse them without reading or writing.
    unsafe { (Source::from_device(64, 8), Target::from_device(64, 8)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_made_from_a_slice_is_that_slice() {
        let bytes = [1_u8, 2, 3];
        assert_eq!(Source::from(&bytes[..]).bytes(), Some(&bytes[..]));
        assert_eq!(Source::from(&bytes[..]).size(), 3);

        let mut landing = [0_u8; 3];
        let mut target = Target::from(&mut landing[..]);
        target
            .reborrow()
            .bytes_mut()
            .unwrap()
            .copy_from_slice(&bytes);
        assert_eq!(target.bytes_mut().unwrap(), &bytes[..]);
        assert_eq!(landing, bytes);
    }

    #[test]
    fn device_memory_has_no_bytes_here() {
        let (source, mut target) = nowhere();
        assert!(source.bytes().is_none());
        assert!(target.bytes_mut().is_none());
        assert_eq!(source.memory(), Memory::Device);
    }

    #[test]
    fn empty_and_absurd_ranges_are_harmless() {
        // SAFETY: size 0 permits any address; the second is refused before it is used.
        let (empty, absurd) = unsafe { (Source::from_raw(0, 0), Source::from_raw(8, u64::MAX)) };
        assert_eq!(empty.bytes(), Some(&[][..]));
        assert!(absurd.bytes().is_none());
    }
}
