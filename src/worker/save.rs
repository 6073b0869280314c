//! Saves: cache → slots → seal → pool, on the save thread, after the forward pass.

use std::sync::Arc;

use hashbrown::HashSet;

use super::Worker;
use super::direct::Direct;
use super::mover::{Mover, Way};
use super::shared::Shared;
use super::trouble::Refusals;
use crate::device::{Direction, Event, PageRef, Stream};
use crate::error::{Kind, Result, bail};
use crate::lane::{Item, Step};
use crate::link::BlockOf;
use crate::metadata::{Life, Metadata, Run, RunView};
use crate::page::{FOOTER_BYTES, seal};
use crate::plant::{self, Bug};
use crate::store::guarded::{Made, Put};
use crate::store::{Presence, PutOutcome, Store, code};

/// The lists of one batch, kept for the next.
#[derive(Default)]
pub(super) struct SaveScratch {
    /// Keys and answers; the slots belong to it only while it is made.
    call: Put<()>,
    pages: Vec<PageRef>,
    payloads: Vec<u64>,
    blocks: Vec<BlockOf>,
    present: Vec<Presence>,
}

impl SaveScratch {
    /// Leaves only those pages in the batch that `wanted` picks by number; how many went.
    fn retain(&mut self, wanted: impl Fn(usize) -> bool + Copy) -> u64 {
        let before = self.pages.len();
        self.call.keys.retain(wanted);
        if let Some(groups) = &mut self.call.groups {
            groups.retain(wanted);
        }
        retain_by_index(&mut self.pages, wanted);
        retain_by_index(&mut self.payloads, wanted);
        retain_by_index(&mut self.blocks, wanted);
        (before - self.pages.len()) as u64
    }
}

/// The next page to save: pages of a run go from its last block to its first, so that in a pool
/// that evicts by age the tail of a chain goes before its head.
#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    run: usize,
    /// Blocks of the runs before this one.
    base: usize,
    /// Blocks of this run that are done.
    done: usize,
    kind: usize,
}

/// The saves of one pass.
struct SaveItem {
    shared: Arc<Shared>,
    mover: Arc<Mover>,
    metadata: Arc<Metadata>,
    /// Requests whose saves left the metadata before it was queued.
    dropped: Vec<Life>,
    event: Event,
    waited: bool,
    /// The pages of the shared scratch are being saved; seen by `Drop` when the store panicked.
    in_batch: bool,
    cursor: Cursor,
    scratch: Arc<parking_lot::Mutex<SaveScratch>>,
}

impl Worker {
    /// Queues the saves of the bound metadata: they read the cache after everything that was put on
    /// `stream` before this call. The pass counts as run from here on. A second call on one
    /// metadata queues nothing.
    ///
    /// Blocks: no. Errors: `BadState` when nothing is bound, when loads of this pass were never started, or without a
    /// layout; `Closed` after shutdown; `DeviceFailed`; `DeviceLost`, in every call. The pass does not count as run then.
    pub fn wait_for_save(&mut self, stream: Stream) -> Result<()> {
        self.hear_of_ended_lives();
        let usable = self.device_usable();
        let Some(bound) = &mut self.bound else {
            bail!(BadState, "wait_for_save: no metadata is bound");
        };
        if bound.saves_taken {
            return Ok(());
        }
        let metadata = Arc::clone(&bound.metadata);
        let left = |run: &Run| !bound.is_dropped(run);
        if !bound.loads_started && metadata.loads().runs().iter().any(left) {
            bail!(
                BadState,
                "wait_for_save: the loads of pass {} were never started",
                metadata.pass()
            );
        }
        if self.shared.is_closed() {
            bail!(Closed, "wait_for_save: the worker was shut down");
        }
        usable?;
        let dropped = bound.dropped.iter().chain(&bound.unsaved);
        let saved = |run: &Run| bound.is_saved(run);
        let queued = if metadata.saves().runs().iter().any(saved) {
            let (Some(mover), Some(saves)) = (&self.mover, &self.saves) else {
                bail!(
                    BadState,
                    "wait_for_save: pages are to be saved, but no layout is registered, or the role does not write"
                );
            };
            let event = mover.memory.device().record(stream)?;
            let item = SaveItem::new(
                Arc::clone(&self.shared),
                Arc::clone(mover),
                Arc::clone(&metadata),
                dropped.copied().collect(),
                event,
                Arc::clone(&self.save_scratch),
            );
            Some((saves, item))
        } else {
            None
        };
        bound.saves_taken = true;
        // Held meanwhile, so that what becomes of the item is reported after its pass.
        let mut reports = self.shared.reports.lock();
        if let Some((saves, item)) = queued
            && let Err(refused) = saves.push(Box::new(item))
        {
            drop(reports);
            // Reports itself as dropped.
            drop(refused);
            bail!(Closed, "wait_for_save: the save thread has ended");
        }
        reports.add(metadata.source(), |report| {
            report.submitted.push(metadata.pass());
        });
        Ok(())
    }
}

