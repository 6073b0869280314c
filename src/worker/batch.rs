//! One batch of a load, for both kinds of loads: pages are collected, got into slots, judged, and
//! those that are whole are scattered into the cache; or the pool writes them there itself.

use std::ops::Range;
use std::sync::Arc;

use super::direct::Direct;
use super::mover::Mover;
use super::plan::PagePlan;
use super::sets::{Sets, SlotSet};
use super::shared::Shared;
use crate::device::{Direction, PageRef, Stream};
use crate::error::{Error, Kind};
use crate::link::BlockOf;
use crate::metadata::{Life, Metadata, Run, Transfers};
use crate::page::{Verdict, verify};
use crate::plant::{self, Bug};
use crate::stats::Phase;
use crate::store::GetOutcome;
use crate::store::guarded::{Get, Made};

/// One page of a batch: what it is and whose.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    /// Position in the plan's kinds.
    kind: usize,
    block: BlockOf,
}

impl Wanted {
    fn life(&self) -> Life {
        (self.block.request_id, self.block.generation)
    }
}

/// The lists of one batch, kept for the next.
#[derive(Default)]
pub(super) struct LoadBatch {
    /// Keys and answers; the slots belong to it only while it is made.
    call: Get<()>,
    pages: Vec<PageRef>,
    wanted: Vec<Wanted>,
    /// Per page of the batch: it is in its slot, complete and intact.
    whole: Vec<bool>,
}

/// What is known of a load so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Requests that lost a page, each with the first block that failed.
    pub lost: Vec<BlockOf>,
    /// What the error of a load says: the first page that failed, and how.
    first_failure: Option<String>,
    /// The pool has kept pages of the cache that it was to write: how it failed.
    pub kept: Option<String>,
    /// Pages that are asked for, and those of them that are in the cache.
    pub wanted_pages: u64,
    landed_pages: u64,
    landed_bytes: u64,
}

/// The next page to load.
#[derive(Debug, Clone)]
pub(super) struct Cursor {
    runs: Range<usize>,
    /// Blocks of the runs before this one.
    base: usize,
    block: usize,
    kind: usize,
}

impl Cursor {
    /// A cursor over some runs of a list, the first of which has so many blocks before it.
    pub fn new(runs: Range<usize>, base: usize) -> Self {
        Self {
            runs,
            base,
            block: 0,
            kind: 0,
        }
    }

    fn next_run(&mut self, run: &Run) {
        *self = Self::new(
            self.runs.start + 1..self.runs.end,
            self.base + run.blocks as usize,
        );
    }
}

impl Tally {
    pub fn clear(&mut self) {
        self.lost.clear();
        *self = Self {
            lost: std::mem::take(&mut self.lost),
            ..Self::default()
        };
    }

    pub fn is_lost(&self, request_id: u64) -> bool {
        self.lost.iter().any(|lost| lost.request_id == request_id)
    }

    pub fn lose(&mut self, block: BlockOf, why: impl FnOnce() -> String) {
        self.first_failure.get_or_insert_with(why);
        match self
            .lost
            .iter_mut()
            .find(|lost| lost.request_id == block.request_id)
        {
            Some(lost) => lost.block = lost.block.min(block.block),
            None => self.lost.push(block),
        }
    }

    /// The error of everything that is loaded later, once the pool has kept pages of the cache: whoever
    /// recomputed into them could be overwritten.
    pub fn kept_error(&self) -> Option<Error> {
        let text = self.kept.as_ref()?;
        Some(Error::new(
            Kind::LoadFailed,
            format!(
                "load into the cache itself: {text}; its requests cannot be run again, and nothing is loaded any more; first page: {}",
                self.first_failure.as_deref().unwrap_or("unknown")
            ),
        ))
    }

    /// Counts what was loaded and what was not; what is to be said of it if something was not.
    pub fn settle(&self, shared: &Shared) -> Option<String> {
        let stats = &shared.stats;
        stats.loaded_pages.add(self.landed_pages);
        stats.loaded_bytes.add(self.landed_bytes);
        if self.lost.is_empty() {
            return None;
        }
        let failed = self.wanted_pages.saturating_sub(self.landed_pages);
        stats.failed_load_pages.add(failed);
        stats.failed_load_requests.add(self.lost.len() as u64);
        Some(format!(
            "{failed} pages did not arrive, {} bytes landed; first: {}",
            self.landed_bytes,
            self.first_failure.as_deref().unwrap_or("never tried")
        ))
    }
}

impl LoadBatch {
    fn clear(&mut self) {
        self.call.keys.clear();
        self.pages.clear();
        self.wanted.clear();
        self.whole.clear();
    }

    /// Fills the batch from the cursor on, without runs that `skip` names and without requests
    /// that lost a page; false when there is nothing left.
    pub fn collect(
        &mut self,
        shared: &Shared,
        mover: &Mover,
        from: (&Metadata, &Transfers),
        cursor: &mut Cursor,
        tally: &mut Tally,
        skip: impl Fn(&Run) -> bool,
    ) -> bool {
        let began = shared.timers.start();
        let some = self.fill(mover, from, cursor, tally, skip);
        shared.timers.lap(Phase::Resolve, began);
        some
    }

