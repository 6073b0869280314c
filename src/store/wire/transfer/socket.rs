//! TCP sockets that never block and never raise SIGPIPE, whose default action would end the host's process.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};

/// A socket of a connection that exists or is being made.
#[derive(Debug)]
pub(in crate::store::wire) struct Socket {
    handle: OwnedFd,
}

impl Socket {
    /// Begins to connect. When the socket is writable, [`outcome`](Self::outcome) tells what came of it.
    pub fn dial(address: SocketAddr) -> io::Result<Self> {
        let family = match address {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let handle = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&handle, true)?;
        match rustix::net::connect(&handle, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self { handle }),
            Err(error) => Err(error.into()),
        }
    }

    /// A connection that somebody made to us; it does not block already.
    pub fn accepted(handle: OwnedFd) -> Self {
        // Only a matter of speed.
        let _ = sockopt::set_tcp_nodelay(&handle, true);
        Self { handle }
    }

    /// Tells the other side that nothing more will be sent.
    pub fn end_sending(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.handle, Shutdown::Write)?)
    }

    /// What came of connecting.
    pub fn outcome(&self) -> io::Result<()> {
        Ok(sockopt::socket_error(&self.handle)??)
    }

    /// Hands bytes to the system, without waiting; `None` when it takes none now. What it took is copied: the
    /// slices are not looked at later.
    pub fn send(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let mut control = SendAncillaryBuffer::default();
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        without_waiting(|| rustix::net::sendmsg(&self.handle, slices, &mut control, flags))
    }

    /// Takes what has arrived, without waiting; `None` when that is nothing yet, 0 when nothing more will come.
    pub fn receive(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        without_waiting(|| rustix::io::readv(&self.handle, slices))
    }

    /// Whether the connection stands and nothing has arrived on it.
    pub fn is_quiet(&self) -> bool {
        let mut byte = [0_u8; 1];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let found =
            without_waiting(|| Ok(rustix::net::recv(&self.handle, &mut byte[..], flags)?.0));
        matches!(found, Ok(None))
    }

    /// Closes the connection at once: what the other side has not been sent yet is dropped.
    pub fn abort(self) {
        // Failing that, what is under way is still sent; the connection is closed either way.
        let _ = sockopt::set_socket_linger(&self.handle, Some(Duration::ZERO));
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.handle
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// A system call that is interrupted by no signal, and whose would-block is no error.
pub(in crate::store::wire) fn without_waiting(
    mut call: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<Option<usize>> {
    loop {
        match call() {
            Ok(count) => return Ok(Some(count)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}
