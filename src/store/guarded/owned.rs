//! Calls that own all that the pool is given: keys, answers and, for pages, the buffers.

use std::time::Duration;

use super::call::Call;
use crate::device::memory::{Source, Target};
use crate::keys::Keys;
use crate::layout::Range;
use crate::recycle::recycled;
use crate::store::{
    GetOutcome, Health, Pieces, Place, Presence, PutOptions, PutOutcome, RemoveOutcome, Store,
    answer_all, code,
};

/// Memory that a call owns while a pool may read or write it.
///
/// Moving the value must not move the memory: a pool keeps addresses. Dropping it frees the memory
/// or not, as its owner likes; a guard drops none that a pool may still use.
pub trait Buffers: Send + 'static {
    /// Appends the targets of each key, in its object's order and together of exactly its size: one per
    /// key, or as many as what is returned says, which has where those of each key end.
    fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> Option<&'a [usize]>;

    /// Appends the sources of each key, as [`targets`](Self::targets).
    fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> Option<&'a [usize]>;

    /// The call returned after its caller had gone: nobody uses the memory any more. Called on a thread
    /// of the guard's; it must not wait.
    fn come_home(self);
}

/// A call that moves pages.
pub(super) trait PageCall: Call {
    fn keys(&self) -> &Keys;

    /// Gives every key this failure.
    fn answer(&mut self, code: i32);
}

/// What a get's outcomes say of a failure of the pool as a whole.
pub(super) fn get_failure(outcomes: &[GetOutcome], store: &dyn Store) -> Option<i32> {
    outcomes.iter().find_map(|outcome| match outcome {
        GetOutcome::Failed(code) if store.is_outage(*code) => Some(*code),
        _ => None,
    })
}

/// [`get_failure`] of a put.
pub(super) fn put_failure(outcomes: &[PutOutcome], store: &dyn Store) -> Option<i32> {
    outcomes.iter().find_map(|outcome| match outcome {
        PutOutcome::Failed(code) if store.is_outage(*code) => Some(*code),
        _ => None,
    })
}

/// A get of one object per key into buffers of its own. Refill and use again what came back.
#[derive(Debug, Default)]
pub struct Get<B> {
    /// The keys.
    pub keys: Keys,
    /// Where the objects land.
    pub buffers: B,
    /// One per key once the call is back, unless the pool is broken.
    pub outcomes: Vec<GetOutcome>,
    list: Vec<Target<'static>>,
}

/// A put of one object per key out of buffers of its own.
#[derive(Debug, Default)]
pub struct Put<B> {
    /// The keys.
    pub keys: Keys,
    /// Where the objects are.
    pub buffers: B,
    /// See [`PutOptions::soft_pin_ttl`].
    pub soft_pin_ttl: Option<Duration>,
    /// See [`PutOptions::groups`].
    pub groups: Option<Keys>,
    /// See [`PutOptions::places`].
    pub places: Option<Vec<Place>>,
    /// One per key once the call is back, unless the pool is broken.
    pub outcomes: Vec<PutOutcome>,
    list: Vec<Source<'static>>,
}

impl<B> Get<B> {
    /// A get of these keys.
    pub fn new(keys: Keys, buffers: B) -> Self {
        Self {
            keys,
            buffers,
            outcomes: Vec::new(),
            list: Vec::new(),
        }
    }

    /// The same call around other buffers; those it had come back. Around nothing, `()`, a call keeps
    /// its lists for the next one.
    pub fn with<C>(self, buffers: C) -> (Get<C>, B) {
        let call = Get {
            keys: self.keys,
            buffers,
            outcomes: self.outcomes,
            list: self.list,
        };
        (call, self.buffers)
    }
}

impl<B: Buffers> PageCall for Get<B> {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn answer(&mut self, code: i32) {
        let failed = GetOutcome::Failed(code);
        answer_all(&mut self.outcomes, self.keys.len(), failed);
    }
}