    fn fill(
        &mut self,
        mover: &Mover,
        (metadata, list): (&Metadata, &Transfers),
        cursor: &mut Cursor,
        tally: &mut Tally,
        skip: impl Fn(&Run) -> bool,
    ) -> bool {
        self.clear();
        while self.pages.len() < mover.batch && !cursor.runs.is_empty() {
            let Some(view) = metadata.view_at(list, cursor.runs.start, cursor.base) else {
                break;
            };
            let run = view.run;
            let begins = cursor.block == 0 && cursor.kind == 0;
            if (begins && skip(run)) || tally.is_lost(run.request_id) {
                cursor.next_run(run);
                continue;
            }
            if begins {
                tally.wanted_pages += u64::from(run.blocks) * mover.plan.kinds.len() as u64;
            }
            let Some(block) = view.block(cursor.block) else {
                cursor.next_run(run);
                continue;
            };
            let Some(kind) = mover.plan.kinds.get(cursor.kind) else {
                cursor.block += 1;
                cursor.kind = 0;
                if view.block(cursor.block).is_none() {
                    cursor.next_run(run);
                }
                continue;
            };
            let page = PageRef {
                group: kind.group,
                part: kind.part,
                index: block
                    .pages
                    .get(usize::from(kind.group))
                    .copied()
                    .unwrap_or(-1),
                // Below the batch size, which is a u32.
                slot: self.pages.len() as u32,
            };
            let wanted = Wanted {
                kind: cursor.kind,
                block: BlockOf {
                    request_id: run.request_id,
                    generation: run.generation,
                    block: block.ordinal,
                },
            };
            cursor.kind += 1;
            // An index that is no page was refused by the scheduler; another rank's layout may be smaller.
            let checked = mover
                .check(&page)
                .and_then(|()| self.call.keys.push_key(&kind.own, block.hash));
            if let Err(error) = checked {
                tally.lose(wanted.block, || error.to_string());
                continue;
            }
            self.pages.push(page);
            self.wanted.push(wanted);
        }
        !self.pages.is_empty()
    }

    /// Judges every page that was got, into slots where there are some.
    fn judge_all(
        &mut self,
        shared: &Shared,
        plan: &PagePlan,
        set: Option<&SlotSet>,
        tally: &mut Tally,
    ) {
        if self.call.outcomes.len() != self.pages.len() {
            tracing::warn!(
                "load: {} answers to {} pages: all count as failed",
                self.call.outcomes.len(),
                self.pages.len()
            );
            self.call.outcomes.clear();
        }
        for number in 0..self.pages.len() {
            self.judge(number, shared, plan, set, tally);
        }
    }

    fn judge(
        &mut self,
        number: usize,
        shared: &Shared,
        plan: &PagePlan,
        set: Option<&SlotSet>,
        tally: &mut Tally,
    ) {
        let wanted = self.wanted[number];
        let outcome = self.call.outcomes.get(number).copied();
        let object = plan.object_bytes(wanted.kind);
        let mut verdict = Verdict::Intact;
        if outcome == Some(GetOutcome::Landed(object))
            && plan.sealed()
            && !plant::is(Bug::SealIgnored)
            && let Some(set) = set
        {
            let bytes = set
                .slot(number as u32)
                .get(..object as usize)
                .unwrap_or_default();
            let payload = plan.kinds[wanted.kind].payload as usize;
            verdict = verify(self.call.keys.get(number), bytes, payload);
        }
        let whole = outcome == Some(GetOutcome::Landed(object)) && verdict == Verdict::Intact;
        self.whole.push(whole);
        if whole {
            return;
        }
        let key = String::from_utf8_lossy(self.call.keys.get(number)).into_owned();
        let why = match (verdict, outcome) {
            (Verdict::Intact, Some(outcome)) => format!("{key} ({outcome:?})"),
            (Verdict::Intact, None) => format!("{key} (no answer)"),
            (verdict, _) => {
                shared.stats.bad_seals.add(1);
                tracing::warn!("page {key} is damaged ({verdict:?}) and was not loaded");
                format!("{key} ({verdict:?})")
            }
        };
        tally.lose(wanted.block, || why);
    }

    /// Leaves only those pages that are whole, whose life goes on and lost none so far; the bytes of
    /// their payloads.
    fn keep_whole(
        &mut self,
        plan: &PagePlan,
        tally: &Tally,
        is_over: impl Fn(Life) -> bool,
    ) -> u64 {
        let (mut kept, mut bytes) = (0, 0);
        for number in 0..self.pages.len() {
            let wanted = self.wanted[number];
            let goes_on = !tally.is_lost(wanted.block.request_id) && !is_over(wanted.life());
            if (self.whole[number] && goes_on) || plant::is(Bug::ScatterUnjudged) {
                bytes += plan.kinds[wanted.kind].payload;
                self.pages[kept] = self.pages[number];
                kept += 1;
            }
        }
        self.pages.truncate(kept);
        bytes
    }

