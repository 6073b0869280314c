//! What a lane's threads and its owner share: the queue, who has ended, and the kept panic.

use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::{Drain, Item, Step};
use crate::sync::{Condvar, Mutex, MutexGuard};

pub(super) struct Shared {
    name: String,
    threads: usize,
    state: Mutex<State>,
    /// Notified when there is an item to take, or the lane is closed.
    work: Condvar,
    /// Notified when `State::progress` moves.
    progressed: Condvar,
}

struct State {
    queue: VecDeque<Box<dyn Item>>,
    /// Items that threads have taken and not dropped.
    taken: usize,
    closed: bool,
    /// A deadline of `close` has passed: running items are abandoned at their next step.
    expired: bool,
    /// Counts steps and exits, so that a waiting thread can ask its predicate without the lock
    /// and still miss nothing.
    progress: u64,
    /// Per thread, whether it has left `run`.
    exited: Vec<bool>,
    panic: Option<String>,
}

impl State {
    fn live(&self) -> usize {
        self.exited.iter().filter(|exited| !**exited).count()
    }
}

/// Marks the thread as ended even if something unwinds through `run`.
struct Exit<'a> {
    shared: &'a Shared,
    place: usize,
}

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        self.shared.exit(self.place);
    }
}

impl Shared {
    pub(super) fn new(name: &str, threads: usize) -> Self {
        Self {
            name: name.to_owned(),
            threads,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                taken: 0,
                closed: false,
                expired: false,
                progress: 0,
                exited: Vec::with_capacity(threads),
                panic: None,
            }),
            work: Condvar::new(),
            progressed: Condvar::new(),
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// How many items could run at once.
    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// A place in the list of threads for one that is about to start.
    pub(super) fn enlist(&self) -> usize {
        let mut state = self.state.lock();
        state.exited.push(false);
        state.exited.len() - 1
    }

    /// The thread at `place` has ended, or never started.
    pub(super) fn exit(&self, place: usize) {
        let mut state = self.state.lock();
        if let Some(exited) = state.exited.get_mut(place) {
            *exited = true;
        }
        self.progress(&mut state);
    }

    pub(super) fn has_exited(&self, place: usize) -> bool {
        self.state.lock().exited.get(place).copied().unwrap_or(true)
    }

    pub(super) fn push(&self, item: Box<dyn Item>) -> Result<(), Box<dyn Item>> {
        self.push_with(item, |state, item| {
            state.queue.push_back(item);
            self.work.notify_one();
        })
    }

    /// Refuses the item if the lane is closed, or lets a stepper keep it; nothing can close the
    /// lane in between.
    pub(super) fn push_to(
        &self,
        item: Box<dyn Item>,
        keep: impl FnOnce(Box<dyn Item>),
    ) -> Result<(), Box<dyn Item>> {
        self.push_with(item, |_, item| keep(item))
    }

