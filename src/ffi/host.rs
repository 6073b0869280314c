//! `kvb_store_table`: a pool behind functions of the host. What they answer is checked in
//! [`store::host`](crate::store::host).

use super::args::{self, Growable, Plain, flag};
use super::plain::{kvb_bytes, kvb_piece};
use crate::catch::call_host;
use crate::config::Config;
use crate::error::{Result, bail};
use crate::layout::Range;
use crate::store::code;
use crate::store::host::{Call, Functions, Returned, Table, Verb};
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An outcome or a return value of a function of kvb_store_table: the pool, or the part of it that
/// holds the key, cannot be reached. The library counts the pool as down, and the pieces of a get as
/// still in use.
pub const KVB_STORE_UNREACHABLE: i32 = -20011;
/// An outcome or a return value: it failed, and the pool may still read or write the pieces. They are
/// never used again, and never freed. The library counts the pool as down.
pub const KVB_STORE_STILL_IN_USE: i32 = -20013;
/// What kvb_store_call.outcomes holds before the call: a key that keeps it got no answer. It counts
/// like KVB_STORE_UNREACHABLE, and so does a function that throws.
pub const KVB_STORE_NO_ANSWER: i32 = -20009;

/// A batch for a function of kvb_store_table. All that it points to is valid during the call only.
/// Its struct_size is the library's: read a field only if it lies within.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_store_call {
    /// Bytes of this struct in the library.
    pub struct_size: u32,
    /// Flag, for remove: also what is leased.
    pub force: u8,
    /// How many keys there are; at least 1, at most the table's keys_per_call.
    pub count: usize,
    /// The keys. A NUL stands behind each; its size does not count it.
    pub keys: *const kvb_bytes,
    /// For put and get: the pieces of all keys, one key behind the other. A put must not write to
    /// them.
    pub pieces: *const kvb_piece,
    /// For put and get: key i has the pieces from `piece_ends[i - 1]` (0 for the first key) up to
    /// `piece_ends[i]`. An object is its pieces, one behind the other.
    pub piece_ends: *const usize,
    /// One per key, to be written: KVB_ABSENT or KVB_PRESENT, KVB_PUT_*, KVB_GET_*, KVB_REMOVE_*, or a
    /// negative code, one of the pool's own from -19999 to -1 or a KVB_STORE_*. Holds
    /// KVB_STORE_NO_ANSWER.
    pub outcomes: *mut i32,
    /// For get, one per key, to be written: the object's bytes, with KVB_GET_LANDED exactly those of
    /// its pieces, with KVB_GET_WRONG_SIZE others. Holds 0.
    pub sizes: *mut u64,
    /// For put: how long to keep the objects before others are evicted, in milliseconds; 0: no soft pin.
    pub soft_pin_ttl_ms: u64,
    /// For put: NULL, or one eviction group per key, each with a NUL behind it. Objects of a group are
    /// evicted together; an empty one stands for no group.
    pub groups: *const kvb_bytes,
    /// The configuration's tenant_id with a NUL behind it; size 0 if it has none.
    pub tenant: kvb_bytes,
}

/// Carries out one batch: exist, put, get or remove. Returns 0 when it wrote the outcomes, else a
/// negative code that stands for every key.
pub type kvb_store_batch_function =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, call: *const kvb_store_call) -> i32>;
/// Takes a range of memory into use, or out of it. Returns 0, or a code.
pub type kvb_store_range_function =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void, address: u64, size: u64) -> i32>;
/// Returns 0 while the pool can be used, as far as is known without asking anyone, else a code.
pub type kvb_store_health_function =
    Option<unsafe extern "C-unwind" fn(context: *mut c_void) -> i32>;
/// Takes the table's context back.
pub type kvb_store_release_function = Option<unsafe extern "C-unwind" fn(context: *mut c_void)>;

