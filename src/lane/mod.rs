//! Lanes: everything that threads of ours do is written as work items, and threads only pull them.
//!
//! An [`Item`] does its work in steps. In production a [`Lane`] has threads that pull items from
//! its queue, oldest first, and step each one to its end. In a test the same lane is
//! [`Mode::Stepped`]: no thread starts, the items lie in a [`Stepper`], and the test steps them one
//! by one in whatever order it wants to see. Code that uses a lane does not know which it has:
//! [`Lane::wait_until`] blocks in the first case and runs pending items in the second.
//!
//! An item is always dropped, whether it ended, panicked or was abandoned. What it owes somebody,
//! an answer say, it gives in its `Drop` if it has not given it before.

mod shared;
mod stepper;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use stepper::Stepper;

pub use crate::sync::{Clock, ManualClock, SystemClock};

use std::io;
use std::time::{Duration, Instant};

use self::shared::Shared;
use crate::error::{Result, bail};
use crate::sync::{Arc, JoinHandle, Mutex, spawn};

/// Whether an item has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// There is more to do; step again.
    More,
    /// The item has ended and is dropped.
    Done,
}

/// A piece of work.
pub trait Item: Send {
    /// Does the next part of the work. It may block: on a lane with threads only the item's own
    /// thread waits. A panic is caught, kept for [`Lane::take_panic`], and ends the item.
    fn step(&mut self) -> Step;

    /// What the item does, for tests and messages.
    fn name(&self) -> &'static str;
}

/// Who runs a lane's items.
#[derive(Debug, Clone)]
pub enum Mode {
    /// Threads of the lane's own.
    Threads,
    /// A test, through this stepper.
    Stepped(Arc<Stepper>),
    /// For tests of what happens when the system has no more threads: only so many start.
    FailAfter(usize),
}

/// What [`Lane::close`] does with items that no thread has taken yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drain {
    /// They are run, as far as the deadline allows.
    Run,
    /// They are dropped at once.
    Drop,
}

/// What [`Lane::close`] achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "memory that a stuck thread may still use must not be freed"]
pub struct Closed {
    /// Threads that had not ended at the deadline. Each ends by itself when its item's present
    /// step returns, if it ever does.
    pub stuck: usize,
}

/// One queue of items and the threads that pull from it; items start in the order of their push.
///
/// Threads: any method may be called from any thread. Dropping a lane closes it without patience.
#[derive(Debug)]
pub struct Lane {
    shared: Arc<Shared>,
    runner: Runner,
}

#[derive(Debug)]
enum Runner {
    /// The threads not joined yet, with their positions in the shared list.
    Threads(Mutex<Vec<(usize, JoinHandle<()>)>>),
    Stepped(Arc<Stepper>),
}

impl Lane {
    /// Starts `threads` threads named `name`, numbered if there are several. `NoThread` if one of
    /// them cannot start (none stays), `InvalidArgument` if none is wanted or the name holds a NUL.
    pub fn start(name: &str, threads: usize, mode: &Mode) -> Result<Self> {
        if threads == 0 || name.contains('\0') {
            bail!(
                InvalidArgument,
                "a lane {name:?} with {threads} threads cannot be started"
            );
        }
        let shared = Arc::new(Shared::new(name, threads));
        let startable = match mode {
            Mode::Stepped(stepper) => {
                return Ok(Self {
                    shared,
                    runner: Runner::Stepped(Arc::clone(stepper)),
                });
            }
            Mode::Threads => usize::MAX,
            Mode::FailAfter(count) => *count,
        };
        let mut handles = Vec::with_capacity(threads);
        let mut failure = None;
        for position in 0..threads {
            let thread = match threads {
                1 => name.to_owned(),
                _ => format!("{name}{position}"),
            };
            let body = {
                let place = shared.enlist();
                let shared = Arc::clone(&shared);
                // A lane logs where the one who started it does: there is no global subscriber.
                let log = tracing::dispatcher::get_default(Clone::clone);
                let alive = crate::fork::Thread::begin();
                move || {
                    let _alive = alive;
                    tracing::dispatcher::with_default(&log, || shared.run(place));
                }
            };
            let started = match position < startable {
                true => spawn(&thread, body),
                false => Err(io::Error::other("refused by a test")),
            };
            match started {
                Ok(handle) => handles.push((position, handle)),
                Err(error) => {
                    shared.exit(position);
                    failure = Some((thread, error));
                    break;
                }
            }
        }
        let lane = Self {
            shared,
            runner: Runner::Threads(Mutex::new(handles)),
        };
        if let Some((thread, error)) = failure {
            // Those that did start are idle, so they end at once; the limit is for a machine that
            // is too busy to start threads in the first place.
            let _ = lane.close(Duration::from_secs(5), Drain::Drop);
            bail!(NoThread, "thread {thread} cannot be started: {error}");
        }
        Ok(lane)
    }

