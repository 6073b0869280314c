//! One connection to the owner of a disk, with one request: pages are asked for, and when they were read the owner's
//! memory is given back.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::plan::Page;
use crate::store::code;
use crate::store::wire::client::after;
use crate::store::wire::codes;
use crate::store::wire::family::Family;
use crate::store::wire::messages::{Stage, Staged, Unstage};
use crate::store::wire::pack::{Answer, Request, Text, unpack};
use crate::store::wire::rpc::{Connection, Failure, Open, Requests};
use crate::store::wire::transfer::{Dial, Peers, hangs_after};

/// Most bytes of an endpoint that an owner names.
const MOST_ENDPOINT: usize = 1024;

/// How long an owner may take to accept a connection.
const CONNECTING: Duration = Duration::from_secs(2);
/// How long it may take to read from its disk. Its memory is ours for 5 s from its own start unless it is told otherwise, so
/// that what takes longer is mostly lost.
const READING: Duration = Duration::from_secs(4);
/// How long the answer to giving back is waited for, where nothing else is.
const GIVING_BACK: Duration = Duration::from_millis(100);

/// Pages in the memory of their owner.
#[derive(Debug)]
pub(super) struct Batch {
    id: u64,
    /// One per page of the lane's part, in its order.
    pub addresses: Vec<u64>,
    /// Where the owner's data port is found.
    pub endpoint: String,
    /// Nobody else's bytes are there before.
    pub until: Instant,
}

/// What does not change during a call.
#[derive(Debug, Clone, Copy)]
pub(in crate::store::wire) struct Terms<'a> {
    /// Whose keys they are.
    pub tenant: Text<'a>,
    pub family: Family,
    pub peers: &'a Peers,
    pub deadline: Instant,
}

/// A connection with its pages.
#[derive(Debug)]
pub(super) struct Lane<'p, 'm> {
    /// The owner's number in the call.
    pub owner: usize,
    pub part: Vec<Page<'p, 'm>>,
    /// It has served an earlier request.
    pub is_reused: bool,
    /// When it was asked what it is asked now.
    since: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    Dialing(Dial),
    Ready(Connection),
    Asking(Connection, Open),
    /// The pages are in the owner's memory.
    Staged(Connection),
    GivingBack(Connection, Open),
    Over,
}

/// What a step came to.
#[derive(Debug)]
pub(super) enum Step {
    /// Something is still to come.
    Waiting,
    /// The pages are there.
    Staged(Batch),
    /// The owner does not give them, with its error number. Its connection goes on.
    Declined(i32, Connection),
    /// What was given back is.
    Free(Connection),
    /// The connection is lost.
    Failed(Failure),
}

impl<'p, 'm> Lane<'p, 'm> {
    /// Over a connection that is to be made.
    pub fn dial(owner: usize, part: Vec<Page<'p, 'm>>, dial: Dial) -> Self {
        Self {
            owner,
            part,
            is_reused: false,
            since: Instant::now(),
            state: State::Dialing(dial),
        }
    }

    /// Over a connection that stands. To be stepped at once.
    pub fn reuse(owner: usize, part: Vec<Page<'p, 'm>>, connection: Connection) -> Self {
        Self {
            owner,
            part,
            is_reused: true,
            since: Instant::now(),
            state: State::Ready(connection),
        }
    }

