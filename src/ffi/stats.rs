//! `kvb_stats`: a worker's counters, gauges and times.

use super::args::{self, Growable};
use super::guard::guard;
use super::handle;
use super::status::kvb_status;
use super::worker::kvb_worker;
use crate::stats::{BreakerState, Phase};
use std::ffi::c_char;
use std::time::Duration;

/// kvb_stats.breaker_state: calls reach the pool.
pub const KVB_BREAKER_CLOSED: u64 = 0;
/// kvb_stats.breaker_state: the pool did not answer lately, or keeps too much; no call is made.
pub const KVB_BREAKER_OPEN: u64 = 1;
/// kvb_stats.breaker_state: one call finds out whether the pool answers again.
pub const KVB_BREAKER_PROBING: u64 = 2;

/// Counters since the worker was made; bytes are payload bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_stats {
    /// sizeof(kvb_stats)
    pub struct_size: u32,
    /// Lookups of a chain of blocks.
    pub lookups: u64,
    /// Blocks whose existence was asked for.
    pub lookup_blocks: u64,
    /// Blocks at the head of a lookup that were stored in every group and shard.
    pub hit_blocks: u64,
    /// Keys whose existence was asked for by lookups.
    pub lookup_keys: u64,
    /// Keys of lookups that the pool does not hold.
    pub missing_keys: u64,
    /// Keys of lookups that got no definite answer; they count as misses.
    pub failed_lookup_keys: u64,
    /// Pages that were loaded into the cache.
    pub loaded_pages: u64,
    /// Their bytes.
    pub loaded_bytes: u64,
    /// Pages that should have been loaded and were not.
    pub failed_load_pages: u64,
    /// Pages whose seal did not match; they count as failed too.
    pub bad_seals: u64,
    /// Requests that lost a page.
    pub failed_load_requests: u64,
    /// Pages that the pool took.
    pub saved_pages: u64,
    /// Their bytes.
    pub saved_bytes: u64,
    /// Pages to save that were in the pool already.
    pub already_stored_pages: u64,
    /// Pages that the pool had no room for.
    pub no_space_pages: u64,
    /// Pages that the pool did not take for another reason.
    pub failed_save_pages: u64,
    /// Pages whose save was queued and never tried.
    pub dropped_save_pages: u64,
    /// Calls of the pool.
    pub store_calls: u64,
    /// Requests with saves in flight now.
    pub saves_in_flight: u64,
    /// Asynchronous loads in flight now, also those that nobody waits for any more.
    pub loads_in_flight: u64,
    /// Those of them that no thread has begun.
    pub loads_queued: u64,
    /// Runs of missing blocks with a stored block behind them, in the answers to lookups.
    pub holes: u64,
    /// Missing blocks in them.
    pub hole_blocks: u64,
    /// Tokens of stored blocks behind the first missing one: they are computed all the same.
    pub tokens_behind_holes: u64,
    /// Calls of the pool that loads made.
    pub load_calls: u64,
    /// Time that asynchronous loads waited for a thread, in nanoseconds. This and the times below
    /// stay 0 unless stats_interval is set.
    pub load_queue_ns: u64,
    /// Time of loads: which pages, under which keys. In nanoseconds on the wall, as all of these.
    pub load_resolve_ns: u64,
    /// Waiting for allocation fences.
    pub load_fence_ns: u64,
    /// Where the bytes are to land.
    pub load_describe_ns: u64,
    /// The pool's calls.
    pub load_get_ns: u64,
    /// From staging memory into the cache.
    pub load_unstage_ns: u64,
    /// Waiting for the device.
    pub load_sync_ns: u64,
    /// The same as load_resolve_ns on the CPU of the thread, as the fields that follow.
    pub load_resolve_cpu_ns: u64,
    /// Waiting for allocation fences, on the CPU.
    pub load_fence_cpu_ns: u64,
    /// Where the bytes are to land, on the CPU.
    pub load_describe_cpu_ns: u64,
    /// The pool's calls, on the CPU.
    pub load_get_cpu_ns: u64,
    /// From staging memory into the cache, on the CPU.
    pub load_unstage_cpu_ns: u64,
    /// Waiting for the device, on the CPU.
    pub load_sync_cpu_ns: u64,
    /// What is let through to the pool now: KVB_BREAKER_CLOSED, KVB_BREAKER_OPEN or KVB_BREAKER_PROBING.
    /// This and the fields below stay 0 with a pool whose calls cannot be late.
    pub breaker_state: u64,
    /// Calls of the pool that had no answer at their deadline.
    pub pool_deadlines: u64,
    /// Calls of the pool that ended with a transport error or without an answer.
    pub pool_failures: u64,
    /// How often calls began to be kept from the pool.
    pub breaker_openings: u64,
    /// Calls of the pool that were not made because it did not answer lately.
    pub breaker_refusals: u64,
    /// Calls of the pool that returned after their deadline.
    pub late_calls_returned: u64,
    /// Calls of the pool past their deadline that have not returned, each with a thread.
    pub late_calls: u64,
    /// Calls of the pool whose memory is not used again, since the pool may still use it.
    pub quarantined_calls: u64,
}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_stats {}

