//! For hosts that load the library with `dlopen`: one symbol, one number to check, one table.

use super::config::*;
use super::explain::*;
use super::fence::kvb_fence;
use super::global::*;
use super::guard::guard_or;
use super::host::kvb_store_table;
use super::keys::*;
use super::layout::*;
use super::log::kvb_log_callback;
use super::metadata::*;
use super::plain::*;
use super::scheduler::*;
use super::stats::*;
use super::status::kvb_status;
use super::store::*;
use super::worker::*;
use crate::error::bail;
use std::ffi::{c_char, c_void};

/// All functions of the library. The order is for good: later versions append. A field lies within
/// the table when its end is within struct_size.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct kvb_api {
    /// Bytes that this library's table has.
    pub struct_size: u32,
    /// KVB_ABI_VERSION of the library.
    pub abi_version: u32,
    /// kvb_version
    pub version: extern "C" fn() -> *const c_char,
    /// kvb_abi_version
    pub get_abi_version: extern "C" fn() -> u32,
    /// kvb_last_error
    pub last_error: unsafe extern "C" fn(
        buffer: *mut c_char,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_set_log
    pub set_log: unsafe extern "C" fn(
        callback_or_null: kvb_log_callback,
        context: *mut c_void,
        max_level: i32,
    ) -> kvb_status,
    /// kvb_config_from_file
    pub config_from_file: unsafe extern "C" fn(
        path_or_null: *const c_char,
        path_size: usize,
        out: *mut *mut kvb_config,
    ) -> kvb_status,
    /// kvb_config_from_json
    pub config_from_json:
        unsafe extern "C" fn(json: *const u8, size: usize, out: *mut *mut kvb_config) -> kvb_status,
    /// kvb_config_render
    pub config_render: unsafe extern "C" fn(
        config: *const kvb_config,
        buffer: *mut c_char,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_config_free
    pub config_free: unsafe extern "C" fn(config: *mut kvb_config),
    /// kvb_layout_new
    pub layout_new:
        unsafe extern "C" fn(mapping_bytes: u64, out: *mut *mut kvb_layout) -> kvb_status,
    /// kvb_layout_add_group
    pub layout_add_group:
        unsafe extern "C" fn(layout: *mut kvb_layout, group: *const kvb_group) -> kvb_status,
    /// kvb_layout_add_region
    pub layout_add_region: unsafe extern "C" fn(
        layout: *mut kvb_layout,
        group_id: u32,
        region: *const kvb_region,
    ) -> kvb_status,
    /// kvb_layout_add_replicated_region
    pub layout_add_replicated_region: unsafe extern "C" fn(
        layout: *mut kvb_layout,
        group_id: u32,
        region: *const kvb_region,
    ) -> kvb_status,
    /// kvb_layout_add_pool
    pub layout_add_pool: unsafe extern "C" fn(
        layout: *mut kvb_layout,
        group_id: u32,
        pool: *const kvb_pool,
    ) -> kvb_status,
    /// kvb_layout_free
    pub layout_free: unsafe extern "C" fn(layout: *mut kvb_layout),
    /// kvb_store_open
    pub store_open: unsafe extern "C" fn(
        config: *const kvb_config,
        engine: *const kvb_engine,
        table_or_null: *const kvb_store_table,
        out: *mut *mut kvb_store,
    ) -> kvb_status,
    /// kvb_store_exist
    pub store_exist: unsafe extern "C" fn(
        store: *const kvb_store,
        keys: *const kvb_bytes,
        count: usize,
        out_presence: *mut i32,
    ) -> kvb_status,
    /// kvb_store_put
    pub store_put: unsafe extern "C" fn(
        store: *const kvb_store,
        keys: *const kvb_bytes,
        values: *const kvb_piece,
        count: usize,
        out_outcomes: *mut i32,
    ) -> kvb_status,
    /// kvb_store_get
    pub store_get: unsafe extern "C" fn(
        store: *const kvb_store,
        keys: *const kvb_bytes,
        buffers: *const kvb_piece,
        count: usize,
        out_outcomes: *mut i32,
        out_sizes: *mut u64,
    ) -> kvb_status,
    /// kvb_store_remove
    pub store_remove: unsafe extern "C" fn(
        store: *const kvb_store,
        keys: *const kvb_bytes,
        count: usize,
        out_outcomes: *mut i32,
    ) -> kvb_status,
    /// kvb_store_stats
    pub store_stats:
        unsafe extern "C" fn(store: *const kvb_store, out: *mut kvb_pool_stats) -> kvb_status,
    /// kvb_store_free
    pub store_free: unsafe extern "C" fn(store: *mut kvb_store),
    /// kvb_worker_new
    pub worker_new: unsafe extern "C" fn(
        config: *const kvb_config,
        engine: *const kvb_engine,
        store_or_null: *mut kvb_store,
        out: *mut *mut kvb_worker,
    ) -> kvb_status,
    /// kvb_worker_declarations
    pub worker_declarations:
        unsafe extern "C" fn(worker: *const kvb_worker, out: *mut kvb_declarations) -> kvb_status,
    /// kvb_worker_register_layout
    pub worker_register_layout:
        unsafe extern "C" fn(worker: *mut kvb_worker, layout: *const kvb_layout) -> kvb_status,
    /// kvb_worker_unregister_layout
    pub worker_unregister_layout: unsafe extern "C" fn(worker: *mut kvb_worker) -> kvb_status,
    /// kvb_worker_lookup
    pub worker_lookup: unsafe extern "C" fn(
        worker: *const kvb_worker,
        hashes: *const u8,
        size: usize,
        out_blocks: *mut usize,
    ) -> kvb_status,
    /// kvb_worker_bind
    pub worker_bind: unsafe extern "C" fn(
        worker: *mut kvb_worker,
        metadata: *const kvb_metadata,
        fence_or_null: *const kvb_fence,
    ) -> kvb_status,
    /// kvb_worker_start_load
    pub worker_start_load:
        unsafe extern "C" fn(worker: *mut kvb_worker, stream: *mut c_void) -> kvb_status,
    /// kvb_worker_wait_for_save
    pub worker_wait_for_save:
        unsafe extern "C" fn(worker: *mut kvb_worker, stream: *mut c_void) -> kvb_status,
    /// kvb_worker_take_failed_loads
    pub worker_take_failed_loads:
        unsafe extern "C" fn(worker: *mut kvb_worker, out_ids: *mut kvb_ids) -> kvb_status,
    /// kvb_worker_get_finished
    pub worker_get_finished: unsafe extern "C" fn(
        worker: *mut kvb_worker,
        finished_ids: *const u64,
        finished_count: usize,
        loading_ids: *const u64,
        loading_count: usize,
        out_saved: *mut kvb_ids,
        out_loaded: *mut kvb_ids,
    ) -> kvb_status,
    /// kvb_worker_take_failed_async_loads
    pub worker_take_failed_async_loads:
        unsafe extern "C" fn(worker: *mut kvb_worker, out_ids: *mut kvb_ids) -> kvb_status,
    /// kvb_worker_stats
    pub worker_stats:
        unsafe extern "C" fn(worker: *const kvb_worker, out: *mut kvb_stats) -> kvb_status,
    /// kvb_worker_prometheus
    pub worker_prometheus: unsafe extern "C" fn(
        worker: *const kvb_worker,
        buffer: *mut c_char,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_worker_shutdown
    pub worker_shutdown:
        unsafe extern "C" fn(worker: *mut kvb_worker, deadline_ms: u64) -> kvb_status,
    /// kvb_worker_free
    pub worker_free: unsafe extern "C" fn(worker: *mut kvb_worker),
    /// kvb_scheduler_new
    pub scheduler_new: unsafe extern "C" fn(
        config: *const kvb_config,
        engine: *const kvb_engine,
        worker: *mut kvb_worker,
        out: *mut *mut kvb_scheduler,
    ) -> kvb_status,
    /// kvb_scheduler_match
    pub scheduler_match: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        request: *const kvb_request,
        local_tokens: u64,
        out_tokens: *mut u64,
        out_is_async: *mut bool,
    ) -> kvb_status,
    /// kvb_scheduler_allocated
    pub scheduler_allocated: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        request_id: u64,
        honoured_tokens: u64,
        pages: *const kvb_group_pages,
        page_lists: usize,
    ) -> kvb_status,
    /// kvb_scheduler_cancel_load
    pub scheduler_cancel_load: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        request_id: u64,
        from_token: u64,
        to_token: u64,
    ) -> kvb_status,
    /// kvb_scheduler_build
    pub scheduler_build: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        pass: *const kvb_pass,
        out: *mut *mut kvb_metadata,
    ) -> kvb_status,
    /// kvb_scheduler_finished
    pub scheduler_finished: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        request_id: u64,
        reason: i32,
        out_pinned: *mut bool,
    ) -> kvb_status,
    /// kvb_scheduler_reset
    pub scheduler_reset:
        unsafe extern "C" fn(scheduler: *mut kvb_scheduler, request_id: u64) -> kvb_status,
    /// kvb_scheduler_free
    pub scheduler_free: unsafe extern "C" fn(scheduler: *mut kvb_scheduler),
    /// kvb_metadata_encode
    pub metadata_encode: unsafe extern "C" fn(
        metadata: *const kvb_metadata,
        buffer: *mut u8,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_metadata_decode
    pub metadata_decode: unsafe extern "C" fn(
        bytes: *const u8,
        size: usize,
        out: *mut *mut kvb_metadata,
    ) -> kvb_status,
    /// kvb_metadata_summary
    pub metadata_summary:
        unsafe extern "C" fn(metadata: *const kvb_metadata, out: *mut kvb_summary) -> kvb_status,
    /// kvb_metadata_free
    pub metadata_free: unsafe extern "C" fn(metadata: *mut kvb_metadata),
    /// kvb_keys_hash_blocks
    pub keys_hash_blocks: unsafe extern "C" fn(
        scheme: i32,
        request: *const kvb_request,
        tokens_per_block: u32,
        lookahead: u32,
        buffer: *mut u8,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_keys_page_key
    pub keys_page_key: unsafe extern "C" fn(
        config: *const kvb_config,
        engine: *const kvb_engine,
        layout: *const kvb_layout,
        group_id: u32,
        rank: i32,
        hash: *const u8,
        hash_size: usize,
        buffer: *mut c_char,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_scheduler_reserve
    pub scheduler_reserve: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        request: *const kvb_request,
        local_tokens: u64,
        reservation_id: u64,
        out_tokens: *mut u64,
        out_is_async: *mut bool,
    ) -> kvb_status,
    /// kvb_scheduler_release_reservation
    pub scheduler_release_reservation: unsafe extern "C" fn(
        scheduler: *mut kvb_scheduler,
        reservation_id: u64,
        from_token: u64,
        to_token: u64,
    ) -> kvb_status,
    /// kvb_worker_explain
    pub worker_explain: unsafe extern "C" fn(
        worker: *const kvb_worker,
        request: *const kvb_request,
        local_tokens: u64,
        out: *mut kvb_explanation,
        buffer: *mut c_char,
        capacity: usize,
        out_needed: *mut usize,
    ) -> kvb_status,
    /// kvb_store_wrap_faulty
    pub store_wrap_faulty: unsafe extern "C" fn(
        store: *const kvb_store,
        script: *const u8,
        script_size: usize,
        out: *mut *mut kvb_store,
    ) -> kvb_status,
    /// kvb_store_put_with_options
    pub store_put_with_options: unsafe extern "C" fn(
        store: *const kvb_store,
        keys: *const kvb_bytes,
        values: *const kvb_piece,
        count: usize,
        options_or_null: *const kvb_put_options,
        out_outcomes: *mut i32,
    ) -> kvb_status,
}

static API: kvb_api = kvb_api {
    struct_size: size_of::<kvb_api>() as u32,
    abi_version: KVB_ABI_VERSION,
    version: kvb_version,
    get_abi_version: kvb_abi_version,
    last_error: kvb_last_error,
    set_log: kvb_set_log,
    config_from_file: kvb_config_from_file,
    config_from_json: kvb_config_from_json,
    config_render: kvb_config_render,
    config_free: kvb_config_free,
    layout_new: kvb_layout_new,
    layout_add_group: kvb_layout_add_group,
    layout_add_region: kvb_layout_add_region,
    layout_add_replicated_region: kvb_layout_add_replicated_region,
    layout_add_pool: kvb_layout_add_pool,
    layout_free: kvb_layout_free,
    store_open: kvb_store_open,
    store_exist: kvb_store_exist,
    store_put: kvb_store_put,
    store_get: kvb_store_get,
    store_remove: kvb_store_remove,
    store_stats: kvb_store_stats,
    store_free: kvb_store_free,
    worker_new: kvb_worker_new,
    worker_declarations: kvb_worker_declarations,
    worker_register_layout: kvb_worker_register_layout,
    worker_unregister_layout: kvb_worker_unregister_layout,
    worker_lookup: kvb_worker_lookup,
    worker_bind: kvb_worker_bind,
    worker_start_load: kvb_worker_start_load,
    worker_wait_for_save: kvb_worker_wait_for_save,
    worker_take_failed_loads: kvb_worker_take_failed_loads,
    worker_get_finished: kvb_worker_get_finished,
    worker_take_failed_async_loads: kvb_worker_take_failed_async_loads,
    worker_stats: kvb_worker_stats,
    worker_prometheus: kvb_worker_prometheus,
    worker_shutdown: kvb_worker_shutdown,
    worker_free: kvb_worker_free,
    scheduler_new: kvb_scheduler_new,
    scheduler_match: kvb_scheduler_match,
    scheduler_allocated: kvb_scheduler_allocated,
    scheduler_cancel_load: kvb_scheduler_cancel_load,
    scheduler_build: kvb_scheduler_build,
    scheduler_finished: kvb_scheduler_finished,
    scheduler_reset: kvb_scheduler_reset,
    scheduler_free: kvb_scheduler_free,
    metadata_encode: kvb_metadata_encode,
    metadata_decode: kvb_metadata_decode,
    metadata_summary: kvb_metadata_summary,
    metadata_free: kvb_metadata_free,
    keys_hash_blocks: kvb_keys_hash_blocks,
    keys_page_key: kvb_keys_page_key,
    scheduler_reserve: kvb_scheduler_reserve,
    scheduler_release_reservation: kvb_scheduler_release_reservation,
    worker_explain: kvb_worker_explain,
    store_wrap_faulty: kvb_store_wrap_faulty,
    store_put_with_options: kvb_store_put_with_options,
};

/// The table of all functions, for hosts that load the library with dlopen: look this symbol up
/// and pass the KVB_ABI_VERSION that the host was built with. The table lives as long as the
/// process, also after dlclose, since the library stays mapped.
///
/// Threads: any. Answers NULL when the library does not speak that version; the reason is the text
/// of kvb_last_error, which is a symbol too.
#[unsafe(no_mangle)]
pub extern "C" fn kvb_plugin_entry(abi_version: u32) -> *const kvb_api {
    guard_or("kvb_plugin_entry", std::ptr::null(), || {
        if abi_version != KVB_ABI_VERSION {
            bail!(
                Unsupported,
                "the host was built for version {abi_version} of the interface, this library has {KVB_ABI_VERSION}"
            );
        }
        Ok(&raw const API)
    })
}
