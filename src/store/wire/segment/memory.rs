//! The memory that is lent: a file without a name, mapped once.
//!
//! Who may use which bytes when is the master's to say, and a peer may disagree: a late reader reads what is being
//! rewritten. So no reference to these bytes ever exists and no instruction of ours touches them. Only the system
//! copies, between a socket and the mapping or between the file and memory of ours; bytes that meet a writer are old
//! or new, and nothing else is undefined.

#![allow(
    unsafe_code,
    reason = "hands addresses of a mapping to the system, which copies without a staging buffer"
)]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};

use rustix::fs::MemfdFlags;

use crate::error::{Result, bail};
use crate::store::wire::socket::without_waiting;

/// Zeroed bytes, which take up memory once they are first used.
#[derive(Debug)]
pub(super) struct Memory {
    file: OwnedFd,
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value until it is dropped, and nothing but system calls touches its bytes.
unsafe impl Send for Memory {}
// SAFETY: as above; the system may copy from and to the same bytes on several threads.
unsafe impl Sync for Memory {}

impl Memory {
    /// Makes `size` bytes of memory.
    ///
    /// Errors: `NoMemory`, the system refuses.
    pub fn new(size: u64) -> Result<Self> {
        let length = usize::try_from(size).ok();
        let length = length.filter(|&it| it > 0 && isize::try_from(it).is_ok());
        match length.map(|length| Self::map(length, size)) {
            Some(Ok(memory)) => Ok(memory),
            Some(Err(error)) => bail!(NoMemory, "mapping {size} bytes to lend to a pool: {error}"),
            None => bail!(NoMemory, "{size} bytes to lend to a pool cannot be mapped"),
        }
    }

    fn map(length: usize, size: u64) -> io::Result<Self> {
        let file = rustix::fs::memfd_create("kvbridge-segment", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size)?;
        // SAFETY: a new mapping at an address of the system's choice touches no memory that exists.
        let start = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(start) = NonNull::new(start.cast::<u8>()) else {
            return Err(io::ErrorKind::OutOfMemory.into());
        };
        Ok(Self {
            file,
            start,
            length,
        })
    }

    /// Takes what has arrived at a socket, without waiting: at most `most` bytes to `offset`, then to `rest`.
    /// `None` when that is nothing yet, 0 when nothing more will come.
    pub fn receive(
        &self,
        socket: BorrowedFd<'_>,
        offset: u64,
        most: u64,
        rest: &mut [u8],
    ) -> io::Result<Option<usize>> {
        let mut parts = [
            self.part(offset, most)?,
            libc::iovec {
                iov_base: rest.as_mut_ptr().cast(),
                iov_len: rest.len(),
            },
        ];
        let mut message = message(&mut parts);
        without_waiting(|| {
            // SAFETY: the first part lies within the mapping, which outlives the call and which no reference points
            // into; the second is a slice that is borrowed exclusively. The system keeps neither.
            let count =
                unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
            counted(count)
        })
    }

    /// Hands bytes to a socket, without waiting: `before`, then at most `most` bytes from `offset`. `None` when it
    /// takes none now.
    pub fn send(
        &self,
        socket: BorrowedFd<'_>,
        before: &[u8],
        offset: u64,
        most: u64,
    ) -> io::Result<Option<usize>> {
        let mut parts = [
            libc::iovec {
                iov_base: before.as_ptr().cast_mut().cast(),
                iov_len: before.len(),
            },
            self.part(offset, most)?,
        ];
        let message = message(&mut parts);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        without_waiting(|| {
            // SAFETY: as in `receive`; the system only reads both parts, and copies what it takes.
            let count = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
            counted(count)
        })
    }

    /// Copies bytes from `offset` on into the slices. How many that were.
    pub fn read(&self, offset: u64, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(rustix::io::preadv(self.file.as_fd(), slices, offset)?)
    }

    /// Copies the slices to `offset`. How many bytes that were.
    pub fn write(&self, offset: u64, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        // Beyond the end it would make the file longer than the mapping.
        let size = slices
            .iter()
            .try_fold(0, |sum, slice| u64::checked_add(sum, slice.len() as u64));
        let end = size.and_then(|size| size.checked_add(offset));
        if end.is_none_or(|end| end > self.length as u64) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(rustix::io::pwritev(self.file.as_fd(), slices, offset)?)
    }

    /// A range of the mapping, if it is one.
    fn part(&self, offset: u64, size: u64) -> io::Result<libc::iovec> {
        let range = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        let range = range.filter(|(offset, size)| {
            offset
                .checked_add(*size)
                .is_some_and(|end| end <= self.length)
        });
        let Some((offset, size)) = range else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        Ok(libc::iovec {
            // SAFETY: the offset is at most the length, so that this is a byte of the mapping or the one behind.
            iov_base: unsafe { self.start.as_ptr().add(offset) }.cast(),
            iov_len: size,
        })
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made with this length and is unmapped once; no system call uses it, since each
        // borrows this value.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

fn message(parts: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: a message of zeroes has no address, no parts and no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

fn counted(count: isize) -> rustix::io::Result<usize> {
    usize::try_from(count).map_err(|_| {
        let error = io::Error::last_os_error();
        rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    #[test]
    fn bytes_go_in_and_out_by_sockets_and_slices() {
        let memory = Memory::new(100).unwrap();
        let (mut here, there) = UnixStream::pair().unwrap();
        here.write_all(b"abcdefgh").unwrap();
        let mut rest = [0; 4];
        let count = memory.receive(there.as_fd(), 97, 3, &mut rest).unwrap();
        assert_eq!((count, &rest), (Some(7), b"defg"));
        let count = memory.receive(there.as_fd(), 0, 50, &mut []).unwrap();
        assert_eq!(count, Some(1));
        assert_eq!(memory.receive(there.as_fd(), 0, 1, &mut []).unwrap(), None);
        assert_eq!(memory.write(1, &[IoSlice::new(b"xy")]).unwrap(), 2);
        let (mut one, mut two) = ([0; 1], [0; 3]);
        let mut slices = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(memory.read(0, &mut slices).unwrap(), 4);
        assert_eq!((&one, &two), (b"h", b"xy\0"));
        let count = memory.send(there.as_fd(), b"!", 96, 4).unwrap();
        assert_eq!(count, Some(5));
        let mut sent = [0; 5];
        here.read_exact(&mut sent).unwrap();
        assert_eq!(sent, *b"!\0abc");
        drop(here);
        assert_eq!(
            memory.receive(there.as_fd(), 0, 1, &mut []).unwrap(),
            Some(0)
        );
        // Would raise SIGPIPE.
        assert!(memory.send(there.as_fd(), b"!", 0, 1).is_err());
    }

    #[test]
    fn ranges_that_reach_out_are_refused() {
        let memory = Memory::new(100).unwrap();
        let (here, _there) = UnixStream::pair().unwrap();
        for (offset, size) in [(100, 1), (0, 101), (u64::MAX, 2), (1, u64::MAX)] {
            assert!(memory.send(here.as_fd(), b"", offset, size).is_err());
            assert!(memory.receive(here.as_fd(), offset, size, &mut []).is_err());
        }
        assert!(memory.write(99, &[IoSlice::new(b"ab")]).is_err());
        assert!(memory.write(u64::MAX, &[IoSlice::new(b"ab")]).is_err());
        let mut byte = [1];
        assert_eq!(
            memory.read(100, &mut [IoSliceMut::new(&mut byte)]).unwrap(),
            0
        );
        for size in [0, u64::MAX, 1 << 62] {
            assert!(Memory::new(size).is_err(), "{size}");
        }
    }
}