    /// The name that the lane was started with.
    pub fn name(&self) -> &str {
        self.shared.name()
    }

    /// Queues an item. After [`close`](Self::close) it comes back as the error.
    pub fn push(&self, item: Box<dyn Item>) -> std::result::Result<(), Box<dyn Item>> {
        match &self.runner {
            Runner::Threads(_) => self.shared.push(item),
            Runner::Stepped(stepper) => stepper.push(&self.shared, item),
        }
    }

    /// Items that no thread has taken yet.
    pub fn queued(&self) -> usize {
        match &self.runner {
            Runner::Threads(_) => self.shared.queued(),
            Runner::Stepped(stepper) => stepper.count(&self.shared),
        }
    }

    /// Items that are not dropped yet, those among them that a thread is running. On a stepped lane, where none is
    /// dropped behind anybody's back, [`queued`](Self::queued).
    pub fn unfinished(&self) -> usize {
        match &self.runner {
            Runner::Threads(_) => self.shared.unfinished(),
            Runner::Stepped(stepper) => stepper.count(&self.shared),
        }
    }

    /// Waits until `predicate` holds; what it answered last. It is asked at the start and after
    /// each step of an item of this lane, without any lock held.
    ///
    /// Blocks, at most for `patience` (`None`: no limit), and never on a lane whose threads have
    /// all ended. A stepped lane runs its pending items instead, oldest first, until none is left.
    pub fn wait_until(
        &self,
        patience: Option<Duration>,
        mut predicate: impl FnMut() -> bool,
    ) -> bool {
        match &self.runner {
            Runner::Threads(_) => {
                let deadline = patience.and_then(|patience| Instant::now().checked_add(patience));
                self.shared.wait_until(deadline, &mut predicate)
            }
            Runner::Stepped(stepper) => stepper.run_until(&self.shared, &mut predicate),
        }
    }

    /// The text of the first panic of an item since the last call.
    pub fn take_panic(&self) -> Option<String> {
        self.shared.take_panic()
    }

    /// Closes the lane: new items are refused from now on, queued ones run or dropped, and the
    /// threads joined. An item that is running may end; one that has not at the deadline is
    /// abandoned when its present step returns, and queued ones are dropped at the deadline.
    ///
    /// Blocks, at most for `patience` beyond the time that dropping items takes. It may be called
    /// again, also to see whether stuck threads have ended meanwhile. Called from an item of this
    /// lane it reports that item's own thread as stuck.
    pub fn close(&self, patience: Duration, drain: Drain) -> Closed {
        let threads = match &self.runner {
            Runner::Threads(threads) => threads,
            Runner::Stepped(stepper) => {
                return Closed {
                    stuck: stepper.close(&self.shared, drain),
                };
            }
        };
        let stuck = self
            .shared
            .close(Instant::now().checked_add(patience), drain);
        let ended = {
            let mut threads = threads.lock();
            let all = std::mem::take(&mut *threads);
            let (ended, running) = all
                .into_iter()
                .partition(|(position, _)| self.shared.has_exited(*position));
            *threads = running;
            ended
        };
        join(ended);
        Closed { stuck }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let _ = self.close(Duration::ZERO, Drain::Drop);
    }
}

/// Waits for threads that have left our code already.
fn join(ended: Vec<(usize, JoinHandle<()>)>) {
    for (_, handle) in ended {
        // An error would be a panic outside any item; the thread has ended all the same.
        let _ = handle.join();
    }
}
