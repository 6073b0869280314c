//! `kvb_scheduler`.

use super::args::{self, Growable, Plain, choice};
use super::config::kvb_config;
use super::guard::{guard, guard_or};
use super::handle::{self, Exclusive, Noun};
use super::metadata::kvb_metadata;
use super::plain::{self, PageNames, kvb_engine, kvb_group_pages, kvb_request, kvb_tokens};
use super::status::kvb_status;
use super::steps::{PageLists, Steps};
use super::worker::kvb_worker;
use crate::error::bail;
use crate::recycle::recycled;
use crate::scheduler::{Accepted, FinishReason, GroupPages, Scheduler};

/// The half that decides, for one leader (tensor parallelism) or one owner (attention DP): what
/// the pool can supply of a prompt, which pages to load before a pass and which to publish after
/// it.
///
/// Threads: exclusive. Made by kvb_scheduler_new, freed by kvb_scheduler_free; it holds the
/// worker's shared part, so that the two are freed in any order.
pub struct kvb_scheduler {
    _opaque: (),
}

impl Noun for kvb_scheduler {
    const TAG: u64 = u64::from_be_bytes(*b"kvbsched");
    const NAME: &'static str = "kvb_scheduler";
    const LIVES_IN_ONE_PROCESS: bool = true;
    type Access = Exclusive;
    type Common = ();
    type Alone = Leader;
}

/// A scheduler and the list that page lists are translated into.
pub(super) struct Leader {
    scheduler: Scheduler,
    pages: Vec<GroupPages<'static>>,
}

/// One request's part of a pass. Frozen, since it is an element of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_step {
    /// Id of the request.
    pub request_id: u64,
    /// Tokens since the last report; the first report is the whole prompt, exactly as it was
    /// matched.
    pub new_tokens: kvb_tokens,
    /// Pages allocated since the last report.
    pub pages: *const kvb_group_pages,
    /// How many lists there are.
    pub page_lists: usize,
    /// Tokens with valid KV before this pass; excludes what this pass restores synchronously, and
    /// counts what was restored asynchronously. For
    /// a generating request it is one less than the tokens it holds.
    pub computed_position: u64,
    /// Tokens that this pass computes, after the budget trim; for a generating request 1 and the
    /// drafts.
    pub scheduled_tokens: u64,
}
// SAFETY: integers and pointers, and structs of these.
unsafe impl Plain for kvb_step {}

/// A reservation that the engine accepts: what it still holds is loaded. Frozen, since it is an
/// element of an array.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_accepted {
    /// The reservation, as given to kvb_scheduler_reserve.
    pub reservation_id: u64,
    /// The request it was made for. An element whose ids do not go together, or that was accepted
    /// before, is skipped.
    pub request_id: u64,
    /// The request's pages so far.
    pub pages: *const kvb_group_pages,
    /// How many lists there are.
    pub page_lists: usize,
}
// SAFETY: integers and pointers.
unsafe impl Plain for kvb_accepted {}

/// One pass: every request that is in the batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct kvb_pass {
    /// sizeof(kvb_pass)
    pub struct_size: u32,
    /// One element per request.
    pub steps: *const kvb_step,
    /// How many there are.
    pub step_count: usize,
    /// One element per reservation that is accepted; none for engines that match and allocate.
    pub accepted: *const kvb_accepted,
    /// How many there are.
    pub accepted_count: usize,
}
// SAFETY: integers and a pointer.
unsafe impl Plain for kvb_pass {}
// SAFETY: begins with its size.
unsafe impl Growable for kvb_pass {}

/// Where page lists stand in the arguments of `kvb_scheduler_allocated`.
const ALLOCATED: PageNames = PageNames {
    list: "pages",
    indices: "pages->indices",
    replace: "pages->replace",
};
/// Where page lists stand in the acceptances of a pass.
const ACCEPTED: PageNames = PageNames {
    list: "pass->accepted->pages",
    indices: "pass->accepted->pages->indices",
    replace: "pass->accepted->pages->replace",
};

