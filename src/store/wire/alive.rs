//! Memory that this process lends to the pool, and the thread that keeps it in the pool.
//!
//! A master gives up the segments of a client that it has not heard of for some seconds, and one that was started anew
//! knows none. Either way its answer to a ping asks for them again.

use std::fmt;
use std::time::{Duration, Instant};

use super::master::Master;
use super::messages::{NEEDS_REMOUNT, Segment, TASK_FAILED, TaskDone};
use super::pack::{Text, Uuid};
use super::rpc::Failure;
use crate::error::{Error, Kind, Result, bail};
use crate::fork;
use crate::sync::{Arc, Condvar, JoinHandle, Mutex, spawn};

/// Between two pings: a master gives a client up after ten seconds, unless told otherwise.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a call of this thread may take, and so its end.
const PATIENCE: Duration = Duration::from_secs(2);
/// Work that is taken at once.
const MOST_TASKS: u64 = 16;

/// What is lent.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Its name for preferences of writers, and for operators.
    pub name: String,
    /// Where others ask how to reach it.
    pub endpoint: String,
    /// The first address, as they count.
    pub base: u64,
    /// Bytes.
    pub size: u64,
}

/// Who serves lent memory, until it is dropped.
pub trait Server: Send + Sync {
    /// Has the memory begin at another address from now on, which is returned. Nothing is read or written at those of before
    /// any more.
    ///
    /// Blocks until `deadline` at most. Errors: `PoolFailed`, others cannot be told.
    fn move_on(&self, deadline: Instant) -> Result<u64>;
}

/// Lent memory; taken back by [`end`](Self::end).
pub struct Lent {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the master knows of where the memory begins.
#[derive(Debug, Clone, Copy)]
struct Mount {
    base: u64,
    /// The master has said so.
    is_confirmed: bool,
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.shared.memory).finish()
    }
}

struct Shared {
    master: Arc<Master>,
    id: Uuid,
    memory: Memory,
    ends: Mutex<bool>,
    ended: Condvar,
    server: Box<dyn Server>,
}

impl Lent {
    /// Lends memory that `server` serves, and starts the thread.
    ///
    /// Blocks until `deadline` at most. Errors: `PoolFailed`, `NoThread`.
    pub fn begin(
        master: Arc<Master>,
        id: Uuid,
        memory: Memory,
        server: Box<dyn Server>,
        deadline: Instant,
    ) -> Result<Self> {
        let shared = Arc::new(Shared {
            master,
            id,
            memory,
            ends: Mutex::new(false),
            ended: Condvar::new(),
            server,
        });
        // Mounting alone leaves the master asking for a remount, which does both.
        match shared
            .master
            .remount(&shared.segment(shared.memory.base), deadline)
        {
            Ok(Ok(())) => {}
            Ok(Err(number)) => bail!(
                PoolFailed,
                "the master does not take {} bytes of memory at {}: it answered {number}",
                shared.memory.size,
                shared.memory.endpoint
            ),
            Err(failure) => bail!(PoolFailed, "memory cannot be lent: {failure}"),
        }
        let body = {
            let shared = Arc::clone(&shared);
            let log = tracing::dispatcher::get_default(Clone::clone);
            let alive = fork::Thread::begin();
            move || {
                let _alive = alive;
                tracing::dispatcher::with_default(&log, || shared.run());
            }
        };
        let mut lent = Self {
            shared,
            thread: None,
        };
        match spawn("kvb-alive", body) {
            Ok(thread) => lent.thread = Some(thread),
            Err(error) => {
                lent.end();
                let text = format!("the thread that keeps lent memory in the pool: {error}");
                return Err(Error::new(Kind::NoThread, text));
            }
        }
        Ok(lent)
    }

    /// Takes the memory back; what is stored in it is gone. Blocks: for what its thread is just doing and for one
    /// call, a few seconds at most.
    pub fn end(self) {
        *self.shared.ends.lock() = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that keeps lent memory in the pool panicked");
        }
        let unmounted = self
            .shared
            .master
            .unmount(self.shared.id, Instant::now() + PATIENCE);
        match unmounted {
            Ok(Ok(())) => {}
            // It will notice by itself.
            Ok(Err(number)) => tracing::warn!("lent memory is not taken back: {number}"),
            Err(failure) => tracing::warn!("lent memory is not taken back: {failure}"),
        }
    }
}

impl Shared {
    fn segment(&self, base: u64) -> Segment<'_> {
        Segment {
            id: self.id,
            name: Text(self.memory.name.as_bytes()),
            base,
            size: self.memory.size,
            endpoint: Text(self.memory.endpoint.as_bytes()),
            protocol: Text(b"tcp"),
            host_id: Text(b""),
        }
    }

    fn run(&self) {
        let mut was_there = true;
        let mut mount = Mount {
            base: self.memory.base,
            is_confirmed: true,
        };
        loop {
            let mut ends = self.ends.lock();
            if !*ends {
                self.ended.wait_for(&mut ends, PERIOD);
            }
            if *ends {
                return;
            }
            drop(ends);
            let is_there = match self.say_alive(&mut mount) {
                Ok(()) => true,
                Err(failure) => {
                    if was_there {
                        tracing::warn!(
                            "the master is not told that lent memory is there: {failure}"
                        );
                    }
                    false
                }
            };
            if is_there && !was_there {
                tracing::info!("the master hears of lent memory again");
            }
            was_there = is_there;
        }
    }

    fn say_alive(&self, mount: &mut Mount) -> std::result::Result<(), Failure> {
        let deadline = || Instant::now() + PATIENCE;
        match self.master.ping(deadline())? {
            Ok(pong) if pong.status == NEEDS_REMOUNT => self.lend_again(mount, deadline)?,
            Ok(_) => {}
            Err(number) => tracing::warn!("the master answers {number} to a ping"),
        }
        self.refuse_tasks(deadline())
    }

    /// What was stored is forgotten, and the memory given to other objects: it gets other addresses, too, so that nobody who
    /// remembers the old ones finds these. A mount that was not confirmed is tried again as it was: the master may have
    /// heard of it.
    fn lend_again(
        &self,
        mount: &mut Mount,
        deadline: impl Fn() -> Instant,
    ) -> std::result::Result<(), Failure> {
        if mount.is_confirmed {
            match self.server.move_on(deadline()) {
                Ok(base) => {
                    *mount = Mount {
                        base,
                        is_confirmed: false,
                    };
                }
                Err(error) => {
                    tracing::warn!("lent memory is not in the pool: {error}");
                    return Ok(());
                }
            }
        }
        match self.master.remount(&self.segment(mount.base), deadline())? {
            Ok(()) => {
                mount.is_confirmed = true;
                tracing::info!("lent memory is in the pool again, empty");
            }
            Err(number) => tracing::warn!("the master does not take lent memory again: {number}"),
        }
        Ok(())
    }

    /// Copies and moves of objects that an operator asked the master for: others can do them. It is told at
    /// once, so that it does not wait.
    fn refuse_tasks(&self, deadline: Instant) -> std::result::Result<(), Failure> {
        let mut tasks = Vec::new();
        let fetched = self
            .master
            .fetch_tasks(MOST_TASKS, deadline, |task| tasks.push(task.id))?;
        if let Err(number) = fetched {
            tracing::debug!("the master answers {number} when asked for work");
        }
        for id in tasks {
            let done = TaskDone {
                id,
                status: TASK_FAILED,
                message: Text(b"this client copies and moves no objects"),
            };
            if let Err(number) = self.master.task_ended(done, deadline)? {
                tracing::warn!("the master answers {number} to a task that is refused");
            }
        }
        Ok(())
    }
}
