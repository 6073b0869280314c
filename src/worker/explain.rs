//! Why a prompt gets the offer that it gets: which blocks are stored, and what ends the offer.

use std::fmt::Write;

use super::Handle;
use super::others::Other;
use super::plan::{Owner, PagePlan};
use crate::error::{Result, bail};
use crate::keys::{Chain, Keys, Scope, Tokens, seed};
use crate::store::{Presence, Store};

/// A prompt to explain, as a scheduler would be asked about it.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The whole prompt.
    pub prompt: Tokens<'a>,
    /// Salt, adapter and media; the lookahead is the worker's own.
    pub scope: Scope<'a>,
    /// The prompt stands for media.
    pub has_media: bool,
    /// Only the prefill is done here.
    pub context_only: bool,
    /// Tokens that are in the engine's own cache.
    pub local_tokens: u64,
}

/// What ends the offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// Nothing: every whole block is offered.
    Complete,
    /// All is stored, but at least one token stays to compute, and so its block is not offered.
    LastToken,
    /// The page of a block is not in the pool.
    Absent(Missing),
    /// The pool did not say whether it has it; the code tells why.
    NoAnswer(Missing, i32),
    /// It is not in the pool, but the same block of another kind of server is.
    OtherGeometry(Missing, Other),
    /// The local match ends inside a block.
    Unaligned,
    /// No layout is registered.
    NoLayout,
    /// The role does not read.
    Role,
    /// The request carries media without digests.
    Media,
    /// With a drafter only requests that are prefill-only take part.
    NotContextOnly,
}

/// The first page that is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Missing {
    /// Ordinal of the block.
    pub block: u64,
    /// The engine's id of the layer group.
    pub group: u32,
    /// The rank whose shard is missing; `None` for a page that all ranks share.
    pub rank: Option<u32>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens that a match would be answered with.
    pub offered_tokens: u64,
    /// What ends the offer.
    pub why: Why,
    /// Per block of the prompt that has a hash: it is stored in every group and shard.
    pub stored: Vec<bool>,
    local_blocks: u64,
    block_tokens: u64,
    world: u32,
}

impl Handle {
    /// Explains what a scheduler would be offered for this prompt now, but for blocks that failed to load
    /// before, which only the scheduler remembers. Asks the pool for every block, so it costs more than a lookup, and
    /// counts nothing.
    ///
    /// Blocks: for existence questions to the pool. Errors: `InvalidArgument` for more local tokens than the
    /// prompt has or tokens that cannot be hashed; `Closed`.
    pub fn explain(&self, question: &Question<'_>) -> Result<Explanation> {
        let shared = &self.0;
        let terms = &shared.terms;
        if shared.is_closed() {
            bail!(Closed, "explain: the worker was shut down");
        }
        let prompt_tokens = question.prompt.len() as u64;
        if question.local_tokens > prompt_tokens {
            bail!(
                InvalidArgument,
                "explain: local_tokens = {} of a prompt of {prompt_tokens} tokens",
                question.local_tokens
            );
        }
        let size = u64::from(terms.tokens_per_block);
        let mut answer = Explanation {
            prompt_tokens,
            offered_tokens: 0,
            why: Why::Complete,
            stored: Vec::new(),
            local_blocks: question.local_tokens / size,
            block_tokens: size,
            world: terms.world,
        };
        let plan = shared.plan.read().clone();
        let outside = if question.has_media && question.scope.media_digests.is_empty() {
            Some(Why::Media)
        } else if terms.context_only && !question.context_only {
            Some(Why::NotContextOnly)
        } else if !terms.role.reads() {
            Some(Why::Role)
        } else {
            None
        };
        let Some(plan) = plan.filter(|_| outside.is_none()) else {
            answer.why = outside.unwrap_or(Why::NoLayout);
            return Ok(answer);
        };
        let scope = Scope {
            lookahead: terms.lookahead,
            ..question.scope
        };
        let seed = seed(terms.scheme, &scope)?;
        let mut chain = Chain::new(terms.scheme, terms.tokens_per_block, terms.lookahead, seed)?;
        chain.extend(question.prompt)?;
        let missing = self.first_missing(&plan, &chain, &mut answer)?;
        if !question.local_tokens.is_multiple_of(size) {
            answer.why = Why::Unaligned;
            return Ok(answer);
        }
        let blocks = answer.stored.len() as u64;
        let usable = (prompt_tokens.saturating_sub(1) / size).min(blocks);
        let end = missing.map_or(usable, |(why_block, _)| why_block.min(usable));
        answer.offered_tokens = end.saturating_sub(answer.local_blocks) * size;
        answer.why = match missing {
            Some((block, why)) if block < usable => why,
            _ if usable < blocks => Why::LastToken,
            _ => Why::Complete,
        };
        Ok(answer)
    }

