//! One connection to an owner and the jobs that it carries in this batch.
//!
//! Requests go out back to back and the answers come in the same order, so that a few small pages cost one write and one
//! read. Both ways are served whenever the socket lets them: an owner that answers while we still send
//! never finds us waiting for it.
//!
//! A job is moved in frames, and only so many of them are asked for ahead of the answers: see `docs/design/wire-data.md`.

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
/// Most bytes that are asked for, or sent, by one request.
pub(super) const FRAME: u64 = 64 << 10;

/// Bytes under way on a connection before another request goes out. `docs/design/wire-data.md` has what speaks for it.
pub(super) const fn window(operation: Operation) -> u64 {
    match operation {
        Operation::Read => 128 << 10,
        Operation::Write => 256 << 10,
    }
}

/// A connection with jobs.
#[derive(Debug)]
pub(super) struct Line<'j, J> {
    dial: Dial,
    version: Version,
    is_reused: bool,
    jobs: Vec<&'j mut J>,
    /// What the jobs are asked for in, in order.
    frames: Vec<Frame>,
    /// One per frame, and one more for the fence.
    requests: Vec<u8>,
    /// One per frame; version 2 alone fills them.
    statuses: Vec<[u8; STATUS]>,
    /// So many requests may be sent by now.
    granted: usize,
    /// Bytes of granted frames that are not answered.
    under_way: u64,
    out: Place,
    landed: Place,
    fence: Fence,
}

/// A part of a job that has a request of its own.
#[derive(Debug, Clone, Copy)]
struct Frame {
    job: usize,
    /// Where in the job's range it begins.
    from: u64,
    size: u64,
    /// It ends where the job does.
    is_last: bool,
}