    /// Gets the batch into the slots and judges every page. `None`: the pool has kept the slots, and no page of
    /// the batch arrived.
    pub fn get(
        &mut self,
        shared: &Shared,
        plan: &PagePlan,
        sets: &Sets,
        mut set: SlotSet,
        tally: &mut Tally,
    ) -> Option<SlotSet> {
        let began = shared.timers.start();
        set.hold(
            self.wanted
                .iter()
                .map(|wanted| plan.object_bytes(wanted.kind)),
        );
        let described = shared.timers.lap(Phase::Describe, began);
        let (call, ()) = std::mem::take(&mut self.call).with(set);
        let made = shared.store.get_owned(call);
        shared.timers.lap(Phase::Get, described);
        shared.stats.store_calls.add(1);
        shared.stats.load_calls.add(1);
        match made {
            Made::Back(call) => {
                let (lists, set) = call.with(());
                self.call = lists;
                self.judge_all(shared, plan, Some(&set), tally);
                Some(set)
            }
            Made::Kept(code) => {
                sets.lost_one();
                if !plant::is(Bug::LateCounts) {
                    let why = format!("the pool failed with {code} and kept the memory");
                    self.lose_all(tally, &why);
                }
                None
            }
        }
    }

    /// Has the pool write the pages whose life goes on and lost none so far into the cache itself, and judges them. On
    /// return they are there, before any work that is put on a stream later. [`Tally::kept`]: the pool may still write.
    pub fn get_direct(
        &mut self,
        shared: &Arc<Shared>,
        mover: &Mover,
        direct: &Direct,
        tally: &mut Tally,
        is_over: impl Fn(Life) -> bool,
    ) {
        let began = shared.timers.start();
        self.keep_wanted(|wanted| {
            !tally.is_lost(wanted.block.request_id) && !is_over(wanted.life())
        });
        if self.pages.is_empty() {
            return;
        }
        let lives = self.wanted.iter().map(Wanted::life);
        let loan = match direct.lend(shared, Direction::Scatter, &self.pages, lives) {
            Ok(loan) => loan,
            Err(error) => return self.lose_all(tally, error.message()),
        };
        let described = shared.timers.lap(Phase::Describe, began);
        let (call, ()) = std::mem::take(&mut self.call).with(loan);
        let made = shared.store.get_owned(call);
        let got = shared.timers.lap(Phase::Get, described);
        shared.stats.store_calls.add(1);
        shared.stats.load_calls.add(1);
        let call = match made {
            Made::Back(call) => call,
            Made::Kept(code) => {
                let why = format!("the pool failed with {code} and may still write into the cache");
                self.lose_all(tally, &why);
                if !plant::is(Bug::KeptHandedBack) {
                    tally.kept.get_or_insert(why);
                }
                return;
            }
        };
        let (lists, _loan) = call.with(());
        self.call = lists;
        self.judge_all(shared, &mover.plan, None, tally);
        let bytes = self.keep_whole(&mover.plan, tally, |_| false);
        match mover.memory.device().landed() {
            Ok(()) => {
                tally.landed_pages += self.pages.len() as u64;
                tally.landed_bytes += bytes;
            }
            Err(error) => self.lose_all(tally, error.message()),
        }
        shared.timers.lap(Phase::Sync, got);
    }

    /// Leaves only those pages in the batch that `is_wanted` picks.
    fn keep_wanted(&mut self, is_wanted: impl Fn(&Wanted) -> bool) {
        let picked: Vec<bool> = self.wanted.iter().map(is_wanted).collect();
        if picked.iter().all(|picked| *picked) {
            return;
        }
        let at = |number: usize| picked.get(number).copied().unwrap_or(false);
        self.call.keys.retain(at);
        let mut numbers = 0..;
        self.pages.retain(|_| numbers.next().is_some_and(at));
        let mut numbers = 0..;
        self.wanted.retain(|_| numbers.next().is_some_and(at));
    }

    /// No page of the batch arrives.
    pub fn lose_all(&mut self, tally: &mut Tally, why: &str) {
        for wanted in &self.wanted {
            tally.lose(wanted.block, || why.to_owned());
        }
    }

    /// Scatters the pages that are whole and whose life goes on and lost none so far. On return they are in
    /// the cache, before any work that is put on a stream later, and behind what the stream `behind` had.
    pub fn scatter(
        &mut self,
        shared: &Shared,
        mover: &Mover,
        behind: Option<Stream>,
        set: &mut SlotSet,
        tally: &mut Tally,
        is_over: impl Fn(Life) -> bool,
    ) {
        let began = shared.timers.start();
        let bytes = self.keep_whole(&mover.plan, tally, is_over);
        let scattered = match set.slots() {
            Some(slots) => mover.memory.scatter(behind, &self.pages, slots),
            None => Ok(()),
        };
        shared.timers.lap(Phase::Unstage, began);
        match scattered {
            Ok(()) => {
                tally.landed_pages += self.pages.len() as u64;
                tally.landed_bytes += bytes;
            }
            // Nothing of this batch can be trusted to be in the cache.
            Err(error) => self.lose_all(tally, error.message()),
        }
    }
}