impl SaveItem {
    fn new(
        shared: Arc<Shared>,
        mover: Arc<Mover>,
        metadata: Arc<Metadata>,
        dropped: Vec<Life>,
        event: Event,
        scratch: Arc<parking_lot::Mutex<SaveScratch>>,
    ) -> Self {
        let item = Self {
            shared,
            mover,
            metadata,
            dropped,
            event,
            waited: false,
            in_batch: false,
            cursor: Cursor::default(),
            scratch,
        };
        let mut finished = item.shared.finished.lock();
        item.lives().for_each(|life| finished.begin(life));
        drop(finished);
        item
    }

    /// The life of each run that is saved; a request with several runs counts several times.
    fn lives(&self) -> impl Iterator<Item = Life> {
        let runs = self.metadata.saves().runs().iter();
        runs.map(Run::life)
            .filter(|life| !self.dropped.contains(life))
    }

    /// Fills the batch from the cursor on; false when there is nothing left.
    fn collect(&mut self, scratch: &mut SaveScratch) -> bool {
        let wish = &self.shared.put_wish;
        scratch.call.soft_pin_ttl = wish.soft_pin_ttl;
        match (&wish.group, &mut scratch.call.groups) {
            (Some(_), groups) => groups.get_or_insert_default().clear(),
            (None, groups) => *groups = None,
        }
        scratch.call.keys.clear();
        scratch.pages.clear();
        scratch.payloads.clear();
        scratch.blocks.clear();
        let metadata = Arc::clone(&self.metadata);
        let mover = Arc::clone(&self.mover);
        while scratch.pages.len() < mover.batch {
            let Some(view) = metadata.view_at(metadata.saves(), self.cursor.run, self.cursor.base)
            else {
                return !scratch.pages.is_empty();
            };
            let (run, blocks) = (view.run, view.run.blocks as usize);
            if self.cursor.done >= blocks || self.dropped.contains(&run.life()) {
                self.cursor = Cursor {
                    run: self.cursor.run + 1,
                    base: self.cursor.base + blocks,
                    ..Cursor::default()
                };
                continue;
            }
            let Some(kind) = mover.plan.kinds.get(self.cursor.kind) else {
                self.cursor.done += 1;
                self.cursor.kind = 0;
                continue;
            };
            self.cursor.kind += 1;
            if kind.writes {
                self.add(
                    scratch,
                    &view,
                    blocks - 1 - self.cursor.done,
                    self.cursor.kind - 1,
                );
            }
        }
        true
    }

    fn add(&self, scratch: &mut SaveScratch, view: &RunView<'_>, position: usize, kind: usize) {
        let kind = &self.mover.plan.kinds[kind];
        let Some(block) = view.block(position) else {
            return;
        };
        let pages = block.pages.get(usize::from(kind.group));
        let page = PageRef {
            group: kind.group,
            part: kind.part,
            index: pages.copied().unwrap_or(-1),
            slot: 0,
        };
        // The scheduler refused an index that is no page; another rank's layout may be smaller.
        let named = self
            .mover
            .check(&page)
            .and_then(|()| scratch.call.keys.push_key(&kind.own, block.hash))
            .and_then(|()| self.push_group(scratch, block.hash));
        if let Err(error) = named {
            tracing::warn!(
                "request {}: a page cannot be saved: {error}",
                view.run.request_id
            );
            self.shared.stats.failed_save_pages.add(1);
            return;
        }
        scratch.pages.push(page);
        scratch.payloads.push(kind.payload);
        scratch.blocks.push(BlockOf {
            request_id: view.run.request_id,
            generation: view.run.generation,
            block: block.ordinal,
        });
    }

    /// The group of the page that was just named: one for all pages of a block, on every rank.
    fn push_group(&self, scratch: &mut SaveScratch, hash: &[u8]) -> Result<()> {
        match (&self.shared.put_wish.group, &mut scratch.call.groups) {
            // A hash that made a key makes a group: both have the scheme's length.
            (Some(group), Some(groups)) => groups.push_key(group, hash),
            _ => Ok(()),
        }
    }