/// A pool behind functions of the host, for kvbridge.store = "host". The table is copied; the
/// functions and what `context` points to stay valid until `release` was called. The manual is
/// docs/lending.md.
///
/// Threads: functions are called on threads of the library, several at once unless `serial` is 1;
/// `release` on any thread, after all others. A function may take as long as it likes: the library
/// goes on without it at its deadline, and keeps what the call was given. It must not throw; if it
/// does, all keys of the call have failed as with KVB_STORE_NO_ANSWER. It may call the library, but
/// should not on a handle that goes through this table: with `serial` such a call waits until its
/// deadline.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_store_table {
    /// sizeof(kvb_store_table)
    pub struct_size: u32,
    /// Passed to each function.
    pub context: *mut c_void,
    /// Which keys are there, complete: KVB_ABSENT or KVB_PRESENT. Required.
    pub exist: kvb_store_batch_function,
    /// Stores one object per key: KVB_PUT_*. A key that is there keeps its bytes, and an object is
    /// visible only once it is complete. Required.
    pub put: kvb_store_batch_function,
    /// Reads one object per key into pieces of exactly its size: KVB_GET_*. Required.
    pub get: kvb_store_batch_function,
    /// Removes objects: KVB_REMOVE_*. Called for kvb_store_remove. NULL: every key of it fails.
    pub remove: kvb_store_batch_function,
    /// Called with a range before pieces lie in it. NULL: the pool need not know.
    pub register_memory: kvb_store_range_function,
    /// Called with a range that was registered, when no piece in it is in use any more. NULL: as above.
    pub unregister_memory: kvb_store_range_function,
    /// Whether the pool can be used. Nothing calls it yet. NULL: as far as is known, it can.
    pub health: kvb_store_health_function,
    /// Called once, on any thread, when no handle has the pool open and no function of the table is
    /// running, if kvb_store_open answered KVB_OK. NULL: nobody tells.
    pub release: kvb_store_release_function,
    /// Most pieces per key; 0 counts as 1.
    pub pieces_per_key: u32,
    /// Most keys per call; 0: no limit.
    pub keys_per_call: u32,
    /// Flag: put honours soft_pin_ttl_ms.
    pub soft_pin_ttl: u8,
    /// Flag: put honours groups.
    pub groups: u8,
    /// Flag: keys of different tenants are kept apart.
    pub tenant: u8,
    /// Flag: pieces may be memory of a device.
    pub device_memory: u8,
    /// Flag: one call at a time. A call that hangs then holds the others up until their deadlines.
    pub serial: u8,
}
// SAFETY: integers, pointers to functions that may be NULL, and a pointer that is only passed on.
unsafe impl Plain for kvb_store_table {}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_store_table {}

type BatchFunction = unsafe extern "C-unwind" fn(*mut c_void, *const kvb_store_call) -> i32;

/// The functions, with what calls of them need.
struct Lent {
    table: kvb_store_table,
    exist: BatchFunction,
    put: BatchFunction,
    get: BatchFunction,
    /// With its NUL; nothing before it for none.
    tenant: Vec<u8>,
    /// Whether `release` is owed.
    owed: Arc<AtomicBool>,
}

// SAFETY: the context is only passed on; that the functions may be called with it on any thread, by
// several at once, is what `kvb_store_table` asks of the host.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

/// Makes `release` due: without it, nobody takes the context back.
pub(super) struct Debt(Arc<AtomicBool>);

