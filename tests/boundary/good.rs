//! The values with which every function succeeds.

use crate::world::{BLOCK, World};

impl World {
    /// The bytes of a list that is no list of structs.
    pub fn bytes(&self, owner: &str, name: &str, path: &str) -> Vec<u8> {
        match name {
            "path" => self.path.clone().into_bytes(),
            "json" => br#"{"model_key": "m"}"#.to_vec(),
            "script" => br#"{"faults": [{"fault": "lose", "count": 1}]}"#.to_vec(),
            "bytes" => self.encoded.clone(),
            "hashes" | "hash" => vec![7; 32],
            "media_digests" => vec![9; 32],
            "finished_ids" => [1_u64, 2].iter().flat_map(|id| id.to_ne_bytes()).collect(),
            // None is what this build takes.
            "loading_ids" => Vec::new(),
            "layer_ids" => [0_u32, 1].iter().flat_map(|id| id.to_ne_bytes()).collect(),
            "indices" => [0_i32, 1].iter().flat_map(|id| id.to_ne_bytes()).collect(),
            "data" if owner == "kvb_tokens" => {
                (0..2 * BLOCK as i32).flat_map(i32::to_ne_bytes).collect()
            }
            "data" if path.contains("number_format") => b"bfloat16".to_vec(),
            "data" => b"some".to_vec(),
            other => panic!("no bytes for {path} ({other}); add them here"),
        }
    }
}

/// A value with which the function succeeds; 0 for most.
pub fn good(owner: &str, name: &str) -> u64 {
    match (owner, name) {
        ("kvb_engine" | "kvb_keys_hash_blocks", "tokens_per_block") => BLOCK,
        ("kvb_engine", "tp_size") => 1,
        ("kvb_request", "request_id") => 7,
        ("kvb_request", "has_cache_salt" | "has_lora_identity" | "has_media") => 1,
        ("kvb_step", "scheduled_tokens") => 2 * BLOCK,
        ("kvb_region", "size" | "stride") => 64,
        ("kvb_region", "slot_count") => 16,
        ("kvb_pool", "num_blocks" | "num_layers" | "kv_factor") => 2,
        ("kvb_pool", "block_size" | "element_bits") => 16,
        ("kvb_piece", "size") => 64,
        ("kvb_set_log", "max_level") => 1,
        ("kvb_plugin_entry", "abi_version") => 1,
        _ => 0,
    }
}
