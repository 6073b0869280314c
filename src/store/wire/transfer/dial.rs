//! Connections while they are made, and short exchanges over them.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;

use crate::store::wire::socket::Socket;

use crate::store::mooncake::signals;

/// Most addresses of one name that are tried.
const MOST_ADDRESSES: usize = 4;

/// A connection to the first of several addresses that takes it.
#[derive(Debug)]
pub(in crate::store::wire) struct Dial {
    socket: Socket,
    address: SocketAddr,
    rest: std::vec::IntoIter<SocketAddr>,
    is_connected: bool,
}

/// The addresses of `host:port`; none that are not known by the deadline. Blocks until then at most.
pub(in crate::store::wire) fn resolve(endpoint: &str, deadline: Instant) -> Vec<SocketAddr> {
    if let Ok(address) = endpoint.parse() {
        return vec![address];
    }
    let name = endpoint.to_owned();
    look_up(deadline, move || {
        let found = name.to_socket_addrs();
        found.map_or_else(|_| Vec::new(), |it| it.take(MOST_ADDRESSES).collect())
    })
}

/// What asking a names' server brings by the deadline. The system's call knows none, so it is made on a thread of its own,
/// which ends with it.
fn look_up(
    deadline: Instant,
    ask: impl FnOnce() -> Vec<SocketAddr> + Send + 'static,
) -> Vec<SocketAddr> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Vec::new();
    }
    let found = signals::apart_within(left, ask);
    found.ok().flatten().unwrap_or_default()
}

impl Dial {
    /// Begins to connect. Errors: none of the addresses can be tried.
    pub fn begin(addresses: Vec<SocketAddr>) -> io::Result<Self> {
        let mut rest = addresses.into_iter();
        let (socket, address) = next(&mut rest, io::ErrorKind::AddrNotAvailable.into())?;
        Ok(Self {
            socket,
            address,
            rest,
            is_connected: false,
        })
    }

    /// A connection that was made before.
    pub fn made(socket: Socket, address: SocketAddr) -> Self {
        Self {
            socket,
            address,
            rest: Vec::new().into_iter(),
            is_connected: true,
        }
    }

    /// To be called when the socket is ready: whether it is connected by now. Errors: the last address did not
    /// take the connection either.
    pub fn is_connected(&mut self) -> io::Result<bool> {
        if !self.is_connected {
            match self.socket.outcome() {
                Ok(()) => self.is_connected = true,
                Err(error) => (self.socket, self.address) = next(&mut self.rest, error)?,
            }
        }
        Ok(self.is_connected)
    }

    /// What to wait for, given whether there is something to send.
    pub fn wants(&self, to_send: bool) -> PollFlags {
        match (self.is_connected, to_send) {
            (false, _) => PollFlags::OUT,
            (true, true) => PollFlags::IN | PollFlags::OUT,
            (true, false) => PollFlags::IN,
        }
    }

    /// The socket of the address that is being tried.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// The address that is being tried.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The socket, to keep or to end it.
    pub fn into_socket(self) -> Socket {
        self.socket
    }
}

fn next(
    rest: &mut std::vec::IntoIter<SocketAddr>,
    mut error: io::Error,
) -> io::Result<(Socket, SocketAddr)> {
    for address in rest {
        match Socket::dial(address) {
            Ok(socket) => return Ok((socket, address)),
            Err(other) => error = other,
        }
    }
    Err(error)
}

/// One question and its whole answer, over a connection of their own.
#[derive(Debug)]
pub(super) struct Exchange {
    dial: Dial,
    question: Vec<u8>,
    sent: usize,
    answer: Vec<u8>,
    most: usize,
}

impl Exchange {
    /// Begins one. An answer of more than `most` bytes is an error. Errors: see [`Dial::begin`].
    pub fn begin(addresses: Vec<SocketAddr>, question: Vec<u8>, most: usize) -> io::Result<Self> {
        Ok(Self {
            dial: Dial::begin(addresses)?,
            question,
            sent: 0,
            answer: Vec::new(),
            most,
        })
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        let to_send = self.sent < self.question.len();
        (self.dial.socket().as_fd(), self.dial.wants(to_send))
    }

    /// The address that is asked.
    pub fn address(&self) -> SocketAddr {
        self.dial.address()
    }

    /// To be called when the socket is ready: the answer so far, and whether no more of it will come.
    pub fn step(&mut self) -> io::Result<(&[u8], bool)> {
        if !self.dial.is_connected()? {
            return Ok((&[], false));
        }
        let rest = self.question.get(self.sent..).unwrap_or_default();
        if !rest.is_empty()
            && let Some(count) = self.dial.socket().send(&[IoSlice::new(rest)])?
        {
            self.sent += count;
        }
        let mut chunk = [0; 4096];
        loop {
            let received = self
                .dial
                .socket()
                .receive(&mut [IoSliceMut::new(&mut chunk)])?;
            let Some(count) = received else {
                return Ok((&self.answer, false));
            };
            if count == 0 {
                return Ok((&self.answer, true));
            }
            self.answer.extend(chunk.get(..count).unwrap_or_default());
            if self.answer.len() > self.most {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_names_server_is_waited_for_until_the_deadline() {
        let address: SocketAddr = "127.0.0.1:7".parse().unwrap();
        let soon = || Instant::now() + LONG;
        assert_eq!(look_up(soon(), move || vec![address]), [address]);
        assert_eq!(resolve("127.0.0.1:7", Instant::now()), [address]);
        assert!(!resolve("localhost:7", soon()).is_empty());
        let (let_go, held) = mpsc::channel::<()>();
        let found = look_up(Instant::now() + Duration::from_millis(20), move || {
            let _ = held.recv_timeout(LONG);
            vec![address]
        });
        assert_eq!(found, []);
        drop(let_go);
        // Not even asked.
        assert_eq!(resolve("localhost:7", Instant::now()), []);
    }
}
