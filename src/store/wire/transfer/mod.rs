//! Reading and writing the memory that other processes lend to a pool.
//!
//! [`Peers`] serves batches of [`ReadJob`]s and [`WriteJob`]s: one thread, the caller's, serves all owners of a batch side
//! by side. Bytes go from the sockets straight into the pieces and back, without a copy of ours between.
//!
//! `frame`, `owner` and `http` are the bytes of the protocols; `dial` makes connections; `ask` finds an owner,
//! `announce` lets others find one, `known` remembers it; `cut` makes requests of jobs; `line` is one connection with its jobs, `visit` all that a batch does with one owner. See
//! `docs/design/wire-data.md`.

pub mod announce;
mod ask;
mod cut;
mod dial;
pub mod frame;
pub mod http;
mod job;
mod known;
mod line;
pub mod owner;
mod visit;

use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

use super::segment::Segment;
use super::socket::Socket;
use crate::store::code;
use crate::sync::Arc;
use visit::Visit;

pub(super) use dial::{Dial, resolve};
pub(super) use job::Job;
pub use job::{ReadJob, WriteJob};
pub(super) use known::{Known, Quiet, hangs_after};

/// Owners that one batch meets at once. Others come when these are done: handles are the process's, and a master may
/// name any number.
const MOST_VISITS: usize = 128;

/// Where owners are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directory {
    /// Endpoints are addresses, and the owner that listens there describes itself.
    Handshake,
    /// Endpoints are names that a metadata server knows.
    Http(http::Server),
}

/// How owners are met.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where they are looked up.
    pub directory: Directory,
    /// Most connections to one owner that a batch uses.
    pub connections: usize,
    /// An owner that neither sends nor takes a byte for so long is given up.
    pub silence: Duration,
    /// An owner that was given up is left alone for so long: its jobs fail at once, and batches do not wait for it. If it
    /// goes on hanging, for twice as long each time, up to half a minute.
    pub cooldown: Duration,
    /// A connection that was not used for so long is closed.
    pub idle: Duration,
    /// Memory that this process lends itself: its jobs are copies.
    pub own: Option<Arc<Segment>>,
}

impl Settings {
    /// The settings that a store uses unless told otherwise.
    pub fn new(directory: Directory) -> Self {
        Self {
            directory,
            connections: 4,
            silence: Duration::from_secs(2),
            cooldown: Duration::from_secs(2),
            idle: Duration::from_secs(60),
            own: None,
        }
    }
}

/// The owners of memory that this process reads and writes, and the connections to them.
///
/// Threads: any number at once; each batch uses connections of its own. No thread of ours runs here.
#[derive(Debug)]
pub struct Peers {
    inner: Inner,
}

/// What the parts of a batch need of it.
#[derive(Debug)]
struct Inner {
    known: Known<ask::Owner, (Socket, std::net::SocketAddr)>,
    directory: Directory,
    connections: usize,
    silence: Duration,
    own: Option<Arc<Segment>>,
}

impl Peers {
    /// Meets nobody yet.
    pub fn new(settings: Settings) -> Self {
        Self {
            inner: Inner {
                known: Known::new(settings.idle, 2 * settings.connections, settings.cooldown),
                directory: settings.directory,
                connections: settings.connections,
                silence: settings.silence,
                own: settings.own,
            },
        }
    }

    /// Reads, and leaves an outcome in every job.
    ///
    /// Blocks: until the deadline at most. After it returns nothing writes to the pieces. Failures by job: `DEADLINE`; `UNREACHABLE`, the owner refuses, is gone or
    /// silent; `ADDRESS_REJECTED`; `BAD_ANSWER`, or the number that it sent; `MALFORMED_CALL`, sizes do not add up;
    /// `UNREACHABLE_MEMORY`.
    pub fn read(&self, jobs: &mut [ReadJob<'_, '_>], deadline: Instant) {
        self.serve(jobs, deadline, deadline);
    }

    /// [`read`](Self::read) that ends with a lease, if that is sooner. An owner that had too little time for it does not hang.
    pub fn read_leased(&self, jobs: &mut [ReadJob<'_, '_>], deadline: Instant, lease: Instant) {
        self.serve(jobs, deadline.min(lease), deadline);
    }

