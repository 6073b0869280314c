//! `kvb_store`: for tools and tests; engines need only the worker.

use super::args::{self, Growable, Plain};
use super::config::kvb_config;
use super::guard::{guard, guard_or};
use super::handle::{self, Noun, Shared};
use super::host::{self, kvb_store_table};
use super::log;
use super::plain::{self, kvb_bytes, kvb_engine, kvb_piece};
use super::status::kvb_status;
use crate::device::memory::{Source, Target};
use crate::error::{Result, bail};
use crate::keys::Keys;
use crate::lane::Mode;
use crate::store::connection::Connection;
use crate::store::faulty::{Faults, Faulty};
use crate::store::guarded::{self, Guarded, Settings};
use crate::store::{GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store};
use crate::sync::SystemClock;
use std::sync::Arc;
use std::time::Duration;

/// An open pool. Workers open their own from the configuration; a store is opened by hand to share
/// one connection between handles of a process, by tools and by tests.
///
/// Threads: shared. Made by kvb_store_open, freed by kvb_store_free; workers made on it do not
/// need it any more.
pub struct kvb_store {
    _opaque: (),
}

impl Noun for kvb_store {
    const TAG: u64 = u64::from_be_bytes(*b"kvbstore");
    const NAME: &'static str = "kvb_store";
    const LIVES_IN_ONE_PROCESS: bool = true;
    type Access = Shared;
    type Common = Opened;
    type Alone = ();
}

/// So many threads may call at once.
const CALLERS: usize = 4;

/// What stands behind a store: the pool, and the faults that wrap it, from the inside out.
pub(super) struct Opened {
    /// Present until this is dropped.
    connection: Option<Connection>,
    faults: Vec<Arc<Faults>>,
    settings: Settings,
    /// For the calls of this store itself.
    store: Arc<Guarded>,
}

impl Opened {
    fn new(connection: Connection, faults: Vec<Arc<Faults>>, settings: Settings) -> Result<Self> {
        let store = wrapped(connection.handle()?, &faults);
        let connection = Some(connection);
        let clock = Arc::new(SystemClock::new());
        Ok(Self {
            store: Guarded::start(store, settings, clock, &Mode::Threads)?,
            connection,
            faults,
            settings,
        })
    }

    /// Another handle on the same pool, under the same faults.
    pub(super) fn handle(&self) -> Result<Arc<dyn Store>> {
        Ok(wrapped(self.connection()?.handle()?, &self.faults))
    }

    fn connection(&self) -> Result<&Connection> {
        match &self.connection {
            Some(connection) => Ok(connection),
            None => bail!(Closed, "the store is being freed"),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The outermost alone: what is inside may belong to a store that lives on.
        if let Some(faults) = self.faults.last() {
            faults.release();
        }
        // First, so that closing the handle ends the connection if no worker has one.
        self.connection = None;
        if let Err(error) = self
            .store
            .close_within(Duration::ZERO, guarded::LEAST_PATIENCE)
        {
            tracing::warn!("kvb_store_free: {error}");
        }
    }
}

fn wrapped(mut store: Arc<dyn Store>, faults: &[Arc<Faults>]) -> Arc<dyn Store> {
    for faults in faults {
        store = Faulty::over(store, Arc::clone(faults));
    }
    store
}

/// kvb_store_exist: the pool does not have it.
pub const KVB_ABSENT: i32 = 0;
/// kvb_store_exist: the pool has it, complete.
pub const KVB_PRESENT: i32 = 1;
/// kvb_store_exist: the pool did not say. Never a hit.
pub const KVB_UNKNOWN: i32 = 2;
/// kvb_store_put: stored.
pub const KVB_PUT_STORED: i32 = 0;
/// kvb_store_put: the pool has an object of this key, or is just getting one; that stays.
pub const KVB_PUT_ALREADY_THERE: i32 = 1;
/// kvb_store_put: no room now.
pub const KVB_PUT_NO_SPACE: i32 = 2;
/// kvb_store_put: not stored for another reason.
pub const KVB_PUT_FAILED: i32 = 3;
/// kvb_store_get: the whole object landed.
pub const KVB_GET_LANDED: i32 = 0;
/// kvb_store_get: there is no such object; its buffer is untouched.
pub const KVB_GET_MISSING: i32 = 1;
/// kvb_store_get: the object does not have the buffer's size; out_sizes has its own. The buffer is
/// untouched.
pub const KVB_GET_WRONG_SIZE: i32 = 2;
/// kvb_store_get: the read failed; the buffer may hold anything.
pub const KVB_GET_FAILED: i32 = 3;
/// kvb_store_remove: gone.
pub const KVB_REMOVE_REMOVED: i32 = 0;
/// kvb_store_remove: there was none.
pub const KVB_REMOVE_MISSING: i32 = 1;
/// kvb_store_remove: it was found by somebody a moment ago, whose lease has not ended.
pub const KVB_REMOVE_LEASED: i32 = 2;
/// kvb_store_remove: not removed for another reason.
pub const KVB_REMOVE_FAILED: i32 = 3;

/// An embedded pool's numbers; counters start with the pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_pool_stats {
    /// sizeof(kvb_pool_stats)
    pub struct_size: u32,
    /// Most bytes it holds.
    pub capacity: u64,
    /// Bytes taken up now.
    pub used_bytes: u64,
    /// Complete objects now.
    pub objects: u64,
    /// Objects that were evicted.
    pub evicted_objects: u64,
    /// Puts, counted by key, that found no room.
    pub refused_puts: u64,
}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_pool_stats {}

