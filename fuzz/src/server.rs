//! One server of a single rank on host memory, called as a host calls it.

use crate::edge::Fenced;
use kvbridge::ffi::config::{kvb_config, kvb_config_from_json};
use kvbridge::ffi::global::{kvb_last_error, kvb_set_log};
use kvbridge::ffi::layout::{
    kvb_group, kvb_layout, kvb_layout_add_group, kvb_layout_add_region, kvb_layout_new, kvb_region,
};
use kvbridge::ffi::metadata::{
    kvb_metadata, kvb_metadata_decode, kvb_metadata_encode, kvb_metadata_free,
    kvb_metadata_summary, kvb_summary,
};
use kvbridge::ffi::plain::{
    KVB_TOKENS_INT32, kvb_bytes, kvb_engine, kvb_group_pages, kvb_ids, kvb_request, kvb_tokens,
};
use kvbridge::ffi::scheduler::{
    kvb_pass, kvb_scheduler, kvb_scheduler_allocated, kvb_scheduler_build, kvb_scheduler_finished,
    kvb_scheduler_free, kvb_scheduler_match, kvb_scheduler_new, kvb_step,
};
use kvbridge::ffi::stats::{kvb_stats, kvb_worker_stats};
use kvbridge::ffi::status::{KVB_MALFORMED, KVB_OK, KVB_PANIC, KVB_POISONED, kvb_status};
use kvbridge::ffi::store::{kvb_store, kvb_store_open};
use kvbridge::ffi::worker::{
    kvb_worker, kvb_worker_bind, kvb_worker_free, kvb_worker_get_finished, kvb_worker_new,
    kvb_worker_register_layout, kvb_worker_shutdown, kvb_worker_start_load,
    kvb_worker_take_failed_loads, kvb_worker_wait_for_save,
};
use kvbridge::metadata::Metadata;
use std::ffi::{c_char, c_void};
use std::mem::zeroed;
use std::ptr;

const CONFIG: &[u8] = br#"{"model_key": "m", "global_segment_size": "1MiB",
    "staging_buffer_bytes": "64KiB", "kvbridge": {"pool": "fuzz"}}"#;
const TOKENS_PER_BLOCK: u32 = 4;
const SLOTS: u64 = 16;
const ROOM: usize = 4096;
/// What no call may change.
const FILL: u8 = 0xee;

/// A layer group: its id and the bytes and distance of its slots.
const GROUPS: [(u32, u64, u64); 2] = [(0, 48, 64), (5, 80, 128)];

/// The text of the calling thread's latest failure.
pub fn last_error() -> String {
    let mut text = [0_u8; 4096];
    // SAFETY: the buffer has the room that is said; no length is asked for.
    unsafe { kvb_last_error(text.as_mut_ptr().cast(), text.len(), ptr::null_mut()) };
    let end = text.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&text[..end]).into_owned()
}

fn must(status: kvb_status) {
    assert_eq!(status, KVB_OK, "{}", last_error());
}

/// Whether it went well; a defect of the library is one here too.
fn may_fail(status: kvb_status) -> bool {
    let text = last_error();
    assert!(status != KVB_PANIC && status != KVB_POISONED, "{text}");
    assert!(status == KVB_OK || !text.is_empty());
    status == KVB_OK
}

/// A thread of the library that panics is only logged.
unsafe extern "C-unwind" fn listen(
    _: *mut c_void,
    _: i32,
    _: *const c_char,
    _: usize,
    message: *const c_char,
    size: usize,
) {
    // SAFETY: a text that is valid during the call.
    let text = unsafe { std::slice::from_raw_parts(message.cast::<u8>(), size) };
    let text = String::from_utf8_lossy(text);
    if text.contains("panicked") {
        eprintln!("{text}");
        std::process::abort();
    }
}

/// Configuration, cache memory and a pool that holds some pages. Workers are made per input, so
/// that a failure needs no other input than its own.
pub struct Server {
    config: *mut kvb_config,
    engine: kvb_engine,
    layout: *mut kvb_layout,
    store: *mut kvb_store,
    cache: Fenced,
    /// Bytes of the cache that belong to slots.
    slots: Vec<bool>,
}

