//! One connection on which somebody reads and writes the lent memory.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;

use super::{Lent, Place};
use crate::store::wire::socket::Socket;
use crate::store::wire::transfer::frame::{Operation, REQUEST, Request, STATUS, Status, Version};

/// Bytes of requests that are read at once.
const INBOX: usize = 40 * REQUEST;
/// Bytes of statuses that wait to be sent before nothing more is read.
const OUTBOX: usize = 64 * STATUS;
/// Bytes after which another connection gets its turn.
const TURN: usize = 1 << 20;
/// Bytes that are dropped behind a request that was refused, so that the refusal is read before the connection ends.
const DROPPED: usize = 1 << 20;

/// The connection has ended, or should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended;

/// A connection of the data protocol.
#[derive(Debug)]
pub(super) struct Session {
    socket: Socket,
    state: State,
    inbox: [u8; INBOX],
    filled: usize,
    outbox: Vec<u8>,
    /// The last request was a write: its like follow, and what is behind a request is data.
    was_write: bool,
    /// Where the memory began when the request under way was looked at.
    base: u64,
    moved: Instant,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// A request is next.
    Request,
    /// The data of a write are next.
    Landing {
        offset: u64,
        left: u64,
        version: Version,
    },
    /// The data of a read go out.
    Sending { offset: u64, left: u64 },
    /// Nothing more is served.
    Ending { dropped: usize },
}

impl Session {
    /// Begins to serve a connection.
    pub fn new(socket: Socket, now: Instant) -> Self {
        Self {
            socket,
            state: State::Request,
            inbox: [0; INBOX],
            filled: 0,
            outbox: Vec::with_capacity(OUTBOX),
            was_write: false,
            base: 0,
            moved: now,
        }
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        let (is_full, has_to_say) = (self.outbox.len() >= OUTBOX, !self.outbox.is_empty());
        let wants = match self.state {
            State::Sending { .. } => PollFlags::OUT,
            // Here already, so that nothing more may come: its turn had ended.
            State::Request if self.filled >= REQUEST => PollFlags::OUT,
            State::Ending { .. } if has_to_say => PollFlags::OUT,
            _ if is_full => PollFlags::OUT,
            _ if has_to_say => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        };
        (self.socket.as_fd(), wants)
    }

    /// When something last came or went.
    pub fn moved(&self) -> Instant {
        self.moved
    }

    /// Whether no request is under way.
    pub fn is_idle(&self) -> bool {
        matches!(self.state, State::Request) && self.filled == 0 && self.outbox.is_empty()
    }

    /// To be called when the socket is ready.
    pub fn step(&mut self, lent: &Lent, now: Instant) -> Result<(), Ended> {
        let place = lent.place.read();
        let is_moving = matches!(self.state, State::Landing { .. } | State::Sending { .. });
        if is_moving && self.base != place.base {
            // These bytes may be somebody else's by now.
            return Err(Ended);
        }
        let mut turn = 0;
        while turn < TURN {
            let moved = match self.state {
                State::Request if self.outbox.len() >= OUTBOX => self.flush()?,
                State::Request => match self.next_request() {
                    Some(bytes) => {
                        self.begin(lent, &place, bytes)?;
                        continue;
                    }
                    None => self.fill()?,
                },
                State::Landing {
                    offset,
                    left,
                    version,
                } => self.land(lent, offset, left, version)?,
                State::Sending { offset, left } => self.send(lent, offset, left)?,
                State::Ending { dropped } => self.end(dropped)?,
            };
            let Some(moved) = moved else {
                break;
            };
            self.moved = now;
            turn += moved;
        }
        if matches!(self.state, State::Request | State::Landing { .. }) {
            self.flush()?;
        }
        Ok(())
    }

    /// The next request, if it is here as a whole.
    fn next_request(&mut self) -> Option<[u8; REQUEST]> {
        let request = *self.inbox.get(..self.filled)?.first_chunk::<REQUEST>()?;
        self.inbox.copy_within(REQUEST..self.filled, 0);
        self.filled -= REQUEST;
        Some(request)
    }