    fn save_batch(&self, scratch: &mut SaveScratch) {
        let stats = &self.shared.stats;
        self.drop_present(scratch);
        if scratch.pages.is_empty() {
            return;
        }
        let mover = &self.mover;
        let sets = match &mover.way {
            Way::Staged { save_sets, .. } => save_sets,
            Way::Direct(direct) => return self.put_direct(scratch, direct),
        };
        let mut set = match sets.take() {
            Ok(Some(set)) => set,
            Ok(None) => {
                tracing::error!("save: no slots are left");
                return self.give_up(scratch);
            }
            // The guard has said that the pool does not answer, and says when it does again.
            Err(error) if error.kind() == Kind::PoolFailed => return self.give_up(scratch),
            Err(error) => {
                tracing::error!("save: {error}");
                return self.give_up(scratch);
            }
        };
        // Held while the cache is read, so that who has released a life's pages knows that they are
        // not read any more; and not a moment longer, since the engine's thread may wait for it.
        let released = self.shared.released.lock();
        self.drop_released(scratch, &released);
        if scratch.pages.is_empty() {
            return;
        }
        for (slot, page) in scratch.pages.iter_mut().enumerate() {
            page.slot = slot as u32;
        }
        let gathered = set.slots().map_or(Ok(()), |slots| {
            mover.memory.gather(None, &scratch.pages, slots)
        });
        drop(released);
        if let Err(error) = gathered {
            tracing::error!("save: {error}");
            return self.give_up(scratch);
        }
        let seal_bytes = mover.plan.seal_bytes() as u64;
        set.hold(scratch.payloads.iter().map(|payload| payload + seal_bytes));
        if mover.plan.sealed()
            && let Some(slots) = set.slots()
        {
            for (number, (slot, &payload)) in slots.slots_mut().zip(&scratch.payloads).enumerate() {
                let (bytes, footer) = slot.split_at_mut(payload as usize);
                footer[..FOOTER_BYTES].copy_from_slice(&seal(scratch.call.keys.get(number), bytes));
            }
        }
        let (call, ()) = std::mem::take(&mut scratch.call).with(set);
        let made = self.shared.store.put_owned(call);
        stats.store_calls.add(1);
        match made {
            Made::Back(call) => {
                let (lists, _set) = call.with(());
                scratch.call = lists;
                self.note_outcomes(scratch);
            }
            Made::Kept(code) => {
                sets.lost_one();
                tracing::debug!("save: the pool failed with {code} and kept the memory");
                self.give_up(scratch);
            }
        }
    }

    /// Has the pool read the pages of the batch out of the cache itself.
    fn put_direct(&self, scratch: &mut SaveScratch, direct: &Direct) {
        // Held during the call: who has released a life and passes here knows that its pages are not read any more.
        let turn = self.shared.direct_save.lock();
        self.drop_released(scratch, &self.shared.released.lock());
        if scratch.pages.is_empty() {
            return;
        }
        let blocks = scratch.blocks.iter();
        let lives = blocks.map(|block| (block.request_id, block.generation));
        let lent = direct.lend(&self.shared, Direction::Gather, &scratch.pages, lives);
        let loan = match lent {
            Ok(loan) => loan,
            Err(error) => {
                tracing::error!("save: {error}");
                return self.give_up(scratch);
            }
        };
        let (call, ()) = std::mem::take(&mut scratch.call).with(loan);
        // The loan ends before the turn: whoever waits for that is to find the pages unused.
        let made = match self.shared.store.put_owned(call) {
            Made::Back(call) => Ok(call.with(()).0),
            Made::Kept(code) => Err(code),
        };
        drop(turn);
        self.shared.stats.store_calls.add(1);
        match made {
            Ok(lists) => {
                scratch.call = lists;
                self.note_outcomes(scratch);
            }
            Err(code) => {
                tracing::warn!(
                    "save: the pool failed with {code} and may still read {} pages of the cache; their requests are not reported as saved before its call returns",
                    scratch.pages.len()
                );
                self.give_up(scratch);
            }
        }
    }

    /// Takes pages out of the batch that the pool has already.
    fn drop_present(&self, scratch: &mut SaveScratch) {
        let stats = &self.shared.stats;
        self.shared
            .store
            .exist(&scratch.call.keys, &mut scratch.present);
        stats.store_calls.add(1);
        if scratch.present.len() != scratch.call.keys.len() {
            // Says nothing about any key; a put of an existing key changes nothing.
            return;
        }
        let present = std::mem::take(&mut scratch.present);
        let dropped = scratch.retain(|number| present[number] != Presence::Present);
        scratch.present = present;
        stats.already_stored_pages.add(dropped);
    }

    /// Takes pages out of the batch that are the engine's again.
    fn drop_released(&self, scratch: &mut SaveScratch, released: &HashSet<Life>) {
        if released.is_empty() {
            return;
        }
        let lives = scratch.blocks.iter();
        let over: Vec<bool> = lives
            .map(|block| released.contains(&(block.request_id, block.generation)))
            .collect();
        let dropped = scratch.retain(|number| !over[number]);
        self.shared.stats.dropped_save_pages.add(dropped);
    }

