//! One TCP connection whose every wait ends by a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Why nothing came or went.
#[derive(Debug)]
pub enum Trouble {
    /// The deadline passed.
    Deadline,
    /// The connection is gone; the peer's end counts as such.
    Lost(io::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::TimedOut => Self::Deadline,
            _ => Self::Lost(error),
        }
    }
}

/// What a socket is waited for, and what it is ready for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interest {
    /// Bytes, or the end of them.
    pub read: bool,
    /// Room for bytes.
    pub write: bool,
}

/// A connection. Nothing is sent later to make larger packets: whole messages are written.
#[derive(Debug)]
pub struct Socket(TcpStream);

impl Socket {
    /// Connects. Blocks until `deadline` at most.
    pub fn connect(address: SocketAddr, deadline: Instant) -> Result<Self, Trouble> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Trouble::Deadline);
        }
        let stream = TcpStream::connect_timeout(&address, left)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    /// A connection that was made without waiting, and that does not block.
    pub fn made(handle: OwnedFd) -> Self {
        Self(TcpStream::from(handle))
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
            let mut sockets = [PollFd::new(&self.0, wanted)];
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

    /// Reads what is there: `None` if nothing is yet, an error at the end.
    pub fn read(&self, into: &mut [u8]) -> Result<Option<usize>, Trouble> {
        match ready((&self.0).read(into))? {
            Some(0) if !into.is_empty() => {
                let text = "the peer closed the connection";
                Err(io::Error::new(ErrorKind::UnexpectedEof, text).into())
            }
            count => Ok(count),
        }
    }

    /// Writes what there is room for: `None` if there is none.
    pub fn write(&self, from: &[u8]) -> Result<Option<usize>, Trouble> {
        ready((&self.0).write(from))
    }

    /// Whether an idle connection can still be used: nothing came and nothing ended since the last answer.
    pub fn is_quiet(&self) -> bool {
        matches!((&self.0).read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// "Not now" as `None`.
fn ready(outcome: io::Result<usize>) -> Result<Option<usize>, Trouble> {
    match outcome {
        Ok(count) => Ok(Some(count)),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(None),
            _ => Err(Trouble::Lost(error)),
        },
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
