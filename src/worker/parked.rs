//! The asynchronous loads of requests that wait outside the batch: which are in flight, which are
//! done, which the engine announced. A poll looks only at those that changed.

use hashbrown::{HashMap, HashSet};

use crate::metadata::Life;
use crate::plant::{self, Bug};
use crate::sync::{Arc, AtomicBool, Mutex, MutexGuard, Ordering};

/// Stops one load. A batch is scattered under its lock, so that whoever passes the gate after
/// closing it knows that no more is written.
#[derive(Debug)]
pub(super) struct Gate {
    closed: AtomicBool,
    scattering: Mutex<()>,
}

impl Gate {
    /// An open one.
    pub fn new() -> Self {
        Self {
            closed: AtomicBool::new(false),
            scattering: Mutex::new(()),
        }
    }

    /// The load ends at its next step. Does not wait.
    pub fn close(&self) {
        if plant::is(Bug::GateLeftOpen) {
            return;
        }
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
    /// The id under which the engine knows it: the request's, or its reservation's.
    ticket: u64,
    gate: Arc<Gate>,
    ending: Option<Ending>,
}

/// A load that has ended and was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Ended {
    pub life: Life,
    pub ticket: u64,
    pub ending: Ending,
}

/// The loads of all parked requests, and the announcements that wait for them.
#[derive(Debug, Default)]
pub(super) struct Parked {
    /// Per request id the load of its newest life that is not reported.
    loads: HashMap<u64, Load>,
    /// Whose load a ticket is.
    requests: HashMap<u64, u64>,
    /// Tickets that were announced and not reported.
    announced: HashSet<u64>,
    /// Announced tickets whose load ended since the last poll, or that were announced after it ended.
    ready: Vec<u64>,
    /// Work items that have not ended, also of discarded loads.
    running: usize,
}

impl Parked {
    /// A load of this life begins. One of an earlier life is nobody's any more.
    pub fn begin(&mut self, life: Life, ticket: u64) -> Arc<Gate> {
        let gate = Arc::new(Gate::new());
        let load = Load {
            generation: life.1,
            ticket,
            gate: Arc::clone(&gate),
            ending: None,
        };
        if let Some(earlier) = self.loads.insert(life.0, load) {
            earlier.gate.close();
            self.requests.remove(&earlier.ticket);
        }
        self.requests.insert(ticket, life.0);
        if plant::is(Bug::AnnouncementLost) {
            self.announced.remove(&ticket);
        }
        self.running += 1;
        gate
    }

    /// Whether somebody still waits for the load of this life.
    pub fn is_wanted(&self, life: Life) -> bool {
        let load = self.loads.get(&life.0);
        load.is_some_and(|load| load.generation == life.1) || plant::is(Bug::UnwantedFails)
    }

    /// The load of this life ended.
    pub fn end(&mut self, life: Life, ending: Ending) {
        self.running = self.running.saturating_sub(1);
        if let Some(load) = self.loads.get_mut(&life.0)
            && load.generation == life.1
        {
            load.ending = Some(ending);
            if self.announced.contains(&load.ticket) {
                self.ready.push(load.ticket);
            }
        }
    }

    /// A load ended so that the pool may still write into its pages: it is never reported.
    pub fn strand(&mut self) {
        self.running = self.running.saturating_sub(1);
    }

    /// The engine wants to hear of this load. Announcements persist until it is reported.
    pub fn announce(&mut self, ticket: u64) {
        self.announced.insert(ticket);
        self.ready.push(ticket);
    }

    /// Lives of the request `id` up to this one are over: their load ends, and its result is nobody's.
    /// An announcement stays: it may be about the life after them, whose load is on its way here.
    /// The gate to pass for who must know that nothing is written any more.
    pub fn discard(&mut self, id: u64, last: u64) -> Option<Arc<Gate>> {
        if self.loads.get(&id)?.generation > last {
            return None;
        }
        if plant::is(Bug::DiscardedReported) {
            return None;
        }
        let load = self.loads.remove(&id)?;
        self.requests.remove(&load.ticket);
        load.gate.close();
        Some(load.gate)
    }

    /// [`Parked::discard`] for who knows that the engine has announced nothing of a later life.
    pub fn withdraw(&mut self, id: u64, last: u64) -> Option<Arc<Gate>> {
        let ticket = self.loads.get(&id).map_or(id, |load| load.ticket);
        let gate = self.discard(id, last);
        // Without a load it was announced, and never came to be queued; unless it is a reservation of
        // another request's that has the same number.
        let others = self.requests.get(&ticket).is_some_and(|owner| *owner != id);
        if !self.loads.contains_key(&id) && !others && !plant::is(Bug::AnnouncementKept) {
            self.announced.remove(&ticket);
        }
        gate
    }