    fn begin(&mut self, lent: &Lent, place: &Place, bytes: [u8; REQUEST]) -> Result<(), Ended> {
        // Not an operation: there is no telling what follows.
        let request = Request::decode(&bytes).ok_or(Ended)?;
        self.base = place.base;
        let Some(offset) = place.offset(request.address, request.size) else {
            if request.version == Version::One {
                return Err(Ended);
            }
            self.say(request.version, Status::Rejected);
            self.state = State::Ending { dropped: 0 };
            return Ok(());
        };
        let left = request.size;
        self.was_write = request.operation == Operation::Write;
        if request.operation == Operation::Read {
            self.say(request.version, Status::Fine);
            self.state = State::Sending { offset, left };
            return Ok(());
        }
        let here = usize::try_from(left).map_or(self.filled, |left| left.min(self.filled));
        let mut placed = 0;
        while placed < here {
            let data = self.inbox.get(placed..here).ok_or(Ended)?;
            let count = lent
                .memory
                .write(offset + placed as u64, &[IoSlice::new(data)]);
            placed += count.ok().filter(|&count| count > 0).ok_or(Ended)?;
        }
        self.inbox.copy_within(here..self.filled, 0);
        self.filled -= here;
        self.landed(offset + here as u64, left - here as u64, request.version);
        Ok(())
    }

    /// What is left of a write, which may be nothing.
    fn landed(&mut self, offset: u64, left: u64, version: Version) {
        self.state = State::Landing {
            offset,
            left,
            version,
        };
        if left == 0 {
            self.say(version, Status::Fine);
            self.state = State::Request;
        }
    }

    fn say(&mut self, version: Version, status: Status) {
        if version == Version::Two {
            self.outbox.extend(status.encode());
        }
    }

    fn fill(&mut self) -> Result<Option<usize>, Ended> {
        // Data of a write that came with its request would have to be copied.
        let most = if self.was_write { REQUEST } else { INBOX };
        let into = self.inbox.get_mut(self.filled..most).ok_or(Ended)?;
        let received = self.socket.receive(&mut [IoSliceMut::new(into)]);
        let count = some(received)?;
        self.filled += count.unwrap_or(0);
        Ok(count)
    }

    fn land(
        &mut self,
        lent: &Lent,
        offset: u64,
        left: u64,
        version: Version,
    ) -> Result<Option<usize>, Ended> {
        // The inbox is empty while data lands. The next request may have come behind it.
        let next = self.inbox.get_mut(..REQUEST).ok_or(Ended)?;
        let received = lent.memory.receive(self.socket.as_fd(), offset, left, next);
        let count = some(received)?;
        if let Some(count) = count {
            let placed = left.min(count as u64);
            self.filled = usize::try_from(count as u64 - placed).map_err(|_| Ended)?;
            self.landed(offset + placed, left - placed, version);
        }
        Ok(count)
    }

    fn send(&mut self, lent: &Lent, offset: u64, left: u64) -> Result<Option<usize>, Ended> {
        let socket = self.socket.as_fd();
        let sent = lent.memory.send(socket, &self.outbox, offset, left);
        let count = sent.map_err(|_| Ended)?;
        if let Some(count) = count {
            let before = self.outbox.len().min(count);
            self.outbox.drain(..before);
            let data = (count - before) as u64;
            self.state = State::Sending {
                offset: offset + data,
                left: left.saturating_sub(data),
            };
            if left <= data {
                self.state = State::Request;
            }
        }
        Ok(count)
    }

    /// Sends what waits to be sent.
    fn flush(&mut self) -> Result<Option<usize>, Ended> {
        if self.outbox.is_empty() {
            return Ok(None);
        }
        let sent = self.socket.send(&[IoSlice::new(&self.outbox)]);
        let count = sent.map_err(|_| Ended)?;
        self.outbox
            .drain(..count.unwrap_or(0).min(self.outbox.len()));
        Ok(count)
    }

    fn end(&mut self, dropped: usize) -> Result<Option<usize>, Ended> {
        if !self.outbox.is_empty() {
            self.flush()?;
            if !self.outbox.is_empty() {
                return Ok(None);
            }
            self.socket.end_sending().map_err(|_| Ended)?;
        }
        let count = some(self.socket.receive(&mut [IoSliceMut::new(&mut self.inbox)]))?;
        let dropped = dropped + count.unwrap_or(0);
        if dropped > DROPPED {
            return Err(Ended);
        }
        self.state = State::Ending { dropped };
        Ok(count)
    }
}

/// Nothing more to come, or an error, is an end.
pub(super) fn some(received: std::io::Result<Option<usize>>) -> Result<Option<usize>, Ended> {
    match received {
        Ok(Some(0)) | Err(_) => Err(Ended),
        Ok(count) => Ok(count),
    }
}