/// kvb_scheduler_finished: it has its output.
pub const KVB_FINISH_ENDED: i32 = 0;
/// kvb_scheduler_finished: nobody wants it any more.
pub const KVB_FINISH_CANCELLED: i32 = 1;
/// kvb_scheduler_finished: its pages are needed, and it will run again.
pub const KVB_FINISH_PREEMPTED: i32 = 2;

/// Makes the scheduler beside a worker of the same process, made from the same configuration and
/// engine. The worker's layout may be registered before or after; without one nothing is offered.
///
/// Threads: any. Errors: KVB_CONTRADICTION, the worker was made from a configuration or engine
/// that mean other pages; KVB_BAD_STATE, the worker has a scheduler; KVB_ENGINE_REFUSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_new(
    config: *const kvb_config,
    engine: *const kvb_engine,
    worker: *mut kvb_worker,
    out: *mut *mut kvb_scheduler,
) -> kvb_status {
    guard("kvb_scheduler_new", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (config, engine, worker, out) = unsafe {
            let out = args::out(out, "out")?;
            (
                handle::input(config, "config")?,
                plain::engine(engine)?,
                handle::input(worker.cast_const(), "worker")?,
                out,
            )
        };
        let terms = engine.terms(config)?;
        if &terms != worker.terms() {
            bail!(
                Contradiction,
                "the worker was made from another configuration or engine than the scheduler is to be"
            );
        }
        let leader = Leader {
            scheduler: Scheduler::new(terms, worker.link()?)?,
            pages: Vec::new(),
        };
        out.write(handle::create((), leader));
        Ok(())
    })
}

/// Asks how many tokens of the prompt the pool can supply beyond `local_tokens`, which are valid
/// in the cache already. The answer is in whole blocks, never the whole prompt, and 0 when the
/// local match ends inside a block. May be called again before the request is allocated.
/// `out_is_async` says that the load runs outside the passes: once the request is allocated,
/// also with none of the tokens honoured, it waits outside the batch until every rank reported it
/// as loaded. It is false when nothing is offered.
///
/// Blocks: for one existence question per chunk of blocks; what the pool does not answer is not
/// offered.
/// Errors: KVB_INVALID_ARGUMENT, more local tokens than the prompt has, a token that the key
/// scheme cannot hash, an adapter that it cannot name, with a drafter a request that is not
/// context-only; KVB_OUT_OF_RANGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_match(
    scheduler: *mut kvb_scheduler,
    request: *const kvb_request,
    local_tokens: u64,
    out_tokens: *mut u64,
    out_is_async: *mut bool,
) -> kvb_status {
    guard("kvb_scheduler_match", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut leader, request, tokens, is_async) = unsafe {
            (
                handle::exclusive(scheduler, "scheduler", "kvb_scheduler_match")?,
                plain::request(request)?,
                args::out(out_tokens, "out_tokens")?,
                args::out(out_is_async, "out_is_async")?,
            )
        };
        let offer = leader.scheduler.match_request(&request, local_tokens)?;
        tokens.write(offer.tokens);
        is_async.write(offer.is_async);
        Ok(())
    })
}

/// Reports that a request has its pages, and how many of the offered tokens the engine honours,
/// counted from the offer's head. `pages` has at most one list per layer group, from block 0 on, with
/// the pages of the local match too. Every honoured block needs a page in every group, also where an
/// attention window has left it behind; other blocks may have -1. A request that is not known is
/// skipped.
///
/// Errors: KVB_INVALID_ARGUMENT, the honoured tokens are no whole blocks of the offer;
/// KVB_CONTRADICTION, an honoured block has no page, or the pages do not fit those reported before;
/// KVB_OUT_OF_RANGE, an index that is no page; KVB_BAD_STATE, tokens are honoured while no layout is
/// registered or the request already runs. Without a layout, pages make the request sit out until
/// it is reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_allocated(
    scheduler: *mut kvb_scheduler,
    request_id: u64,
    honoured_tokens: u64,
    pages: *const kvb_group_pages,
    page_lists: usize,
) -> kvb_status {
    guard("kvb_scheduler_allocated", || {
        // SAFETY: the caller's promise, see the header's conventions.
        unsafe {
            let mut leader = handle::exclusive(scheduler, "scheduler", "kvb_scheduler_allocated")?;
            let mut lists = recycled(std::mem::take(&mut leader.pages));
            let done =
                plain::group_pages(pages, page_lists, &ALLOCATED, &mut lists).and_then(|()| {
                    leader
                        .scheduler
                        .allocated(request_id, honoured_tokens, &lists)
                });
            leader.pages = recycled(lists);
            done
        }
    })
}

