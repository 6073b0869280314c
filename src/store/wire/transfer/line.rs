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

use super::cut::{Frame, Waiting};
use super::dial::Dial;
use super::frame::{Operation, REQUEST, Request, STATUS, Status, Version};
use super::job::Job;
use crate::store::code;
use crate::store::wire::socket::Socket;

/// Most slices of one call; the system takes 1,024.
const SLICES: usize = 128;
/// Bytes after which another connection gets its turn.
const TURN: usize = 4 << 20;
/// Most bytes that are asked for, or sent, by one request.
pub(super) const FRAME: u64 = 512 << 10;
/// Bytes under way on a connection before another request goes out. `docs/design/wire-data.md` has what speaks for both.
pub(super) const WINDOW: u64 = 512 << 10;

/// A connection with jobs.
#[derive(Debug)]
pub(super) struct Line<'j, J> {
    dial: Dial,
    version: Version,
    is_reused: bool,
    jobs: Vec<&'j mut J>,
    /// So many of them are settled.
    settled: usize,
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
    /// A connection that carries nothing yet. `is_reused`: it has served before.
    pub fn new(dial: Dial, version: Version, is_reused: bool) -> Self {
        Self {
            dial,
            version,
            is_reused,
            jobs: Vec::new(),
            settled: 0,
            frames: Vec::new(),
            requests: Vec::new(),
            statuses: Vec::new(),
            granted: 0,
            under_way: 0,
            out: Place::default(),
            landed: Place::default(),
            fence: Fence::None,
        }
    }

    /// Has the connection carry these jobs, if there are any, and no others later. Of version 1, which has no statuses: nothing
    /// tells how far a write is, and a fence ends them.
    pub fn carry(&mut self, jobs: Vec<&'j mut J>) {
        for job in jobs {
            self.jobs.push(job);
            self.ask_for(self.jobs.len() - 1, u64::MAX);
        }
        if J::OPERATION == Operation::Write
            && let Some(last) = self.jobs.last()
        {
            self.fence = Fence::Awaited;
            let request = Request {
                size: 1,
                address: last.address() + (last.size() - 1),
                operation: Operation::Read,
                version: self.version,
            };
            self.requests.extend(request.encode());
        }
        self.granted = self.requests.len() / REQUEST;
    }

    /// Adds the next frame or frames of jobs that wait; false if none does.
    fn add_next(&mut self, waiting: &mut Waiting<'j, J>) -> bool {
        let begin = self.jobs.len();
        waiting.next(FRAME, &mut self.jobs);
        let Some(first) = self.jobs.get(begin) else {
            return false;
        };
        if first.size() > FRAME {
            self.ask_for(begin, FRAME);
            return true;
        }
        let (address, jobs) = (first.address(), begin..self.jobs.len());
        let size = self.jobs.get(jobs.clone()).unwrap_or_default();
        let size = size.iter().map(|job| job.size()).sum();
        let frame = Frame {
            jobs,
            from: 0,
            size,
            is_last: true,
        };
        self.ask(address, frame);
        true
    }

    /// Adds the frames of one job.
    fn ask_for(&mut self, at: usize, most: u64) {
        let Some((address, whole)) = self.jobs.get(at).map(|job| (job.address(), job.size()))
        else {
            return;
        };
        let mut from = 0;
        while from < whole {
            let size = most.min(whole - from);
            let frame = Frame {
                jobs: at..at + 1,
                from,
                size,
                is_last: from + size == whole,
            };
            self.ask(address + from, frame);
            from += size;
        }
    }

    fn ask(&mut self, address: u64, frame: Frame) {
        let request = Request {
            size: frame.size,
            address,
            operation: J::OPERATION,
            version: self.version,
        };
        self.requests.extend(request.encode());
        self.statuses.push([0; STATUS]);
        self.frames.push(frame);
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        (
            self.dial.socket().as_fd(),
            self.dial.wants(self.has_to_send()),
        )
    }

    /// Whether the first request without an answer is about several jobs.
    pub fn awaits_several(&self) -> bool {
        let unanswered = self.frames.get(self.landed.frame);
        unanswered.is_some_and(|frame| frame.jobs.len() > 1)
    }

    /// Whether the connection was made for this batch and answered nothing as a whole.
    pub fn is_fresh_and_mute(&self) -> bool {
        !self.is_reused && self.landed.frame == 0 && self.settled == 0
    }

    /// To be called when the socket is ready, and once before. Takes jobs that nobody carries when there is room for more.
    pub fn step(&mut self, waiting: &mut Waiting<'j, J>) -> Step {
        match self.dial.is_connected() {
            Ok(true) => {}
            Ok(false) => return Step::Working,
            Err(_) => return Step::Broken(Trouble::Gone),
        }
        self.fill(waiting);
        if self.frames.is_empty() {
            // Others took all there was while this one was being made.
            return Step::Done;
        }
        let mut turn = 0;
        loop {
            // What was answered before a connection broke counts.
            let mut sent = self.send();
            let (count, is_all) = match self.receive() {
                Ok(received) => received,
                Err(trouble) => return Step::Broken(trouble),
            };
            self.fill(waiting);
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
        let first = self.settled;
        let sent = self.out.frame + usize::from(self.out.done > 0);
        // Also where its frames were answered: an owner that lies may have said that too early.
        for frame in self.frames.iter().take(sent) {
            let unsettled = frame.jobs.start.max(first)..frame.jobs.end;
            for job in self.jobs.get_mut(unsettled).into_iter().flatten() {
                job.was_sent();
            }
        }
        self.dial.into_socket().abort();
        self.jobs.split_off(first)
    }

    /// Lets requests go out as answers have come.
    fn fill(&mut self, waiting: &mut Waiting<'j, J>) {
        if self.version == Version::One {
            return;
        }
        while self.under_way < WINDOW {
            if let Some(next) = self.frames.get(self.granted) {
                self.under_way = self.under_way.saturating_add(next.size);
                self.granted += 1;
            } else if !self.add_next(waiting) {
                return;
            }
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
            let mut part = frame.part(done.saturating_sub(REQUEST as u64));
            for job in self.jobs.get(frame.jobs.clone()).into_iter().flatten() {
                if let Some(bytes) = part.of_next(job.size()) {
                    job.sending(bytes, SLICES, &mut slices);
                }
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
        let first = self.frames.get(self.landed.frame);
        let first = first.map_or(0, |it| it.jobs.start);
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
            if J::OPERATION == Operation::Read {
                let mut part = frame.part(done.saturating_sub(status));
                for job in jobs.by_ref().take(frame.jobs.len()) {
                    if let Some(bytes) = part.of_next(job.size()) {
                        job.landing(bytes, SLICES, &mut slices);
                    }
                }
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
            && let Some(frame) = self.frames.get(self.landed.frame).cloned()
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
            self.settle_landed(&frame);
            if self.landed.done == whole {
                self.landed = Place {
                    frame: self.landed.frame + 1,
                    done: 0,
                };
                self.under_way = self.under_way.saturating_sub(frame.size);
            }
        }
        Ok(())
    }

    /// Settles the jobs that a frame, of which so much has come, has brought to their ends.
    fn settle_landed(&mut self, frame: &Frame) {
        let data = match J::OPERATION {
            Operation::Read => self.landed.done.saturating_sub(self.status()),
            // The status is for all of it.
            Operation::Write if self.landed.done == self.incoming(frame) => frame.size,
            Operation::Write => 0,
        };
        let mut part = frame.part(0);
        let mut end = 0;
        for (at, job) in
            (frame.jobs.start..).zip(self.jobs.get_mut(frame.jobs.clone()).into_iter().flatten())
        {
            let bytes = part.of_next(job.size()).unwrap_or(0..0);
            end += bytes.end - bytes.start;
            if end > data || bytes.end < job.size() {
                return;
            }
            if at >= self.settled {
                job.settle(Ok(()));
                self.settled = at + 1;
            }
        }
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
        self.settled = self.jobs.len();
        Ok((1, true))
    }
}