/// What a put asks for beyond storing. Zero asks for nothing.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_put_options {
    /// sizeof(kvb_put_options)
    pub struct_size: u32,
    /// Keep the objects this long, in milliseconds, before others are evicted; 0: no soft pin.
    pub soft_pin_ttl_ms: u64,
    /// One eviction group per key: objects of a group are evicted together. An empty one stands for no group.
    pub groups: *const kvb_bytes,
    /// How many groups there are: 0, or as many as keys.
    pub group_count: usize,
}
// SAFETY: integers and a pointer.
unsafe impl Plain for kvb_put_options {}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_put_options {}

/// Opens the pool that the configuration names. `table_or_null` is the host's functions for the
/// store kind "host", which needs them, and NULL for every other.
///
/// Threads: any. Blocks: while the pool is opened; the embedded one and the host's do not, "mooncake" up to 40
/// seconds and one more per GiB that is lent, "mooncake-tcp" up to 25.
/// Errors: KVB_ENGINE_REFUSED; KVB_UNSUPPORTED, the kind of store is not in this build;
/// KVB_INVALID_ARGUMENT, table and kind do not go together, or the table is wrong; KVB_NULL_POINTER,
/// a function of it is missing;
/// KVB_CONFIG_INVALID, the embedded pool is open with another capacity; KVB_POOL_REFUSED, the text
/// names what does not go together; KVB_POOL_FAILED, the pool cannot be reached; KVB_NO_MEMORY;
/// KVB_NO_THREAD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_open(
    config: *const kvb_config,
    engine: *const kvb_engine,
    table_or_null: *const kvb_store_table,
    out: *mut *mut kvb_store,
) -> kvb_status {
    guard("kvb_store_open", || {
        handle::check_process()?;
        // SAFETY: the caller's promise, see the header's conventions.
        let (config, engine, out) = unsafe {
            let out = args::out(out, "out")?;
            (
                handle::input(config, "config")?,
                plain::engine(engine)?,
                out,
            )
        };
        let (table, debt) = match table_or_null.is_null() {
            true => (None, None),
            false => {
                // SAFETY: as above.
                let (table, debt) = unsafe { host::table(table_or_null, config) }?;
                (Some(table), Some(debt))
            }
        };
        let settings = Settings::new(config, guarded::MOST_HELD, CALLERS);
        // Threads that are started on the way speak to whoever sets the log later.
        let opened = log::always(|| {
            let connection = Connection::open(config, &engine, table)?;
            Opened::new(connection, Vec::new(), settings)
        })?;
        if let Some(debt) = debt {
            debt.owe();
        }
        out.write(handle::create(opened, ()));
        Ok(())
    })
}

