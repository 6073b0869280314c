//! The cost of the C boundary: one call for many keys against one call for each.
#![allow(
    unsafe_code,
    reason = "the library is called here as a host in C calls it"
)]

use std::hint::black_box;
use std::ptr::{null, null_mut};

use kvbridge::ffi::config::kvb_config_from_json;
use kvbridge::ffi::plain::{kvb_bytes, kvb_engine};
use kvbridge::ffi::status::kvb_status;
use kvbridge::ffi::store::{kvb_store, kvb_store_exist, kvb_store_open};

use super::{Outcome, Pair, timed};

type Exist =
    unsafe extern "C" fn(*const kvb_store, *const kvb_bytes, usize, *mut i32) -> kvb_status;

/// Keys of a prompt's lookup, and the store that is asked; both for as long as the process runs.
struct Asked {
    store: *const kvb_store,
    keys: Vec<kvb_bytes>,
    answers: Vec<i32>,
    /// Not to be inlined: a host cannot either.
    exist: Exist,
}

impl Asked {
    fn new(count: usize) -> Outcome<Self> {
        let json = br#"{"model_key": "bench", "global_segment_size": "1MiB", "kvbridge": {"pool": "bench-abi"}}"#;
        let engine = kvb_engine {
            struct_size: size_of::<kvb_engine>() as u32,
            tokens_per_block: 32,
            tp_rank: 0,
            tp_size: 1,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            serving: 0,
            drafter: 0,
            max_draft_len: -1,
            device_kind: 0,
            device_ordinal: 0,
            attention_dp: 0,
            draft_shares_cache: 0,
            supplies_fences: 0,
        };
        let (mut config, mut store) = (null_mut(), null_mut());
        // SAFETY: the pointers are to locals of the right types that outlive the calls.
        let opened = unsafe {
            kvb_config_from_json(json.as_ptr(), json.len(), &mut config);
            kvb_store_open(config, &engine, null(), &mut store)
        };
        if store.is_null() {
            return Err(format!("the store was not opened: {opened:?}").into());
        }
        let keys = (0..count)
            .map(|number| {
                let digest = blake3::hash(&number.to_le_bytes());
                let key = format!("kvb1/trtllm/bench/{}/{}", "0".repeat(32), digest.to_hex());
                // Kept for good, as raw pointers go to it.
                let key: &'static [u8] = Vec::leak(key.into_bytes());
                kvb_bytes {
                    data: key.as_ptr(),
                    size: key.len(),
                }
            })
            .collect();
        Ok(Self {
            store,
            keys,
            answers: vec![0; count],
            exist: black_box(kvb_store_exist),
        })
    }

    fn ask(&mut self, per_call: usize) {
        for (keys, answers) in self
            .keys
            .chunks(per_call)
            .zip(self.answers.chunks_mut(per_call))
        {
            // SAFETY: the store is never freed; keys and answers are live lists of equal length.
            unsafe { (self.exist)(self.store, keys.as_ptr(), keys.len(), answers.as_mut_ptr()) };
        }
        black_box(&self.answers);
    }
}

pub fn pairs(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    const KEYS: usize = 4096;
    let (mut batch, mut single) = (Asked::new(KEYS)?, Asked::new(KEYS)?);
    each(Pair {
        row: "abi",
        workload: format!("kvb_store_exist, {KEYS} keys"),
        against: "× per-key calls",
        units: KEYS,
        ours: timed(1, move || batch.ask(KEYS)),
        contender: timed(1, move || single.ask(1)),
    })
}
