//! Calls over one connection to the master.
//!
//! All requests of a call are sent before the first answer is waited for; answers carry the number of
//! their request and may come in any order. A connection on which anything went wrong is not used again: bytes of
//! an answer that nobody waits for any more may still come.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::family::Family;
use super::pack::{Flaw, Request, Text, unpack};
use super::socket::{Interest, Socket, Trouble};

/// The first byte of every message.
const MAGIC: u8 = 21;
const REQUEST_HEAD: usize = 20;
const ANSWER_HEAD: usize = 16;

/// Bytes of an answer at most; the largest that a master gives to a request of ours is below 1 MiB.
const MOST_BYTES: usize = 16 << 20;

/// So many bytes more are made room for than have come: what a message says of its length is only a claim.
const READ_AHEAD: usize = 64 << 10;

/// What the RPC layer answers to arguments of another layout.
pub const WRONG_LAYOUT: u8 = 4;
/// What it answers to a method that there is not.
const NO_METHOD: u8 = 11;

/// Why a call brought nothing. But for `Refused` the connection is lost with it.
#[derive(Debug)]
pub enum Failure {
    /// The deadline passed.
    Deadline,
    /// The master cannot be reached, or the connection ended; the text says why.
    Lost(String),
    /// What came is no answer; the text says why.
    Nonsense(String),
    /// The master does not take the call.
    Refused(Refusal),
}

/// The RPC layer's own answer, where a call did not reach the master's code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// [`WRONG_LAYOUT`], or 11 for a method that there is not, or another.
    pub error: u8,
    /// What it says.
    pub text: String,
}

impl Refusal {
    /// Whether the same call would be refused whatever it is about.
    pub fn is_general(&self) -> bool {
        matches!(self.error, WRONG_LAYOUT | NO_METHOD)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deadline => f.write_str("no answer by the deadline"),
            Self::Lost(why) => f.write_str(why),
            Self::Nonsense(why) => write!(f, "an answer that is none: {why}"),
            Self::Refused(refusal) => write!(
                f,
                "the call is refused: {} (error {})",
                refusal.text, refusal.error
            ),
        }
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Deadline => Self::Deadline,
            Trouble::Lost(error) => Self::Lost(error.to_string()),
        }
    }
}

impl From<Flaw> for Failure {
    fn from(flaw: Flaw) -> Self {
        Self::Nonsense(flaw.to_string())
    }
}

/// Requests that are sent together.
#[derive(Debug, Default)]
pub struct Requests {
    bytes: Vec<u8>,
    /// Where each head begins.
    heads: Vec<usize>,
}

impl Requests {
    /// Appends one.
    ///
    /// Errors: `Nonsense`, it is longer than messages can be.
    pub fn push<R: Request>(&mut self, request: &R, family: Family) -> Result<(), Failure> {
        let head = self.bytes.len();
        self.bytes.extend_from_slice(&[MAGIC, 0, 0, 0]);
        // The number is filled in when it is sent.
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes
            .extend_from_slice(&R::function_id().to_le_bytes());
        self.bytes.extend_from_slice(&[0; 8]);
        request.pack(family, &mut self.bytes);
        let length = self.bytes.len() - head - REQUEST_HEAD;
        let Ok(length) = u32::try_from(length) else {
            self.bytes.truncate(head);
            return Err(Failure::Nonsense(format!("a request of {length} bytes")));
        };
        self.fill(head + 12, length);
        self.heads.push(head);
        Ok(())
    }

    fn number(&mut self, first: u32) {
        for index in 0..self.heads.len() {
            let number = first.wrapping_add(u32::try_from(index).unwrap_or(u32::MAX));
            self.fill(self.heads[index] + 4, number);
        }
    }

    fn fill(&mut self, at: usize, value: u32) {
        if let Some(bytes) = self.bytes.get_mut(at..at + 4) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }
}

/// A connection to a master.
#[derive(Debug)]
pub struct Connection {
    socket: Socket,
    /// The number of the next request.
    next: u32,
    incoming: Incoming,
}

impl Connection {
    /// Speaks over this socket.
    pub fn new(socket: Socket) -> Self {
        Self {
            socket,
            next: 0,
            incoming: Incoming::default(),
        }
    }

    /// Whether it can be used again after it was idle.
    pub fn is_quiet(&self) -> bool {
        self.incoming.is_empty() && self.socket.is_quiet()
    }

