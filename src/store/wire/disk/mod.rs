//! Objects that lie on the disk of another client: its memory for them is asked for by a call to that client, they are read
//! from there as other objects are, and the memory is given back.
//!
//! An owner keeps an object in its memory for a time that it names, and then gives the place to another. That time
//! is counted from before the call, and what was read later counts as lost, as it does with leases of the master's.
//! `docs/design/wire-data.md` has the protocol.
//!
//! `plan` is which pages are asked of whom, `lane` one connection with one request.

mod lane;
mod plan;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;

use super::codes;
use super::rpc::{Connection, Failure};
use super::transfer::{Dial, Known, Quiet, ReadJob, resolve};
use crate::device::memory::Target;
use crate::keys::Keys;
use crate::store::mooncake::codes::not_on_disk;
use crate::store::{GetOutcome, Pieces, code};
use crate::sync::Arc;
use lane::{Batch, Lane, Step};
use plan::Plan;

pub(super) use lane::Terms;
pub(super) use plan::Found;

/// Requests that one owner is asked at once: one is read from the disk while another is on its way.
const LANES: usize = 3;
/// Connections of one call to all owners together.
const MOST_LANES: usize = 96;
/// A connection that was not used for so long is closed.
const IDLE: Duration = Duration::from_secs(60);
/// An owner that did not answer is left alone for so long, and for longer if it goes on like that.
const COOLDOWN: Duration = Duration::from_secs(2);

/// The owners of disks that this process reads, and connections to them. Threads: any number at once; each call uses
/// connections of its own, on the caller's thread.
#[derive(Debug)]
pub struct Disks {
    known: Known<Vec<SocketAddr>, Connection>,
}

impl Quiet for Connection {
    fn is_quiet(&self) -> bool {
        Self::is_quiet(self)
    }
}

/// A call under way.
struct Call<'a, 'p, 'm> {
    disks: &'a Disks,
    found: &'a Found,
    terms: Terms<'a>,
    plan: Plan<'p, 'm>,
    lanes: Vec<Lane<'p, 'm>>,
    /// Pages that can be read now.
    staged: Vec<(Lane<'p, 'm>, Batch)>,
}

impl Disks {
    /// Meets nobody yet.
    pub fn new() -> Self {
        Self {
            known: Known::new(IDLE, 2 * LANES, COOLDOWN),
        }
    }

    /// Reads what is on disks of the keys whose outcome is a failure so far, and leaves the outcome of that in its place.
    ///
    /// Blocks: until the deadline at most, and a moment longer where an owner gets its memory back. After it returns
    /// nothing writes to the targets. Failures by key, besides those of [`Peers::read`](super::transfer::Peers::read): `LEASE_EXPIRED`, the bytes came when
    /// they may have been others'; `UNREACHABLE_MEMORY`, the owner offers no such call, or takes another layout; or the number
    /// that the owner said.
    pub(super) fn read(
        &self,
        found: &Found,
        keys: &Keys,
        targets: Pieces<'_, Target<'_>>,
        terms: Terms<'_>,
        out: &mut [GetOutcome],
    ) {
        // As in most calls of most pools: then no lists are made of what there is.
        if found.owners.len() == 0 {
            return;
        }
        let mut call = Call {
            disks: self,
            found,
            terms,
            plan: Plan::new(found, keys, targets, out, LANES),
            lanes: Vec::new(),
            staged: Vec::new(),
        };
        if call.plan.owners().next().is_some() {
            self.known.sweep_at_times(Instant::now());
            call.serve();
        }
        for (place, outcome) in call.plan.ended {
            if let Some(slot) = out.get_mut(place) {
                *slot = match outcome {
                    GetOutcome::Failed(code) => GetOutcome::Failed(codes::of_lender(code)),
                    other => other,
                };
            }
        }
    }
}

