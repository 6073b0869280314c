//! A pool behind functions of the host: what it lends is called, and every answer is checked.
//!
//! [`Table`] says what those functions are and can do, [`Handle`] is the store. How they are called
//! from Rust is not known here: [`Functions`] stands for them, and `ffi` implements it over the
//! host's table. `docs/design/host-store.md` says what an answer means and who owns what.

mod answers;
mod inside;
#[cfg(test)]
mod tests;
mod trouble;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use self::answers::{got, present, removed, stored};
use self::inside::Inside;
use self::trouble::{Report, Trouble};
use super::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, answer_all, code,
};
use crate::device::memory::{Memory, Source, Target};
use crate::error::{Result, bail};
use crate::keys::Keys;
use crate::layout::Range;

/// What a function of the host is asked for, with a batch of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Which keys are there.
    Exist,
    /// Store one object per key.
    Put,
    /// Read one object per key.
    Get,
    /// Remove objects.
    Remove,
}

impl Verb {
    const fn name(self) -> &'static str {
        match self {
            Self::Exist => "exist",
            Self::Put => "put",
            Self::Get => "get",
            Self::Remove => "remove",
        }
    }
}

/// What a function of the host returned; an exception's text when it threw.
pub type Returned = std::result::Result<i32, String>;

/// A part of an object: where it lies, or is to land.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The address, of the host's memory unless the table takes device memory.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

/// One batch for a function of the host.
#[derive(Debug)]
pub struct Call<'a> {
    keys: &'a Keys,
    groups: Option<&'a Keys>,
    first: usize,
    /// The pieces of all keys, key by key; none for exist and remove.
    pub pieces: &'a [Piece],
    /// Where each key's pieces end in that list; empty for exist and remove.
    pub ends: &'a [usize],
    /// Milliseconds of the soft pin that a put asks for; 0 for none.
    pub soft_pin_ttl_ms: u64,
    /// Remove what is leased, too.
    pub force: bool,
    /// One per key, to be written: an outcome, or a negative code. Filled with
    /// [`code::NO_ANSWER`].
    pub outcomes: &'a mut [i32],
    /// One per key, to be written by a get: the object's bytes. Filled with 0.
    pub sizes: &'a mut [u64],
}

impl Call<'_> {
    /// How many keys there are; at least one.
    pub fn count(&self) -> usize {
        self.outcomes.len()
    }

    /// The keys, each with its NUL.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.part(self.keys)
    }

    /// One group per key, each with its NUL, if a put asks for groups.
    pub fn groups(&self) -> Option<impl ExactSizeIterator<Item = &[u8]>> {
        self.groups.map(|groups| self.part(groups))
    }

    fn part<'k>(&self, keys: &'k Keys) -> impl ExactSizeIterator<Item = &'k [u8]> {
        let (first, count) = (self.first, self.count());
        (0..count).map(move |index| keys.with_nul(first + index))
    }
}

/// The functions that a host lends. Called by several threads at once, unless the table says
/// otherwise. Dropped once, after the last call has returned.
pub trait Functions: Send + Sync {
    /// Carries out one batch.
    fn batch(&self, verb: Verb, call: &mut Call<'_>) -> Returned;

    /// Makes a range known, or takes that back.
    fn register(&self, range: Range, known: bool) -> Returned;

    /// 0, or why the pool cannot be used.
    fn health(&self) -> Returned;
}

/// What a host lends, and what it can do.
pub struct Table {
    /// The functions.
    pub functions: Box<dyn Functions>,
    /// Most pieces per key; 0 counts as 1.
    pub pieces_per_key: usize,
    /// Most keys per call; 0 counts as no limit.
    pub keys_per_call: usize,
    /// Soft pins with a TTL are honoured.
    pub soft_pin_ttl: bool,
    /// Groups are honoured.
    pub groups: bool,
    /// Keys of different tenants are kept apart.
    pub tenant: bool,
    /// Pieces may be device memory.
    pub device_memory: bool,
    /// Objects can be removed.
    pub removes: bool,
    /// One call at a time.
    pub serial: bool,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").finish_non_exhaustive()
    }
}

/// What all handles share.
struct Pool {
    functions: Box<dyn Functions>,
    capabilities: Capabilities,
    removes: bool,
    /// With a table that takes one call at a time.
    turn: Option<Mutex<()>>,
    trouble: Trouble,
}

