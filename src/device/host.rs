//! The host as a device, and page-aligned host memory.

#![allow(
    unsafe_code,
    reason = "maps memory, and copies between addresses of the host"
)]

use std::ptr::NonNull;

use super::{Device, Direction, Event, StagingMemory, Stream, Transfer};
use crate::error::{Result, bail};
use crate::layout::Range;

/// A cache in host memory. Nothing runs behind our back there: streams mean nothing, events have
/// always happened, and copies are done when they return.
#[derive(Debug, Default, Clone, Copy)]
pub struct HostDevice;

impl Device for HostDevice {
    fn name(&self) -> &str {
        "host"
    }

    fn record(&self, _stream: Stream) -> Result<Event> {
        Ok(Event::done())
    }

    fn stage(&self, bytes: u64) -> Result<StagingMemory> {
        Ok(StagingMemory::new(HostMemory::new(bytes)?, None))
    }

    unsafe fn copy(
        &self,
        _behind: Option<Stream>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        for transfer in transfers {
            let (from, to) = match direction {
                Direction::Gather => (transfer.cache, transfer.staging),
                Direction::Scatter => (transfer.staging, transfer.cache),
            };
            let from = std::ptr::with_exposed_provenance::<u8>(address(from));
            let to = std::ptr::with_exposed_provenance_mut::<u8>(address(to));
            // SAFETY: the caller promises that both ranges are valid and that nobody else touches
            // what is written; cache and staging are different allocations.
            unsafe { std::ptr::copy_nonoverlapping(from, to, address(transfer.size)) };
        }
        Ok(())
    }
}

/// Addresses and sizes of valid memory fit the machine's words.
fn address(value: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    value as usize
}

/// Zeroed host memory in whole pages of its own, given back to the system when dropped.
#[derive(Debug)]
pub struct HostMemory {
    start: NonNull<u8>,
    size: usize,
}

// SAFETY: the memory belongs to this value alone and is not tied to a thread.
unsafe impl Send for HostMemory {}
// SAFETY: through a shared reference it can only be read.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `bytes` of memory. `NoMemory` if the system refuses or cannot address so much,
    /// `InvalidArgument` for 0. Pages are backed as they are first touched.
    pub fn new(bytes: u64) -> Result<Self> {
        if bytes == 0 {
            bail!(InvalidArgument, "0 bytes of memory were asked for");
        }
        let size = match usize::try_from(bytes) {
            Ok(size) if isize::try_from(size).is_ok() => size,
            _ => bail!(
                NoMemory,
                "{bytes} bytes of memory are more than the machine can address"
            ),
        };
        // SAFETY: a new anonymous mapping at an address that the system chooses touches no
        // memory that exists.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let error = std::io::Error::last_os_error();
        if start == libc::MAP_FAILED {
            bail!(
                NoMemory,
                "{bytes} bytes of memory cannot be mapped: {error}"
            );
        }
        match NonNull::new(start.cast::<u8>()) {
            Some(start) => {
                // Devices copy by address, so the pointer's permission must be in reach of it.
                let _ = start.as_ptr().expose_provenance();
                Ok(Self { start, size })
            }
            None => bail!(NoMemory, "{bytes} bytes of memory were mapped at address 0"),
        }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is initialised (zeroed by the system), lives as long as `self`, and
        // is only written through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.size) }
    }

    /// The bytes, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }

    /// Where they lie.
    pub fn range(&self) -> Range {
        Range {
            start: self.start.as_ptr().addr() as u64,
            size: self.size as u64,
        }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `new`, and no reference to it is left. It can only
        // fail for arguments that are not a mapping.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Pin;
    use crate::error::Kind;

    #[test]
    fn memory_is_zeroed_page_aligned_and_writable() {
        let mut memory = HostMemory::new(10_000).unwrap();
        assert_eq!(memory.range().start % 4096, 0);
        assert_eq!(memory.range().size, 10_000);
        assert!(memory.bytes().iter().all(|byte| *byte == 0));
        memory.bytes_mut()[9_999] = 7;
        assert_eq!(memory.bytes()[9_999], 7);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        for bytes in [1 << 60, u64::MAX] {
            let error = HostMemory::new(bytes).unwrap_err();
            assert_eq!(error.kind(), Kind::NoMemory);
            assert!(error.message().contains(&bytes.to_string()), "{error}");
        }
        assert_eq!(
            HostMemory::new(0).unwrap_err().kind(),
            Kind::InvalidArgument
        );
    }

    /// Whether the system has a mapping at this address. Nobody else maps there between the drop
    /// and the question, or it would have to be exactly there.
    fn is_mapped(range: Range) -> bool {
        let mut resident = 0_u8;
        let start = std::ptr::without_provenance_mut(address(range.start));
        // SAFETY: asks about one page and writes one byte for it.
        unsafe { libc::mincore(start, 1, &raw mut resident) == 0 }
    }

    #[test]
    fn dropped_memory_is_given_back() {
        // Large, and only its low end is asked about: mappings of other tests fill the hole from
        // its high end.
        let memory = HostMemory::new(1 << 30).unwrap();
        let range = memory.range();
        assert!(is_mapped(range));
        drop(memory);
        assert!(!is_mapped(range));
    }

    #[test]
    fn a_pin_is_released_before_the_memory() {
        struct Pinned(Range, std::sync::Arc<std::sync::atomic::AtomicU32>, bool);
        impl Pin for Pinned {
            fn undo(&mut self) -> bool {
                assert!(is_mapped(self.0));
                self.1.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                self.2
            }
        }
        // Large, as above.
        for is_undone in [true, false] {
            let released = std::sync::Arc::default();
            let memory = HostMemory::new(1 << 30).unwrap();
            let range = memory.range();
            let pin = Pinned(range, std::sync::Arc::clone(&released), is_undone);
            let staging = StagingMemory::new(memory, Some(Box::new(pin)));
            assert_eq!(released.load(std::sync::atomic::Ordering::SeqCst), 0);
            drop(staging);
            assert_eq!(released.load(std::sync::atomic::Ordering::SeqCst), 1);
            assert_eq!(is_mapped(range), !is_undone, "what stays pinned is kept");
        }
    }

    #[test]
    fn host_events_have_happened() {
        let event = HostDevice.record(Stream(0)).unwrap();
        HostDevice.wait(&event).unwrap();
        assert_eq!(format!("{event:?}"), "Event(done)");
    }
}