impl Server {
    /// Opens it, and serves the prompt that the examples match.
    #[expect(clippy::new_without_default, reason = "it opens a pool")]
    pub fn new() -> Self {
        let mut cache = Fenced::new(ROOM);
        let start = cache.bytes().as_mut_ptr() as u64;
        let mut slots = vec![false; ROOM];
        // SAFETY: all lists and places are as the header says, and handles live as long as the server.
        let mut server = unsafe {
            must(kvb_set_log(Some(listen), ptr::null_mut(), 1));
            let mut config = ptr::null_mut();
            must(kvb_config_from_json(
                CONFIG.as_ptr(),
                CONFIG.len(),
                &mut config,
            ));
            let mut engine: kvb_engine = zeroed();
            engine.struct_size = size_of::<kvb_engine>() as u32;
            engine.tokens_per_block = TOKENS_PER_BLOCK;
            engine.tp_size = 1;
            let mut layout = ptr::null_mut();
            must(kvb_layout_new(0, &mut layout));
            for (position, (id, size, stride)) in GROUPS.into_iter().enumerate() {
                let format = b"float16";
                let mut group: kvb_group = zeroed();
                group.id = id;
                group.number_format = kvb_bytes {
                    data: format.as_ptr(),
                    size: format.len(),
                };
                group.layer_ids = &id;
                group.layer_count = 1;
                must(kvb_layout_add_group(layout, &group));
                // The first group begins, the last one ends where the memory does.
                let offset = match position {
                    0 => 0,
                    _ => ROOM as u64 - (SLOTS - 1) * stride - size,
                };
                let region = kvb_region {
                    base: start + offset,
                    size,
                    stride,
                    slot_count: SLOTS,
                    reservation_base: 0,
                };
                must(kvb_layout_add_region(layout, id, &region));
                for slot in 0..SLOTS {
                    let first = (offset + slot * stride) as usize;
                    slots[first..first + size as usize].fill(true);
                }
            }
            let mut store = ptr::null_mut();
            must(kvb_store_open(config, &engine, ptr::null(), &mut store));
            Self {
                config,
                engine,
                layout,
                store,
                cache,
                slots,
            }
        };
        server.examples();
        server
    }

    fn worker(&self) -> *mut kvb_worker {
        let mut worker = ptr::null_mut();
        // SAFETY: the handles are alive; the cache memory outlives every worker.
        unsafe {
            must(kvb_worker_new(
                self.config,
                &self.engine,
                self.store,
                &mut worker,
            ));
            must(kvb_worker_register_layout(worker, self.layout));
        }
        worker
    }

