//! `kvb_worker`.

use super::args::{self, Growable};
use super::config::kvb_config;
use super::fence::{fence, kvb_fence};
use super::guard::{guard, guard_or};
use super::handle::{self, Exclusive, Noun};
use super::layout::kvb_layout;
use super::log;
use super::metadata::kvb_metadata;
use super::plain::{self, kvb_engine, kvb_ids};
use super::status::kvb_status;
use super::store::kvb_store;
use crate::config::Role;
use crate::device::{self, CacheMemory, Stream};
use crate::lane::Mode;
use crate::store::Store;
use crate::store::connection::Connection;
use crate::worker::{Handle, Worker};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

/// One rank's mover: it owns the connection to the pool, the registered cache memory, the staging
/// memory and the threads that save and, with async_load, load. Synchronous loads run on the
/// caller's thread.
///
/// Threads: exclusive; functions with a const receiver may run beside any other and each other.
/// Made by kvb_worker_new, freed by kvb_worker_free. Before its cache memory is freed the layout
/// must be unregistered or the worker shut down.
pub struct kvb_worker {
    _opaque: (),
}

impl Noun for kvb_worker {
    const TAG: u64 = u64::from_be_bytes(*b"kvbworkr");
    const NAME: &'static str = "kvb_worker";
    const LIVES_IN_ONE_PROCESS: bool = true;
    type Access = Exclusive;
    type Common = Handle;
    type Alone = Worker;
}

/// What the engine has to arrange; read once, before pools are registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_declarations {
    /// sizeof(kvb_declarations)
    pub struct_size: u32,
    /// Owners under attention DP may each run a scheduler.
    pub supports_attention_dp: bool,
    /// Requests that lost pages are handed back by kvb_worker_take_failed_loads; false under
    /// tensor parallelism, where a lost page is an error of kvb_worker_start_load.
    pub reports_failed_loads: bool,
    /// Local matches must end at a block boundary for the pool to extend them.
    pub requires_block_aligned_reuse: bool,
    /// The cache manager must not shorten local matches by the lookahead.
    pub drops_reuse_match_backoff: bool,
    /// Prefill with a one-model drafter is supported.
    pub supports_speculative_prefill: bool,
    /// A request may be matched again before it is allocated.
    pub supports_admission_query: bool,
    /// Prompt tokens behind a block that its hash covers.
    pub prompt_lookahead: u32,
}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_declarations {}

/// Makes the worker of one rank. It opens the pool that the configuration names, or shares the one
/// of `store_or_null`, which the store kind "host" needs.
///
/// Threads: any. Blocks: while the pool is opened; the embedded one does not, "mooncake" up to 40
/// seconds and one more per GiB that is lent. With KVB_DEVICE_CUDA also while the driver starts, the
/// first time in a process.
/// Errors: KVB_ENGINE_REFUSED, KVB_CONFIG_INVALID, KVB_UNSUPPORTED or KVB_POOL_REFUSED, the text
/// says what does not go together; KVB_NO_DEVICE, with KVB_DEVICE_CUDA: the driver is missing, older
/// than CUDA 12.0 or lacks functions; KVB_POOL_FAILED, the pool cannot be reached; KVB_NO_MEMORY;
/// KVB_NO_THREAD.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_new(
    config: *const kvb_config,
    engine: *const kvb_engine,
    store_or_null: *mut kvb_store,
    out: *mut *mut kvb_worker,
) -> kvb_status {
    guard("kvb_worker_new", || {
        handle::check_process()?;
        // SAFETY: the caller's promise, see the header's conventions.
        let (config, engine, store, out) = unsafe {
            let out = args::out(out, "out")?;
            let store = match store_or_null.is_null() {
                true => None,
                false => Some(handle::input(store_or_null.cast_const(), "store")?),
            };
            (
                handle::input(config, "config")?,
                plain::engine(engine)?,
                store,
                out,
            )
        };
        if config.role() != Role::Capacity {
            device::check(engine.device)?;
        }
        // The worker's threads inherit the log that is in force here.
        let worker = log::always(|| {
            let pool: Arc<dyn Store> = match store {
                // A handle of its own, since a worker closes what it has when it shuts down.
                Some(store) => store.handle()?,
                None => Connection::open(config, &engine, None)?.handle()?,
            };
            Worker::new(config, &engine, pool, &Mode::Threads)
        })?;
        out.write(handle::create(worker.handle(), worker));
        Ok(())
    })
}