    /// The socket, and what to wait for; `None` where nothing is.
    pub fn wants(&self) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            State::Dialing(dial) => Some((dial.socket().as_fd(), dial.wants(true))),
            State::Asking(connection, open) | State::GivingBack(connection, open) => {
                let mut wanted = PollFlags::IN;
                wanted.set(PollFlags::OUT, open.interest().write);
                Some((connection.as_fd(), wanted))
            }
            State::Ready(_) | State::Staged(_) | State::Over => None,
        }
    }

    /// When the owner has been waited for long enough.
    pub fn patience_ends(&self) -> Instant {
        self.since + self.patience()
    }

    fn patience(&self) -> Duration {
        match self.state {
            State::Dialing(_) => CONNECTING,
            State::GivingBack(..) => GIVING_BACK,
            _ => READING,
        }
    }

    /// Whether the owner that is waited for has been silent for so long, when the `time` of the call is over at `deadline`,
    /// that it does not only lack time.
    pub fn hangs(&self, time: Duration, deadline: Instant) -> bool {
        let silent_for = deadline.saturating_duration_since(self.since);
        matches!(self.state, State::Dialing(_) | State::Asking(..))
            && silent_for >= hangs_after(self.patience(), time)
    }

    /// Whether only the owner's memory is still to be given back.
    pub fn is_read(&self) -> bool {
        matches!(self.state, State::GivingBack(..))
    }

    /// To be called when the socket is ready, and once after [`reuse`](Self::reuse) and
    /// [`give_back`](Self::give_back).
    pub fn step(&mut self, terms: Terms<'_>) -> Step {
        match self.advance(terms) {
            Ok(step) => step,
            Err(failure) => Step::Failed(failure),
        }
    }

    fn advance(&mut self, terms: Terms<'_>) -> Result<Step, Failure> {
        match std::mem::replace(&mut self.state, State::Over) {
            State::Dialing(mut dial) => {
                let is_connected = dial.is_connected();
                if !is_connected.map_err(|error| Failure::Lost(error.to_string()))? {
                    self.state = State::Dialing(dial);
                    return Ok(Step::Waiting);
                }
                self.state = State::Ready(Connection::new(dial.into_socket()));
                self.advance(terms)
            }
            State::Ready(connection) => {
                self.ask(connection, terms)?;
                self.advance(terms)
            }
            State::Asking(mut connection, mut open) => {
                let mut answer = None;
                connection.step(&mut open, |_, body| {
                    let body = match body {
                        // Its own code stumbled over a page; a longer list may be answered in parts.
                        Err(refusal) if !refusal.is_general() => {
                            answer = Some(Err(code::UNREACHABLE_MEMORY));
                            return Ok(());
                        }
                        body => body.map_err(Failure::Refused)?,
                    };
                    let staged = unpack::<Answer<Staged<'_>>>(body, terms.family)?;
                    answer = Some(match staged {
                        Ok(staged) => Ok(self.judge(&staged)?),
                        Err(number) => Err(codes::said(number)),
                    });
                    Ok(())
                })?;
                let Some(answer) = answer else {
                    self.state = State::Asking(connection, open);
                    return Ok(Step::Waiting);
                };
                connection.end(&open)?;
                Ok(match answer {
                    Err(number) => Step::Declined(number, connection),
                    Ok(batch) => {
                        self.state = State::Staged(connection);
                        Step::Staged(batch)
                    }
                })
            }
            State::GivingBack(mut connection, mut open) => {
                connection.step(&mut open, |_, body| {
                    // Whether it still knew the batch does not matter any more.
                    let body = body.map_err(Failure::Refused)?;
                    Ok(unpack::<bool>(body, terms.family).map(|_| ())?)
                })?;
                if !open.is_answered() {
                    self.state = State::GivingBack(connection, open);
                    return Ok(Step::Waiting);
                }
                connection.end(&open)?;
                Ok(Step::Free(connection))
            }
            state @ (State::Staged(_) | State::Over) => {
                self.state = state;
                Ok(Step::Waiting)
            }
        }
    }

    /// Says that nobody of ours reads the batch any more.
    pub fn give_back(&mut self, batch: &Batch, terms: Terms<'_>) -> Result<(), Failure> {
        if let State::Staged(mut connection) = std::mem::replace(&mut self.state, State::Over) {
            self.since = Instant::now();
            let open = connection.begin(one(&Unstage { batch: batch.id }, terms.family)?);
            self.state = State::GivingBack(connection, open);
        }
        Ok(())
    }

    /// Begins to ask for the pages.
    fn ask(&mut self, mut connection: Connection, terms: Terms<'_>) -> Result<(), Failure> {
        let names: Vec<Vec<u8>> = self
            .part
            .iter()
            .map(|page| [terms.tenant.0, b"\0", page.key].concat())
            .collect();
        let keys: Vec<Text<'_>> = names.iter().map(|name| Text(name)).collect();
        let size = |page: &Page<'_, '_>| i64::try_from(page.size).unwrap_or(i64::MAX);
        let sizes: Vec<i64> = self.part.iter().map(size).collect();
        let (keys, sizes) = (&keys[..], &sizes[..]);
        // The owner counts from when it hears this, at the earliest.
        self.since = Instant::now();
        let open = connection.begin(one(&Stage { keys, sizes }, terms.family)?);
        self.state = State::Asking(connection, open);
        Ok(())
    }

    /// Whether an owner's answer can be one to what it was asked.
    fn judge(&self, staged: &Staged<'_>) -> Result<Batch, Failure> {
        let (asked, answered) = (self.part.len(), staged.addresses.len());
        if answered != asked {
            let text = format!("{answered} addresses for {asked} pages");
            return Err(Failure::Nonsense(text));
        }
        let mut both = self.part.iter().zip(&staged.addresses);
        let has_room = |(page, address): (&Page<'_, '_>, &u64)| {
            *address > 0 && address.checked_add(page.size).is_some()
        };
        if !both.all(has_room) {
            let text = "an address at which no page can be".to_owned();
            return Err(Failure::Nonsense(text));
        }
        let endpoint = staged.endpoint.as_str();
        let Some(endpoint) = endpoint.filter(|it| (1..=MOST_ENDPOINT).contains(&it.len())) else {
            let text = "an endpoint that cannot be".to_owned();
            return Err(Failure::Nonsense(text));
        };
        Ok(Batch {
            id: staged.batch,
            addresses: staged.addresses.clone(),
            endpoint: endpoint.to_owned(),
            until: after(self.since, Duration::from_millis(staged.ttl_ms)),
        })
    }
}

fn one<R: Request>(request: &R, family: Family) -> Result<Requests, Failure> {
    let mut requests = Requests::default();
    requests.push(request, family)?;
    Ok(requests)
}
