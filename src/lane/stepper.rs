//! A test's own scheduler: the items of all stepped lanes in one list.

use std::fmt;

use super::shared::Shared;
use super::{Drain, Item, Step};
use crate::sync::{Arc, Mutex};

/// After so many steps a run gives up: an item that waits for something that never comes should
/// fail its test, not hang it.
const MOST_STEPS: usize = 1_000_000;

/// The pending items of all lanes started with [`Mode::Stepped`](super::Mode::Stepped), in the
/// order of their push.
///
/// An item may use the stepper while it is stepped (it waits on another lane, say); it is not
/// pending during that time.
#[derive(Default)]
pub struct Stepper {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    last_id: u64,
}

struct Entry {
    id: u64,
    shared: Arc<Shared>,
    /// `None` while the item is being stepped; the entry keeps its place.
    item: Option<Box<dyn Item>>,
}

/// An item taken out of the list for one step.
struct Taken {
    id: u64,
    shared: Arc<Shared>,
    item: Box<dyn Item>,
}

impl Stepper {
    /// A stepper without items.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// Lane and name of each pending item.
    pub fn pending(&self) -> Vec<(String, &'static str)> {
        let list = self.list.lock();
        let pending = list.entries.iter().filter_map(|entry| {
            let item = entry.item.as_ref()?;
            Some((entry.shared.name().to_owned(), item.name()))
        });
        pending.collect()
    }

    /// Steps the pending item at `index`; it keeps its place until it is done. `None` if there is
    /// no such item. One that panicked is done.
    pub fn step(&self, index: usize) -> Option<Step> {
        let taken = self.take(index, |_| true)?;
        Some(self.step_taken(taken))
    }

    /// Steps all pending items in turn, and those that they add, until none is left; the number
    /// of steps. Gives up after a million.
    pub fn run_all(&self) -> usize {
        let mut steps = 0;
        let mut index = 0;
        while steps < MOST_STEPS {
            match self.step(index) {
                Some(Step::More) => index += 1,
                // The next item has moved to this index.
                Some(Step::Done) => {}
                None if index == 0 => break,
                None => {
                    index = 0;
                    continue;
                }
            }
            steps += 1;
        }
        steps
    }

    pub(super) fn push(
        &self,
        shared: &Arc<Shared>,
        item: Box<dyn Item>,
    ) -> Result<(), Box<dyn Item>> {
        shared.push_to(item, |item| {
            let mut list = self.list.lock();
            list.last_id += 1;
            let id = list.last_id;
            list.entries.push(Entry {
                id,
                shared: Arc::clone(shared),
                item: Some(item),
            });
        })
    }

    pub(super) fn count(&self, shared: &Arc<Shared>) -> usize {
        let list = self.list.lock();
        let waiting = |entry: &&Entry| entry.item.is_some() && Arc::ptr_eq(&entry.shared, shared);
        list.entries.iter().filter(waiting).count()
    }

    /// Runs items of one lane until the predicate holds or nothing is pending; what the predicate
    /// said last. As many items take turns as the lane would have threads, so what could not run
    /// beside each other there does not here.
    pub(super) fn run_until(
        &self,
        shared: &Arc<Shared>,
        predicate: &mut dyn FnMut() -> bool,
    ) -> bool {
        let mut turn = 0;
        for _ in 0..MOST_STEPS {
            if predicate() {
                return true;
            }
            let mine = |entry: &Entry| Arc::ptr_eq(&entry.shared, shared);
            let taken = match self.take(turn, mine) {
                Some(taken) => taken,
                None => match self.take(0, mine) {
                    Some(oldest) => oldest,
                    None => return false,
                },
            };
            turn = match self.step_taken(taken) {
                Step::More => (turn + 1) % shared.threads(),
                Step::Done => 0,
            };
        }
        predicate()
    }

    /// Closes one lane; how many of its items are being stepped by callers further up.
    pub(super) fn close(&self, shared: &Arc<Shared>, drain: Drain) -> usize {
        shared.close_stepped();
        if drain == Drain::Run {
            self.run_until(shared, &mut || false);
        }
        shared.expire();
        let (dropped, stuck) = {
            let mut list = self.list.lock();
            let (mine, others) = std::mem::take(&mut list.entries)
                .into_iter()
                .partition::<Vec<Entry>, _>(|entry| {
                    entry.item.is_some() && Arc::ptr_eq(&entry.shared, shared)
                });
            list.entries = others;
            let running = list
                .entries
                .iter()
                .filter(|entry| Arc::ptr_eq(&entry.shared, shared));
            (mine, running.count())
        };
        for item in dropped.into_iter().filter_map(|entry| entry.item) {
            shared.discard(item);
        }
        stuck
    }

    /// Takes the `index`-th pending item of those that `select` picks.
    fn take(&self, index: usize, select: impl Fn(&Entry) -> bool) -> Option<Taken> {
        let mut list = self.list.lock();
        let mut pending = list
            .entries
            .iter_mut()
            .filter(|entry| entry.item.is_some() && select(entry));
        let entry = pending.nth(index)?;
        let item = entry.item.take()?;
        Some(Taken {
            id: entry.id,
            shared: Arc::clone(&entry.shared),
            item,
        })
    }

    /// Steps without the list's lock, since the item may push or wait.
    fn step_taken(&self, taken: Taken) -> Step {
        let rest = taken.shared.step(taken.item);
        let step = if rest.is_some() {
            Step::More
        } else {
            Step::Done
        };
        let mut list = self.list.lock();
        let Some(position) = list.entries.iter().position(|entry| entry.id == taken.id) else {
            return step;
        };
        match rest {
            Some(item) => {
                if let Some(entry) = list.entries.get_mut(position) {
                    entry.item = Some(item);
                }
            }
            None => {
                list.entries.remove(position);
            }
        }
        step
    }
}

impl fmt::Debug for Stepper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pending()).finish()
    }
}
