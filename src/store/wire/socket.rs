//! TCP sockets that never block, unless they are told to wait until a deadline, and never raise SIGPIPE, whose default action
//! would end the host's process.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, SocketType,
    sockopt,
};

/// Why nothing came or went.
#[derive(Debug)]
pub enum Trouble {
    /// The deadline passed.
    Deadline,
    /// The connection is gone; the peer's end counts as such.
    Lost(io::Error),
}

/// What a socket is waited for, and what it is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, or the end of them.
    pub read: bool,
    /// Room for bytes.
    pub write: bool,
}

/// A socket of a connection that exists or is being made. Nothing is sent later to make larger packets: whole messages are
/// written.
#[derive(Debug)]
pub struct Socket {
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

    /// Connects. Blocks until `deadline` at most.
    pub fn connect(address: SocketAddr, deadline: Instant) -> Result<Self, Trouble> {
        let socket = Self::dial(address).map_err(Trouble::Lost)?;
        let made = Interest {
            read: false,
            write: true,
        };
        socket.wait(made, deadline)?;
        socket.outcome().map_err(Trouble::Lost)?;
        Ok(socket)
    }

    /// Waits until it is ready for one of the two at least.
    pub fn wait(&self, interest: Interest, deadline: Instant) -> Result<Interest, Trouble> {
        let mut wanted = PollFlags::empty();
        wanted.set(PollFlags::IN, interest.read);
        wanted.set(PollFlags::OUT, interest.write);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Trouble::Deadline);
            }
            let mut sockets = [PollFd::new(&self.handle, wanted)];
            match poll(&mut sockets, Some(&timespec(left))) {
                Ok(0) | Err(Errno::INTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(Trouble::Lost(error.into())),
            }
            let [socket] = sockets;
            let ready = socket.revents();
            // Errors and ends show when the next bytes are read or written.
            let ended = ready.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL);
            return Ok(Interest {
                read: interest.read && (ended || ready.contains(PollFlags::IN)),
                write: interest.write && (ended || ready.contains(PollFlags::OUT)),
            });
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

    /// Reads what is there: `None` if nothing is yet, an error at the end.
    pub fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Trouble> {
        let is_asked = !into.is_empty();
        match self.receive(&mut [IoSliceMut::new(into)]) {
            Ok(Some(0)) if is_asked => {
                let text = "the peer closed the connection";
                Err(Trouble::Lost(io::Error::new(
                    ErrorKind::UnexpectedEof,
                    text,
                )))
            }
            other => other.map_err(Trouble::Lost),
        }
    }

    /// Writes what there is room for: `None` if there is none.
    pub fn write(&self, from: &[u8]) -> Result<Option<usize>, Trouble> {
        self.send(&[IoSlice::new(from)]).map_err(Trouble::Lost)
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

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

/// A system call that is interrupted by no signal, and whose would-block is no error.
pub(super) fn without_waiting(
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

/// Rounded up, so that a wait does not end just before its deadline again and again.
fn timespec(left: Duration) -> Timespec {
    let left = left.saturating_add(Duration::from_micros(1));
    Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    }
}