/// Gives back a part of an offer that was not consumed: the tokens from `from_token` up to
/// `to_token`, absolute in the prompt, at the offer's head or tail. A request that is not known is
/// skipped.
///
/// Errors: KVB_INVALID_ARGUMENT, a hole in the middle or no whole blocks; KVB_BAD_STATE, the load
/// was consumed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_cancel_load(
    scheduler: *mut kvb_scheduler,
    request_id: u64,
    from_token: u64,
    to_token: u64,
) -> kvb_status {
    guard("kvb_scheduler_cancel_load", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut leader =
            unsafe { handle::exclusive(scheduler, "scheduler", "kvb_scheduler_cancel_load") }?;
        leader
            .scheduler
            .cancel_load(request_id, from_token, to_token)
    })
}

/// Asks like kvb_scheduler_match, and holds the answer under an id that the engine chooses: the
/// other protocol for what kvb_scheduler_allocated and kvb_scheduler_cancel_load do. What is
/// not needed is given back with kvb_scheduler_release_reservation; an element of
/// kvb_pass.accepted turns the rest into a load. An asynchronous one is announced to and reported
/// by kvb_worker_get_finished with `reservation_id` instead of the request's id. Ids are fresh per
/// allocation. Asked again with the same id, the answer is what the reservation still holds behind
/// `local_tokens`; another id for the same request takes the place of the earlier one.
///
/// Blocks: as kvb_scheduler_match.
/// Errors: those of kvb_scheduler_match; KVB_INVALID_ARGUMENT, another request holds an offer under
/// this id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_reserve(
    scheduler: *mut kvb_scheduler,
    request: *const kvb_request,
    local_tokens: u64,
    reservation_id: u64,
    out_tokens: *mut u64,
    out_is_async: *mut bool,
) -> kvb_status {
    guard("kvb_scheduler_reserve", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut leader, request, tokens, is_async) = unsafe {
            (
                handle::exclusive(scheduler, "scheduler", "kvb_scheduler_reserve")?,
                plain::request(request)?,
                args::out(out_tokens, "out_tokens")?,
                args::out(out_is_async, "out_is_async")?,
            )
        };
        let offer = leader
            .scheduler
            .reserve(&request, local_tokens, reservation_id)?;
        tokens.write(offer.tokens);
        is_async.write(offer.is_async);
        Ok(())
    })
}

/// Gives back the prompt tokens from `from_token` up to `to_token` of what a reservation holds: at
/// its head or its tail, in whole blocks. What it does not hold (any more) is ignored, and so are
/// ids that hold nothing: unknown ones, and those of loads that travelled.
///
/// Errors: KVB_INVALID_ARGUMENT, a hole in the middle or parts of blocks.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_release_reservation(
    scheduler: *mut kvb_scheduler,
    reservation_id: u64,
    from_token: u64,
    to_token: u64,
) -> kvb_status {
    guard("kvb_scheduler_release_reservation", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut leader = unsafe {
            handle::exclusive(scheduler, "scheduler", "kvb_scheduler_release_reservation")
        }?;
        leader
            .scheduler
            .release_reservation(reservation_id, from_token, to_token)
    })
}

