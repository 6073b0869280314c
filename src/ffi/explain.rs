//! `kvb_worker_explain`: why a prompt gets the offer that it gets.

use std::ffi::c_char;

use super::args::{self, Growable};
use super::guard::guard;
use super::handle;
use super::plain::{self, kvb_request};
use super::status::kvb_status;
use super::worker::kvb_worker;
use crate::worker::{Missing, Other, Question, Why};

/// kvb_explanation.reason: every whole block is offered.
pub const KVB_EXPLAIN_COMPLETE: i32 = 0;
/// kvb_explanation.reason: all is stored, but the block of the last token stays to compute.
pub const KVB_EXPLAIN_LAST_TOKEN: i32 = 1;
/// kvb_explanation.reason: a page is not in the pool.
pub const KVB_EXPLAIN_ABSENT: i32 = 2;
/// kvb_explanation.reason: the pool did not say whether it has a page.
pub const KVB_EXPLAIN_NO_ANSWER: i32 = 3;
/// kvb_explanation.reason: a page is not in the pool, but servers with another number of ranks or
/// another page format have it.
pub const KVB_EXPLAIN_OTHER_GEOMETRY: i32 = 4;
/// kvb_explanation.reason: the local match ends inside a block.
pub const KVB_EXPLAIN_UNALIGNED: i32 = 5;
/// kvb_explanation.reason: no layout is registered.
pub const KVB_EXPLAIN_NO_LAYOUT: i32 = 6;
/// kvb_explanation.reason: the role does not read.
pub const KVB_EXPLAIN_ROLE: i32 = 7;
/// kvb_explanation.reason: the request carries media without digests.
pub const KVB_EXPLAIN_MEDIA: i32 = 8;
/// kvb_explanation.reason: with a drafter only prefill-only requests take part.
pub const KVB_EXPLAIN_NOT_CONTEXT_ONLY: i32 = 9;

/// What the pool has of a prompt, and what ends the offer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_explanation {
    /// sizeof(kvb_explanation)
    pub struct_size: u32,
    /// KVB_EXPLAIN_*.
    pub reason: i32,
    /// Tokens that a match would be answered with.
    pub offered_tokens: u64,
    /// Blocks of the prompt that have a hash.
    pub blocks: u64,
    /// Those of them that are stored in every layer group and shard, wherever they stand.
    pub stored_blocks: u64,
    /// Ordinal of the block whose page is missing; 0 when the reason is no page.
    pub missing_block: u64,
    /// Its layer group.
    pub group_id: u32,
    /// The rank whose shard is missing; -1 for a page that all ranks share, or no page.
    pub rank: i32,
    /// The pool's code with KVB_EXPLAIN_NO_ANSWER, otherwise 0.
    pub code: i32,
    /// With KVB_EXPLAIN_OTHER_GEOMETRY the number of ranks of the servers that have it; 0 when
    /// it is their page format that differs.
    pub other_world: u32,
}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_explanation {}

/// Explains what a match would be answered with now, in numbers and as text of some lines: which
/// blocks are stored, and for the first one that is not, why. Blocks whose load failed before are
/// known to the scheduler alone, whose offers end before them. Asks the pool for every block of the
/// prompt; for tools and for looking into single requests. Counts nothing.
///
/// Blocks: for existence questions to the pool.
/// Errors: KVB_INVALID_ARGUMENT, as kvb_scheduler_match; KVB_CLOSED; KVB_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_worker_explain(
    worker: *const kvb_worker,
    request: *const kvb_request,
    local_tokens: u64,
    out: *mut kvb_explanation,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_worker_explain", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (worker, request, out, buffer) = unsafe {
            (
                handle::shared(worker, "worker")?,
                plain::request(request)?,
                args::out_growable(out, "out")?,
                args::buffer(buffer.cast(), capacity, out_needed)?,
            )
        };
        let answer = worker.common().explain(&Question {
            prompt: request.prompt,
            scope: request.scope,
            has_media: request.has_media,
            context_only: request.context_only,
            local_tokens,
        })?;
        let (reason, missing, code, other_world) = match answer.why {
            Why::Complete => (KVB_EXPLAIN_COMPLETE, None, 0, 0),
            Why::LastToken => (KVB_EXPLAIN_LAST_TOKEN, None, 0, 0),
            Why::Absent(missing) => (KVB_EXPLAIN_ABSENT, Some(missing), 0, 0),
            Why::NoAnswer(missing, code) => (KVB_EXPLAIN_NO_ANSWER, Some(missing), code, 0),
            Why::OtherGeometry(missing, other) => {
                let world = match other {
                    Other::World(world) => world,
                    Other::PageFormat => 0,
                };
                (KVB_EXPLAIN_OTHER_GEOMETRY, Some(missing), 0, world)
            }
            Why::Unaligned => (KVB_EXPLAIN_UNALIGNED, None, 0, 0),
            Why::NoLayout => (KVB_EXPLAIN_NO_LAYOUT, None, 0, 0),
            Why::Role => (KVB_EXPLAIN_ROLE, None, 0, 0),
            Why::Media => (KVB_EXPLAIN_MEDIA, None, 0, 0),
            Why::NotContextOnly => (KVB_EXPLAIN_NOT_CONTEXT_ONLY, None, 0, 0),
        };
        let missing = missing.unwrap_or(Missing {
            block: 0,
            group: 0,
            rank: None,
        });
        buffer.text(&answer.text())?;
        out.write(&kvb_explanation {
            struct_size: 0,
            reason,
            offered_tokens: answer.offered_tokens,
            blocks: answer.stored.len() as u64,
            stored_blocks: answer.stored.iter().filter(|stored| **stored).count() as u64,
            missing_block: missing.block,
            group_id: missing.group,
            rank: missing
                .rank
                .and_then(|rank| i32::try_from(rank).ok())
                .unwrap_or(-1),
            code,
            other_world,
        });
        Ok(())
    })
}