    fn note_outcomes(&self, scratch: &SaveScratch) {
        let stats = &self.shared.stats;
        let answered = scratch.call.outcomes.len() == scratch.pages.len();
        let (mut failed, mut first, mut refusals) = (0u64, None, Refusals::default());
        for (number, block) in scratch.blocks.iter().enumerate() {
            let outcome = if answered {
                scratch.call.outcomes[number]
            } else {
                PutOutcome::Failed(code::BAD_ANSWER)
            };
            refusals.note(&*self.shared.store, outcome);
            match outcome {
                PutOutcome::Stored => {
                    stats.saved_pages.add(1);
                    stats.saved_bytes.add(scratch.payloads[number]);
                    continue;
                }
                PutOutcome::AlreadyThere => {
                    stats.already_stored_pages.add(1);
                    continue;
                }
                PutOutcome::NoSpace => stats.no_space_pages.add(1),
                PutOutcome::Failed(_) => stats.failed_save_pages.add(1),
            }
            failed += 1;
            first.get_or_insert(outcome);
            self.report_failed(*block);
        }
        let pinned = scratch.call.soft_pin_ttl.is_some();
        self.shared
            .trouble
            .hear_of_put(&*self.shared.store, &refusals, pinned);
        if let Some(first) = first {
            tracing::debug!(
                "save: the pool did not take {failed} pages, the first {first:?}; they are offered again"
            );
        }
    }

    /// All pages of the batch failed, or it is not known what became of them.
    fn give_up(&self, scratch: &SaveScratch) {
        self.shared
            .stats
            .failed_save_pages
            .add(scratch.blocks.len() as u64);
        for block in &scratch.blocks {
            self.report_failed(*block);
        }
    }

    /// Has the scheduler publish the block again. A block has several pages, one behind the other.
    fn report_failed(&self, block: BlockOf) {
        self.shared.report(self.metadata.source(), |report| {
            if report.failed_saves.last() != Some(&block) {
                report.failed_saves.push(block);
            }
        });
    }

    /// Counts and reports what the item has not come to.
    fn drop_rest(&self) {
        let mut blocks = 0;
        for (number, run) in self.metadata.saves().runs().iter().enumerate() {
            if number < self.cursor.run || self.dropped.contains(&run.life()) {
                continue;
            }
            let done = match number == self.cursor.run {
                true => self.cursor.done as u32,
                false => 0,
            };
            let left = run.blocks.saturating_sub(done);
            blocks += u64::from(left);
            for block in (0..left).rev() {
                self.report_failed(BlockOf {
                    request_id: run.request_id,
                    generation: run.generation,
                    block: run.first_block.saturating_add(block),
                });
            }
        }
        if blocks > 0 {
            let kinds = &self.mover.plan.kinds;
            let begun = kinds.iter().take(self.cursor.kind);
            let begun = begun.filter(|kind| kind.writes).count() as u64;
            let pages = blocks * self.mover.plan.written() as u64;
            self.shared
                .stats
                .dropped_save_pages
                .add(pages.saturating_sub(begun));
        }
    }
}

impl Item for SaveItem {
    fn name(&self) -> &'static str {
        "save"
    }

    fn step(&mut self) -> Step {
        if !std::mem::replace(&mut self.waited, true)
            && let Err(error) = self.mover.memory.device().wait(&self.event)
        {
            tracing::error!(
                "save: the pass cannot be waited for, its pages are not saved: {error}"
            );
            return Step::Done;
        }
        let scratch = Arc::clone(&self.scratch);
        let mut scratch = scratch.lock();
        if !self.collect(&mut scratch) {
            return Step::Done;
        }
        self.in_batch = true;
        self.save_batch(&mut scratch);
        self.in_batch = false;
        Step::More
    }
}

impl Drop for SaveItem {
    /// Runs when the item is done, was refused, or panicked: the requests are let go in any case.
    fn drop(&mut self) {
        if self.in_batch {
            let scratch = Arc::clone(&self.scratch);
            self.give_up(&scratch.lock());
        }
        self.drop_rest();
        let mut finished = self.shared.finished.lock();
        self.lives().for_each(|life| finished.end(life));
        self.shared
            .released
            .lock()
            .retain(|life| finished.is_queued(*life) && !plant::is(Bug::ReleasedForgotten));
    }
}

fn retain_by_index<T>(list: &mut Vec<T>, keep: impl Fn(usize) -> bool) {
    let mut number = 0;
    list.retain(|_| {
        number += 1;
        keep(number - 1)
    });
}
