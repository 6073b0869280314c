//! The half that decides: what the pool can supply of a prompt, which pages to load before a pass
//! and which to publish after it.
//!
//! One scheduler serves one leader (TP) or owner (attention DP). Per live request it keeps the
//! block hashes, the offer, the page tables and the watermark of what was published; tokens are
//! kept until their block is whole. It asks its process-local worker through [`crate::link::LocalWorker`] and never waits for
//! a transfer. The engine's order of calls is: match, allocated, build (once per pass), finished,
//! reset.
//!
//! - `offer.rs`: match, allocated, cancel_load — what to load
//! - `reserve.rs`: reservations, which do the same in another protocol
//! - `pass.rs`: build — what travels with a pass
//! - `record.rs`: what is known of one request; `records.rs`: of all; `lines.rs`: what a pass needs of those that decode
//! - `report.rs`: what the worker says became of earlier passes; finished and reset

mod lines;
mod offer;
mod pass;
mod record;
mod records;
mod report;
mod reserve;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hashbrown::{HashMap, HashSet};

use crate::config::Role;
use crate::engine::Terms;
use crate::error::{Result, bail};
use crate::keys::{Scope, Tokens};
use crate::link::{LocalWorker, Report};
use crate::metadata::{Life, Recycler};
use record::{Plain, Record, Start};
use records::Records;
pub use reserve::Accepted;

/// A request as it comes to the scheduler.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The engine's id, unique among live requests.
    pub id: u64,
    /// The whole prompt.
    pub prompt: Tokens<'a>,
    /// Salt, adapter and media; the scheduler sets the lookahead itself.
    pub scope: Scope<'a>,
    /// The prompt stands for media; without digests such a request takes no part.
    pub has_media: bool,
    /// Only the prefill is done here.
    pub context_only: bool,
}

/// What the pool can supply beyond the local match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offer {
    /// Tokens, in whole blocks; 0: nothing.
    pub tokens: u64,
    /// The request waits outside the batch for it; never with 0 tokens.
    pub is_async: bool,
}

/// Pages of one layer group, from one block ordinal on.
#[derive(Debug, Clone, Copy)]
pub struct GroupPages<'a> {
    /// The engine's id of the group.
    pub group: u32,
    /// Ordinal of the block that the first index belongs to.
    pub first_block: u32,
    /// Memory-pool slots; -1 is no page and keeps its place.
    pub indices: &'a [i32],
    /// This is the group's whole list now.
    pub replace: bool,
}

/// One request's part of a pass.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// The engine's id of the request.
    pub request_id: u64,
    /// Tokens since the last report; the first report is the whole prompt.
    pub new_tokens: Tokens<'a>,
    /// Pages allocated since the last report.
    pub pages: &'a [GroupPages<'a>],
    /// Tokens with valid KV before this pass, without what this pass restores.
    pub computed_position: u64,
    /// Tokens that this pass computes; drafts count.
    pub scheduled_tokens: u64,
}

/// A [`Step`] with one new token and no pages, as most steps of decoding requests are.
#[derive(Debug, Clone, Copy)]
pub struct Decoding {
    /// The token.
    pub token: i32,
    /// As in [`Step`].
    pub computed_position: u64,
    /// As in [`Step`].
    pub scheduled_tokens: u64,
}

/// A step where its teller has it; what is needed of it is read.
pub trait Told<'a> {
    /// Whose it is.
    fn request_id(&self) -> u64;

    /// All that it says, if that is so little.
    fn decoding(&self) -> Option<Decoding>;

    /// All that it says. Errors: the teller's, it is no step.
    fn read(&self) -> Result<Step<'a>>;
}

impl<'a> Told<'a> for &Step<'a> {
    fn request_id(&self) -> u64 {
        self.request_id
    }

    fn decoding(&self) -> Option<Decoding> {
        match (self.new_tokens, self.pages) {
            (Tokens::I32(&[token]), []) => Some(Decoding {
                token,
                computed_position: self.computed_position,
                scheduled_tokens: self.scheduled_tokens,
            }),
            _ => None,
        }
    }

    fn read(&self) -> Result<Step<'a>> {
        Ok(**self)
    }
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinishReason {
    /// It has its output.
    Ended,
    /// Nobody wants it any more.
    Cancelled,
    /// It will run again.
    Preempted,
}

