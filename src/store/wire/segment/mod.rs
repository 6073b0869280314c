//! Memory of this process that is lent to a pool: others read and write it over TCP.
//!
//! A [`Segment`] is served by a few threads of its own (`worker`), which end with it; `session` is a connection of the
//! data protocol, `greeting` a handshake, `memory` the bytes. Nobody proves who they are on these ports, so a segment
//! listens on the configured address only, and checks every range. The master learns of a segment elsewhere.
//! See `docs/design/wire-data.md`.

mod greeting;
mod memory;
mod session;
mod worker;

use std::hash::{BuildHasher, RandomState};
use std::io::IoSlice;
use std::net::{IpAddr, TcpListener};
use std::time::Duration;

use parking_lot::RwLock;
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use self::memory::Memory;
use self::worker::{Doors, House, Post, Worker};
use super::transfer::{Job, ReadJob, WriteJob};
use crate::error::{Error, Kind, Result, bail};
use crate::fork::{self, Process};
use crate::store::code;
use crate::sync::{Arc, AtomicBool, JoinHandle, Mutex, Ordering, spawn};

/// Largest segment in bytes: 16 TiB.
const MOST: u64 = 1 << 44;
/// Logical addresses begin here at least, so that none is near zero.
const LOWEST: u64 = 1 << 45;
/// Logical addresses begin at a multiple of it.
const ALIGNMENT: u64 = 1 << 24;
/// Most slices of one copy.
const SLICES: usize = 128;

/// Where and how a segment is served.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The address to listen on, and no other.
    pub bind: IpAddr,
    /// The host under which others reach it: a name or an address, without port and brackets.
    pub host: String,
    /// Bytes to lend.
    pub size: u64,
    /// What others may use up.
    pub limits: Limits,
}

/// What others may use up.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Threads that serve.
    pub threads: usize,
    /// Connections at once. One more takes the place of an idle one, or of one that is `crowded` out.
    pub connections: usize,
    /// When there are too many connections, one that stood still so long in the middle of a request gives way.
    pub crowded: Duration,
    /// Handshakes at once. One more takes the place of the oldest.
    pub greetings: usize,
    /// A handshake may take so long, and a connection may stand still so long in the middle of a request.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threads: 2,
            connections: share(getrlimit(Resource::Nofile).current),
            crowded: Duration::from_secs(2),
            greetings: 64,
            stall: Duration::from_secs(60),
        }
    }
}

/// How many of the handles that the process may have are for connections of others, who prove to nobody who they are:
/// a quarter, since the host needs them for its own. `None`: any number.
fn share(handles: Option<u64>) -> usize {
    const MOST: usize = 1024;
    const LEAST: usize = 16;
    let quarter = handles.map_or(MOST, |it| usize::try_from(it / 4).unwrap_or(MOST));
    quarter.clamp(LEAST, MOST)
}

/// What is lent.
#[derive(Debug)]
struct Lent {
    memory: Memory,
    /// Read while bytes are moved for others, so that who writes it knows that none move by the place before.
    place: RwLock<Place>,
}

/// Where the memory is, as others count.
#[derive(Debug)]
struct Place {
    base: u64,
    size: u64,
    description: String,
}

/// What a description says besides the place.
#[derive(Debug)]
struct Contact {
    endpoint: String,
    bind: IpAddr,
    data_port: u16,
}

/// Lent memory.
///
/// Threads: shared; any method from any number of threads. Dropping it closes it.
#[derive(Debug)]
pub struct Segment {
    house: Arc<House>,
    contact: Contact,
    threads: Mutex<Vec<JoinHandle<()>>>,
    process: Process,
}

impl Segment {
    /// Maps the memory, which is zeroed and takes up room as it is first used, and serves it.
    ///
    /// Errors: `NoMemory`; `PoolFailed`, the address cannot be listened on; `NoThread`.
    pub fn open(settings: &Settings) -> Result<Self> {
        let Settings { bind, size, .. } = *settings;
        if size > MOST {
            bail!(NoMemory, "a segment of {size} bytes is more than {MOST}");
        }
        let memory = Memory::new(size)?;
        let doors = Doors {
            greetings: listen(bind)?,
            data: listen(bind)?,
        };
        let port = |door: &TcpListener| door.local_addr().map(|address| address.port());
        let (Ok(greeting_port), Ok(data_port)) = (port(&doors.greetings), port(&doors.data)) else {
            bail!(PoolFailed, "the ports at {bind} are not known");
        };
        let host = settings.host.trim_matches(['[', ']']);
        let endpoint = if host.contains(':') {
            format!("[{host}]:{greeting_port}")
        } else {
            format!("{host}:{greeting_port}")
        };
        let contact = Contact {
            endpoint,
            bind,
            data_port,
        };
        let posts = (0..settings.limits.threads.max(1)).map(|_| Post::new());
        let posts: std::io::Result<Vec<_>> = posts.collect();
        let posts = posts.map_err(|error| {
            Error::new(
                Kind::NoThread,
                format!("waking threads of a segment: {error}"),
            )
        })?;
        let house = Arc::new(House {
            lent: Arc::new(Lent {
                memory,
                place: RwLock::new(contact.place(new_base(), size)),
            }),
            limits: settings.limits,
            posts,
            ends: AtomicBool::new(false),
        });
        let segment = Self {
            house,
            contact,
            threads: Mutex::new(Vec::new()),
            process: Process::this(),
        };
        segment.start(doors)?;
        tracing::debug!(endpoint = segment.endpoint(), size, "memory is lent");
        Ok(segment)
    }