/// Makes a store that breaks another one by script, for tests of what a host does when its pool
/// fails. `script` is JSON text: {"faults": [{"call": "get", "fault": "lose", "from": 3}]}; the
/// manual is docs/faults.md. The other store stays as it is, on the same pool; workers made on the
/// new one go through the faults. Both are freed by kvb_store_free, in any order; freeing the new
/// one ends calls that the script lets hang.
///
/// Errors: KVB_INVALID_ARGUMENT with every problem of the script, one a line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_wrap_faulty(
    store: *const kvb_store,
    script: *const u8,
    script_size: usize,
    out: *mut *mut kvb_store,
) -> kvb_status {
    guard("kvb_store_wrap_faulty", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (store, script, out) = unsafe {
            let out = args::out(out, "out")?;
            (
                handle::shared(store, "store")?,
                args::list(script, script_size, "script")?,
                out,
            )
        };
        let opened = store.common();
        let mut faults = opened.faults.clone();
        faults.push(Faults::from_json(script)?);
        let wrapped =
            log::always(|| Opened::new(opened.connection()?.share()?, faults, opened.settings))?;
        out.write(handle::create(wrapped, ()));
        Ok(())
    })
}

/// Asks which of `count` keys the pool has: one KVB_PRESENT, KVB_ABSENT or KVB_UNKNOWN per key.
/// What is present is leased for a while: neither evicted nor removed.
///
/// Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_exist(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    count: usize,
    out_presence: *mut i32,
) -> kvb_status {
    guard("kvb_store_exist", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (store, keys, out) = unsafe {
            (
                handle::shared(store, "store")?,
                read_keys(keys, count)?,
                args::out_list(out_presence, count, "out_presence")?,
            )
        };
        let mut answers = Vec::new();
        store.common().store.exist(&keys, &mut answers);
        let answers = answers.iter().map(|answer| match answer {
            Presence::Absent => KVB_ABSENT,
            Presence::Present => KVB_PRESENT,
            Presence::Unknown(_) => KVB_UNKNOWN,
        });
        out.write(answers, KVB_UNKNOWN);
        Ok(())
    })
}

/// Stores one object per key, with the bytes of the value of the same position: one KVB_PUT_* per
/// key. The values are read during the call. An object without bytes is KVB_PUT_FAILED in a Mooncake pool.
///
/// Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty;
/// KVB_NULL_POINTER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_put(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    values: *const kvb_piece,
    count: usize,
    out_outcomes: *mut i32,
) -> kvb_status {
    guard("kvb_store_put", || {
        // SAFETY: the caller's promise, see the header's conventions.
        unsafe { put(store, keys, values, count, std::ptr::null(), out_outcomes) }
    })
}

/// As kvb_store_put, with options; a pool that cannot do what they ask for answers KVB_PUT_FAILED for
/// every key.
///
/// Blocks: for one call of the pool. Errors: as kvb_store_put; KVB_INVALID_ARGUMENT, there are groups,
/// but not one per key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_put_with_options(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    values: *const kvb_piece,
    count: usize,
    options_or_null: *const kvb_put_options,
    out_outcomes: *mut i32,
) -> kvb_status {
    guard("kvb_store_put_with_options", || {
        // SAFETY: the caller's promise, see the header's conventions.
        unsafe { put(store, keys, values, count, options_or_null, out_outcomes) }
    })
}

