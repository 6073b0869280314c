//! The engine as it describes itself, once, and what follows from it together with the
//! configuration: who may take part, how pages are named, what the engine has to arrange.

use crate::config::{Config, LocalReuseBackoff, Role};
use crate::error::{Result, bail};
use crate::keys::{PageFormat, Scheme};

/// What a server does in a disaggregated deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serving {
    /// Prefills and decodes.
    Aggregated,
    /// Prefills only.
    Context,
    /// Decodes only.
    Generation,
}

/// How draft tokens are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafter {
    /// No speculative decoding.
    None,
    /// One-model multi-token prediction, one layer per draft token.
    MtpVanilla,
    /// One-model multi-token prediction with one layer used repeatedly.
    MtpEagle,
    /// EAGLE3 with its layers inside the target model.
    Eagle3,
    /// Anything else.
    Other,
}

/// Where the KV cache lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// Memory that the CPU can read and write.
    Host,
    /// Memory of a CUDA device, whose context is current at registration; of this number, if one
    /// is given.
    Cuda(Option<u32>),
}

/// The engine's description of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Engine {
    /// Tokens per block.
    pub tokens_per_block: u32,
    /// This rank among the tensor-parallel ranks; under attention DP the owner's number.
    pub tp_rank: u32,
    /// Number of tensor-parallel ranks or owners.
    pub tp_size: u32,
    /// Pipeline-parallel stages; only 1 is supported.
    pub pp_size: u32,
    /// Context-parallel ranks; only 1 is supported.
    pub cp_size: u32,
    /// Ranks that share this node's memory.
    pub ranks_on_node: u32,
    /// Every rank holds whole heads and owns its requests.
    pub attention_dp: bool,
    /// Kind of server.
    pub serving: Serving,
    /// Kind of drafter.
    pub drafter: Drafter,
    /// Draft tokens per step; `None` while unresolved.
    pub max_draft_len: Option<u32>,
    /// The drafter's layers are layers of the same KV cache.
    pub draft_shares_cache: bool,
    /// Each `bind` brings an allocation fence.
    pub supplies_fences: bool,
    /// Where the cache lives.
    pub device: DeviceChoice,
}

/// What the engine reads once and has to arrange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Declarations {
    /// Owners under attention DP may each run a scheduler.
    pub supports_attention_dp: bool,
    /// Requests that lost pages are handed back; under TP a lost page is an error instead.
    pub reports_failed_loads: bool,
    /// Local matches must end at a block boundary to be extended by the pool.
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

/// The terms on which this engine takes part: all that the two halves need of configuration and
/// description, checked against each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Terms {
    /// The role of the configuration.
    pub role: Role,
    /// How blocks are hashed and pages named.
    pub scheme: Scheme,
    /// What is stored: payload or payload and seal.
    pub page_format: PageFormat,
    /// Tokens per block.
    pub tokens_per_block: u32,
    /// Prompt tokens behind a block that its hash covers.
    pub lookahead: u32,
    /// Number of shards of a page: TP ranks, 1 under attention DP.
    pub world: u32,
    /// Which of them this rank holds.
    pub rank: u32,
    /// This rank among all, for logs and thread names.
    pub global_rank: u32,
    /// Ranks that share this node's memory.
    pub ranks_on_node: u32,
    /// Every offer is asynchronous.
    pub async_load: bool,
    /// Each `bind` brings an allocation fence.
    pub supplies_fences: bool,
    /// Where this rank's cache lies.
    pub device: DeviceChoice,
    /// The pool reads and writes the cache itself.
    pub direct: bool,
    /// Requests must be prefill-only (a drafter is at work).
    pub context_only: bool,
    /// What the engine has to arrange.
    pub declarations: Declarations,
    /// Digest of what scheduler and workers must agree on.
    pub fingerprint: [u8; 16],
}

impl Engine {
    /// Checks the description against itself and the configuration. `EngineRefused` names what
    /// cannot take part and why.
    pub fn terms(&self, config: &Config) -> Result<Terms> {
        self.check_shape()?;
        self.check_role(config.role())?;
        let lookahead = if config.role() == Role::Capacity {
            0
        } else {
            self.lookahead()?
        };
        let (world, rank) = if self.attention_dp {
            (1, 0)
        } else {
            (self.tp_size, self.tp_rank)
        };
        let reads = config.role().reads();
        let mut terms = Terms {
            role: config.role(),
            scheme: config.key_scheme(),
            page_format: config.page_format(),
            tokens_per_block: self.tokens_per_block,
            lookahead,
            world,
            rank,
            global_rank: self.tp_rank,
            ranks_on_node: self.ranks_on_node.max(1),
            async_load: reads && config.async_load(),
            supplies_fences: self.supplies_fences,
            device: self.device,
            direct: !config.stage_through_host(),
            context_only: self.drafter != Drafter::None && config.role() != Role::Capacity,
            declarations: Declarations {
                supports_attention_dp: true,
                reports_failed_loads: world == 1,
                requires_block_aligned_reuse: reads,
                drops_reuse_match_backoff: reads
                    && config.local_reuse_backoff() == LocalReuseBackoff::Off,
                supports_speculative_prefill: true,
                supports_admission_query: true,
                prompt_lookahead: lookahead,
            },
            fingerprint: [0; 16],
        };
        terms.fingerprint = terms.digest(config);
        Ok(terms)
    }