    /// Writes, and leaves an outcome in every job. As [`read`](Self::read); after it returns nothing reads the pieces.
    pub fn write(&self, jobs: &mut [WriteJob<'_>], deadline: Instant) {
        self.serve(jobs, deadline, deadline);
    }

    /// Closes connections that were not used for long. Each batch sees to that at times; this is for processes that have
    /// nothing to read for long.
    pub fn sweep(&self) {
        self.inner.known.sweep(Instant::now());
    }

    /// Closes all connections that no batch uses and forgets the owners.
    pub fn close(&self) {
        self.inner.known.clear();
    }

    /// `patience`: how long the caller would have waited; at `deadline` it ends.
    fn serve<J: Job>(&self, jobs: &mut [J], deadline: Instant, patience: Instant) {
        let now = Instant::now();
        let hangs_after = hangs_after(self.inner.silence, patience.saturating_duration_since(now));
        self.inner.known.sweep_at_times(now);
        let (mut asked, mut own) = (Vec::with_capacity(jobs.len()), Vec::new());
        for job in jobs {
            match job.check() {
                Ok(()) if self.is_own(job.endpoint()) => own.push(job),
                Ok(()) => asked.push(job),
                Err(code) => job.settle(Err(code)),
            }
        }
        // Those that lie behind one another share requests.
        asked.sort_by(|a, b| (a.endpoint(), a.address()).cmp(&(b.endpoint(), b.address())));
        let mut parts = Vec::new();
        let mut rest = asked.into_iter().peekable();
        while let Some(first) = rest.next() {
            let mut part = vec![first];
            while let Some(job) = rest.next_if(|job| {
                part.first()
                    .is_some_and(|first| first.endpoint() == job.endpoint())
            }) {
                part.push(job);
            }
            parts.push(part);
        }
        let mut parts = parts.into_iter().peekable();
        loop {
            let wave = parts.by_ref().take(MOST_VISITS);
            let mut visits: Vec<_> = wave
                .filter_map(|part| self.begin(part, deadline, hangs_after))
                .collect();
            for job in own.drain(..) {
                // Copying waits for nobody, but takes its time.
                let outcome = match &self.inner.own {
                    Some(segment) if Instant::now() < deadline => job.copy(segment),
                    _ => Err(code::DEADLINE),
                };
                job.settle(outcome);
            }
            while self.serve_once(&mut visits, deadline, &Instant::now) {}
            if parts.peek().is_none() {
                return;
            }
        }
    }

    /// Begins to serve jobs of one owner, unless it is too late for that.
    fn begin<'j, J: Job>(
        &self,
        jobs: Vec<&'j mut J>,
        deadline: Instant,
        hangs_after: Duration,
    ) -> Option<Visit<'j, J>> {
        let now = Instant::now();
        if now < deadline {
            return Some(Visit::begin(
                &self.inner,
                jobs,
                now,
                (deadline, hangs_after),
            ));
        }
        for job in jobs {
            job.settle(Err(code::DEADLINE));
        }
        None
    }

    fn is_own(&self, endpoint: &str) -> bool {
        let own = self.inner.own.as_ref();
        own.is_some_and(|segment| segment.endpoint() == endpoint)
    }

    /// Waits for sockets and serves those that are ready; false when there is nothing to wait for. `clock`: what time it
    /// is, which a test may say.
    fn serve_once<J: Job>(
        &self,
        visits: &mut [Visit<'_, J>],
        deadline: Instant,
        clock: &dyn Fn() -> Instant,
    ) -> bool {
        // Who is not ready below has been silent until here. This process may have been stopped for long: what came meanwhile
        // is looked at before anybody is called silent.
        let before = clock();
        let mut wake = deadline;
        for visit in visits.iter() {
            wake = visit
                .patience_ends(&self.inner)
                .map_or(wake, |it| it.min(wake));
        }
        let mut sockets = Vec::new();
        for visit in visits.iter() {
            visit.list(&mut sockets);
        }
        if sockets.is_empty() {
            return false;
        }
        let mut polled: Vec<PollFd<'_>> = sockets
            .iter()
            .map(|(socket, wants)| PollFd::from_borrowed_fd(*socket, *wants))
            .collect();
        let wait = Timespec::try_from(wake.saturating_duration_since(before)).ok();
        let result = rustix::event::poll(&mut polled, wait.as_ref());
        let ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        match result {
            Ok(_) => {}
            // It has not looked.
            Err(Errno::INTR) => return true,
            Err(_) => {
                for visit in visits {
                    visit.fail(code::NO_MEMORY);
                }
                return false;
            }
        }
        let mut ready = ready.into_iter();
        for visit in visits {
            let now = clock();
            if before >= deadline {
                visit.end(&self.inner, &mut ready, before);
            } else if now >= deadline {
                // Also a process that was stopped in between sends nothing any more: its memory may be another object's.
                // What is ready by now is looked at once more.
                return true;
            } else {
                visit.step(&self.inner, &mut ready, now, clock);
                visit.check_time(&self.inner, before);
            }
        }
        before < deadline
    }
}

#[cfg(test)]
mod tests;