    /// Sends requests and hands each one's answer to `take`, with its place among them: once each, in any order.
    ///
    /// Blocks until `deadline` at most. After an error nothing more can be said over this connection.
    pub fn exchange(
        &mut self,
        requests: Requests,
        deadline: Instant,
        mut take: impl FnMut(usize, Result<&[u8], Refusal>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut open = self.begin(requests);
        while !open.is_answered() {
            // Also where something always comes, so that nothing is waited for.
            if Instant::now() >= deadline {
                return Err(Failure::Deadline);
            }
            if !self.step(&mut open, &mut take)? {
                self.socket.wait(open.interest(), deadline)?;
            }
        }
        self.end(&open)
    }

    /// Begins an exchange that [`step`](Self::step) carries on: sends nothing yet. One at a time.
    pub fn begin(&mut self, mut requests: Requests) -> Open {
        let count = requests.heads.len();
        let first = self.next;
        requests.number(first);
        self.next = first.wrapping_add(u32::try_from(count).unwrap_or(u32::MAX));
        Open {
            bytes: requests.bytes,
            sent: 0,
            first,
            is_open: vec![true; count],
            count,
        }
    }

    /// Sends and takes some of what can be without waiting, and says whether anything was. See
    /// [`exchange`](Self::exchange).
    pub fn step(
        &mut self,
        open: &mut Open,
        mut take: impl FnMut(usize, Result<&[u8], Refusal>) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        // Both ways at once: a master that waits for room for its answers reads no requests.
        let rest = open.bytes.get(open.sent..).unwrap_or_default();
        if !rest.is_empty()
            && let Some(written) = self.socket.write(rest)?
        {
            open.sent += written;
            if open.sent == open.bytes.len() {
                return Ok(true);
            }
        }
        if !self.incoming.fill(&self.socket)? {
            return Ok(false);
        }
        while let Some(heard) = self.incoming.next()? {
            let number = heard.number;
            let index = number.wrapping_sub(open.first) as usize;
            let Some(is_open @ true) = open.is_open.get_mut(index) else {
                let text = format!("it is for request {number}, which nobody made");
                return Err(Failure::Nonsense(text));
            };
            *is_open = false;
            open.count -= 1;
            take(index, heard.answer)?;
        }
        Ok(true)
    }

    /// Whether an exchange that is answered ended as it should: nothing is left, on either way.
    pub fn end(&self, open: &Open) -> Result<(), Failure> {
        match self.incoming.is_empty() && open.sent == open.bytes.len() {
            true => Ok(()),
            false => Err(Failure::Nonsense("more came than was asked for".to_owned())),
        }
    }

    /// [`exchange`](Self::exchange) of requests of one kind.
    ///
    /// Errors: also `Refused`, when the first of them is.
    pub fn call<R: Request>(
        &mut self,
        family: Family,
        requests: impl Iterator<Item = R>,
        deadline: Instant,
        mut take: impl FnMut(usize, R::Reply<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut list = Requests::default();
        for request in requests {
            list.push(&request, family)?;
        }
        self.exchange(list, deadline, |index, answer| {
            take(index, unpack(answer.map_err(Failure::Refused)?, family)?)
        })
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// An exchange that goes on.
#[derive(Debug)]
pub struct Open {
    bytes: Vec<u8>,
    sent: usize,
    /// The number of the first request.
    first: u32,
    is_open: Vec<bool>,
    /// Requests without an answer.
    count: usize,
}

impl Open {
    /// Whether every request has its answer.
    pub fn is_answered(&self) -> bool {
        self.count == 0
    }

    /// What its connection waits for.
    pub fn interest(&self) -> Interest {
        Interest {
            read: true,
            write: self.sent < self.bytes.len(),
        }
    }
}

/// Bytes that have come and were not handed out.
#[derive(Debug, Default)]
struct Incoming {
    /// Zeroes behind `end`.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Reads what is there; false if nothing is.
    fn fill(&mut self, socket: &Socket) -> Result<bool, Failure> {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let wanted = self.end + READ_AHEAD;
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        let Some(count) = socket.read(room)? else {
            return Ok(false);
        };
        self.end += count;
        Ok(true)
    }

    /// The next whole answer.
    fn next(&mut self) -> Result<Option<Heard<'_>>, Failure> {
        let come = self.bytes.get(self.start..self.end).unwrap_or_default();
        let heard = heard(come)?;
        if let Some(heard) = &heard {
            self.start += heard.length;
        }
        Ok(heard)
    }
}

/// An answer as it came.
#[derive(Debug)]
pub struct Heard<'a> {
    /// Of the request.
    pub number: u32,
    /// The master's message.
    pub answer: Result<&'a [u8], Refusal>,
    /// Bytes that it took.
    pub length: usize,
}

/// The answer that these bytes begin with; `None` until it is there as a whole.
///
/// Errors: `Nonsense`.
pub fn heard(bytes: &[u8]) -> Result<Option<Heard<'_>>, Failure> {
    let Some((head, rest)) = bytes.split_at_checked(ANSWER_HEAD) else {
        return Ok(None);
    };
    let (words, _) = head.as_chunks::<4>();
    let &[[magic, _, error, _], number, length, attachment] = words else {
        return Ok(None);
    };
    if magic != MAGIC {
        return Err(Failure::Nonsense(format!("it begins with {magic}")));
    }
    let (length, attachment) = (u32::from_le_bytes(length), u32::from_le_bytes(attachment));
    let whole = length as usize + attachment as usize;
    if whole > MOST_BYTES {
        return Err(Failure::Nonsense(format!("it has {whole} bytes")));
    }
    if rest.len() < whole {
        return Ok(None);
    }
    let body = rest.get(..length as usize).unwrap_or_default();
    let answer = match error {
        0 => Ok(body),
        error => Err(Refusal {
            error,
            // The same in all versions.
            text: unpack::<Text<'_>>(body, Family::ALL[0])
                .map_or_else(|_| "no text".to_owned(), |text| text.lossy().into_owned()),
        }),
    };
    Ok(Some(Heard {
        number: u32::from_le_bytes(number),
        answer,
        length: ANSWER_HEAD + whole,
    }))
}