/// A place in a stream: the frame, and how many of its bytes, request or status included, are behind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Place {
    frame: usize,
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
        let mut frames = Vec::with_capacity(jobs.len());
        for (job, it) in jobs.iter().enumerate() {
            let mut from = 0;
            while from < it.size() {
                let rest = it.size() - from;
                let size = match version {
                    Version::One => rest,
                    Version::Two => rest.min(FRAME),
                };
                let is_last = size == rest;
                frames.push(Frame {
                    job,
                    from,
                    size,
                    is_last,
                });
                from += size;
            }
        }
        let mut requests = Vec::with_capacity((frames.len() + 1) * REQUEST);
        for frame in &frames {
            let request = Request {
                size: frame.size,
                address: jobs.get(frame.job).map_or(0, |job| job.address()) + frame.from,
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
        let mut line = Self {
            dial,
            version,
            is_reused,
            statuses: vec![[0; STATUS]; frames.len()],
            jobs,
            frames,
            requests,
            granted: 0,
            under_way: 0,
            out: Place::default(),
            landed: Place::default(),
            fence,
        };
        line.grant();
        line
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
        !self.is_reused && self.landed.frame == 0
    }

    /// To be called when the socket is ready, and once before.
    pub fn step(&mut self) -> Step {
        match self.dial.is_connected() {
            Ok(true) => {}
            Ok(false) => return Step::Working,
            Err(_) => return Step::Broken(Trouble::Gone),
        }
        let mut turn = 0;
        loop {
            // What was answered before a connection broke counts.
            let mut sent = self.send();
            let (count, is_all) = match self.receive() {
                Ok(received) => received,
                Err(trouble) => return Step::Broken(trouble),
            };
            if self.landed.frame == self.frames.len() {
                return Step::Done;
            }
            turn += count;
            if is_all || turn >= TURN {
                if sent.is_ok() {
                    sent = self.send();
                }
                return sent.map_or_else(Step::Broken, |()| Step::Working);
            }
        }
    }

    /// The connection, to be used again; all jobs are settled.
    pub fn into_socket(self) -> (Socket, SocketAddr) {
        let address = self.dial.address();
        (self.dial.into_socket(), address)
    }

    /// Closes the connection at once. The jobs that were not answered, in order.
    pub fn abort(mut self) -> Vec<&'j mut J> {
        let unanswered = self.frames.get(self.landed.frame);
        let first = unanswered.map_or(self.jobs.len(), |frame| frame.job);
        let sent = self.out.frame + usize::from(self.out.done > 0);
        // Also where its frames were answered: an owner that lies may have said that too early.
        for frame in self.frames.iter().take(sent).filter(|it| it.job >= first) {
            if let Some(job) = self.jobs.get_mut(frame.job) {
                job.was_sent();
            }
        }
        self.dial.into_socket().abort();
        self.jobs.split_off(first)
    }

    /// Lets requests go out as answers have come.
    fn grant(&mut self) {
        if self.version == Version::One {
            // Nothing tells how far its writes are.
            self.granted = self.requests.len() / REQUEST;
            return;
        }
        while self.under_way < window(J::OPERATION)
            && let Some(next) = self.frames.get(self.granted)
        {
            self.under_way = self.under_way.saturating_add(next.size);
            self.granted += 1;
        }
    }

    fn has_to_send(&self) -> bool {
        self.out.frame < self.granted
    }

    /// Bytes that a frame has on the way out; the fence counts as a frame.
    fn outgoing(&self, frame: usize) -> u64 {
        let data = match J::OPERATION {
            Operation::Read => 0,
            Operation::Write => self.frames.get(frame).map_or(0, |frame| frame.size),
        };
        REQUEST as u64 + data
    }

    /// Bytes that a frame has on the way back.
    fn incoming(&self, frame: &Frame) -> u64 {
        let data = match J::OPERATION {
            Operation::Read => frame.size,
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
                let rest = self.outgoing(self.out.frame) - self.out.done;
                if left < rest {
                    self.out.done += left;
                    break;
                }
                left -= rest;
                self.out = Place {
                    frame: self.out.frame + 1,
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
        let frames = match J::OPERATION {
            Operation::Read => 0..0,
            Operation::Write => self.out.frame..self.granted.min(self.frames.len()),
        };
        let mut slices = Vec::with_capacity(SLICES.min(2 * frames.len() + 1));
        let mut done = self.out.done;
        let mut from =
            self.out.frame * REQUEST + usize::try_from(done).unwrap_or(REQUEST).min(REQUEST);
        for at in frames {
            let Some(frame) = self.frames.get(at) else {
                break;
            };
            let request_end = (at + 1) * REQUEST;
            if from < request_end {
                slices.extend(self.requests.get(from..request_end).map(IoSlice::new));
            }
            if let Some(job) = self.jobs.get(frame.job) {
                let begun = frame.from + done.saturating_sub(REQUEST as u64);
                job.sending(begun..frame.from + frame.size, SLICES, &mut slices);
            }
            (done, from) = (0, request_end);
            if slices.len() >= SLICES {
                return slices;
            }
        }
        slices.extend(
            self.requests
                .get(from..self.granted * REQUEST)
                .filter(|it| !it.is_empty())
                .map(IoSlice::new),
        );
        slices
    }

    /// Takes what has arrived, in one call: how many bytes, and whether that was all.
    fn receive(&mut self) -> Result<(usize, bool), Trouble> {
        if self.fence == Fence::Awaited {
            return self.receive_fence();
        }
        let status = self.status();
        let mut slices = Vec::with_capacity(SLICES.min(2 * self.frames.len()));
        let mut done = self.landed.done;
        let first = self.frames.get(self.landed.frame).map_or(0, |it| it.job);
        let frames = self.frames.iter().zip(&mut self.statuses);
        let frames = frames.skip(self.landed.frame);
        let mut jobs = self.jobs.iter_mut().skip(first);
        for (frame, into) in frames {
            if slices.len() >= SLICES {
                break;
            }
            if done < status {
                let from = usize::try_from(done).unwrap_or(STATUS);
                slices.extend(into.get_mut(from..).map(IoSliceMut::new));
            }
            if J::OPERATION == Operation::Read
                && let Some(job) = jobs.next()
            {
                let begun = frame.from + done.saturating_sub(status);
                job.landing(begun..frame.from + frame.size, SLICES, &mut slices);
                if !frame.is_last {
                    // Its next frame lies in the same pieces, which one call borrows once.
                    break;
                }
            }
            done = 0;
        }
        let asked: usize = slices.iter().map(|it| it.len()).sum();
        let count = match self.dial.socket().receive(&mut slices) {
            Ok(Some(0)) | Err(_) => return Err(Trouble::Gone),
            Ok(Some(count)) => count,
            Ok(None) => return Ok((0, true)),
        };
        self.arrived(count as u64)?;
        Ok((count, count < asked))
    }

    /// Goes on by so many bytes of answers.
    fn arrived(&mut self, mut count: u64) -> Result<(), Trouble> {
        let status = self.status();
        while count > 0
            && let Some(&frame) = self.frames.get(self.landed.frame)
        {
            let whole = self.incoming(&frame);
            let step = count.min(whole - self.landed.done);
            let is_told = self.landed.done < status && self.landed.done + step >= status;
            self.landed.done += step;
            count -= step;
            if is_told {
                let bytes = self.statuses.get(self.landed.frame).copied();
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
            if self.landed.frame >= self.out.frame && self.landed.done >= status {
                // It was not asked, or not given the bytes yet that it says are in place.
                return Err(Trouble::Lie(code::BAD_ANSWER));
            }
            if self.landed.done == whole {
                if frame.is_last
                    && let Some(job) = self.jobs.get_mut(frame.job)
                {
                    job.settle(Ok(()));
                }
                self.landed = Place {
                    frame: self.landed.frame + 1,
                    done: 0,
                };
                self.under_way = self.under_way.saturating_sub(frame.size);
            }
        }
        self.grant();
        Ok(())
    }

    fn receive_fence(&mut self) -> Result<(usize, bool), Trouble> {
        let mut byte = [0];
        match self
            .dial
            .socket()
            .receive(&mut [IoSliceMut::new(&mut byte)])
        {
            Ok(None) => return Ok((0, true)),
            Ok(Some(0)) | Err(_) => return Err(Trouble::Gone),
            Ok(Some(_)) if self.has_to_send() => return Err(Trouble::Lie(code::BAD_ANSWER)),
            Ok(Some(_)) => {}
        }
        for job in &mut self.jobs {
            job.settle(Ok(()));
        }
        self.landed.frame = self.frames.len();
        Ok((1, true))
    }
}