    /// Asks for every block; the first one behind the local match that is not stored, and why.
    fn first_missing(
        &self,
        plan: &PagePlan,
        chain: &Chain,
        answer: &mut Explanation,
    ) -> Result<Option<(u64, Why)>> {
        let per_block = plan.lookup.len();
        let store = self.0.store.as_ref();
        let chunk = self.0.chunk_blocks(per_block);
        let (mut keys, mut present) = (Keys::new(), Vec::new());
        let mut first = None;
        for hashes in chain.hashes().chunks(chunk * self.0.terms.hash_bytes()) {
            keys.clear();
            keys.fill(&plan.lookup, hashes)?;
            store.exist(&keys, &mut present);
            present.resize(keys.len(), Presence::Unknown(0));
            for block in present.chunks_exact(per_block.max(1)) {
                let ordinal = answer.stored.len() as u64;
                let miss = block.iter().position(|one| *one != Presence::Present);
                answer.stored.push(miss.is_none());
                if let Some(at) = miss
                    && first.is_none()
                    && ordinal >= answer.local_blocks
                {
                    let Owner { group, rank } = plan.owners[at];
                    let missing = Missing {
                        block: ordinal,
                        group,
                        rank,
                    };
                    let hash = chain.hash(ordinal as usize).unwrap_or_default();
                    let why = match block[at] {
                        Presence::Unknown(code) => Why::NoAnswer(missing, code),
                        _ => match self.elsewhere(plan, store, group, hash)? {
                            Some(other) => Why::OtherGeometry(missing, other),
                            None => Why::Absent(missing),
                        },
                    };
                    first = Some((ordinal, why));
                }
            }
        }
        Ok(first)
    }

    /// Whether the block is stored under the name that another kind of server gives it.
    fn elsewhere(
        &self,
        plan: &PagePlan,
        store: &dyn Store,
        group: u32,
        hash: &[u8],
    ) -> Result<Option<Other>> {
        let others = plan.others.iter().filter(|(of, _, _)| *of == group);
        let mut keys = Keys::new();
        for (_, _, template) in others.clone() {
            keys.push_key(template, hash)?;
        }
        let mut present = Vec::new();
        store.exist(&keys, &mut present);
        let found = present.iter().position(|one| *one == Presence::Present);
        Ok(found
            .and_then(|at| others.clone().nth(at))
            .map(|(_, other, _)| *other))
    }
}

impl Explanation {
    /// The answer for people, some lines.
    pub fn text(&self) -> String {
        let mut text = format!(
            "a prompt of {} tokens, blocks of {}, {} of them local\n",
            self.prompt_tokens, self.block_tokens, self.local_blocks
        );
        let mut start = 0;
        for run in self.stored.chunk_by(|one, next| one == next) {
            let end = start + run.len();
            let state = if run[0] { "stored" } else { "not stored" };
            // Writing to a String cannot fail.
            let _ = match run.len() {
                1 => writeln!(text, "block {start}: {state}"),
                _ => writeln!(text, "blocks {start} … {}: {state}", end - 1),
            };
            start = end;
        }
        let _ = write!(text, "offered: {} tokens", self.offered_tokens);
        text.push_str(&match self.why {
            Why::Complete => ": every whole block".to_owned(),
            Why::LastToken => {
                ": all that is stored, but for the block of the last token, which stays to compute"
                    .to_owned()
            }
            Why::Absent(missing) => format!(": {} is absent", self.page(missing)),
            Why::NoAnswer(missing, code) => {
                format!(
                    ": the pool did not answer for {} (code {code})",
                    self.page(missing)
                )
            }
            Why::OtherGeometry(missing, Other::World(world)) => format!(
                ": {} is absent, but servers of {world} ranks have it: a page is of use only to the same number of ranks",
                self.page(missing)
            ),
            Why::OtherGeometry(missing, Other::PageFormat) => format!(
                ": {} is absent, but servers with another kvbridge.page_format have it",
                self.page(missing)
            ),
            Why::Unaligned => ": the local match ends inside a block".to_owned(),
            Why::NoLayout => ": no layout is registered".to_owned(),
            Why::Role => ": the role does not read".to_owned(),
            Why::Media => ": the request carries media without digests".to_owned(),
            Why::NotContextOnly => {
                ": with a drafter only prefill-only requests take part".to_owned()
            }
        });
        text
    }

    fn page(&self, missing: Missing) -> String {
        let Missing { block, group, rank } = missing;
        match rank {
            None => format!("block {block} in layer group {group} (common to all ranks)"),
            Some(rank) => format!(
                "block {block} in layer group {group}, rank {rank} of {}",
                self.world
            ),
        }
    }
}