impl<B: Buffers> Call for Get<B> {
    const LENDS: bool = true;

    fn name(&self) -> &'static str {
        "pool get"
    }

    fn run(&mut self, store: &dyn Store) {
        let mut targets = recycled(std::mem::take(&mut self.list));
        let ends = self.buffers.targets(&mut targets);
        let pieces = Pieces::of_each(&mut targets, ends);
        store.get(&self.keys, pieces, &mut self.outcomes);
        self.list = recycled(targets);
    }

    fn failure(&self, store: &dyn Store) -> Option<i32> {
        get_failure(&self.outcomes, store)
    }

    fn keeps(&self, store: &dyn Store) -> bool {
        let failed = |outcome: &GetOutcome| matches!(outcome, GetOutcome::Failed(code) if store.may_still_write(*code));
        self.outcomes.iter().any(failed)
    }

    fn come_home(self) {
        self.buffers.come_home();
    }
}

impl<B> Put<B> {
    /// A put of these keys that asks for nothing beyond storing.
    pub fn new(keys: Keys, buffers: B) -> Self {
        Self {
            keys,
            buffers,
            soft_pin_ttl: None,
            groups: None,
            places: None,
            outcomes: Vec::new(),
            list: Vec::new(),
        }
    }

    /// The same call around other buffers, as [`Get::with`].
    pub fn with<C>(self, buffers: C) -> (Put<C>, B) {
        let call = Put {
            keys: self.keys,
            buffers,
            soft_pin_ttl: self.soft_pin_ttl,
            groups: self.groups,
            places: self.places,
            outcomes: self.outcomes,
            list: self.list,
        };
        (call, self.buffers)
    }
}

impl<B: Buffers> PageCall for Put<B> {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn answer(&mut self, code: i32) {
        let failed = PutOutcome::Failed(code);
        answer_all(&mut self.outcomes, self.keys.len(), failed);
    }
}

impl<B: Buffers> Call for Put<B> {
    const LENDS: bool = true;

    fn name(&self) -> &'static str {
        "pool put"
    }

    fn run(&mut self, store: &dyn Store) {
        let mut sources = recycled(std::mem::take(&mut self.list));
        let ends = self.buffers.sources(&mut sources);
        let options = PutOptions {
            soft_pin_ttl: self.soft_pin_ttl,
            groups: self.groups.as_ref(),
            places: self.places.as_deref(),
        };
        let pieces = Pieces::of_each(&mut sources, ends);
        store.put(&self.keys, pieces, &options, &mut self.outcomes);
        self.list = recycled(sources);
    }

    fn failure(&self, store: &dyn Store) -> Option<i32> {
        put_failure(&self.outcomes, store)
    }

    fn keeps(&self, store: &dyn Store) -> bool {
        let failed = |outcome: &PutOutcome| matches!(outcome, PutOutcome::Failed(code) if store.may_still_read(*code));
        self.outcomes.iter().any(failed)
    }

    fn come_home(self) {
        self.buffers.come_home();
    }
}

/// Copies of what a caller only lends.
#[derive(Debug)]
pub(super) struct Copies {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl Copies {
    /// Memory for objects of these sizes, zeroed. The code says why there is none.
    pub(super) fn of(sizes: impl Iterator<Item = Option<u64>>) -> Result<Self, i32> {
        let mut list = Vec::new();
        let mut total = 0_usize;
        for size in sizes {
            let size = size.and_then(|size| usize::try_from(size).ok());
            let sum = size.and_then(|size| total.checked_add(size));
            let (Some(size), Some(sum)) = (size, sum) else {
                return Err(code::MALFORMED_CALL);
            };
            list.push(size);
            total = sum;
        }
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(total).is_err() {
            return Err(code::NO_MEMORY);
        }
        bytes.resize(total, 0);
        Ok(Self { bytes, sizes: list })
    }

