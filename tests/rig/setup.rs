//! What a rig is made from: the engine, its configuration, the shape of its pages; prompts.

use super::T;
use kvbridge::config::Config;
use kvbridge::engine::{DeviceChoice, Drafter, Engine, Serving};
use kvbridge::keys::{Scope, Tokens};
use kvbridge::scheduler::Request;

/// One layer group: region sizes of its two parts.
#[derive(Clone)]
pub struct GroupShape {
    pub id: u32,
    pub sharded: Vec<u64>,
    pub replicated: Vec<u64>,
}

#[derive(Clone)]
pub struct Setup {
    /// Tensor-parallel ranks, or 1.
    pub world: u32,
    /// Attention DP: this owner among so many.
    pub owner: Option<(u32, u32)>,
    pub serving: Serving,
    pub drafter: Drafter,
    pub role: &'static str,
    pub namespace: &'static str,
    pub scheme: &'static str,
    pub format: &'static str,
    pub batch: u32,
    pub staging: u64,
    pub save_timeout_ms: u64,
    pub async_load: bool,
    pub supplies_fences: bool,
    /// More fields of the configuration, each with a comma behind it.
    pub more: &'static str,
    /// The same for the part that is only this library's.
    pub kvbridge: &'static str,
    pub chunk: u32,
    pub groups: Vec<GroupShape>,
    pub slots: u64,
    /// Size of the mappings that the layout claims.
    pub mapping: u64,
    /// The pool claims to honour pins and groups.
    pub pins: bool,
    pub stepped: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            world: 1,
            owner: None,
            serving: Serving::Aggregated,
            drafter: Drafter::None,
            role: "both",
            namespace: "ns",
            scheme: "kvb1",
            format: "bfloat16",
            batch: 4,
            staging: 65536,
            save_timeout_ms: 20_000,
            async_load: false,
            supplies_fences: false,
            more: "",
            kvbridge: "",
            chunk: 512,
            groups: vec![GroupShape {
                id: 0,
                sharded: vec![96, 32],
                replicated: Vec::new(),
            }],
            slots: 256,
            mapping: 0,
            pins: false,
            stepped: true,
        }
    }
}

impl Setup {
    pub fn config(&self) -> Config {
        let text = format!(
            r#"{{{} "model_key": "m", "role": "{}", "namespace": "{}", "transfer_batch_size": {},
                "staging_buffer_bytes": {}, "async_load": {},
                "kvbridge": {{{} "key_scheme": "{}", "lookup_chunk_blocks": {}, "save_timeout_ms": {}}}}}"#,
            self.more,
            self.role,
            self.namespace,
            self.batch,
            self.staging,
            self.async_load,
            self.kvbridge,
            self.scheme,
            self.chunk,
            self.save_timeout_ms
        );
        Config::from_json(text.as_bytes()).unwrap()
    }

    pub fn engine(&self, rank: u32) -> Engine {
        let (tp_rank, tp_size) = self.owner.unwrap_or((rank, self.world));
        Engine {
            tokens_per_block: T as u32,
            tp_rank,
            tp_size,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            attention_dp: self.owner.is_some(),
            serving: self.serving,
            drafter: self.drafter,
            max_draft_len: Some(3),
            draft_shares_cache: true,
            supplies_fences: self.supplies_fences,
            device: DeviceChoice::Host,
        }
    }
}

/// Two layer groups that make three kinds of pages: the first one has a replicated part, the second
/// one two regions.
pub fn two_groups() -> Vec<GroupShape> {
    vec![
        GroupShape {
            id: 3,
            sharded: vec![64],
            replicated: vec![40],
        },
        GroupShape {
            id: 9,
            sharded: vec![24, 16],
            replicated: Vec::new(),
        },
    ]
}

/// Tokens of one prompt; equal numbers give equal tokens.
pub fn prompt(kind: i32, tokens: usize) -> Vec<i32> {
    (0..tokens as i32).map(|i| kind * 100_003 + i).collect()
}

pub fn request<'a>(id: u64, tokens: &'a [i32]) -> Request<'a> {
    Request {
        id,
        prompt: Tokens::I32(tokens),
        scope: Scope::default(),
        has_media: false,
        context_only: true,
    }
}
