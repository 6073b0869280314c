//! The asynchronous loads of requests that wait outside the batch: which are in flight, which are
//! done, which the engine announced. A poll looks only at those that changed.

use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::{HashMap, HashSet};

use crate::metadata::Life;
use crate::sync::{Arc, Mutex, MutexGuard};

/// Stops one load. A batch is scattered under its lock, so that whoever passes the gate after
/// closing it knows that no more is written.
#[derive(Debug, Default)]
pub(super) struct Gate {
    closed: AtomicBool,
    scattering: Mutex<()>,
}

impl Gate {
    /// The load ends at its next step. Does not wait.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// After [`Gate::close`]: on return nothing is written any more. Blocks: for one batch's copy.
    pub fn pass(&self) {
        drop(self.scattering.lock());
    }

    /// Permission to write into the pages while it is held; none once the gate is closed.
    pub fn enter(&self) -> Option<MutexGuard<'_, ()>> {
        let held = self.scattering.lock();
        (!self.is_closed()).then_some(held)
    }
}

/// How a load ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Landed,
    Failed,
}

#[derive(Debug)]
struct Load {
    generation: u64,
    gate: Arc<Gate>,
    ending: Option<Ending>,
}

/// The loads of all parked requests, and the announcements that wait for them.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Per request id the load of its newest life that is not reported.
    loads: HashMap<u64, Load>,
    announced: HashSet<u64>,
    /// Announced ids whose load ended since the last poll, or that were announced after it ended.
    ready: Vec<u64>,
    /// Work items that have not ended, also of discarded loads.
    running: usize,
}

impl Parked {
    /// A load of this life begins. One of an earlier life is nobody's any more.
    pub fn begin(&mut self, life: Life) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        let load = Load {
            generation: life.1,
            gate: Arc::clone(&gate),
            ending: None,
        };
        if let Some(earlier) = self.loads.insert(life.0, load) {
            earlier.gate.close();
        }
        self.running += 1;
        gate
    }

    /// Whether somebody still waits for the load of this life.
    pub fn is_wanted(&self, life: Life) -> bool {
        let load = self.loads.get(&life.0);
        load.is_some_and(|load| load.generation == life.1)
    }

    /// The load of this life ended.
    pub fn end(&mut self, life: Life, ending: Ending) {
        self.running = self.running.saturating_sub(1);
        if let Some(load) = self.loads.get_mut(&life.0)
            && load.generation == life.1
        {
            load.ending = Some(ending);
            if self.announced.contains(&life.0) {
                self.ready.push(life.0);
            }
        }
    }

    /// The engine wants to hear of this request's load. Announcements persist until it is reported.
    pub fn announce(&mut self, id: u64) {
        self.announced.insert(id);
        self.ready.push(id);
    }

    /// Lives of `id` up to this one are over: their load ends, and its result is nobody's. The gate
    /// to pass for who must know that nothing is written any more.
    pub fn discard(&mut self, id: u64, last: u64) -> Option<Arc<Gate>> {
        if self.loads.get(&id)?.generation > last {
            return None;
        }
        self.announced.remove(&id);
        let load = self.loads.remove(&id)?;
        load.gate.close();
        Some(load.gate)
    }

    /// Ends all loads; those that are not done count as failed.
    pub fn close_gates(&self) {
        self.loads.values().for_each(|load| load.gate.close());
    }

    /// Moves every announced load that has ended into `out`, each once.
    pub fn report(&mut self, mut out: impl FnMut(Life, Ending)) {
        let mut ready = std::mem::take(&mut self.ready);
        for id in ready.drain(..) {
            let ended = self.loads.get(&id).and_then(|load| load.ending);
            let Some(ending) = ended.filter(|_| self.announced.contains(&id)) else {
                continue;
            };
            self.announced.remove(&id);
            if let Some(load) = self.loads.remove(&id) {
                out((id, load.generation), ending);
            }
        }
        self.ready = ready;
    }

    /// Work items that have not ended.
    pub fn running(&self) -> usize {
        self.running
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn reported(parked: &mut Parked) -> Vec<(Life, Ending)> {
        let mut all = Vec::new();
        parked.report(|life, ending| all.push((life, ending)));
        all
    }

    #[test]
    fn a_load_is_reported_once_and_only_after_it_was_announced() {
        let mut parked = Parked::default();
        parked.begin((1, 5));
        parked.end((1, 5), Ending::Landed);
        assert!(reported(&mut parked).is_empty());
        parked.announce(1);
        assert_eq!(reported(&mut parked), [((1, 5), Ending::Landed)]);
        assert!(reported(&mut parked).is_empty());
        assert_eq!(
            (parked.running(), parked.loads.len(), parked.announced.len()),
            (0, 0, 0)
        );
    }

    #[test]
    fn announcements_wait_for_the_load_and_for_its_beginning() {
        let mut parked = Parked::default();
        parked.announce(1);
        assert!(reported(&mut parked).is_empty());
        parked.begin((1, 5));
        assert!(reported(&mut parked).is_empty());
        parked.end((1, 5), Ending::Failed);
        assert_eq!(reported(&mut parked), [((1, 5), Ending::Failed)]);
    }

    #[test]
    fn case_37_a_discarded_load_is_not_reported_and_writes_no_more() {
        let mut parked = Parked::default();
        let gate = parked.begin((1, 5));
        parked.announce(1);
        assert!(gate.enter().is_some());
        parked.discard(1, 5).unwrap().pass();
        assert!(gate.enter().is_none());
        assert_eq!(parked.running(), 1);
        assert!(!parked.is_wanted((1, 5)));
        parked.end((1, 5), Ending::Failed);
        assert!(reported(&mut parked).is_empty());
        assert_eq!(parked.running(), 0);
        assert!(parked.discard(1, 5).is_none());
    }

    #[test]
    fn a_later_life_is_not_touched_by_what_is_said_of_earlier_ones() {
        let mut parked = Parked::default();
        let first = parked.begin((1, 5));
        let second = parked.begin((1, 6));
        assert!(first.is_closed() && !second.is_closed());
        assert!(parked.discard(1, 5).is_none());
        parked.end((1, 5), Ending::Landed);
        parked.announce(1);
        assert!(reported(&mut parked).is_empty());
        parked.end((1, 6), Ending::Landed);
        assert_eq!(reported(&mut parked), [((1, 6), Ending::Landed)]);
    }

    #[test]
    fn closed_gates_fail_what_is_not_done() {
        let mut parked = Parked::default();
        let gate = parked.begin((1, 5));
        parked.close_gates();
        assert!(gate.is_closed() && parked.is_wanted((1, 5)));
    }
}