/// # Safety
/// As the header's conventions ask of the arguments of [`kvb_store_put_with_options`].
unsafe fn put(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    values: *const kvb_piece,
    count: usize,
    options_or_null: *const kvb_put_options,
    out_outcomes: *mut i32,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (store, keys, values, (soft_pin_ttl, groups), out) = unsafe {
        (
            handle::shared(store, "store")?,
            read_keys(keys, count)?,
            read_pieces(values, count, "values")?,
            read_options(options_or_null, count)?,
            args::out_list(out_outcomes, count, "out_outcomes")?,
        )
    };
    let mut sources: Vec<_> = values
        .iter()
        // SAFETY: the caller promised readable memory.
        .map(|piece| unsafe { Source::from_raw(piece.address, piece.size) })
        .collect();
    let options = PutOptions {
        soft_pin_ttl,
        groups: groups.as_ref(),
        places: None,
    };
    let mut answers = Vec::new();
    let sources = Pieces::one_each(&mut sources);
    store
        .common()
        .store
        .put(&keys, sources, &options, &mut answers);
    let answers = answers.iter().map(|answer| match answer {
        PutOutcome::Stored => KVB_PUT_STORED,
        PutOutcome::AlreadyThere => KVB_PUT_ALREADY_THERE,
        PutOutcome::NoSpace => KVB_PUT_NO_SPACE,
        PutOutcome::Failed(_) => KVB_PUT_FAILED,
    });
    out.write(answers, KVB_PUT_FAILED);
    Ok(())
}

/// Reads one object per key into the buffer of the same position, which must have exactly its
/// size: one KVB_GET_* per key. `out_sizes` gets the object's size in bytes where it is known,
/// else 0. Buffers must not overlap.
///
/// Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty;
/// KVB_NULL_POINTER.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_get(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    buffers: *const kvb_piece,
    count: usize,
    out_outcomes: *mut i32,
    out_sizes: *mut u64,
) -> kvb_status {
    guard("kvb_store_get", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (store, keys, buffers, outcomes, sizes) = unsafe {
            (
                handle::shared(store, "store")?,
                read_keys(keys, count)?,
                read_pieces(buffers, count, "buffers")?,
                args::out_list(out_outcomes, count, "out_outcomes")?,
                args::out_list(out_sizes, count, "out_sizes")?,
            )
        };
        let mut targets: Vec<_> = buffers
            .iter()
            // SAFETY: the caller promised writable memory that nobody else uses.
            .map(|piece| unsafe { Target::from_raw(piece.address, piece.size) })
            .collect();
        let mut answers = Vec::new();
        store
            .common()
            .store
            .get(&keys, Pieces::one_each(&mut targets), &mut answers);
        let size = |answer: &GetOutcome| match *answer {
            GetOutcome::Landed(size) | GetOutcome::WrongSize(size) => size,
            GetOutcome::Missing | GetOutcome::Failed(_) => 0,
        };
        sizes.write(answers.iter().map(size), 0);
        let answers = answers.iter().map(|answer| match answer {
            GetOutcome::Landed(_) => KVB_GET_LANDED,
            GetOutcome::Missing => KVB_GET_MISSING,
            GetOutcome::WrongSize(_) => KVB_GET_WRONG_SIZE,
            GetOutcome::Failed(_) => KVB_GET_FAILED,
        });
        outcomes.write(answers, KVB_GET_FAILED);
        Ok(())
    })
}

/// Removes objects: one KVB_REMOVE_* per key.
///
/// Blocks: for one call of the pool. Errors: KVB_INVALID_ARGUMENT, a key is empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_remove(
    store: *const kvb_store,
    keys: *const kvb_bytes,
    count: usize,
    out_outcomes: *mut i32,
) -> kvb_status {
    guard("kvb_store_remove", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (store, keys, out) = unsafe {
            (
                handle::shared(store, "store")?,
                read_keys(keys, count)?,
                args::out_list(out_outcomes, count, "out_outcomes")?,
            )
        };
        let mut answers = Vec::new();
        store.common().store.remove(&keys, false, &mut answers);
        let answers = answers.iter().map(|answer| match answer {
            RemoveOutcome::Removed => KVB_REMOVE_REMOVED,
            RemoveOutcome::Missing => KVB_REMOVE_MISSING,
            RemoveOutcome::Leased => KVB_REMOVE_LEASED,
            RemoveOutcome::Failed(_) => KVB_REMOVE_FAILED,
        });
        out.write(answers, KVB_REMOVE_FAILED);
        Ok(())
    })
}