/// The worker's counters at this moment. Each is exact; together they may straddle an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_stats(
    worker: *const kvb_worker,
    out: *mut kvb_stats,
) -> kvb_status {
    guard("kvb_worker_stats", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (worker, out) = unsafe {
            (
                handle::shared(worker, "worker")?,
                args::out_growable(out, "out")?,
            )
        };
        let stats = worker.common().stats();
        let gauges = worker.common().gauges();
        let times = worker.common().phase_times();
        let pool = worker.common().pool_counts();
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        out.write(&kvb_stats {
            struct_size: 0,
            lookups: stats.lookups,
            lookup_blocks: stats.lookup_blocks,
            hit_blocks: stats.hit_blocks,
            lookup_keys: stats.lookup_keys,
            missing_keys: stats.missing_keys,
            failed_lookup_keys: stats.failed_lookup_keys,
            holes: stats.holes,
            hole_blocks: stats.hole_blocks,
            tokens_behind_holes: stats.tokens_behind_holes,
            loaded_pages: stats.loaded_pages,
            loaded_bytes: stats.loaded_bytes,
            failed_load_pages: stats.failed_load_pages,
            bad_seals: stats.bad_seals,
            failed_load_requests: stats.failed_load_requests,
            load_calls: stats.load_calls,
            saved_pages: stats.saved_pages,
            saved_bytes: stats.saved_bytes,
            already_stored_pages: stats.already_stored_pages,
            no_space_pages: stats.no_space_pages,
            failed_save_pages: stats.failed_save_pages,
            dropped_save_pages: stats.dropped_save_pages,
            store_calls: stats.store_calls,
            saves_in_flight: gauges.saves_in_flight,
            loads_in_flight: gauges.loads_in_flight,
            loads_queued: gauges.loads_queued,
            load_queue_ns: nanos(times.queued),
            load_resolve_ns: nanos(times.wall(Phase::Resolve)),
            load_fence_ns: nanos(times.wall(Phase::Fence)),
            load_describe_ns: nanos(times.wall(Phase::Describe)),
            load_get_ns: nanos(times.wall(Phase::Get)),
            load_unstage_ns: nanos(times.wall(Phase::Unstage)),
            load_sync_ns: nanos(times.wall(Phase::Sync)),
            load_resolve_cpu_ns: nanos(times.cpu(Phase::Resolve)),
            load_fence_cpu_ns: nanos(times.cpu(Phase::Fence)),
            load_describe_cpu_ns: nanos(times.cpu(Phase::Describe)),
            load_get_cpu_ns: nanos(times.cpu(Phase::Get)),
            load_unstage_cpu_ns: nanos(times.cpu(Phase::Unstage)),
            load_sync_cpu_ns: nanos(times.cpu(Phase::Sync)),
            breaker_state: match pool.state {
                BreakerState::Closed => KVB_BREAKER_CLOSED,
                BreakerState::Open => KVB_BREAKER_OPEN,
                BreakerState::Probing => KVB_BREAKER_PROBING,
            },
            pool_deadlines: pool.deadlines,
            pool_failures: pool.failures,
            breaker_openings: pool.opened,
            breaker_refusals: pool.refused,
            late_calls_returned: pool.returned,
            late_calls: pool.late,
            quarantined_calls: pool.quarantined,
        });
        Ok(())
    })
}

/// Writes the counters in Prometheus' text format. The text grows with the numbers: leave some
/// room.
///
/// Errors: KVB_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_prometheus(
    worker: *const kvb_worker,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_worker_prometheus", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (worker, buffer) = unsafe {
            (
                handle::shared(worker, "worker")?,
                args::buffer(buffer.cast(), capacity, out_needed)?,
            )
        };
        buffer.text(&worker.common().prometheus())
    })
}
