//! The pool inside this process: bounded memory, leases, eviction by age.
//!
//! A pool has a name and belongs to the process: every handle opened under the name shares it,
//! and it lives as long as one of them is open. Rules, which are those of a Mooncake pool:
//!
//! - An object exists once its put is complete, and its bytes never change after that.
//! - "Present" leases the object: until the lease ends it is not evicted, and removed only by
//!   force. Asking, reading and putting count as access.
//! - A put without room evicts at least `eviction_ratio` of the capacity (and at least what it
//!   needs), oldest access first, then tries again; when free bytes are only in fragments it
//!   evicts that much again, a few times, before it says "no space".
//! - A put of a key that somebody is writing is "already there": the bytes follow when that put
//!   returns. Nothing can keep them from following, as copying in memory does not fail.
//! - An object larger than the pool fails with [`code::TOO_LARGE`], since no eviction helps it.
//! - Soft pins, groups and places are refused, per key, with [`code::UNSUPPORTED_OPTION`].
//!
//! Every object takes up its size rounded up to 64 bytes; the sum never exceeds the capacity.
//! One lock guards index and books and is taken once or twice per batch; bytes are copied
//! outside it. Calls block only on that lock and on page faults of fresh memory.

mod arena;
mod eviction;
mod extents;
mod index;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use self::shared::Shared;
pub use self::shared::Stats;
use super::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, answer_all, code,
};
use crate::device::memory::{Source, Target};
use crate::error::{Result, bail};
use crate::keys::Keys;
use crate::lane::Clock;
use crate::layout::Range;

/// The open pools of this process by name. Weak: a pool lives while a handle does.
static POOLS: Mutex<BTreeMap<String, Weak<Shared>>> = Mutex::new(BTreeMap::new());

/// A handle on a pool.
///
/// Threads: shared; any method from any number of threads.
#[derive(Debug)]
pub struct Pool {
    /// `None` once closed, so that closing the last handle frees the memory even while somebody
    /// still refers to the handle.
    shared: RwLock<Option<Arc<Shared>>>,
    capabilities: Capabilities,
}

/// Opens the pool of this process called `name`, making it if no handle on it is open.
///
/// `capacity` is in bytes, `eviction_ratio` a part of it from 0 to 1. The maker's lease, ratio
/// and clock hold for everybody. Memory is taken page by page as it is first used.
///
/// # Errors
/// `ConfigInvalid`: the pool is open with another capacity, or a value is out of range.
/// `NoMemory`: the system refuses the address space.
pub fn open(
    name: &str,
    capacity: u64,
    eviction_ratio: f64,
    lease_ttl: Duration,
    clock: Arc<dyn Clock>,
) -> Result<Arc<Pool>> {
    let mut pools = POOLS.lock();
    if let Some(shared) = pools.get(name).and_then(Weak::upgrade) {
        if shared.capacity() != capacity {
            bail!(
                ConfigInvalid,
                "the embedded pool \"{name}\" is open in this process with a capacity of {} \
                 bytes; global_segment_size asks for {capacity}",
                shared.capacity()
            );
        }
        return Ok(Pool::of(shared));
    }
    let shared = Arc::new(Shared::new(capacity, eviction_ratio, lease_ttl, clock)?);
    pools.retain(|_, pool| pool.strong_count() > 0);
    pools.insert(name.to_owned(), Arc::downgrade(&shared));
    Ok(Pool::of(shared))
}

/// Whether some handle on the pool of this process called `name` is open.
pub fn is_open(name: &str) -> bool {
    let pools = POOLS.lock();
    pools.get(name).is_some_and(|pool| pool.strong_count() > 0)
}

impl Pool {
    /// A pool without a name, which only this handle and its copies reach. Arguments and errors
    /// are those of [`open`].
    pub fn new(
        capacity: u64,
        eviction_ratio: f64,
        lease_ttl: Duration,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Self>> {
        let shared = Shared::new(capacity, eviction_ratio, lease_ttl, clock)?;
        Ok(Self::of(Arc::new(shared)))
    }

    /// Another handle on the same pool.
    ///
    /// # Errors
    /// `Closed` after this one was closed.
    pub fn handle(&self) -> Result<Arc<Self>> {
        Ok(Self::of(self.open()?))
    }

    /// The pool's numbers at this moment.
    ///
    /// # Errors
    /// `Closed` after this handle was closed.
    pub fn stats(&self) -> Result<Stats> {
        Ok(self.open()?.stats())
    }

    /// How many objects are leased now. Looks at every object under the pool's lock: for tests
    /// and tools.
    ///
    /// # Errors
    /// `Closed` after this handle was closed.
    pub fn leased(&self) -> Result<u64> {
        Ok(self.open()?.leased())
    }

    fn of(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            shared: RwLock::new(Some(shared)),
            capabilities: Capabilities {
                name: "embedded",
                pieces_per_key: usize::MAX,
                keys_per_call: usize::MAX,
                soft_pin_ttl: false,
                groups: false,
                places: false,
                tenant: false,
                device_memory: false,
                can_be_late: false,
                replicas: false,
                ends_by_itself: false,
                tells_already_there: true,
                spares_wrong_targets: true,
                logs_failures: false,
            },
        })
    }

    fn open(&self) -> Result<Arc<Shared>> {
        match self.shared() {
            Some(shared) => Ok(shared),
            None => bail!(Closed, "this handle on the embedded pool was closed"),
        }
    }

    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.read().clone()
    }
}

impl Store for Pool {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        match self.shared() {
            Some(shared) => shared.exist(keys, out),
            None => answer_all(out, keys.len(), Presence::Unknown(code::CLOSED)),
        }
    }

    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let refuse = |why| PutOutcome::Failed(why);
        let Some(shared) = self.shared() else {
            return answer_all(out, keys.len(), refuse(code::CLOSED));
        };
        if !sources.fits(keys.len()) {
            return answer_all(out, keys.len(), refuse(code::MALFORMED_CALL));
        }
        let PutOptions {
            soft_pin_ttl,
            groups,
            places,
        } = options;
        if soft_pin_ttl.is_some() || groups.is_some() || places.is_some() {
            return answer_all(out, keys.len(), refuse(code::UNSUPPORTED_OPTION));
        }
        shared.put(keys, sources, out);
    }

    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        let Some(shared) = self.shared() else {
            return answer_all(out, keys.len(), GetOutcome::Failed(code::CLOSED));
        };
        if !targets.fits(keys.len()) {
            return answer_all(out, keys.len(), GetOutcome::Failed(code::MALFORMED_CALL));
        }
        shared.get(keys, targets, out);
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        match self.shared() {
            Some(shared) => shared.remove(keys, force, out),
            None => answer_all(out, keys.len(), RemoveOutcome::Failed(code::CLOSED)),
        }
    }

    /// Nothing to do: the CPU reaches every range.
    fn register(&self, _range: Range) -> Result<()> {
        self.open().map(|_| ())
    }

    fn unregister(&self, _range: Range) -> Result<()> {
        self.open().map(|_| ())
    }

    fn health(&self) -> Health {
        match self.shared() {
            Some(_) => Health::Up,
            None => Health::Down(code::CLOSED),
        }
    }

    /// Other handles on the pool go on; with the last one its objects and memory go, once the
    /// calls that are running have returned.
    fn is_outage(&self, _: i32) -> bool {
        false
    }

    fn may_still_write(&self, _: i32) -> bool {
        false
    }

    fn may_still_read(&self, _: i32) -> bool {
        false
    }

    fn close(&self) -> Result<()> {
        let shared = self.shared.write().take();
        drop(shared);
        Ok(())
    }
}