/// A handle on a pool of the host's.
///
/// Threads: shared. Blocks: as long as the host's function takes. A call of a function of the same
/// table, made while it runs on this thread, fails with [`code::NESTED_CALL`].
pub struct Handle {
    /// None once closed.
    pool: RwLock<Option<Arc<Pool>>>,
    capabilities: Capabilities,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle")
            .field("capabilities", &self.capabilities)
            .finish_non_exhaustive()
    }
}

/// The first handle on what a host lends. The functions are dropped when the last handle is closed
/// or dropped and no call is inside.
pub fn open(table: Table) -> Arc<Handle> {
    let most = |limit: usize, none: usize| if limit == 0 { none } else { limit };
    let capabilities = Capabilities {
        name: "host",
        pieces_per_key: most(table.pieces_per_key, 1),
        keys_per_call: most(table.keys_per_call, usize::MAX),
        soft_pin_ttl: table.soft_pin_ttl,
        groups: table.groups,
        places: false,
        tenant: table.tenant,
        device_memory: table.device_memory,
        can_be_late: true,
        replicas: false,
        ends_by_itself: false,
        spares_wrong_targets: true,
        logs_failures: true,
        tells_already_there: true,
    };
    Handle::of(Arc::new(Pool {
        functions: table.functions,
        capabilities,
        removes: table.removes,
        turn: table.serial.then(Mutex::default),
        trouble: Trouble::default(),
    }))
}

impl Handle {
    fn of(pool: Arc<Pool>) -> Arc<Self> {
        Arc::new(Self {
            capabilities: pool.capabilities.clone(),
            pool: RwLock::new(Some(pool)),
        })
    }

    /// Another handle on the same pool.
    ///
    /// Errors: `Closed` after this one was closed.
    pub fn handle(&self) -> Result<Arc<Self>> {
        match self.pool() {
            Some(pool) => Ok(Self::of(pool)),
            None => bail!(Closed, "the handle on the host's pool was closed"),
        }
    }

    /// The pool, held by the caller: closing does not take it from a call that is inside.
    fn pool(&self) -> Option<Arc<Pool>> {
        self.pool.read().clone()
    }

    /// The pool, or why no call can be made.
    fn open_pool(&self) -> std::result::Result<Arc<Pool>, i32> {
        self.pool().ok_or(code::CLOSED)
    }
}

/// A batch before it is cut into calls.
struct Batch<'a> {
    verb: Verb,
    keys: &'a Keys,
    groups: Option<&'a Keys>,
    pieces: Vec<Piece>,
    ends: Vec<usize>,
    soft_pin_ttl_ms: u64,
    force: bool,
}

impl<'a> Batch<'a> {
    fn of(verb: Verb, keys: &'a Keys) -> Self {
        Self {
            verb,
            keys,
            groups: None,
            pieces: Vec::new(),
            ends: Vec::new(),
            soft_pin_ttl_ms: 0,
            force: false,
        }
    }

    /// The bytes of a key's pieces.
    fn size(&self, key: usize) -> u64 {
        let start = match key.checked_sub(1) {
            None => 0,
            Some(before) => self.ends.get(before).copied().unwrap_or(0),
        };
        let end = self.ends.get(key).copied().unwrap_or(start);
        let pieces = self.pieces.get(start..end).unwrap_or_default();
        // Checked when the list was made.
        pieces.iter().map(|piece| piece.size).sum()
    }

    /// Takes the pieces in, if this pool can be given them.
    fn add<P>(
        &mut self,
        mut pieces: Pieces<'_, P>,
        can: &Capabilities,
        describe: impl Fn(&P) -> (Piece, Memory),
    ) -> std::result::Result<(), i32> {
        if !pieces.fits(self.keys.len()) {
            return Err(code::MALFORMED_CALL);
        }
        for key in 0..self.keys.len() {
            let own = pieces.of(key);
            if own.len() > can.pieces_per_key {
                return Err(code::MALFORMED_CALL);
            }
            let mut size = 0_u64;
            for piece in own.iter() {
                let (piece, memory) = describe(piece);
                if memory == Memory::Device && !can.device_memory {
                    return Err(code::UNREACHABLE_MEMORY);
                }
                size = size.checked_add(piece.size).ok_or(code::MALFORMED_CALL)?;
                self.pieces.push(piece);
            }
            self.ends.push(self.pieces.len());
        }
        Ok(())
    }
}

