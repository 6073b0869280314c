//! The part of a batch that goes to one owner: finding it, connections to it, and trying again.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::Inner;
use super::ask::{Ask, Owner, Told};
use super::cut::Waiting;
use super::dial::Dial;
use super::frame::Version;
use super::job::Job;
use super::line::{Line, Step, Trouble};
use crate::store::code;
use crate::sync::Arc;

/// Most times that the rest of a batch is tried. Every time but the first needs a reason, see [`Visit::again`].
const ROUNDS: u32 = 8;
/// Bytes for which another connection is worth it.
pub(super) const SHARE: u64 = 512 << 10;

/// Jobs of one owner.
pub(super) struct Visit<'j, J> {
    endpoint: String,
    stage: Stage<'j, J>,
    /// Jobs that no connection carries.
    waiting: Waiting<'j, J>,
    /// What connections left that broke, for the next round: this one shall not lose its others by the same jobs.
    left: Vec<&'j mut J>,
    /// What is in use: how the owner is reached, and whether that is from an earlier batch.
    owner: Option<(Arc<Owner>, bool)>,
    /// A connection broke in a way that makes another round worth it.
    again: bool,
    rounds: u32,
    heard: Instant,
    deadline: Instant,
    /// An owner that was silent for so long hangs, and did not only lack time.
    hangs_after: Duration,
}

enum Stage<'j, J> {
    Asking(Ask),
    Moving(Vec<Line<'j, J>>),
    Over,
}

impl<'j, J: Job> Visit<'j, J> {
    /// Begins to serve the jobs, which all name one endpoint: until when, and after how much silence the owner counts as one
    /// that hangs when that is over.
    pub fn begin(
        inner: &Inner,
        jobs: Vec<&'j mut J>,
        now: Instant,
        (deadline, hangs_after): (Instant, Duration),
    ) -> Self {
        let endpoint = jobs.first().map_or("", |job| job.endpoint()).to_owned();
        let known = inner.known.find(&endpoint, now);
        let mut visit = Self {
            endpoint,
            stage: Stage::Over,
            waiting: Waiting {
                jobs: jobs.into(),
                apart: false,
            },
            left: Vec::new(),
            owner: None,
            again: false,
            rounds: 1,
            heard: now,
            deadline,
            hangs_after,
        };
        match known {
            Err(()) => visit.fail(code::UNREACHABLE),
            Ok(None) => visit.ask(inner),
            Ok(Some(owner)) => {
                let lent = |job: &&mut J| owner.description.lends(job.address(), job.size());
                if visit.waiting.jobs.iter().all(lent) {
                    visit.open(inner, owner, true, now);
                } else {
                    // It may lend more by now.
                    visit.ask(inner);
                }
            }
        }
        // Before this it was asked for nothing.
        visit.heard = Instant::now();
        visit
    }

    /// Adds the sockets that this waits for.
    pub fn list<'s>(&'s self, sockets: &mut Vec<(BorrowedFd<'s>, PollFlags)>) {
        match &self.stage {
            Stage::Asking(ask) => sockets.push(ask.wants()),
            Stage::Moving(lines) => sockets.extend(lines.iter().map(Line::wants)),
            Stage::Over => {}
        }
    }

    /// Goes on, given what happened to the sockets that [`list`](Self::list) named, in that order.
    pub fn step(
        &mut self,
        inner: &Inner,
        mut events: impl Iterator<Item = bool>,
        now: Instant,
        clock: &dyn Fn() -> Instant,
    ) {
        let mut is_heard = false;
        match &mut self.stage {
            Stage::Over => {}
            Stage::Asking(ask) => {
                if !events.next().unwrap_or(false) {
                    return;
                }
                is_heard = true;
                match ask.step(self.deadline.min(now + inner.silence)) {
                    Told::Waiting => {}
                    Told::End(Err(code)) => self.fail(code),
                    Told::End(Ok(owner)) => self.found(inner, owner, now),
                }
            }
            Stage::Moving(lines) => {
                for line in std::mem::take(lines) {
                    if events.next().unwrap_or(false) {
                        is_heard = true;
                        self.advance(inner, line, now);
                    } else {
                        self.keep(line);
                    }
                }
                self.next_round(inner);
            }
        }
        if is_heard {
            // What was sent just now is not owed for longer, however long this took.
            self.heard = clock();
        }
    }

    /// Ends this, since it is too late for all that is still going on, given what happened to the sockets as for
    /// [`step`](Self::step).
    pub fn end(&mut self, inner: &Inner, events: impl Iterator<Item = bool>, now: Instant) {
        let sockets = match &self.stage {
            Stage::Asking(_) => 1,
            Stage::Moving(lines) => lines.len(),
            Stage::Over => 0,
        };
        if events.take(sockets).filter(|is_ready| *is_ready).count() > 0 {
            self.heard = now;
        }
        self.check_time(inner, now);
    }

    /// When this has to be looked at even if nothing happens.
    pub fn patience_ends(&self, inner: &Inner) -> Option<Instant> {
        match self.stage {
            Stage::Over => None,
            _ => Some(self.heard + inner.silence),
        }
    }

    /// Ends what takes too long.
    pub fn check_time(&mut self, inner: &Inner, now: Instant) {
        let is_late = now >= self.deadline;
        // It was given no longer than this.
        let silent_for = now.min(self.deadline).saturating_duration_since(self.heard);
        let is_silent = silent_for >= inner.silence;
        if matches!(self.stage, Stage::Over) || !(is_late || is_silent) {
            return;
        }
        // Nor shall an owner that stands still cost every batch its whole time where that is shorter, or count as an outage
        // of the pool.
        let stands_still = silent_for >= self.hangs_after;
        if stands_still {
            inner.known.shun(&self.endpoint, now);
        }
        self.fail(if is_late && !stands_still {
            code::DEADLINE
        } else {
            code::UNREACHABLE
        });
    }

