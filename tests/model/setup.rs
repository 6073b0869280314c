//! The engines that histories run on: who takes part, and which pages a block has.

use kvbridge::config::Config;
use kvbridge::engine::{DeviceChoice, Drafter, Engine, Serving};
use kvbridge::layout::Part;

use crate::random::{Rng, mix};

/// Tokens per block.
pub const T: usize = 4;
/// Bytes of every page: eight per token.
pub const PAGE: usize = 8 * T;

/// One kind of page that a block has.
pub struct Kind {
    /// Position of its layer group.
    pub group: usize,
    pub part: Part,
    /// Sizes of its regions, together [`PAGE`].
    pub regions: &'static [u64],
}

/// One server: a scheduler and the ranks that it decides for.
pub struct Place {
    /// Attention DP: this owner among so many.
    pub owner: Option<(u32, u32)>,
    /// A context server: prefill only.
    pub context: bool,
    pub role: &'static str,
}

pub struct Setup {
    pub name: &'static str,
    pub servers: &'static [Place],
    /// Tensor-parallel ranks of each server.
    pub world: u32,
    /// Ids of the layer groups.
    pub groups: &'static [u32],
    /// In the order of groups, the sharded part first.
    pub kinds: &'static [Kind],
    /// The last group loses its oldest pages.
    pub windowed: bool,
    pub lookahead: usize,
    /// Keys of the scheme `trtllm` and raw pages, whose damage nobody can see.
    pub raw: bool,
}

const PLAIN: Kind = Kind {
    group: 0,
    part: Part::Sharded,
    regions: &[32],
};
const TWO: &[Kind] = &[
    PLAIN,
    Kind {
        group: 0,
        part: Part::Replicated,
        regions: &[32],
    },
    Kind {
        group: 1,
        part: Part::Sharded,
        regions: &[8, 24],
    },
];
const SPLIT: &[Kind] = &[
    Kind {
        group: 0,
        part: Part::Sharded,
        regions: &[16, 16],
    },
    Kind {
        group: 0,
        part: Part::Replicated,
        regions: &[32],
    },
];

const fn server(owner: Option<(u32, u32)>, context: bool, role: &'static str) -> Place {
    Place {
        owner,
        context,
        role,
    }
}

pub const SETUPS: &[Setup] = &[
    Setup {
        name: "one rank",
        servers: &[server(None, false, "both")],
        world: 1,
        groups: &[0],
        kinds: &[PLAIN],
        windowed: false,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "one rank, a window",
        servers: &[server(None, false, "both")],
        world: 1,
        groups: &[3, 9],
        kinds: TWO,
        windowed: true,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "two TP ranks, a window",
        servers: &[server(None, false, "both")],
        world: 2,
        groups: &[3, 9],
        kinds: TWO,
        windowed: true,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "four TP ranks",
        servers: &[server(None, false, "both")],
        world: 4,
        groups: &[5],
        kinds: SPLIT,
        windowed: false,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "two ADP owners",
        servers: &[
            server(Some((0, 2)), true, "both"),
            server(Some((1, 2)), true, "both"),
        ],
        world: 1,
        groups: &[3, 9],
        kinds: TWO,
        windowed: false,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "two ADP owners and a server of one rank that reads",
        servers: &[
            server(Some((0, 2)), true, "both"),
            server(Some((1, 2)), true, "producer"),
            server(None, false, "consumer"),
        ],
        world: 1,
        groups: &[0],
        kinds: &[PLAIN],
        windowed: false,
        lookahead: 0,
        raw: false,
    },
    Setup {
        name: "one rank with a draft layer",
        servers: &[server(None, true, "both")],
        world: 1,
        groups: &[0],
        kinds: SPLIT,
        windowed: false,
        lookahead: 1,
        raw: false,
    },
    Setup {
        name: "two TP ranks, raw pages",
        servers: &[server(None, false, "both")],
        world: 2,
        groups: &[3, 9],
        kinds: TWO,
        windowed: false,
        lookahead: 0,
        raw: true,
    },
    Setup {
        name: "one rank, raw pages",
        servers: &[server(None, false, "both")],
        world: 1,
        groups: &[5],
        kinds: SPLIT,
        windowed: false,
        lookahead: 0,
        raw: true,
    },
];

/// How the servers of a history are driven.
#[derive(Clone, Copy, Default)]
pub struct Ways {
    /// Requests wait for their loads outside the batch.
    pub parks: bool,
    /// Load threads.
    pub workers: usize,
    /// Each metadata is bound with a fence.
    pub fences: bool,
    /// Offers are held by reservations.
    pub reserves: bool,
    /// The engine sleeps now and then.
    pub sleeps: bool,
    /// Calls of the pool may miss their deadline.
    pub late: bool,
    /// The pool uses the cache itself.
    pub direct: bool,
}

impl Ways {
    pub fn new(seed: u64, setup: &Setup, threads: bool) -> Self {
        let mut rng = Rng::new(mix(seed, 0x7761));
        let parks = rng.chance(1, 2);
        let direct = rng.chance(1, 2) && setup.raw;
        Self {
            parks,
            workers: 1 + rng.below(3),
            fences: rng.chance(1, 2) && parks,
            reserves: rng.chance(1, 3),
            sleeps: rng.chance(1, 4),
            // With threads a deadline would have to pass by the machine's clock.
            late: rng.chance(1 + usize::from(direct), 4) && !threads,
            direct,
        }
    }
}

impl Setup {
    pub fn ranks(&self) -> usize {
        self.servers.len() * self.world as usize
    }

    pub fn group_kinds(&self, group: usize) -> impl Iterator<Item = usize> {
        (0..self.kinds.len()).filter(move |&kind| self.kinds[kind].group == group)
    }

    pub fn config(&self, place: &Place, ways: &Ways) -> Config {
        let text = format!(
            r#"{{"model_key": "m", "role": "{}", "namespace": "model", "transfer_batch_size": 3,
                "staging_buffer_bytes": 4096, "stage_through_host": {},
                "async_load": {}, "async_load_workers": {},
                "kvbridge": {{"lookup_chunk_blocks": 2, "key_scheme": "{}"}}}}"#,
            place.role,
            !ways.direct,
            ways.parks,
            ways.workers.max(1),
            if self.raw { "trtllm" } else { "kvb1" }
        );
        Config::from_json(text.as_bytes()).unwrap()
    }

    pub fn engine(&self, place: &Place, rank: u32, ways: &Ways) -> Engine {
        let (tp_rank, tp_size) = place.owner.unwrap_or((rank, self.world));
        Engine {
            tokens_per_block: T as u32,
            tp_rank,
            tp_size,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            attention_dp: place.owner.is_some(),
            serving: if place.context {
                Serving::Context
            } else {
                Serving::Aggregated
            },
            drafter: if self.lookahead > 0 {
                Drafter::MtpEagle
            } else {
                Drafter::None
            },
            max_draft_len: Some(3),
            draft_shares_cache: true,
            supplies_fences: ways.fences,
            device: DeviceChoice::Host,
        }
    }
}