/// What the engine has to arrange.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_declarations(
    worker: *const kvb_worker,
    out: *mut kvb_declarations,
) -> kvb_status {
    guard("kvb_worker_declarations", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (worker, out) = unsafe {
            (
                handle::shared(worker, "worker")?,
                args::out_growable(out, "out")?,
            )
        };
        let declared = worker.common().declarations();
        out.write(&kvb_declarations {
            struct_size: 0,
            supports_attention_dp: declared.supports_attention_dp,
            reports_failed_loads: declared.reports_failed_loads,
            requires_block_aligned_reuse: declared.requires_block_aligned_reuse,
            drops_reuse_match_backoff: declared.drops_reuse_match_backoff,
            supports_speculative_prefill: declared.supports_speculative_prefill,
            supports_admission_query: declared.supports_admission_query,
            prompt_lookahead: declared.prompt_lookahead,
        });
        Ok(())
    })
}

/// Takes the cache memory that the layout describes into use. The worker keeps a copy of the
/// layout.
///
/// With KVB_DEVICE_CUDA the CUDA context that is current on the calling thread is the cache's. It must stay
/// alive as long as the slots. Every call leaves the thread with the context that was current before.
///
/// Every slot of every region must stay valid until kvb_worker_unregister_layout or
/// kvb_worker_shutdown returned. A layout that is registered after an unregistration must describe
/// the same pages; addresses and slot counts may differ.
///
/// With stage_through_host = false it is registered with the pool itself.
///
/// Blocks: while staging memory is set up.
/// Errors: KVB_BAD_STATE, a layout is registered, or the role is capacity; KVB_INVALID_ARGUMENT or
/// KVB_CONFIG_INVALID, the layout is incomplete or does not go with the configuration, or a region's first or last byte or the
/// current context is not of the device (what lies between is not looked at); KVB_CONTRADICTION, other pages than before; KVB_NO_DEVICE, no CUDA
/// context is current; KVB_DEVICE_FAILED; KVB_DEVICE_LOST; KVB_CLOSED; KVB_NO_MEMORY;
/// KVB_NO_THREAD; KVB_POOL_FAILED, the pool refuses the staging memory or, with stage_through_host = false, the cache's;
/// KVB_POOL_REFUSED, with the same, pages have more pieces than the pool takes; KVB_BUSY, it did not answer in time:
/// with the same it may use the memory whenever it does, so that this has to stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_register_layout(
    worker: *mut kvb_worker,
    layout: *const kvb_layout,
) -> kvb_status {
    guard("kvb_worker_register_layout", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut worker, memory) = unsafe {
            let function = "kvb_worker_register_layout";
            let worker = handle::exclusive(worker, "worker", function)?;
            let layout = handle::input_alone(layout, "layout", function)?.clone();
            let device = device::adopt(worker.device(), &layout)?;
            (worker, CacheMemory::new(layout, device)?)
        };
        // The thread that this starts speaks to whatever callback is set later, too.
        log::always(|| worker.register_layout(memory))
    })
}

/// Gives the cache memory back: when this returns KVB_OK nothing of the library touches it.
///
/// Blocks: until asynchronous loads under way ended, at most load_timeout_ms (they fail), and queued
/// saves, at most save_timeout_ms; with stage_through_host = false as long again for late calls of the pool.
/// Errors: KVB_BAD_STATE, no layout is registered; KVB_BUSY, some are still running, and the layout
/// stays registered. With stage_through_host = false also when the pool may still use pages of the cache, or does
/// not give parts of it back; calling again tries those again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_unregister_layout(worker: *mut kvb_worker) -> kvb_status {
    guard("kvb_worker_unregister_layout", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut worker =
            unsafe { handle::exclusive(worker, "worker", "kvb_worker_unregister_layout") }?;
        worker.unregister_layout()
    })
}

/// Counts how many of the leading blocks are stored in every layer group and shard. `hashes` are
/// block hashes side by side, `size` is in bytes: 16 for each with the key scheme trtllm, 32 with
/// kvb1. What the pool does not answer counts as missing.
///
/// Blocks: for one existence question per chunk of blocks.
/// Errors: KVB_INVALID_ARGUMENT, no whole hashes; KVB_BAD_STATE, no layout is registered;
/// KVB_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_lookup(
    worker: *const kvb_worker,
    hashes: *const u8,
    size: usize,
    out_blocks: *mut usize,
) -> kvb_status {
    guard("kvb_worker_lookup", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (worker, hashes, out) = unsafe {
            (
                handle::shared(worker, "worker")?,
                args::list(hashes, size, "hashes")?,
                args::out(out_blocks, "out_blocks")?,
            )
        };
        out.write(worker.common().lookup(hashes)?);
        Ok(())
    })
}