    fn check_shape(&self) -> Result<()> {
        if self.tokens_per_block == 0 {
            bail!(
                InvalidArgument,
                "engine.tokens_per_block = 0: a block has at least one token"
            );
        }
        if self.tp_size == 0 || self.tp_rank >= self.tp_size {
            bail!(
                InvalidArgument,
                "engine.tp_rank = {}, engine.tp_size = {}: the rank lies in 0 … size-1",
                self.tp_rank,
                self.tp_size
            );
        }
        for (name, size) in [("pp_size", self.pp_size), ("cp_size", self.cp_size)] {
            if size != 1 {
                bail!(
                    EngineRefused,
                    "engine.{name} = {size}: pages are named by tensor-parallel rank only, so pipeline and context parallelism cannot take part"
                );
            }
        }
        Ok(())
    }

    fn check_role(&self, role: Role) -> Result<()> {
        if role.writes() && self.attention_dp && self.serving == Serving::Aggregated {
            bail!(
                EngineRefused,
                "role = {}: an aggregated server under attention DP may not publish, since a pass that its gate skips leaves pages reported that are reassigned unheard of; use the role consumer, or disaggregated context servers",
                role.name()
            );
        }
        Ok(())
    }

    /// How many prompt tokens behind a block its draft layers' KV depends on.
    fn lookahead(&self) -> Result<u32> {
        let lookahead = match self.drafter {
            Drafter::None => return Ok(0),
            Drafter::Other => bail!(
                EngineRefused,
                "engine.drafter = other: only one-model drafters whose layers share the KV cache are supported (mtp_vanilla, mtp_eagle, eagle3)"
            ),
            Drafter::MtpEagle | Drafter::Eagle3 => 1,
            Drafter::MtpVanilla => match self.max_draft_len {
                None => bail!(
                    EngineRefused,
                    "engine.max_draft_len = -1: with mtp_vanilla the draft length is part of every page's identity and must be resolved"
                ),
                Some(0) => bail!(
                    EngineRefused,
                    "engine.max_draft_len = 0 with the drafter mtp_vanilla"
                ),
                Some(length) => length,
            },
        };
        if !self.draft_shares_cache {
            bail!(
                EngineRefused,
                "engine.draft_shares_cache = 0: a draft model with a KV cache of its own is outside the contract"
            );
        }
        if self.serving != Serving::Context {
            bail!(
                EngineRefused,
                "engine.serving: with a drafter only disaggregated context servers take part"
            );
        }
        Ok(lookahead)
    }
}

impl Terms {
    /// Length of a block hash in bytes.
    pub fn hash_bytes(&self) -> usize {
        self.scheme.hash_len()
    }

    /// True when a lost page is handed back by request; under TP it is an error of the load.
    pub fn restarts_requests(&self) -> bool {
        self.world == 1
    }

    /// The scheduler and all its ranks must derive the same value before a metadata means the
    /// same to them; rank and addresses stay out of it.
    fn digest(&self, config: &Config) -> [u8; 16] {
        let mut hasher = blake3::Hasher::new_derive_key("kvbridge 1 metadata");
        for text in [
            self.role.name(),
            self.scheme.name(),
            config.namespace(),
            config.model_key(),
            config.weights_digest(),
            self.page_format.name(),
        ] {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        let is_async = u32::from(self.async_load);
        for number in [self.tokens_per_block, self.lookahead, self.world, is_async] {
            hasher.update(&number.to_le_bytes());
        }
        let mut digest = [0; 16];
        hasher.finalize_xof().fill(&mut digest);
        digest
    }
}

#[cfg(test)]
impl Engine {
    /// An aggregated server's rank without a drafter, to be varied by unit tests.
    pub(crate) fn example(tp_rank: u32, tp_size: u32) -> Self {
        Self {
            tokens_per_block: 16,
            tp_rank,
            tp_size,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            attention_dp: false,
            serving: Serving::Aggregated,
            drafter: Drafter::None,
            max_draft_len: None,
            draft_shares_cache: true,
            supplies_fences: false,
            device: DeviceChoice::Host,
        }
    }
}

#[cfg(test)]
mod tests;