impl Pool {
    /// Runs a function of the host, alone where that was asked for.
    fn enter<R>(&self, call: impl FnOnce(&dyn Functions) -> R) -> std::result::Result<R, i32> {
        let _inside = Inside::enter(std::ptr::from_ref(self).addr()).ok_or(code::NESTED_CALL)?;
        let _turn = self.turn.as_ref().map(Mutex::lock);
        Ok(call(&*self.functions))
    }

    /// Makes the calls of a batch; `read` makes an outcome of what the host wrote for a key, which
    /// had so many bytes, or a code.
    fn make<T>(
        &self,
        batch: &Batch<'_>,
        out: &mut Vec<T>,
        read: impl Fn(i32, u64, u64) -> std::result::Result<T, i32>,
        failed: impl Fn(i32) -> T,
    ) {
        out.clear();
        let count = batch.keys.len();
        let most = self.capabilities.keys_per_call.min(count).max(1);
        let (mut outcomes, mut sizes) = (vec![code::NO_ANSWER; most], vec![0; most]);
        let mut report = Report::new(batch.verb.name(), count, batch.soft_pin_ttl_ms > 0);
        for first in (0..count).step_by(most) {
            let here = most.min(count - first);
            outcomes.fill(code::NO_ANSWER);
            sizes.fill(0);
            let returned = self.call(batch, first, here, &mut outcomes, &mut sizes);
            let whole = match returned {
                Ok(Ok(0)) => None,
                Ok(Ok(returned)) => Some(report.returned(returned)),
                Ok(Err(text)) => Some(report.threw(text)),
                Err(code) => Some(report.unmade(code)),
            };
            for ((&outcome, &size), key) in outcomes.iter().zip(&sizes).zip(first..first + here) {
                let answer = match whole {
                    Some(code) => Err(code),
                    None => {
                        let wanted = batch.size(key);
                        read(outcome, size, wanted)
                            .inspect_err(|_| report.no_answer(outcome, size, wanted))
                    }
                };
                out.push(answer.unwrap_or_else(|code| {
                    report.failed(code);
                    failed(code)
                }));
            }
        }
        self.trouble.hear(batch.verb as usize, &report);
    }

    fn call(
        &self,
        batch: &Batch<'_>,
        first: usize,
        here: usize,
        outcomes: &mut [i32],
        sizes: &mut [u64],
    ) -> std::result::Result<Returned, i32> {
        let start = match first.checked_sub(1) {
            None => 0,
            Some(before) => batch.ends.get(before).copied().unwrap_or(0),
        };
        let ends: Vec<usize> = batch
            .ends
            .iter()
            .skip(first)
            .take(here)
            .map(|end| end - start)
            .collect();
        let length = ends.last().copied().unwrap_or(0);
        let mut call = Call {
            keys: batch.keys,
            groups: batch.groups,
            first,
            pieces: batch.pieces.get(start..start + length).unwrap_or_default(),
            ends: &ends,
            soft_pin_ttl_ms: batch.soft_pin_ttl_ms,
            force: batch.force,
            outcomes: outcomes.get_mut(..here).unwrap_or_default(),
            sizes: sizes.get_mut(..here).unwrap_or_default(),
        };
        self.enter(|functions| functions.batch(batch.verb, &mut call))
    }

    fn register(&self, range: Range, known: bool) -> Result<()> {
        let name = if known {
            "register_memory"
        } else {
            "unregister_memory"
        };
        let what = match self.enter(|functions| functions.register(range, known)) {
            Ok(Ok(0)) => return Ok(()),
            Ok(Ok(returned)) => format!("answered {returned}"),
            Ok(Err(text)) => format!("threw: {text}"),
            Err(_) => "is running on this thread already".to_owned(),
        };
        bail!(
            PoolFailed,
            "the host's {name} {what}, for {} bytes at {:#x}",
            range.size,
            range.start
        )
    }
}