/// Builds the metadata of the next pass, also of an empty one. All or nothing: a step that
/// contradicts what is known makes it fail with nothing changed. Steps about requests that never
/// matched are skipped. A report counts once this answered KVB_OK, also when the pass never ran: the
/// request is then described again with the same position and without new tokens, and its load and
/// its saves come again. Blocks without a page in every group are not published.
///
/// The metadata is the caller's, to be freed with kvb_metadata_free.
/// Errors: KVB_CONTRADICTION, a first report is not the matched prompt, or pages or positions do
/// not fit what was reported before; KVB_INVALID_ARGUMENT, a request twice, a token that the key
/// scheme cannot hash; KVB_OUT_OF_RANGE; KVB_BAD_STATE, pages are to be loaded and the layout is
/// gone: reset the request. For an acceptance, the errors of kvb_scheduler_allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_build(
    scheduler: *mut kvb_scheduler,
    pass: *const kvb_pass,
    out: *mut *mut kvb_metadata,
) -> kvb_status {
    guard("kvb_scheduler_build", || {
        // SAFETY: the caller's promise, see the header's conventions.
        unsafe {
            let mut leader = handle::exclusive(scheduler, "scheduler", "kvb_scheduler_build")?;
            let out = args::out(out, "out")?;
            let pass = args::growable(pass, "pass")?;
            let given = args::list(pass.steps, pass.step_count, "pass->steps")?;

            let lists = PageLists::new(given, recycled(std::mem::take(&mut leader.pages)));
            let settled = args::list(pass.accepted, pass.accepted_count, "pass->accepted")?;
            let mut pages = Vec::new();
            for one in settled.iter().filter(|one| one.page_lists > 0) {
                plain::group_pages(one.pages, one.page_lists, &ACCEPTED, &mut pages)?;
            }
            let mut left = &*pages;
            let mut accepted = Vec::with_capacity(settled.len());
            for one in settled {
                accepted.push(Accepted {
                    reservation_id: one.reservation_id,
                    request_id: one.request_id,
                    pages: split_front(&mut left, one.page_lists),
                });
            }
            let built = leader.scheduler.build_from(Steps::new(&lists), &accepted);
            leader.pages = recycled(lists.into_memory());
            out.write(handle::create(built?, ()));
            Ok(())
        }
    })
}

/// Reports that a request ended, was cancelled or preempted; `reason` is one of KVB_FINISH_*. When
/// `out_pinned` is true its pages must stay as they are until every rank reported the id through
/// kvb_worker_get_finished. A request that is not known is answered with false.
///
/// Errors: KVB_INVALID_ARGUMENT.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_finished(
    scheduler: *mut kvb_scheduler,
    request_id: u64,
    reason: i32,
    out_pinned: *mut bool,
) -> kvb_status {
    guard("kvb_scheduler_finished", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (mut leader, out) = unsafe {
            (
                handle::exclusive(scheduler, "scheduler", "kvb_scheduler_finished")?,
                args::out(out_pinned, "out_pinned")?,
            )
        };
        let known = [
            (KVB_FINISH_ENDED, FinishReason::Ended),
            (KVB_FINISH_CANCELLED, FinishReason::Cancelled),
            (KVB_FINISH_PREEMPTED, FinishReason::Preempted),
        ];
        let reason = choice(reason, &known, "reason")?;
        out.write(leader.scheduler.finished(request_id, reason));
        Ok(())
    })
}

/// Reports that a request's allocation was released and that it will run again: all that is tied
/// to the allocation is forgotten, and on this rank nothing is written into or read from its pages
/// any more when this returns; saves that were queued and not read yet are dropped. Other ranks
/// hear of it with the next metadata: there pages are given back through kvb_scheduler_finished and
/// kvb_worker_get_finished, before this. A request that is not known is no error.
///
/// Blocks: for the copy of one batch of its load or save that is under way, never for the pool; with
/// stage_through_host = false for the pool's call that has such a batch, at most load_timeout_ms or save_timeout_ms.
/// Errors: KVB_BUSY, with stage_through_host = false alone: the request is reset, but a call of the pool that did not return in
/// time may still use its pages. Keep them as they are, and call again until the answer is KVB_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_reset(
    scheduler: *mut kvb_scheduler,
    request_id: u64,
) -> kvb_status {
    guard("kvb_scheduler_reset", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let mut leader =
            unsafe { handle::exclusive(scheduler, "scheduler", "kvb_scheduler_reset") }?;
        leader.scheduler.reset(request_id)
    })
}

/// Frees a scheduler; its worker may have another one afterwards. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_scheduler_free(scheduler: *mut kvb_scheduler) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_scheduler_free", (), || unsafe {
        handle::free(scheduler, "scheduler")
    });
}

/// The first `count` elements, which `rest` has no more; all of them where there are fewer.
fn split_front<'a, T>(rest: &mut &'a [T], count: usize) -> &'a [T] {
    let (front, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
    *rest = later;
    front
}