    fn ask(&mut self, inner: &Inner) {
        self.owner = None;
        let began = Instant::now();
        let until = self.deadline.min(began + inner.silence);
        match Ask::begin(&inner.directory, &self.endpoint, until) {
            Ok(ask) => self.stage = Stage::Asking(ask),
            Err(code) => {
                // A names' server that is silent shall not cost every batch its time either.
                let now = Instant::now();
                if now.saturating_duration_since(began) >= self.hangs_after {
                    inner.known.shun(&self.endpoint, now);
                }
                self.fail(code);
            }
        }
    }

    fn found(&mut self, inner: &Inner, owner: Owner, now: Instant) {
        let owner = Arc::new(owner);
        inner.known.learn(&self.endpoint, &owner, now);
        self.waiting.jobs.retain_mut(|job| {
            let is_lent = owner.description.lends(job.address(), job.size());
            if !is_lent {
                job.settle(Err(code::ADDRESS_REJECTED));
            }
            is_lent
        });
        self.open(inner, owner, false, now);
    }

    /// Has connections carry the waiting jobs.
    fn open(&mut self, inner: &Inner, owner: Arc<Owner>, is_remembered: bool, now: Instant) {
        self.owner = Some((Arc::clone(&owner), is_remembered));
        self.stage = Stage::Moving(Vec::new());
        self.again = false;
        let version = owner.description.version;
        let total: u64 = self
            .waiting
            .jobs
            .iter()
            .fold(0, |sum, job| sum.saturating_add(job.size()));
        let lines = (total / SHARE).clamp(1, (inner.connections as u64).max(1));
        let share = total.div_ceil(lines);
        for _ in 0..lines {
            if self.waiting.jobs.is_empty() {
                break;
            }
            let part = match version {
                Version::One => self.waiting.share(share),
                // It takes some when it has room.
                Version::Two => Vec::new(),
            };
            let taken = inner.known.take(&self.endpoint, &owner, now);
            let is_reused = taken.is_some();
            let dial = match taken {
                Some((socket, address)) => Ok(Dial::made(socket, address)),
                None => Dial::begin(owner.addresses.clone()),
            };
            match dial {
                Ok(dial) => {
                    let mut line = Line::new(dial, version, is_reused);
                    line.carry(part);
                    if is_reused {
                        self.advance(inner, line, now);
                    } else {
                        self.keep(line);
                    }
                }
                Err(_) => {
                    self.again |= is_remembered;
                    self.left.extend(part);
                }
            }
        }
        self.next_round(inner);
    }

    fn keep(&mut self, line: Line<'j, J>) {
        if let Stage::Moving(lines) = &mut self.stage {
            lines.push(line);
        }
    }

    fn advance(&mut self, inner: &Inner, mut line: Line<'j, J>, now: Instant) {
        match line.step(&mut self.waiting) {
            Step::Working => self.keep(line),
            Step::Done => {
                if let Some((owner, _)) = &self.owner {
                    inner
                        .known
                        .give(&self.endpoint, owner, line.into_socket(), now);
                }
            }
            Step::Broken(trouble) => self.broken(inner, line, trouble),
        }
    }

    fn broken(&mut self, inner: &Inner, line: Line<'j, J>, trouble: Trouble) {
        let is_mute = line.is_fresh_and_mute();
        let is_about_several = line.awaits_several();
        let rest = line.abort();
        let is_remembered = self.owner.as_ref().is_some_and(|owner| owner.1);
        if let Some((owner, _)) = &self.owner {
            inner.known.forget(&self.endpoint, owner);
        }
        match trouble {
            Trouble::Gone => {
                self.again |= !is_mute || is_remembered;
                self.left.extend(rest);
            }
            // Each by itself will tell which of them is not lent.
            Trouble::Rejected if is_about_several => {
                self.waiting.apart = true;
                self.again = true;
                self.left.extend(rest);
            }
            Trouble::Rejected => {
                let mut rest = rest.into_iter();
                if let Some(job) = rest.next() {
                    job.settle(Err(code::ADDRESS_REJECTED));
                }
                self.again = true;
                self.left.extend(rest);
            }
            Trouble::Lie(code) => {
                for job in rest {
                    job.settle(Err(code));
                }
            }
        }
    }

    /// Once no connection carries jobs any more: tries the rest again, or gives it up.
    fn next_round(&mut self, inner: &Inner) {
        match &self.stage {
            Stage::Moving(lines) if lines.is_empty() => {}
            _ => return,
        }
        self.waiting.jobs.extend(self.left.drain(..));
        if self.again && self.rounds < ROUNDS && !self.waiting.jobs.is_empty() {
            self.rounds += 1;
            self.ask(inner);
        } else {
            self.fail(code::UNREACHABLE);
        }
    }

    /// Ends all that is still going on; what was not answered failed with this code.
    pub fn fail(&mut self, code: i32) {
        if let Stage::Moving(lines) = std::mem::replace(&mut self.stage, Stage::Over) {
            for line in lines {
                self.waiting.jobs.extend(line.abort());
            }
        }
        for job in self.waiting.jobs.drain(..).chain(self.left.drain(..)) {
            job.settle(Err(code));
        }
    }
}