/// What an option of a put needs, or the code of every key.
fn check_options(
    can: &Capabilities,
    keys: usize,
    options: &PutOptions<'_>,
) -> std::result::Result<(), i32> {
    let asks = [
        (options.soft_pin_ttl.is_some(), can.soft_pin_ttl),
        (options.groups.is_some(), can.groups),
        (options.places.is_some(), can.places),
    ];
    if asks.iter().any(|&(asked, able)| asked && !able) {
        return Err(code::UNSUPPORTED_OPTION);
    }
    match options.groups {
        Some(groups) if groups.len() != keys => Err(code::MALFORMED_CALL),
        _ => Ok(()),
    }
}

/// Whole milliseconds, and at least one: 0 asks for nothing.
fn milliseconds(time: Duration) -> u64 {
    let rounded = time.as_nanos().div_ceil(1_000_000).max(1);
    u64::try_from(rounded).unwrap_or(u64::MAX)
}

impl Store for Handle {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        match self.open_pool() {
            Ok(pool) => pool.make(
                &Batch::of(Verb::Exist, keys),
                out,
                |outcome, _, _| present(outcome),
                Presence::Unknown,
            ),
            Err(code) => answer_all(out, keys.len(), Presence::Unknown(code)),
        }
    }

    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let mut batch = Batch::of(Verb::Put, keys);
        batch.groups = options.groups;
        batch.soft_pin_ttl_ms = options.soft_pin_ttl.map_or(0, milliseconds);
        let ready = self.open_pool().and_then(|pool| {
            check_options(&self.capabilities, keys.len(), options)?;
            batch.add(sources, &self.capabilities, |source| {
                let (address, size) = (source.address(), source.size());
                (Piece { address, size }, source.memory())
            })?;
            Ok(pool)
        });
        match ready {
            Ok(pool) => pool.make(
                &batch,
                out,
                |outcome, _, _| stored(outcome),
                PutOutcome::Failed,
            ),
            Err(code) => answer_all(out, keys.len(), PutOutcome::Failed(code)),
        }
    }

    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        let mut batch = Batch::of(Verb::Get, keys);
        let ready = self.open_pool().and_then(|pool| {
            batch.add(targets, &self.capabilities, |target| {
                let (address, size) = (target.address(), target.size());
                (Piece { address, size }, target.memory())
            })?;
            Ok(pool)
        });
        match ready {
            Ok(pool) => pool.make(&batch, out, got, GetOutcome::Failed),
            Err(code) => answer_all(out, keys.len(), GetOutcome::Failed(code)),
        }
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        let mut batch = Batch::of(Verb::Remove, keys);
        batch.force = force;
        let ready = self.open_pool().and_then(|pool| match pool.removes {
            true => Ok(pool),
            false => Err(code::UNSUPPORTED_CALL),
        });
        match ready {
            Ok(pool) => pool.make(
                &batch,
                out,
                |outcome, _, _| removed(outcome),
                RemoveOutcome::Failed,
            ),
            Err(code) => answer_all(out, keys.len(), RemoveOutcome::Failed(code)),
        }
    }

    fn register(&self, range: Range) -> Result<()> {
        match self.pool() {
            Some(pool) => pool.register(range, true),
            None => bail!(Closed, "register: the handle on the host's pool was closed"),
        }
    }

    fn unregister(&self, range: Range) -> Result<()> {
        match self.pool() {
            Some(pool) => pool.register(range, false),
            None => bail!(
                Closed,
                "unregister: the handle on the host's pool was closed"
            ),
        }
    }

    fn health(&self) -> Health {
        let asked = self
            .open_pool()
            .and_then(|pool| pool.enter(|functions| functions.health()));
        match asked {
            Ok(Ok(0)) => Health::Up,
            Ok(Ok(returned)) => Health::Down(answers::failure(returned)),
            Ok(Err(_)) => Health::Down(code::NO_ANSWER),
            Err(code) => Health::Down(code),
        }
    }

    fn is_outage(&self, code: i32) -> bool {
        answers::is_outage(code)
    }

    fn may_still_write(&self, code: i32) -> bool {
        answers::is_outage(code)
    }

    fn may_still_read(&self, number: i32) -> bool {
        number == code::STILL_IN_USE
    }

    fn close(&self) -> Result<()> {
        // Outside of the lock: it may be the last, and the host's release may take its time.
        let pool = self.pool.write().take();
        drop(pool);
        Ok(())
    }
}