impl<'p, 'm> Call<'_, 'p, 'm> {
    fn serve(&mut self) {
        let began = Instant::now();
        loop {
            if Instant::now() >= self.terms.deadline {
                return self.end_late(began);
            }
            self.fill();
            self.read_staged();
            if self.lanes.is_empty() {
                if self.plan.owners().next().is_none() {
                    return;
                }
                continue;
            }
            let Some((before, ready)) = self.wait() else {
                return self.end(|_| code::NO_MEMORY);
            };
            for (lane, ready) in std::mem::take(&mut self.lanes).into_iter().zip(ready) {
                match ready {
                    true => self.step(lane),
                    false if before >= lane.patience_ends() => self.late(lane),
                    false => self.lanes.push(lane),
                }
            }
        }
    }

    /// Gives owners for whom pages wait requests to work on.
    fn fill(&mut self) {
        let owners: Vec<usize> = self.plan.owners().collect();
        for owner in owners {
            let staged = self.staged.iter().map(|it| &it.0);
            let busy = self.lanes.iter().chain(staged);
            let busy = busy.filter(|lane| lane.owner == owner).count();
            let mut free = LANES.saturating_sub(busy);
            while free > 0 && self.lanes.len() < MOST_LANES && self.plan.has(owner) {
                free -= 1;
                self.open(owner);
            }
        }
    }

    /// Asks an owner for its next pages.
    fn open(&mut self, owner: usize) {
        let endpoint = self.found.owners.name(owner);
        let (known, now) = (&self.disks.known, Instant::now());
        let addresses = match known.find(endpoint, now) {
            Err(()) => return self.give_up(owner, code::UNREACHABLE),
            Ok(Some(addresses)) => addresses,
            Ok(None) => {
                let until = self.terms.deadline.min(now + COOLDOWN);
                let addresses = Arc::new(resolve(endpoint, until));
                let later = Instant::now();
                known.learn(endpoint, &addresses, later);
                // A names' server that is silent shall not cost every part its time.
                if addresses.is_empty() && later.saturating_duration_since(now) >= COOLDOWN / 2 {
                    known.shun(endpoint, later);
                }
                addresses
            }
        };
        let part = self.plan.part(owner);
        if let Some(connection) = known.take(endpoint, &addresses, now) {
            return self.step(Lane::reuse(owner, part, connection));
        }
        match Dial::begin(addresses.to_vec()) {
            Ok(dial) => self.lanes.push(Lane::dial(owner, part, dial)),
            Err(_) => {
                known.forget(endpoint, &addresses);
                self.plan.again(owner, part);
                self.give_up(owner, code::UNREACHABLE);
            }
        }
    }

    fn step(&mut self, mut lane: Lane<'p, 'm>) {
        let owner = lane.owner;
        match lane.step(self.terms) {
            Step::Waiting => self.lanes.push(lane),
            Step::Staged(batch) => self.staged.push((lane, batch)),
            Step::Free(connection) => self.keep(owner, connection),
            Step::Declined(number, connection) => {
                self.keep(owner, connection);
                self.plan.halve(owner, lane.part, declined(number));
            }
            // All pages of it are read.
            Step::Failed(_) if lane.part.is_empty() => {}
            Step::Failed(Failure::Lost(_)) if lane.is_reused => self.plan.again(owner, lane.part),
            Step::Failed(failure) => {
                self.plan.again(owner, lane.part);
                self.failed(owner, &failure);
            }
        }
    }

    /// Leaves an owner alone that is silent.
    fn late(&mut self, lane: Lane<'p, 'm>) {
        if lane.is_read() {
            return;
        }
        self.shun(lane.owner);
        self.plan.again(lane.owner, lane.part);
        self.give_up(lane.owner, code::UNREACHABLE);
    }

    fn shun(&self, owner: usize) {
        let endpoint = self.found.owners.name(owner);
        self.disks.known.shun(endpoint, Instant::now());
    }

    /// Ends a call whose time is over. An owner that hangs is to blame for its pages then, not the pool.
    fn end_late(&mut self, began: Instant) {
        let deadline = self.terms.deadline;
        let time = deadline.saturating_duration_since(began);
        // Who has answered by now is not silent, also if this process was stopped for long.
        let Some((_, ready)) = self.wait() else {
            return self.end(|_| code::NO_MEMORY);
        };
        let lanes = self.lanes.iter().zip(ready);
        let hung = lanes.filter(|(lane, ready)| !ready && lane.hangs(time, deadline));
        let hung: BTreeSet<usize> = hung.map(|(lane, _)| lane.owner).collect();
        for &owner in &hung {
            self.shun(owner);
        }
        self.end(|owner| match hung.contains(&owner) {
            true => code::UNREACHABLE,
            false => code::DEADLINE,
        });
    }

    fn failed(&mut self, owner: usize, failure: &Failure) {
        let endpoint = self.found.owners.name(owner);
        let code = match failure {
            Failure::Refused(_) => {
                tracing::warn!("the disk of \"{endpoint}\" cannot be read: {failure}");
                code::UNREACHABLE_MEMORY
            }
            _ => {
                tracing::debug!("the disk of \"{endpoint}\": {failure}");
                codes::of(failure)
            }
        };
        if let Ok(Some(addresses)) = self.disks.known.find(endpoint, Instant::now()) {
            self.disks.known.forget(endpoint, &addresses);
        }
        self.give_up(owner, code);
    }

    fn give_up(&mut self, owner: usize, code: i32) {
        self.plan.give_up(owner, GetOutcome::Failed(code));
    }

    fn keep(&self, owner: usize, connection: Connection) {
        let (endpoint, now) = (self.found.owners.name(owner), Instant::now());
        let known = &self.disks.known;
        if let Ok(Some(addresses)) = known.find(endpoint, now) {
            known.give(endpoint, &addresses, connection, now);
        }
    }

    /// Reads all that is in owners' memory, one owner after the other: the time that one of them gives shall not end the
    /// reads from another.
    fn read_staged(&mut self) {
        while let Some(owner) = self.staged.first().map(|it| it.0.owner) {
            let (mut batches, others) = std::mem::take(&mut self.staged)
                .into_iter()
                .partition::<Vec<_>, _>(|it| it.0.owner == owner);
            self.staged = others;
            self.read_batches(&mut batches);
            for (mut lane, batch) in batches {
                // Nobody reads it any more.
                if lane.give_back(&batch, self.terms).is_ok() {
                    self.step(lane);
                }
            }
        }
    }

    fn read_batches(&mut self, batches: &mut [(Lane<'p, 'm>, Batch)]) {
        let now = Instant::now();
        let owner = batches.first().map(|it| it.0.owner);
        let Some(until) = batches.iter().map(|it| it.1.until).min() else {
            return;
        };
        let left = until.saturating_duration_since(now);
        // Ends a little before, so that what was in time is known to have been.
        let by_lease = now + (left - left / 16);
        let mut limit = self.terms.deadline;
        // An owner that sends slowly does not use up the time of the others.
        if self.waits_for_others(owner) {
            limit = now + self.terms.deadline.saturating_duration_since(now) / 2;
        }
        let mut jobs = Vec::new();
        for (lane, batch) in &mut *batches {
            for (page, &address) in lane.part.iter_mut().zip(&batch.addresses) {
                jobs.push(ReadJob::new(
                    &batch.endpoint,
                    address,
                    page.size,
                    page.pieces,
                ));
            }
        }
        self.terms.peers.read_leased(&mut jobs, limit, by_lease);
        let ended = Instant::now();
        let results: Vec<_> = jobs.iter().map(|job| job.outcome).collect();
        drop(jobs);
        let mut results = results.into_iter();
        for (lane, batch) in batches {
            for page in std::mem::take(&mut lane.part) {
                let outcome = match results.next().unwrap_or(Err(code::NO_ANSWER)) {
                    _ if ended > batch.until => code::LEASE_EXPIRED,
                    Ok(()) => {
                        self.plan.landed(&page);
                        continue;
                    }
                    Err(code::DEADLINE) if by_lease < limit => code::LEASE_EXPIRED,
                    Err(code) => code,
                };
                self.plan.next(page, GetOutcome::Failed(outcome));
            }
        }
    }

    /// Whether anything is still wanted of another owner than this.
    fn waits_for_others(&self, owner: Option<usize>) -> bool {
        let lanes = self.lanes.iter().filter(|lane| !lane.is_read());
        let lanes = lanes.chain(self.staged.iter().map(|it| &it.0));
        let mut waiting = lanes.map(|lane| lane.owner).chain(self.plan.owners());
        waiting.any(|it| Some(it) != owner)
    }

    /// Which lanes have something to do, once one of them has or one's patience ends. The others were silent until the time
    /// that comes with it.
    fn wait(&self) -> Option<(Instant, Vec<bool>)> {
        let ends = self.lanes.iter().map(Lane::patience_ends);
        let wake = ends.fold(self.terms.deadline, Instant::min);
        let mut polled = Vec::with_capacity(self.lanes.len());
        let mut of = Vec::with_capacity(self.lanes.len());
        for lane in &self.lanes {
            let wants = lane.wants();
            of.push(wants.is_some());
            polled.extend(wants.map(|(socket, wants)| PollFd::from_borrowed_fd(socket, wants)));
        }
        let before = loop {
            let before = Instant::now();
            let wait = Timespec::try_from(wake.saturating_duration_since(before)).ok();
            match poll(&mut polled, wait.as_ref()) {
                Ok(_) => break before,
                // It has not looked.
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        };
        let mut ready = polled.iter().map(|it| !it.revents().is_empty());
        let has_event = |is_polled| is_polled && ready.next().unwrap_or(false);
        Some((before, of.into_iter().map(has_event).collect()))
    }

    /// Ends all that is still going on, with a code by owner: connections with an answer outstanding are closed.
    fn end(&mut self, code: impl Fn(usize) -> i32) {
        let outcome = |owner| GetOutcome::Failed(code(owner));
        let staged = std::mem::take(&mut self.staged);
        let lanes = std::mem::take(&mut self.lanes).into_iter();
        for lane in lanes.chain(staged.into_iter().map(|it| it.0)) {
            for page in &lane.part {
                self.plan.lost(page, outcome(lane.owner));
            }
        }
        self.plan.end(outcome);
    }
}

/// What an owner's error number says of a page.
fn declined(number: i32) -> GetOutcome {
    match not_on_disk(number) {
        true => GetOutcome::Missing,
        false => GetOutcome::Failed(number),
    }
}
