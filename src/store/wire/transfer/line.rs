//! One connection to an owner and the jobs that it carries in this batch.
//!
//! All requests go out back to back and the answers come in the same order, so that a batch costs about one write, and
//! a page about one read. Both ways are served whenever the socket lets them: an owner that answers while we still send
//! never finds us waiting for it.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;

use super::dial::Dial;
use super::frame::{Operation, REQUEST, Request, STATUS, Status, Version};
use super::job::Job;
use super::socket::Socket;
use crate::store::code;

/// Most slices of one call; the system takes 1,024.
const SLICES: usize = 128;
/// Bytes after which another connection gets its turn.
const TURN: usize = 4 << 20;

/// A connection with jobs.
#[derive(Debug)]
pub(super) struct Line<'j, J> {
    dial: Dial,
    version: Version,
    is_reused: bool,
    jobs: Vec<&'j mut J>,
    /// One per job, and one more for the fence.
    requests: Vec<u8>,
    /// One per job; version 2 alone fills them.
    statuses: Vec<[u8; STATUS]>,
    out: Place,
    landed: Place,
    fence: Fence,
}

/// A place in a stream: the job, and how many bytes of its frame are behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    job: usize,
    done: u64,
}

/// Version 1 confirms no write, but serves in order: after its answer to a read of one byte, what was
/// written before is in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fence {
    None,
    Awaited,
}

/// Why a connection cannot go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It ended, or the system cannot go on with it.
    Gone,
    /// The owner does not lend what the first unanswered job asks for.
    Rejected,
    /// The owner sent what it may not, to be reported with this code.
    Lie(i32),
}

/// What a step came to.
pub(super) enum Step {
    /// Something is still to come.
    Working,
    /// All jobs are settled.
    Done,
    /// The jobs that were not answered are still to be settled.
    Broken(Trouble),
}

impl<'j, J: Job> Line<'j, J> {
    /// Jobs for a connection, of which there is at least one. `is_reused`: it has served before.
    pub fn new(dial: Dial, version: Version, is_reused: bool, jobs: Vec<&'j mut J>) -> Self {
        let mut requests = Vec::with_capacity((jobs.len() + 1) * REQUEST);
        for job in &jobs {
            let request = Request {
                size: job.size(),
                address: job.address(),
                operation: J::OPERATION,
                version,
            };
            requests.extend(request.encode());
        }
        let mut fence = Fence::None;
        if (J::OPERATION, version) == (Operation::Write, Version::One)
            && let Some(last) = jobs.last()
        {
            fence = Fence::Awaited;
            let request = Request {
                size: 1,
                address: last.address() + (last.size() - 1),
                operation: Operation::Read,
                version,
            };
            requests.extend(request.encode());
        }
        Self {
            dial,
            version,
            is_reused,
            statuses: vec![[0; STATUS]; jobs.len()],
            jobs,
            requests,
            out: Place::default(),
            landed: Place::default(),
            fence,
        }
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        (
            self.dial.socket().as_fd(),
            self.dial.wants(self.has_to_send()),
        )
    }

    /// Whether the connection was made for this batch and answered nothing.
    pub fn is_fresh_and_mute(&self) -> bool {
        !self.is_reused && self.landed.job == 0
    }

    /// To be called when the socket is ready, and once before.
    pub fn step(&mut self) -> Step {
        match self.dial.is_connected() {
            Ok(true) => {}
            Ok(false) => return Step::Working,
            Err(_) => return Step::Broken(Trouble::Gone),
        }
        // What was answered before a connection broke counts.
        let sent = self.send();
        match self.receive() {
            Ok(()) if self.landed.job == self.jobs.len() => Step::Done,
            Ok(()) => match sent {
                Ok(()) => Step::Working,
                Err(trouble) => Step::Broken(trouble),
            },
            Err(trouble) => Step::Broken(trouble),
        }
    }

    /// The connection, to be used again; all jobs are settled.
    pub fn into_socket(self) -> (Socket, SocketAddr) {
        let address = self.dial.address();
        (self.dial.into_socket(), address)
    }