/// The pool's numbers at this moment.
///
/// Errors: KVB_UNSUPPORTED for pools that are not embedded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_stats(
    store: *const kvb_store,
    out: *mut kvb_pool_stats,
) -> kvb_status {
    guard("kvb_store_stats", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (store, out) = unsafe {
            (
                handle::shared(store, "store")?,
                args::out_growable(out, "out")?,
            )
        };
        let stats = store.common().connection()?.stats()?;
        out.write(&kvb_pool_stats {
            struct_size: 0,
            capacity: stats.capacity,
            used_bytes: stats.bytes_used,
            objects: stats.objects,
            evicted_objects: stats.evictions,
            refused_puts: stats.puts_refused,
        });
        Ok(())
    })
}

/// Frees a store. An embedded pool and what is in it live as long as some store or worker has it
/// open, a client of Mooncake's too. NULL is fine.
///
/// Blocks: while a pool over the network closes, at most 3 s.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_store_free(store: *mut kvb_store) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_store_free", (), || unsafe {
        handle::free(store, "store")
    });
}

/// # Safety
/// As for [`args::list`], also for the bytes in each element.
unsafe fn read_keys(keys: *const kvb_bytes, count: usize) -> Result<Keys> {
    let mut arena = Keys::new();
    // SAFETY: passed on.
    let list = unsafe { args::list(keys, count, "keys") }?;
    for (index, key) in list.iter().enumerate() {
        // SAFETY: passed on.
        let key = unsafe { key.read("keys->data") }
            .map_err(|error| error.within(format_args!("keys[{index}]")))?;
        if key.is_empty() {
            bail!(InvalidArgument, "keys[{index}] is empty");
        }
        arena.push(key);
    }
    Ok(arena)
}

/// Soft pin and groups; NULL asks for nothing.
///
/// # Safety
/// As for [`args::growable`] and, for the groups, [`args::list`], also for the bytes in each element.
unsafe fn read_options(
    options_or_null: *const kvb_put_options,
    keys: usize,
) -> Result<(Option<Duration>, Option<Keys>)> {
    if options_or_null.is_null() {
        return Ok((None, None));
    }
    // SAFETY: passed on.
    let (options, list) = unsafe {
        let options = args::growable(options_or_null, "options")?;
        let list = args::list(options.groups, options.group_count, "options->groups")?;
        (options, list)
    };
    let ttl = options.soft_pin_ttl_ms;
    let ttl = (ttl > 0).then(|| Duration::from_millis(ttl));
    if list.is_empty() {
        return Ok((ttl, None));
    }
    if list.len() != keys {
        bail!(
            InvalidArgument,
            "options->group_count is {}, but there are {keys} keys",
            list.len()
        );
    }
    let mut groups = Keys::new();
    for (index, group) in list.iter().enumerate() {
        // SAFETY: passed on.
        let group = unsafe { group.read("options->groups->data") }
            .map_err(|error| error.within(format_args!("options->groups[{index}]")))?;
        groups.push(group);
    }
    Ok((ttl, Some(groups)))
}

/// # Safety
/// As for [`args::list`].
unsafe fn read_pieces<'a>(
    pieces: *const kvb_piece,
    count: usize,
    argument: &str,
) -> Result<&'a [kvb_piece]> {
    // SAFETY: passed on.
    let pieces = unsafe { args::list(pieces, count, argument) }?;
    for (index, piece) in pieces.iter().enumerate() {
        if piece.size > 0 && piece.address == 0 {
            bail!(NullPointer, "{argument}[{index}].address is 0");
        }
        if piece.size > 0 && piece.address < args::LOWEST as u64 {
            bail!(
                InvalidArgument,
                "{argument}[{index}].address is {:#x}, which is no address of memory",
                piece.address
            );
        }
        if i64::try_from(piece.size).is_err() || piece.address.checked_add(piece.size).is_none() {
            bail!(
                InvalidArgument,
                "{argument}[{index}] has {} bytes, more than memory can hold",
                piece.size
            );
        }
    }
    Ok(pieces)
}