    fn settle(worker: *const kvb_worker) {
        loop {
            // SAFETY: integers; the handle is alive.
            let stats = unsafe {
                let mut stats: kvb_stats = zeroed();
                stats.struct_size = size_of::<kvb_stats>() as u32;
                must(kvb_worker_stats(worker, &mut stats));
                stats
            };
            if stats.saves_in_flight == 0 {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Decodes these bytes, and does with them all that an engine does with a pass.
    pub fn receive(&mut self, data: &[u8]) {
        let mut memory = Fenced::new(data.len());
        let bytes = memory.put(data);
        let mut metadata = ptr::null_mut();
        // SAFETY: the bytes are as many as said, and a summary is integers.
        let summary = unsafe {
            let status = kvb_metadata_decode(bytes.as_ptr(), bytes.len(), &mut metadata);
            if status != KVB_OK {
                assert_eq!(status, KVB_MALFORMED, "{}", last_error());
                assert!(metadata.is_null());
                return;
            }
            let mut summary: kvb_summary = zeroed();
            summary.struct_size = size_of::<kvb_summary>() as u32;
            must(kvb_metadata_summary(metadata, &mut summary));
            summary
        };
        assert!(summary.load_blocks <= data.len() as u64);
        assert!(summary.save_blocks <= data.len() as u64);
        assert_eq!(encoded(metadata), data);
        self.pass(metadata, &ids(data));
        // SAFETY: made above, freed once.
        unsafe { kvb_metadata_free(metadata) };
    }

    fn pass(&mut self, metadata: *mut kvb_metadata, ids: &[u64]) {
        self.cache.bytes().fill(FILL);
        let worker = self.worker();
        // SAFETY: the handles are alive, lists and places are as the header says.
        unsafe {
            let mut found: kvb_ids = zeroed();
            let mut other: kvb_ids = zeroed();
            // Twice: what ended in the first pass must not come to life in the second.
            for _ in 0..2 {
                must(kvb_worker_bind(worker, metadata, ptr::null()));
                may_fail(kvb_worker_start_load(worker, ptr::null_mut()));
                must(kvb_worker_take_failed_loads(worker, &mut found));
                may_fail(kvb_worker_wait_for_save(worker, ptr::null_mut()));
                for announced in [ids, &[]] {
                    must(kvb_worker_get_finished(
                        worker,
                        announced.as_ptr(),
                        announced.len(),
                        ptr::null(),
                        0,
                        &mut found,
                        &mut other,
                    ));
                    assert!(found.count <= ids.len());
                    Self::settle(worker);
                }
            }
            must(kvb_worker_shutdown(worker, 10_000));
            kvb_worker_free(worker);
        }
        let memory = self.cache.bytes();
        for (at, byte) in memory.iter().enumerate() {
            assert!(
                self.slots[at] || *byte == FILL,
                "byte {at} of the cache memory was written"
            );
        }
    }

    /// Metadata of passes that a scheduler built, with names: what a prompt saves, and what the
    /// same prompts load. The hashes in it are in the pool afterwards.
    pub fn examples(&mut self) -> Vec<(&'static str, Vec<u8>)> {
        let worker = self.worker();
        let mut scheduler = ptr::null_mut();
        // SAFETY: the handles are alive.
        unsafe {
            must(kvb_scheduler_new(
                self.config,
                &self.engine,
                worker,
                &mut scheduler,
            ));
        }
        let mut found = Vec::new();
        let long: Vec<i32> = (1..=22).collect();
        let short = &long[..9];
        let other: Vec<i32> = (50..67).collect();
        for (name, prompts) in [
            ("idle", &[][..]),
            ("saves", &[(1, &long[..])][..]),
            ("loads", &[(2, &long[..])][..]),
            ("both", &[(3, short), (4, &other[..])][..]),
            ("two-loads", &[(5, &long[..]), (6, &other[..])][..]),
        ] {
            let metadata = build(scheduler, prompts);
            found.push((name, encoded(metadata)));
            // SAFETY: the handles are alive, lists and places are as the header says.
            unsafe {
                must(kvb_worker_bind(worker, metadata, ptr::null()));
                must(kvb_worker_start_load(worker, ptr::null_mut()));
                must(kvb_worker_wait_for_save(worker, ptr::null_mut()));
                kvb_metadata_free(metadata);
                for (id, _) in prompts {
                    let mut pinned = false;
                    must(kvb_scheduler_finished(scheduler, *id, 0, &mut pinned));
                }
            }
            Self::settle(worker);
        }
        // SAFETY: made above, freed once.
        unsafe {
            must(kvb_worker_shutdown(worker, 10_000));
            kvb_scheduler_free(scheduler);
            kvb_worker_free(worker);
        }
        found
    }
}

fn tokens(list: &[i32]) -> kvb_tokens {
    kvb_tokens {
        data: list.as_ptr().cast(),
        count: list.len(),
        element_type: KVB_TOKENS_INT32,
    }
}

/// A pass in which these prompts are new.
fn build(scheduler: *mut kvb_scheduler, prompts: &[(u64, &[i32])]) -> *mut kvb_metadata {
    let pages: Vec<i32> = (0..SLOTS as i32).collect();
    let mut first = 0;
    let mut lists = Vec::new();
    let mut honoured = Vec::new();
    for (id, prompt) in prompts {
        let blocks = prompt.len().div_ceil(TOKENS_PER_BLOCK as usize);
        // SAFETY: integers and pointers that are then set; all lists live during the calls.
        unsafe {
            let mut request: kvb_request = zeroed();
            request.struct_size = size_of::<kvb_request>() as u32;
            request.request_id = *id;
            request.prompt = tokens(prompt);
            let (mut offered, mut is_async) = (0, false);
            must(kvb_scheduler_match(
                scheduler,
                &request,
                0,
                &mut offered,
                &mut is_async,
            ));
            let own = GROUPS.map(|(group_id, ..)| kvb_group_pages {
                group_id,
                first_block: 0,
                indices: pages[first..].as_ptr(),
                count: blocks,
                replace: 0,
            });
            must(kvb_scheduler_allocated(
                scheduler,
                *id,
                offered,
                own.as_ptr(),
                own.len(),
            ));
            lists.push(own);
            honoured.push(offered);
        }
        first += blocks;
    }
    // SAFETY: as above.
    unsafe {
        let mut steps = Vec::new();
        for (((id, prompt), own), offered) in prompts.iter().zip(&lists).zip(honoured) {
            let mut step: kvb_step = zeroed();
            step.request_id = *id;
            step.new_tokens = tokens(prompt);
            step.pages = own.as_ptr();
            step.page_lists = own.len();
            step.scheduled_tokens = prompt.len() as u64 - offered;
            steps.push(step);
        }
        let mut pass: kvb_pass = zeroed();
        pass.struct_size = size_of::<kvb_pass>() as u32;
        pass.steps = steps.as_ptr();
        pass.step_count = steps.len();
        let mut metadata = ptr::null_mut();
        must(kvb_scheduler_build(scheduler, &pass, &mut metadata));
        metadata
    }
}

fn encoded(metadata: *const kvb_metadata) -> Vec<u8> {
    let mut needed = 0;
    // SAFETY: the handle is alive, the buffer has the room that is said.
    unsafe {
        kvb_metadata_encode(metadata, ptr::null_mut(), 0, &mut needed);
        let mut bytes = vec![0; needed];
        must(kvb_metadata_encode(
            metadata,
            bytes.as_mut_ptr(),
            needed,
            &mut needed,
        ));
        bytes
    }
}

/// The requests in these bytes.
fn ids(bytes: &[u8]) -> Vec<u64> {
    let mut ids = Vec::new();
    if let Ok(metadata) = Metadata::decode(bytes) {
        for transfers in [metadata.loads(), metadata.saves()] {
            ids.extend(transfers.runs().iter().map(|run| run.request_id));
        }
    }
    ids
}