    fn push_with(
        &self,
        item: Box<dyn Item>,
        keep: impl FnOnce(&mut State, Box<dyn Item>),
    ) -> Result<(), Box<dyn Item>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        keep(&mut state, item);
        Ok(())
    }

    pub(super) fn queued(&self) -> usize {
        self.state.lock().queue.len()
    }

    pub(super) fn unfinished(&self) -> usize {
        let state = self.state.lock();
        state.queue.len() + state.taken
    }

    pub(super) fn take_panic(&self) -> Option<String> {
        self.state.lock().panic.take()
    }

    /// A thread's life: items until the lane is closed and has none left.
    pub(super) fn run(&self, place: usize) {
        let _exit = Exit {
            shared: self,
            place,
        };
        while let Some(item) = self.next() {
            let mut current = Some(item);
            while let Some(item) = current.take() {
                current = self.step(item);
            }
        }
    }

    fn next(&self) -> Option<Box<dyn Item>> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.queue.pop_front() {
                state.taken += 1;
                return Some(item);
            }
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// Steps the item once and gives it back if there is more to do. It is dropped before anybody
    /// is told that it ended, so that whoever waits finds its last words spoken.
    pub(super) fn step(&self, mut item: Box<dyn Item>) -> Option<Box<dyn Item>> {
        let more = match catch_unwind(AssertUnwindSafe(|| item.step())) {
            Ok(step) => step == Step::More && !self.state.lock().expired,
            Err(panic) => {
                self.keep_panic(&*item, panic);
                false
            }
        };
        let rest = match more {
            true => Some(item),
            false => {
                self.discard(item);
                None
            }
        };
        let mut state = self.state.lock();
        if rest.is_none() {
            // A stepper's items were not taken from here.
            state.taken = state.taken.saturating_sub(1);
        }
        self.progress(&mut state);
        drop(state);
        rest
    }

    /// Drops an item, whose `Drop` may panic like its steps.
    pub(super) fn discard(&self, item: Box<dyn Item>) {
        let name = name_of(&*item);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(item))) {
            self.keep_text(name, &text_of(&*panic));
            dispose(panic);
        }
    }

    fn keep_panic(&self, item: &dyn Item, panic: Box<dyn Any + Send>) {
        self.keep_text(name_of(item), &text_of(&*panic));
        dispose(panic);
    }

    fn keep_text(&self, item: &str, text: &str) {
        let mut state = self.state.lock();
        if state.panic.is_none() {
            state.panic = Some(format!(
                "item {item} of lane {} panicked: {text}",
                self.name
            ));
        }
    }

    fn progress(&self, state: &mut MutexGuard<'_, State>) {
        state.progress = state.progress.wrapping_add(1);
        self.progressed.notify_all();
    }

    pub(super) fn wait_until(
        &self,
        deadline: Option<Instant>,
        predicate: &mut dyn FnMut() -> bool,
    ) -> bool {
        loop {
            let (seen, ended) = {
                let state = self.state.lock();
                (state.progress, state.live() == 0)
            };
            if predicate() {
                return true;
            }
            if ended {
                return false;
            }
            let mut state = self.state.lock();
            while state.progress == seen {
                if !self.wait(&mut state, deadline) {
                    drop(state);
                    return predicate();
                }
            }
        }
    }

    /// Waits for progress; false when the deadline has passed.
    fn wait(&self, state: &mut MutexGuard<'_, State>, deadline: Option<Instant>) -> bool {
        let Some(deadline) = deadline else {
            self.progressed.wait(state);
            return true;
        };
        let left = deadline.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return false;
        }
        self.progressed.wait_for(state, left);
        true
    }

    /// Refuses items from now on, and waits for the threads; how many have not ended.
    pub(super) fn close(&self, deadline: Option<Instant>, drain: Drain) -> usize {
        let queued = {
            let mut state = self.state.lock();
            state.closed = true;
            self.work.notify_all();
            match drain {
                Drain::Run => VecDeque::new(),
                Drain::Drop => std::mem::take(&mut state.queue),
            }
        };
        self.discard_all(queued);
        let (stuck, rest) = {
            let mut state = self.state.lock();
            while state.live() > 0 && self.wait(&mut state, deadline) {}
            state.expired = state.live() > 0;
            (state.live(), std::mem::take(&mut state.queue))
        };
        self.discard_all(rest);
        stuck
    }

    /// Closes the lane for a stepper, which has the items.
    pub(super) fn close_stepped(&self) {
        self.state.lock().closed = true;
    }

    /// Has items that a stepper is running abandoned when their present step returns.
    pub(super) fn expire(&self) {
        self.state.lock().expired = true;
    }

    fn discard_all(&self, items: VecDeque<Box<dyn Item>>) {
        if items.is_empty() {
            return;
        }
        for item in items {
            self.discard(item);
        }
        self.progress(&mut self.state.lock());
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("name", &self.name)
            .field("threads", &self.threads)
            .finish()
    }
}

fn name_of(item: &dyn Item) -> &'static str {
    catch_unwind(AssertUnwindSafe(|| item.name())).unwrap_or_else(|panic| {
        dispose(panic);
        "without a name"
    })
}

/// Drops what was thrown. It is somebody else's and may panic once more; that one is kept for good.
fn dispose(panic: Box<dyn Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(second);
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    match panic.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "no text".to_owned(),
    }
}