/// What became of one step.
#[derive(Debug, Clone, Copy, Default)]
struct Placed {
    /// Where its request's record lies.
    record: u32,
    /// It was taken when it was looked at.
    is_plain: bool,
}

/// Number of the newest life of any request. One count for the process: a worker that outlives its
/// scheduler must not take the next one's requests for those that it has reported.
static GENERATIONS: AtomicU64 = AtomicU64::new(0);

/// What one pass asked the workers to do for one request, until its fate is known.
#[derive(Debug, Clone, Copy)]
struct Emitted {
    request_id: u64,
    generation: u64,
    /// Blocks up to here are published once the pass was submitted; `None`: nothing was emitted.
    saved_up_to: Option<u32>,
    /// The pass carried the request's load.
    load: bool,
}

/// A block that the pool says it has and that did not arrive.
#[derive(Debug, Clone, Copy)]
struct FailedBlock {
    block: u32,
    /// Tells the prompt that lost it from another one that comes under the same id.
    hash: [u8; 32],
}

/// One built pass whose fate is not known.
#[derive(Debug, Default)]
struct PassLog {
    pass: u64,
    emitted: Vec<Emitted>,
}

/// The scheduler half. See the module.
pub struct Scheduler {
    terms: Terms,
    link: Arc<dyn LocalWorker>,
    records: Records,
    /// For each step of the pass that is built or was last.
    placed: Vec<Placed>,
    /// The memory of the list of steps that are not taken at once.
    open_steps: Vec<(Step<'static>, u32)>,
    /// Records of ended requests, kept for their memory.
    spares: Vec<Record>,
    /// What requests that run need no more, kept for its memory.
    #[expect(clippy::vec_box, reason = "they go back into records as they are")]
    spare_starts: Vec<Box<Start>>,
    /// Number of the pass built last.
    pass: u64,
    /// Counts calls of `build`, also failed ones.
    build_calls: u64,
    /// Whose offer each reservation holds.
    reservations: HashMap<u64, u64>,
    /// Lives that were reset, and whose pages the pool may still use.
    lent: Vec<Life>,
    /// Requests whose asynchronous load was settled since the last build; some may have ended.
    to_park: Vec<u64>,
    /// Lives that ended since the last build and of which something travelled.
    ended: Vec<Life>,
    logs: VecDeque<PassLog>,
    spare_logs: Vec<PassLog>,
    /// Per request id: the first block whose load failed, until the request ended.
    failed_from: HashMap<u64, FailedBlock>,
    /// Ids whose pages the engine was told to keep, until the local worker reported them.
    pinned: HashSet<u64>,
    report: Report,
    recycler: Arc<Recycler>,
}

impl Scheduler {
    /// A scheduler on these terms beside the worker behind `link`. `EngineRefused` for the
    /// capacity role, which transfers nothing.
    pub fn new(terms: Terms, link: Arc<dyn LocalWorker>) -> Result<Self> {
        if terms.role == Role::Capacity {
            bail!(
                EngineRefused,
                "role = capacity lends memory and transfers nothing: it has no scheduler"
            );
        }
        Ok(Self {
            records: Records::new(Plain::new(&terms)),
            terms,
            recycler: Arc::new(Recycler::new(link.source())),
            link,
            placed: Vec::new(),
            open_steps: Vec::new(),
            spares: Vec::new(),
            spare_starts: Vec::new(),
            pass: 0,
            build_calls: 0,
            reservations: HashMap::new(),
            lent: Vec::new(),
            to_park: Vec::new(),
            ended: Vec::new(),
            logs: VecDeque::new(),
            spare_logs: Vec::new(),
            failed_from: HashMap::new(),
            pinned: HashSet::new(),
            report: Report::default(),
        })
    }

    /// Number of requests it keeps a record of.
    pub fn live_requests(&self) -> usize {
        self.records.len()
    }

    fn block_tokens(&self) -> u64 {
        u64::from(self.terms.tokens_per_block)
    }
}