    /// Those that were started end when the segment is dropped.
    fn start(&self, doors: Doors) -> Result<()> {
        let mut doors = Some(doors);
        for place in 0..self.house.posts.len() {
            let worker = Worker::new(Arc::clone(&self.house), place, doors.take());
            let log = tracing::dispatcher::get_default(Clone::clone);
            let alive = fork::Thread::begin();
            let body = move || {
                let _alive = alive;
                tracing::dispatcher::with_default(&log, || worker.run());
            };
            match spawn(&format!("kvb-segment{place}"), body) {
                Ok(handle) => self.threads.lock().push(handle),
                Err(error) => bail!(NoThread, "a thread to serve lent memory: {error}"),
            }
        }
        Ok(())
    }

    /// `host:port` of its handshake, which is its name, too.
    pub fn endpoint(&self) -> &str {
        &self.contact.endpoint
    }

    /// Its first address, as others count. Another segment, also one of the same endpoint later, very likely has
    /// another, so that what was stored in one is not looked for in the other.
    pub fn base(&self) -> u64 {
        self.house.lent.place.read().base
    }

    /// Has the memory begin at another address from now on, which is returned, as if it were another segment of this
    /// endpoint. Nothing is read or written at addresses of before any more.
    ///
    /// Blocks: while a few bytes that are on their way are moved.
    pub fn move_on(&self) -> u64 {
        let mut place = self.house.lent.place.write();
        *place = self.contact.place(new_base(), place.size);
        place.base
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.house.lent.place.read().size
    }

    /// What it says of itself in a handshake, in JSON, as a metadata server keeps it.
    pub fn description(&self) -> String {
        self.house.lent.place.read().description.clone()
    }

    /// Copies a job's range into its pieces; nobody is asked.
    pub(super) fn read(&self, job: &mut ReadJob<'_, '_>) -> std::result::Result<(), i32> {
        let lent = &self.house.lent;
        let rejected = code::ADDRESS_REJECTED;
        let place = lent.place.read();
        let from = place.offset(job.address, job.size).ok_or(rejected)?;
        let mut done = 0;
        while done < job.size {
            let mut slices = Vec::with_capacity(SLICES.min(job.pieces.len()));
            job.landing(done..job.size, SLICES, &mut slices);
            match lent.memory.read(from + done, &mut slices) {
                Ok(count) if count > 0 => done += count as u64,
                _ => return Err(code::NO_MEMORY),
            }
        }
        Ok(())
    }

    /// Copies a job's pieces over its range; nobody is asked.
    pub(super) fn write(&self, job: &WriteJob<'_>) -> std::result::Result<(), i32> {
        let lent = &self.house.lent;
        let rejected = code::ADDRESS_REJECTED;
        let place = lent.place.read();
        let to = place.offset(job.address, job.size).ok_or(rejected)?;
        let mut done = 0;
        while done < job.size {
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(SLICES.min(job.pieces.len()));
            job.sending(done..job.size, SLICES, &mut slices);
            match lent.memory.write(to + done, &slices) {
                Ok(count) if count > 0 => done += count as u64,
                // A page of memory that was never used before, and there is none.
                _ => return Err(code::NO_MEMORY),
            }
        }
        Ok(())
    }

    /// Ends all threads and connections; the memory goes with the last owner of the segment. Again is fine.
    ///
    /// Blocks: until the threads have ended, which wait for nobody.
    pub fn close(&self) {
        if !self.process.is_this() {
            // The threads are those of the process that this one was forked from.
            return;
        }
        self.house.ends.store(true, Ordering::Release);
        for post in &self.house.posts {
            post.wake();
        }
        for thread in std::mem::take(&mut *self.threads.lock()) {
            if thread.join().is_err() {
                tracing::error!("a thread that served lent memory panicked");
            }
        }
        for post in &self.house.posts {
            post.clear();
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.close();
    }
}

impl Contact {
    /// What is said and known of the memory when it begins there.
    fn place(&self, base: u64, size: u64) -> Place {
        let endpoint = &self.endpoint;
        let mut description = json!({
            "name": endpoint,
            "protocol": "tcp",
            "tcp_data_port": self.data_port,
            "tcp_proto_version": 2,
            "buffers": [{ "name": endpoint, "addr": base, "length": size }],
        });
        if let Some(members) = description
            .as_object_mut()
            .filter(|_| !self.bind.is_unspecified())
        {
            members.insert("tcp_data_host".to_owned(), self.bind.to_string().into());
        }
        Place {
            base,
            size,
            description: format!("{description}\n"),
        }
    }
}

impl Place {
    /// Where a range of logical addresses lies in the memory, if it does, and is not empty.
    fn offset(&self, address: u64, size: u64) -> Option<u64> {
        let offset = address.checked_sub(self.base)?;
        let end = offset.checked_add(size)?;
        (size > 0 && end <= self.size).then_some(offset)
    }
}

fn listen(bind: IpAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind((bind, 0)).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|error| {
        let text = format!("memory cannot be lent at {bind}: {error}");
        Error::new(Kind::PoolFailed, text)
    })
}

/// An address that no other segment begins at, as far as chance goes.
fn new_base() -> u64 {
    let random = RandomState::new().hash_one(std::process::id());
    LOWEST + random % LOWEST / ALIGNMENT * ALIGNMENT
}

#[cfg(test)]
mod tests;
