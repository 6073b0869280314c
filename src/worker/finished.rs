//! When may the engine have a request's pages back? Counts the queued transfers per request and keeps
//! what the engine announced until it can be reported.

use std::collections::BTreeMap;

use hashbrown::HashMap;

use crate::device::Direction;
use crate::metadata::Life;
use crate::plant::{self, Bug};

/// The transfers in flight of all requests, and the announcements that wait for them.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// Queued work items per (request id, generation). A request is in here only while it has some.
    queued: BTreeMap<Life, u32>,
    /// Calls of the pool, late or not, that may read pages of a life in the cache itself, and that may write them.
    saving: BTreeMap<Life, u32>,
    loading: BTreeMap<Life, u32>,
    /// Announced ids that are not reported yet, with the last generation the announcement is about.
    announced: HashMap<u64, u64>,
    /// Ids whose last queued item ended since the last poll.
    drained: Vec<u64>,
}

impl Finished {
    /// A work item of this life was queued.
    pub fn begin(&mut self, life: Life) {
        *self.queued.entry(life).or_insert(0) += 1;
    }

    /// A work item of this life ended, whatever became of it.
    pub fn end(&mut self, life: Life) {
        let Some(count) = self.queued.get_mut(&life) else {
            return;
        };
        *count -= 1;
        if *count == 0 || plant::is(Bug::PinDropped) {
            self.queued.remove(&life);
            self.drained.push(life.0);
        }
    }

    fn held(&mut self, direction: Direction) -> &mut BTreeMap<Life, u32> {
        match direction {
            Direction::Gather => &mut self.saving,
            Direction::Scatter => &mut self.loading,
        }
    }

    /// A call of the pool may use pages of this life.
    pub fn hold(&mut self, direction: Direction, life: Life) {
        *self.held(direction).entry(life).or_insert(0) += 1;
    }

    /// It does not any more.
    pub fn release(&mut self, direction: Direction, life: Life) {
        let held = self.held(direction);
        let Some(count) = held.get_mut(&life) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            held.remove(&life);
            self.drained.push(life.0);
        }
    }

    /// Lives whose pages a call may use and that have no queued items any more.
    pub fn left(&self, direction: Direction) -> usize {
        let held = match direction {
            Direction::Gather => &self.saving,
            Direction::Scatter => &self.loading,
        };
        let is_left = |life: &&Life| !self.queued.contains_key(*life);
        held.keys().filter(is_left).count()
    }

    /// Takes an announcement about all lives of `id` up to `newest`, and those that are queued. An id
    /// that is announced already stays with the later generation.
    pub fn announce(&mut self, id: u64, newest: u64) {
        let last_of = |lives: &BTreeMap<Life, u32>| {
            let last = lives.range((id, 0)..=(id, u64::MAX)).next_back();
            last.map_or(0, |(life, _)| life.1)
        };
        let last = [&self.queued, &self.saving, &self.loading]
            .into_iter()
            .map(last_of)
            .fold(newest, u64::max);
        let generation = self.announced.entry(id).or_insert(last);
        *generation = last.max(*generation);
        // Looked at by the next `report`, as if it had just drained.
        self.drained.push(id);
    }

    /// Moves every announced id whose items are done into `out`, each once, with its generation.
    pub fn report(&mut self, mut out: impl FnMut(u64, u64)) {
        let mut drained = std::mem::take(&mut self.drained);
        for id in drained.drain(..) {
            let Some(&generation) = self.announced.get(&id) else {
                continue;
            };
            let has_one = |lives: &BTreeMap<Life, u32>| {
                lives.range((id, 0)..=(id, generation)).next().is_some()
            };
            let transfers = [&self.queued, &self.saving, &self.loading];
            if !transfers.into_iter().any(has_one) || plant::is(Bug::ReportedEarly) {
                self.announced.remove(&id);
                out(id, generation);
            }
        }
        self.drained = drained;
    }

    /// Lives with queued items, and those whose pages a call of the pool may use.
    pub fn lives(&self) -> impl Iterator<Item = Life> {
        let transfers = [&self.queued, &self.saving, &self.loading];
        transfers.into_iter().flat_map(BTreeMap::keys).copied()
    }

    /// Whether a call of the pool may use pages of this life.
    pub fn is_held(&self, life: Life) -> bool {
        self.saving.contains_key(&life) || self.loading.contains_key(&life)
    }

    /// Whether this life has queued items.
    pub fn is_queued(&self, life: Life) -> bool {
        self.queued.contains_key(&life)
    }

    /// Lives with queued items.
    pub fn in_flight(&self) -> usize {
        self.queued.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(finished: &mut Finished) -> Vec<u64> {
        let mut ids = Vec::new();
        finished.report(|id, _| ids.push(id));
        ids
    }

    #[test]
    fn an_id_is_reported_once_and_only_after_it_was_announced() {
        let mut finished = Finished::default();
        finished.begin((1, 1));
        finished.end((1, 1));
        assert!(reported(&mut finished).is_empty());
        finished.announce(1, 0);
        assert_eq!(reported(&mut finished), [1]);
        assert!(reported(&mut finished).is_empty());
    }

    #[test]
    fn case_3_all_queued_items_hold_an_id_back() {
        let mut finished = Finished::default();
        for _ in 0..3 {
            finished.begin((1, 1));
        }
        finished.announce(1, 0);
        finished.end((1, 1));
        finished.end((1, 1));
        assert!(reported(&mut finished).is_empty());
        finished.end((1, 1));
        assert_eq!(reported(&mut finished), [1]);
    }

    #[test]
    fn a_later_life_does_not_hold_an_earlier_one_back() {
        let mut finished = Finished::default();
        finished.begin((1, 1));
        finished.announce(1, 0);
        finished.begin((1, 2));
        finished.end((1, 1));
        assert_eq!(reported(&mut finished), [1]);
        finished.announce(1, 0);
        assert!(reported(&mut finished).is_empty());
        finished.end((1, 2));
        assert_eq!(reported(&mut finished), [1]);
    }

    #[test]
    fn pages_that_a_call_may_use_hold_their_id_back() {
        let mut finished = Finished::default();
        finished.begin((1, 4));
        finished.hold(Direction::Gather, (1, 4));
        finished.hold(Direction::Scatter, (1, 4));
        assert_eq!(finished.left(Direction::Gather), 0);
        finished.end((1, 4));
        assert_eq!(finished.in_flight(), 0);
        assert_eq!(finished.left(Direction::Gather), 1);
        assert!(finished.is_held((1, 4)) && !finished.is_queued((1, 4)));
        assert!(finished.lives().all(|life| life == (1, 4)));
        // Whoever announces need not know which life it was.
        finished.announce(1, 0);
        assert!(reported(&mut finished).is_empty());
        finished.release(Direction::Gather, (1, 4));
        assert!(reported(&mut finished).is_empty());
        finished.release(Direction::Scatter, (1, 4));
        assert_eq!(reported(&mut finished), [1]);
    }

    #[test]
    fn two_announcements_before_the_report_are_one() {
        let mut finished = Finished::default();
        finished.announce(7, 0);
        finished.announce(7, 0);
        assert_eq!(reported(&mut finished), [7]);
    }
}