impl Debt {
    /// The pool was opened: the last one who lets go of it releases.
    pub(super) fn owe(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What the host lends; `release` is not due yet.
///
/// # Safety
/// As for [`args::growable`]; functions and context are as `kvb_store_table` asks, until the last
/// use of the table that is made of them.
pub(super) unsafe fn table(
    pointer: *const kvb_store_table,
    config: &Config,
) -> Result<(Table, Debt)> {
    // SAFETY: passed on.
    let table = unsafe { args::growable(pointer, "table") }?;
    // Half a pointer to a function must not be called.
    if !(table.struct_size as usize).is_multiple_of(align_of::<kvb_store_table>()) {
        bail!(
            InvalidArgument,
            "table->struct_size is {}, which no version of the struct has",
            table.struct_size
        );
    }
    let required = |function: kvb_store_batch_function, name: &str| match function {
        Some(function) => Ok(function),
        None => bail!(
            NullPointer,
            "table->{name} is NULL; exist, put and get are required"
        ),
    };
    let owed = Arc::new(AtomicBool::new(false));
    let lent = Lent {
        table,
        exist: required(table.exist, "exist")?,
        put: required(table.put, "put")?,
        get: required(table.get, "get")?,
        tenant: [config.tenant_id().unwrap_or_default().as_bytes(), &[0]].concat(),
        owed: Arc::clone(&owed),
    };
    let table = Table {
        pieces_per_key: table.pieces_per_key as usize,
        keys_per_call: table.keys_per_call as usize,
        soft_pin_ttl: flag(table.soft_pin_ttl, "table->soft_pin_ttl")?,
        groups: flag(table.groups, "table->groups")?,
        tenant: flag(table.tenant, "table->tenant")?,
        device_memory: flag(table.device_memory, "table->device_memory")?,
        removes: table.remove.is_some(),
        serial: flag(table.serial, "table->serial")?,
        functions: Box::new(lent),
    };
    Ok((table, Debt(owed)))
}

/// Bytes with a NUL behind them, which the size does not count.
fn terminated(bytes: &[u8]) -> kvb_bytes {
    kvb_bytes {
        data: bytes.as_ptr(),
        size: bytes.len().saturating_sub(1),
    }
}

/// Where a list begins; NULL when it is empty.
fn start<T>(list: &[T]) -> *const T {
    if list.is_empty() {
        ptr::null()
    } else {
        list.as_ptr()
    }
}

/// Calls a function of the host that returns a number.
fn numbered(call: impl FnOnce() -> i32 + Copy) -> Returned {
    let mut returned = 0;
    let place = &raw mut returned;
    // SAFETY: the place is this function's own and outlives the call.
    call_host(|| unsafe { place.write(call()) })?;
    Ok(returned)
}

impl Functions for Lent {
    fn batch(&self, verb: Verb, call: &mut Call<'_>) -> Returned {
        let function = match verb {
            Verb::Exist => self.exist,
            Verb::Put => self.put,
            Verb::Get => self.get,
            Verb::Remove => match self.table.remove {
                Some(function) => function,
                None => return Ok(code::UNSUPPORTED_CALL),
            },
        };
        let keys: Vec<_> = call.keys().map(terminated).collect();
        let groups: Vec<_> = match call.groups() {
            Some(groups) => groups.map(terminated).collect(),
            None => Vec::new(),
        };
        let pieces: Vec<_> = call
            .pieces
            .iter()
            .map(|piece| kvb_piece {
                address: piece.address,
                size: piece.size,
            })
            .collect();
        let given = kvb_store_call {
            struct_size: size_of::<kvb_store_call>() as u32,
            force: u8::from(call.force),
            count: keys.len(),
            keys: start(&keys),
            pieces: start(&pieces),
            piece_ends: start(call.ends),
            outcomes: call.outcomes.as_mut_ptr(),
            sizes: call.sizes.as_mut_ptr(),
            soft_pin_ttl_ms: call.soft_pin_ttl_ms,
            groups: start(&groups),
            tenant: terminated(&self.tenant),
        };
        let (context, given) = (self.table.context, &raw const given);
        // SAFETY: the host's function with its context, see `table`; the lists live during the call,
        // and those that are written have as many elements as there are keys.
        numbered(|| unsafe { function(context, given) })
    }

    fn register(&self, range: Range, known: bool) -> Returned {
        let function = match known {
            true => self.table.register_memory,
            false => self.table.unregister_memory,
        };
        let (context, Range { start, size }) = (self.table.context, range);
        match function {
            // SAFETY: the host's function with its context, see `table`.
            Some(function) => numbered(|| unsafe { function(context, start, size) }),
            None => Ok(0),
        }
    }

    fn health(&self) -> Returned {
        let context = self.table.context;
        match self.table.health {
            // SAFETY: the host's function with its context, see `table`.
            Some(function) => numbered(|| unsafe { function(context) }),
            None => Ok(0),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let context = self.table.context;
        if self.owed.load(Ordering::Acquire)
            && let Some(release) = self.table.release
            // SAFETY: the host's function with its context, see `table`; nobody uses them after this.
            && let Err(text) = call_host(|| unsafe { release(context) })
        {
            tracing::warn!("the host's release threw: {text}");
        }
    }
}

#[cfg(test)]
mod tests;