    /// The engine said that the request `id` ended, on a rank that does not hear which life that was, and
    /// that these loads are waited for. A load that is bound is announced by the next poll: one that is
    /// not among them is that of the life that ended, and one that is belongs to the next.
    pub fn request_ended(&mut self, id: u64, loading: &[u64]) {
        let load = self.loads.get(&id);
        if load.is_none_or(|load| !loading.contains(&load.ticket)) {
            self.withdraw(id, u64::MAX);
        }
    }

    /// Ends all loads; those that are not done count as failed.
    pub fn close_gates(&self) {
        self.loads.values().for_each(|load| load.gate.close());
    }

    /// Ends all loads; of those that are not done nothing is reported.
    pub fn discard_all(&mut self) {
        let undone = self.loads.iter().filter(|(_, load)| load.ending.is_none());
        let ids: Vec<u64> = undone.map(|(id, _)| *id).collect();
        for id in ids {
            self.withdraw(id, u64::MAX);
        }
    }

    /// Moves every announced load that has ended into `out`, each once.
    pub fn report(&mut self, mut out: impl FnMut(Ended)) {
        let mut ready = std::mem::take(&mut self.ready);
        for ticket in ready.drain(..) {
            let Some(&id) = self.requests.get(&ticket) else {
                continue;
            };
            let ended = self.loads.get(&id).and_then(|load| load.ending);
            if ended.is_none() || !self.announced.remove(&ticket) {
                continue;
            }
            self.requests.remove(&ticket);
            if let (Some(load), Some(ending)) = (self.loads.remove(&id), ended) {
                let life = (id, load.generation);
                out(Ended {
                    life,
                    ticket,
                    ending,
                });
            }
        }
        self.ready = ready;
    }

    /// Work items that have not ended.
    pub fn running(&self) -> usize {
        self.running
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn reported(parked: &mut Parked) -> Vec<(Life, Ending)> {
        let mut all = Vec::new();
        parked.report(|ended| all.push((ended.life, ended.ending)));
        all
    }

    #[test]
    fn a_load_is_reported_once_and_only_after_it_was_announced() {
        let mut parked = Parked::default();
        parked.begin((1, 5), 1);
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
        parked.begin((1, 5), 1);
        assert!(reported(&mut parked).is_empty());
        parked.end((1, 5), Ending::Failed);
        assert_eq!(reported(&mut parked), [((1, 5), Ending::Failed)]);
    }

    #[test]
    fn case_37_a_discarded_load_is_not_reported_and_writes_no_more() {
        let mut parked = Parked::default();
        let gate = parked.begin((1, 5), 1);
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
        let first = parked.begin((1, 5), 1);
        let second = parked.begin((1, 6), 1);
        assert!(first.is_closed() && !second.is_closed());
        assert!(parked.discard(1, 5).is_none());
        parked.end((1, 5), Ending::Landed);
        parked.announce(1);
        assert!(reported(&mut parked).is_empty());
        parked.end((1, 6), Ending::Landed);
        assert_eq!(reported(&mut parked), [((1, 6), Ending::Landed)]);
    }

    #[test]
    fn a_reservation_is_what_the_engine_announces() {
        let mut parked = Parked::default();
        parked.begin((1, 5), 900);
        parked.announce(1);
        parked.end((1, 5), Ending::Landed);
        assert!(reported(&mut parked).is_empty());
        parked.announce(900);
        assert_eq!(reported(&mut parked), [((1, 5), Ending::Landed)]);
        parked.begin((1, 6), 901);
        parked.announce(901);
        parked.withdraw(1, 6);
        parked.end((1, 6), Ending::Failed);
        assert!(reported(&mut parked).is_empty());
        assert!(parked.requests.is_empty());
    }

    #[test]
    fn an_announcement_of_what_never_began_ends_with_its_request() {
        let mut parked = Parked::default();
        parked.announce(1);
        parked.withdraw(1, u64::MAX);
        parked.begin((1, 6), 1);
        parked.end((1, 6), Ending::Landed);
        assert!(reported(&mut parked).is_empty());
    }

    #[test]
    fn an_announcement_outlives_what_is_said_of_earlier_lives() {
        let mut parked = Parked::default();
        parked.begin((1, 5), 1);
        parked.announce(1);
        parked.discard(1, 5);
        parked.begin((1, 6), 1);
        parked.end((1, 6), Ending::Landed);
        assert_eq!(reported(&mut parked), [((1, 6), Ending::Landed)]);
    }

    #[test]
    fn closed_gates_fail_what_is_not_done() {
        let mut parked = Parked::default();
        let gate = parked.begin((1, 5), 1);
        parked.close_gates();
        assert!(gate.is_closed() && parked.is_wanted((1, 5)));
    }
}