/// Binds the metadata of the next pass in place of the bound one. Loads of that one that were
/// never started are reported as failed; saves that were never queued count as not submitted. Its
/// asynchronous loads are queued, once; they write into pages after `fence_or_null`. The metadata
/// may be freed afterwards.
///
/// What is wrong with the metadata, or keeps its asynchronous loads from being queued, is an error
/// of the next kvb_worker_start_load or kvb_worker_get_finished; such loads count as failed.
/// Blocks: no. Errors: KVB_INVALID_ARGUMENT, the fence; nothing is bound then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_bind(
    worker: *mut kvb_worker,
    metadata: *const kvb_metadata,
    fence_or_null: *const kvb_fence,
) -> kvb_status {
    guard("kvb_worker_bind", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut worker, metadata, given) = unsafe {
            let given = match fence_or_null.is_null() {
                true => None,
                false => Some(args::fixed(fence_or_null, "fence")?),
            };
            (
                handle::exclusive(worker, "worker", "kvb_worker_bind")?,
                handle::input(metadata, "metadata")?,
                given,
            )
        };
        let fence = fence(given.as_ref(), worker.device())?;
        worker.bind(Arc::clone(metadata), fence);
        Ok(())
    })
}

/// Loads what the bound metadata restores. When this returns the pages are in the cache, before
/// any work that is put on `stream` later, and were written after what it had. `stream` is a raw CUstream or
/// cudaStream_t of the cache's context, NULL its legacy default stream; it is ignored for host memory. A
/// second call on one metadata starts nothing.
///
/// Blocks: for the pool's reads, and with KVB_DEVICE_CUDA for what `stream` has and the copies behind it.
/// Errors: what kvb_worker_bind could not say; KVB_BAD_STATE, nothing is bound, or there is something to load and no
/// layout is registered; KVB_INVALID_ARGUMENT, there is something to load, and the stream is of another context, or capturing: nothing was
/// started; under tensor parallelism KVB_LOAD_FAILED. On a single rank or an owner under
/// attention DP a lost page is no error: see kvb_worker_take_failed_loads. With stage_through_host = false
/// KVB_LOAD_FAILED on any rank, and in every later call, when the pool may still write into pages of a load that
/// failed: none of its requests is handed back. KVB_DEVICE_LOST in every call once the device is: what was to be
/// loaded is handed back where requests are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_start_load(
    worker: *mut kvb_worker,
    stream: *mut c_void,
) -> kvb_status {
    guard("kvb_worker_start_load", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut worker = unsafe { handle::exclusive(worker, "worker", "kvb_worker_start_load") }?;
        worker.start_load(Stream(stream.addr() as u64))
    })
}

/// Queues the saves of the bound metadata. They read the cache after everything that was put on
/// `stream` before, which is as in kvb_worker_start_load; one that is capturing a graph is refused. The pass counts as run from here on, so call it only behind a forward pass
/// that ran. A second call on one metadata queues nothing.
///
/// The pages of its saves are read later: they must keep their bytes until kvb_worker_get_finished
/// reported their request, also those that have left an attention window meanwhile or were
/// reported as -1, unless kvb_stats.saves_in_flight was 0 in between.
///
/// Blocks: no.
/// Errors: KVB_BAD_STATE, nothing is bound, its synchronous loads were never started, or there is something to
/// save and no layout is registered; KVB_CLOSED; KVB_DEVICE_FAILED; KVB_DEVICE_LOST, in every call once the device is;
/// KVB_INVALID_ARGUMENT, the stream is of another context, or capturing. The pass does not count as run then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_wait_for_save(
    worker: *mut kvb_worker,
    stream: *mut c_void,
) -> kvb_status {
    guard("kvb_worker_wait_for_save", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut worker =
            unsafe { handle::exclusive(worker, "worker", "kvb_worker_wait_for_save") }?;
        worker.wait_for_save(Stream(stream.addr() as u64))
    })
}

/// Reads and clears the requests that lost a page. The engine runs them again, without the tokens
/// that it counted as restored: call kvb_scheduler_reset and match again. Always empty under
/// tensor parallelism.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_take_failed_loads(
    worker: *mut kvb_worker,
    out_ids: *mut kvb_ids,
) -> kvb_status {
    guard("kvb_worker_take_failed_loads", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut worker, out) = unsafe {
            (
                handle::exclusive(worker, "worker", "kvb_worker_take_failed_loads")?,
                args::out(out_ids, "out_ids")?,
            )
        };
        out.write(kvb_ids::view(worker.take_failed_loads()));
        Ok(())
    })
}

