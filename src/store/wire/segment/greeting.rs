//! One connection on which somebody asks what is lent here.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use rustix::event::PollFlags;

use super::Lent;
use super::session::{Ended, some};
use crate::store::wire::socket::Socket;
use crate::store::wire::transfer::owner;

/// A handshake: it is read, answered, and over. What others say of themselves is read past and not kept.
#[derive(Debug)]
pub(super) struct Greeting {
    socket: Socket,
    /// Length and kind.
    head: [u8; owner::LENGTH + 1],
    filled: usize,
    /// Bytes of the text that are still to come; known once the head is here.
    left: u64,
    answer: Option<Vec<u8>>,
    sent: usize,
    began: Instant,
}

impl Greeting {
    /// Begins to serve a connection.
    pub fn new(socket: Socket, now: Instant) -> Self {
        Self {
            socket,
            head: [0; owner::LENGTH + 1],
            filled: 0,
            left: 0,
            answer: None,
            sent: 0,
            began: now,
        }
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        let is_sending = self
            .answer
            .as_ref()
            .is_some_and(|answer| self.sent < answer.len());
        let wants = if is_sending {
            PollFlags::OUT
        } else {
            PollFlags::IN
        };
        (self.socket.as_fd(), wants)
    }

    /// When it began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// To be called when the socket is ready.
    pub fn step(&mut self, lent: &Lent) -> Result<(), Ended> {
        loop {
            let moved = match &self.answer {
                None => self.read(lent)?,
                Some(answer) if self.sent < answer.len() => {
                    let rest = answer.get(self.sent..).ok_or(Ended)?;
                    let sent = self.socket.send(&[IoSlice::new(rest)]);
                    let sent = sent.map_err(|_| Ended)?;
                    self.sent += sent.unwrap_or(0);
                    if self.sent == answer.len() {
                        self.socket.end_sending().map_err(|_| Ended)?;
                    }
                    sent
                }
                // The other side closes when it has read the answer.
                Some(_) => some(self.socket.receive(&mut [IoSliceMut::new(&mut [0; 64])]))?,
            };
            if moved.is_none() {
                return Ok(());
            }
        }
    }

    fn read(&mut self, lent: &Lent) -> Result<Option<usize>, Ended> {
        if self.filled < self.head.len() {
            let into = self.head.get_mut(self.filled..).ok_or(Ended)?;
            let count = some(self.socket.receive(&mut [IoSliceMut::new(into)]))?;
            self.filled += count.unwrap_or(0);
            if self.filled == self.head.len() {
                let (length, _) = self.head.split_first_chunk().ok_or(Ended)?;
                let length = u64::from_le_bytes(*length);
                if length == 0 || length > owner::MOST as u64 {
                    return Err(Ended);
                }
                self.left = length - 1;
                self.answer_at_end(lent);
            }
            return Ok(count);
        }
        let mut past = [0; 4096];
        let most = usize::try_from(self.left).map_or(past.len(), |left| left.min(past.len()));
        let into = past.get_mut(..most).ok_or(Ended)?;
        let count = some(self.socket.receive(&mut [IoSliceMut::new(into)]))?;
        self.left = self.left.saturating_sub(count.unwrap_or(0) as u64);
        self.answer_at_end(lent);
        Ok(count)
    }

    fn answer_at_end(&mut self, lent: &Lent) {
        if self.left > 0 {
            return;
        }
        let kind = self.head.last().copied().unwrap_or(0);
        // Kinds other than this one prepare what TCP does not need.
        let text = if kind == owner::DESCRIBE {
            &lent.place.read().description
        } else {
            "{}\n"
        };
        self.answer = Some(owner::handshake(kind, text));
    }
}