    /// The memory of all objects, one behind the other.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// [`bytes`](Self::bytes), for writing.
    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    pub(super) fn sizes(&self) -> &[usize] {
        &self.sizes
    }
}

impl Buffers for Copies {
    fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> Option<&'a [usize]> {
        let mut rest = &mut self.bytes[..];
        for &size in &self.sizes {
            let (object, later) = rest.split_at_mut(size.min(rest.len()));
            list.push(object.into());
            rest = later;
        }
        None
    }

    fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> Option<&'a [usize]> {
        let mut rest = &self.bytes[..];
        for &size in &self.sizes {
            let (object, later) = rest.split_at(size.min(rest.len()));
            list.push(object.into());
            rest = later;
        }
        None
    }

    fn come_home(self) {}
}

/// Which keys are there.
#[derive(Debug, Default)]
pub(super) struct Exist {
    pub keys: Keys,
    pub out: Vec<Presence>,
}

impl Call for Exist {
    const LENDS: bool = false;

    fn name(&self) -> &'static str {
        "pool exist"
    }

    fn run(&mut self, store: &dyn Store) {
        store.exist(&self.keys, &mut self.out);
    }

    fn failure(&self, store: &dyn Store) -> Option<i32> {
        self.out.iter().find_map(|outcome| match outcome {
            Presence::Unknown(code) if store.is_outage(*code) => Some(*code),
            _ => None,
        })
    }

    fn come_home(self) {}
}

/// Removes keys.
#[derive(Debug)]
pub(super) struct Remove {
    pub keys: Keys,
    pub force: bool,
    pub out: Vec<RemoveOutcome>,
}

impl Call for Remove {
    const LENDS: bool = false;

    fn name(&self) -> &'static str {
        "pool remove"
    }

    fn run(&mut self, store: &dyn Store) {
        store.remove(&self.keys, self.force, &mut self.out);
    }

    fn failure(&self, store: &dyn Store) -> Option<i32> {
        self.out.iter().find_map(|outcome| match outcome {
            RemoveOutcome::Failed(code) if store.is_outage(*code) => Some(*code),
            _ => None,
        })
    }

    fn come_home(self) {}
}

/// Asks for the health.
#[derive(Debug)]
pub(super) struct AskHealth(pub Health);

impl Call for AskHealth {
    const LENDS: bool = false;

    fn name(&self) -> &'static str {
        "pool health"
    }

    fn run(&mut self, store: &dyn Store) {
        self.0 = store.health();
    }

    fn failure(&self, store: &dyn Store) -> Option<i32> {
        match self.0 {
            Health::Down(code) if store.is_outage(code) => Some(code),
            _ => None,
        }
    }

    fn come_home(self) {}
}

/// Makes a range known to the pool, or takes that back.
#[derive(Debug)]
pub(super) struct Register {
    pub range: Range,
    pub registers: bool,
    pub result: crate::error::Result<()>,
}

impl Call for Register {
    // The range is only numbers here. Who made the call has the memory, and keeps it if the call is late.
    const LENDS: bool = false;
    const KEEPS_LATE: bool = true;

    fn name(&self) -> &'static str {
        match self.registers {
            true => "pool register",
            false => "pool unregister",
        }
    }

    fn run(&mut self, store: &dyn Store) {
        self.result = match self.registers {
            true => store.register(self.range),
            false => store.unregister(self.range),
        };
    }

    fn failure(&self, _: &dyn Store) -> Option<i32> {
        None
    }

    fn come_home(self) {}
}

/// Closes the handle.
#[derive(Debug)]
pub(super) struct Close(pub crate::error::Result<()>);

impl Call for Close {
    const LENDS: bool = false;
    const CLOSES: bool = true;

    fn name(&self) -> &'static str {
        "pool close"
    }

    fn run(&mut self, store: &dyn Store) {
        self.0 = store.close();
    }

    fn failure(&self, _: &dyn Store) -> Option<i32> {
        None
    }

    fn come_home(self) {}
}