/// Announces requests that ended, were cancelled or preempted, and reports every announced one
/// whose transfers are done, each once: its pages are the engine's again as far as this rank goes.
/// Announces requests that wait for an asynchronous load, and reports each once when its load
/// ended: then, and when all ranks reported it, it may run. One that lost a page is in
/// kvb_worker_take_failed_async_loads too. Announcements persist, so call it every pass, also
/// without ids. Of a life of a request that was announced as finished no load is reported any more;
/// the id may come again meanwhile, and in both lists of
/// one call it is a life that ended and the next one, whose load is announced by the first call after
/// it was bound. An id that is announced again before it was reported is reported
/// once: keep the set of ranks that reported it, not their number. An id whose pages were not pinned
/// need not be announced.
///
/// Blocks: no. Errors: what kvb_worker_bind could not say, once; KVB_LOAD_FAILED or
/// KVB_DEVICE_FAILED in every call from then on, and in every kvb_worker_start_load, when a load
/// thread failed: under tensor parallelism also when a page was lost. Such a worker loads nothing any
/// more; free it and make another one. Announcements are taken in any case, and what was to be reported is
/// kept. Once the device is lost this is no error: requests go on being reported, the loads of a single rank as failed,
/// those under tensor parallelism that lost a page never.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_get_finished(
    worker: *mut kvb_worker,
    finished_ids: *const u64,
    finished_count: usize,
    loading_ids: *const u64,
    loading_count: usize,
    out_saved: *mut kvb_ids,
    out_loaded: *mut kvb_ids,
) -> kvb_status {
    guard("kvb_worker_get_finished", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut worker, finished, loading, saved, loaded) = unsafe {
            (
                handle::exclusive(worker, "worker", "kvb_worker_get_finished")?,
                args::list(finished_ids, finished_count, "finished_ids")?,
                args::list(loading_ids, loading_count, "loading_ids")?,
                args::out(out_saved, "out_saved")?,
                args::out(out_loaded, "out_loaded")?,
            )
        };
        let reported = worker.get_finished(finished, loading)?;
        saved.write(kvb_ids::view(reported.saved));
        loaded.write(kvb_ids::view(reported.loaded));
        Ok(())
    })
}

/// Reads and clears the requests that kvb_worker_get_finished reported as loaded although a page
/// was lost. The engine runs them again: call kvb_scheduler_reset and match again; the next offer
/// ends before the block that failed. Loads of reservations are named by the reservation's id; reset
/// goes by the request's. Always empty under tensor parallelism.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_take_failed_async_loads(
    worker: *mut kvb_worker,
    out_ids: *mut kvb_ids,
) -> kvb_status {
    guard("kvb_worker_take_failed_async_loads", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut worker, out) = unsafe {
            (
                handle::exclusive(worker, "worker", "kvb_worker_take_failed_async_loads")?,
                args::out(out_ids, "out_ids")?,
            )
        };
        out.write(kvb_ids::view(worker.take_failed_async_loads()));
        Ok(())
    })
}

/// Ends the worker from any state: queued saves run until the deadline, later ones are dropped and
/// counted, the thread is joined, the connection closed. When this returns KVB_OK nothing of the
/// library touches the cache memory. Afterwards functions that move pages answer KVB_CLOSED;
/// calling this again is fine.
///
/// Blocks: up to `deadline_ms` milliseconds, and while the pool is closed.
/// Errors: KVB_BUSY, a call of the pool is stuck, or a thread waits for the engine's stream or fence; what it may use is kept for ever, and so must be
/// the cache memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_shutdown(
    worker: *mut kvb_worker,
    deadline_ms: u64,
) -> kvb_status {
    guard("kvb_worker_shutdown", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut worker = unsafe { handle::exclusive(worker, "worker", "kvb_worker_shutdown") }?;
        worker.shutdown(Duration::from_millis(deadline_ms))
    })
}

/// Frees a worker. One that was not shut down is so first, with a deadline of ten seconds. A
/// scheduler made on it may be freed before or after, and offers nothing any more. NULL is fine.
///
/// Blocks: as kvb_worker_shutdown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_free(worker: *mut kvb_worker) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_worker_free", (), || unsafe {
        handle::free(worker, "worker")
    });
}