    /// Closes the connection at once. The jobs that were not answered, in order.
    pub fn abort(mut self) -> Vec<&'j mut J> {
        let is_begun = self.out.done > 0;
        let sent = self.out.job + usize::from(is_begun);
        let mut rest = self.jobs.split_off(self.landed.job.min(self.jobs.len()));
        for job in rest.iter_mut().take(sent.saturating_sub(self.landed.job)) {
            job.was_sent();
        }
        self.dial.into_socket().abort();
        rest
    }

    fn has_to_send(&self) -> bool {
        self.out.job * REQUEST < self.requests.len()
    }

    /// Bytes that a job's frame has on the way out; the fence counts as a job.
    fn outgoing(&self, job: usize) -> u64 {
        let data = match J::OPERATION {
            Operation::Read => 0,
            Operation::Write => self.jobs.get(job).map_or(0, |job| job.size()),
        };
        REQUEST as u64 + data
    }

    /// Bytes that a job's frame has on the way back.
    fn incoming(&self, job: usize) -> u64 {
        let data = match J::OPERATION {
            Operation::Read => self.jobs.get(job).map_or(0, |job| job.size()),
            Operation::Write => 0,
        };
        self.status() + data
    }

    fn status(&self) -> u64 {
        match self.version {
            Version::One => 0,
            Version::Two => STATUS as u64,
        }
    }

    fn send(&mut self) -> Result<(), Trouble> {
        let mut turn = 0;
        while self.has_to_send() && turn < TURN {
            let slices = self.slices_to_send();
            let asked: usize = slices.iter().map(|it| it.len()).sum();
            let sent = match self.dial.socket().send(&slices) {
                Ok(Some(count)) => count,
                Ok(None) => return Ok(()),
                Err(_) => return Err(Trouble::Gone),
            };
            turn += sent;
            let mut left = sent as u64;
            while left > 0 && self.has_to_send() {
                let rest = self.outgoing(self.out.job) - self.out.done;
                if left < rest {
                    self.out.done += left;
                    break;
                }
                left -= rest;
                self.out = Place {
                    job: self.out.job + 1,
                    done: 0,
                };
            }
            if sent < asked {
                // The system's buffer is full.
                return Ok(());
            }
        }
        Ok(())
    }

    /// What is next on the way out. Requests that nothing stands between are one slice.
    fn slices_to_send(&self) -> Vec<IoSlice<'_>> {
        let mut slices = Vec::with_capacity(SLICES.min(2 * self.jobs.len() + 1));
        let mut done = self.out.done;
        let mut from =
            self.out.job * REQUEST + usize::try_from(done).unwrap_or(REQUEST).min(REQUEST);
        let frames = self.requests.len() / REQUEST;
        for job in self.out.job..frames {
            let data = self.outgoing(job) - REQUEST as u64;
            if data == 0 {
                continue;
            }
            let request_end = (job + 1) * REQUEST;
            if from < request_end {
                slices.extend(self.requests.get(from..request_end).map(IoSlice::new));
            }
            if let Some(it) = self.jobs.get(job) {
                it.sending(done.saturating_sub(REQUEST as u64), SLICES, &mut slices);
            }
            (done, from) = (0, request_end);
            if slices.len() >= SLICES {
                return slices;
            }
        }
        slices.extend(
            self.requests
                .get(from..)
                .filter(|it| !it.is_empty())
                .map(IoSlice::new),
        );
        slices
    }

    fn receive(&mut self) -> Result<(), Trouble> {
        if self.fence == Fence::Awaited {
            return self.receive_fence();
        }
        let mut turn = 0;
        while self.landed.job < self.jobs.len() && turn < TURN {
            let status = self.status();
            let mut slices = Vec::with_capacity(SLICES.min(2 * self.jobs.len()));
            let mut done = self.landed.done;
            let jobs = self.jobs.iter_mut().zip(&mut self.statuses);
            for (job, into) in jobs.skip(self.landed.job) {
                if slices.len() >= SLICES {
                    break;
                }
                if done < status {
                    let from = usize::try_from(done).unwrap_or(STATUS);
                    slices.extend(into.get_mut(from..).map(IoSliceMut::new));
                }
                job.landing(done.saturating_sub(status), SLICES, &mut slices);
                done = 0;
            }
            let asked: usize = slices.iter().map(|it| it.len()).sum();
            let count = match self.dial.socket().receive(&mut slices) {
                Ok(Some(0)) | Err(_) => return Err(Trouble::Gone),
                Ok(Some(count)) => count,
                Ok(None) => return Ok(()),
            };
            turn += count;
            self.arrived(count as u64)?;
            if count < asked {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Goes on by so many bytes of answers.
    fn arrived(&mut self, mut count: u64) -> Result<(), Trouble> {
        let status = self.status();
        while count > 0 && self.landed.job < self.jobs.len() {
            let whole = self.incoming(self.landed.job);
            let step = count.min(whole - self.landed.done);
            let is_told = self.landed.done < status && self.landed.done + step >= status;
            self.landed.done += step;
            count -= step;
            if is_told {
                let bytes = self.statuses.get(self.landed.job).copied();
                match bytes.and_then(Status::decode) {
                    Some(Status::Fine) => {}
                    Some(Status::Rejected) => return Err(Trouble::Rejected),
                    Some(Status::Other(low)) => {
                        let low = i32::try_from(low).unwrap_or(code::BAD_ANSWER);
                        return Err(Trouble::Lie(low));
                    }
                    None => return Err(Trouble::Lie(code::BAD_ANSWER)),
                }
            }
            if self.landed.job >= self.out.job && self.landed.done >= status {
                // It was not asked, or not given the bytes yet that it says are in place.
                return Err(Trouble::Lie(code::BAD_ANSWER));
            }
            if self.landed.done == whole {
                if let Some(job) = self.jobs.get_mut(self.landed.job) {
                    job.settle(Ok(()));
                }
                self.landed = Place {
                    job: self.landed.job + 1,
                    done: 0,
                };
            }
        }
        Ok(())
    }

    fn receive_fence(&mut self) -> Result<(), Trouble> {
        let mut byte = [0];
        match self
            .dial
            .socket()
            .receive(&mut [IoSliceMut::new(&mut byte)])
        {
            Ok(None) => return Ok(()),
            Ok(Some(0)) | Err(_) => return Err(Trouble::Gone),
            Ok(Some(_)) if self.has_to_send() => return Err(Trouble::Lie(code::BAD_ANSWER)),
            Ok(Some(_)) => {}
        }
        for job in &mut self.jobs {
            job.settle(Ok(()));
        }
        self.landed.job = self.jobs.len();
        Ok(())
    }
}
