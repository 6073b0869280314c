//! One call of a pool on a thread of the guard's, and the hand-over of what it owns.

use crate::lane::{Item, Step};
use crate::store::breaker::{Breaker, Permit};
use crate::store::{Store, code};
use crate::sync::{Arc, Clock, Mutex, keep_for_ever};

/// What one call of a pool is given and answers. It moves with the call, so that nobody else can
/// have it while the pool does.
pub(super) trait Call: Send + 'static {
    /// Memory of the call is read or written by the pool itself.
    const LENDS: bool;

    /// Its caller keeps what it was about, for ever, if it is late: nobody takes that back.
    const KEEPS_LATE: bool = false;

    /// The call that ends the store; made although later calls are refused.
    const CLOSES: bool = false;

    /// For messages.
    fn name(&self) -> &'static str;

    /// Makes the call. It may never return.
    fn run(&mut self, store: &dyn Store);

    /// The code of a failure of the pool as a whole among the answers.
    fn failure(&self, store: &dyn Store) -> Option<i32>;

    /// Of a call that [lends](Self::LENDS) and failed so: whether the pool may still use what it was lent.
    fn keeps(&self, _store: &dyn Store) -> bool {
        false
    }

    /// The caller has gone, and nobody uses what the call owns any more.
    fn come_home(self);
}

/// How a call ended that the caller has back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It was made, and the pool answered.
    Answered,
    /// It was made, and the pool failed as a whole, with this code.
    Failed(i32),
    /// It was made, and the pool panicked.
    Panicked,
    /// It was never made.
    Unmade,
}

/// What became of a call that owns its buffers.
#[derive(Debug)]
#[must_use = "the buffers are in it, or gone"]
pub enum Made<C> {
    /// The call with an outcome per key. The buffers are the caller's again.
    Back(C),
    /// Every key failed with this code. The pool may still use the buffers: they come home when the call
    /// returns ([`Buffers::come_home`](super::Buffers::come_home)), or never.
    Kept(i32),
}

/// Whose answers a call has that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// The pool's.
    Answered,
    /// Nobody's: the deadline passed.
    Missed,
    /// Nobody's: the guard was closed before it was made.
    Closed,
    /// Nobody's: the pool panicked.
    Silent,
}

impl Fate {
    /// The code that stands for the answers of the pool; `None` when there are any.
    pub(super) fn code(self) -> Option<i32> {
        match self {
            Self::Answered => None,
            Self::Missed => Some(code::DEADLINE),
            Self::Closed => Some(code::CLOSED),
            Self::Silent => Some(code::NO_ANSWER),
        }
    }
}

/// Who has the call.
pub(super) enum Stage<C> {
    /// The ticket: no thread has taken it.
    Queued(C),
    /// The item, which has begun or is about to.
    Running,
    /// The ticket, for the caller.
    Back(C, End),
    /// Nobody: the pool failed with this code and may still use the call's buffers.
    Tainted(i32),
    /// The item; the caller has gone.
    Late,
    /// Nothing more comes of it.
    Gone,
}

/// Where caller and item hand the call over. Lock order: a ticket before the core's state.
pub(super) type Ticket<C> = Arc<Mutex<Stage<C>>>;

/// What is counted; see [`PoolCounts`](crate::stats::PoolCounts).
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub deadlines: u64,
    pub failures: u64,
    pub opened: u64,
    pub refused: u64,
    pub returned: u64,
    pub late: usize,
    pub quarantined: usize,
}

pub(super) struct State {
    pub breaker: Breaker,
    pub tally: Tally,
    /// Calls that are inside the pool, late or not.
    pub inside: usize,
    /// Only the closing call is made from now on.
    pub closed: bool,
    /// Whoever leaves last closes the pool.
    pub close_on_leave: bool,
    /// The pool's close was called; nobody does it twice.
    pub close_begun: bool,
}

/// What items share with the guard: all that a stuck thread keeps alive.
pub(super) struct Core {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub state: Mutex<State>,
}

impl Core {
    /// A thread is about to go into the pool; false: it must not.
    pub(super) fn enter(&self, closes: bool) -> bool {
        let mut state = self.state.lock();
        if state.closed && !closes {
            return false;
        }
        state.inside += 1;
        true
    }

    /// A thread has come out of the pool.
    pub(super) fn leave(&self) {
        let mut state = self.state.lock();
        state.inside = state.inside.saturating_sub(1);
        let closes = state.inside == 0 && state.close_on_leave && !state.close_begun;
        state.close_begun |= closes;
        drop(state);
        if closes && let Err(error) = self.store.close() {
            tracing::error!("a pool was closed late: {error}");
        }
    }

    /// A call missed its deadline; `stays`: inside the pool; `lends`: with buffers.
    pub(super) fn missed(&self, permit: Option<Permit>, stays: bool, lends: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.tally.deadlines += 1;
        if stays {
            state.tally.late += 1;
            state.breaker.hold(lends);
        }
        let opened = state.fail(permit, now, stays && lends);
        drop(state);
        if opened {
            self.say_opened(permit, "did not answer in time");
        }
    }

    /// Says once per outage that there is one; probes that fail are its continuation.
    fn say_opened(&self, permit: Option<Permit>, what: &str) {
        if permit.is_some_and(|permit| permit.is_probe()) {
            return;
        }
        tracing::warn!(
            store = self.store.capabilities().name,
            "the pool {what}: nothing is found, loaded or saved until it answers again"
        );
    }

    /// A call in time ended.
    pub(super) fn ended(&self, permit: Option<Permit>, end: End) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        match (end, permit) {
            (End::Failed(code), _) => {
                drop(state);
                self.failed(permit, code, false);
            }
            (End::Panicked, _) => {
                drop(state);
                self.failed(permit, code::NO_ANSWER, false);
            }
            (End::Answered, Some(permit)) => {
                let closed = state.breaker.succeeded(permit);
                drop(state);
                if closed {
                    tracing::warn!(
                        store = self.store.capabilities().name,
                        "the pool answers again"
                    );
                }
            }
            (End::Unmade, Some(permit)) => state.breaker.withdrawn(permit, now),
            (_, None) => {}
        }
    }

    /// A call in time failed with this code; `keeps`: it was quarantined.
    pub(super) fn failed(&self, permit: Option<Permit>, code: i32, keeps: bool) {
        let now = self.clock.now();
        let mut state = self.state.lock();
        state.tally.failures += 1;
        let opened = state.fail(permit, now, keeps);
        drop(state);
        if opened {
            self.say_opened(permit, &format!("failed with {code}"));
        }
    }

    fn quarantine(&self) {
        let mut state = self.state.lock();
        state.breaker.hold(true);
        let is_last = state.quarantine();
        drop(state);
        if is_last {
            self.say_left_alone();
        }
    }

    fn say_left_alone(&self) {
        tracing::error!(
            store = self.store.capabilities().name,
            "the pool failed too often with memory that it may still use: it is left alone until this worker or store is made anew"
        );
    }

    /// A late call has returned; `clean`: what it held is free; `lends`: buffers too.
    fn returned(&self, clean: bool, lends: bool) {
        let mut state = self.state.lock();
        state.tally.late = state.tally.late.saturating_sub(1);
        state.tally.returned += 1;
        if clean {
            return state.breaker.release(lends);
        }
        // Its buffers were held as those of a late call, and stay so.
        let is_last = state.quarantine();
        drop(state);
        if is_last {
            self.say_left_alone();
        }
    }
}

impl State {
    /// Whether that opened the breaker.
    fn fail(&mut self, permit: Option<Permit>, now: std::time::Duration, keeps: bool) -> bool {
        let opened = permit.is_some_and(|permit| self.breaker.failed(permit, now, keeps));
        self.tally.opened += u64::from(opened);
        opened
    }

    /// Whether nothing passes from now on, for good.
    fn quarantine(&mut self) -> bool {
        self.tally.quarantined += 1;
        self.tally.quarantined == self.breaker.bound()
    }
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Queued,
    /// Inside, as far as others are concerned; the pool has not been called.
    Begun,
    Called,
    Ended,
}

/// Carries a call out. Two steps, so that a stepping test can stop between them.
pub(super) struct Carrier<C: Call> {
    core: Arc<Core>,
    ticket: Ticket<C>,
    call: Option<C>,
    progress: Progress,
}

impl<C: Call> Carrier<C> {
    pub(super) fn new(core: Arc<Core>, ticket: Ticket<C>) -> Self {
        Self {
            core,
            ticket,
            call: None,
            progress: Progress::Queued,
        }
    }

    /// Takes the call over from the ticket; false if there is nothing to do.
    fn begin(&mut self) -> bool {
        let mut stage = self.ticket.lock();
        match std::mem::replace(&mut *stage, Stage::Gone) {
            Stage::Queued(call) if self.core.enter(C::CLOSES) => {
                *stage = Stage::Running;
                self.call = Some(call);
                self.progress = Progress::Begun;
                true
            }
            Stage::Queued(call) => {
                *stage = Stage::Back(call, End::Unmade);
                false
            }
            other => {
                *stage = other;
                false
            }
        }
    }

    /// Gives the call back, or to whom it belongs now that its caller has gone.
    fn end(&mut self, end: End) {
        self.progress = Progress::Ended;
        let Some(call) = self.call.take() else {
            return;
        };
        let mut stage = self.ticket.lock();
        let is_late = matches!(*stage, Stage::Late);
        let tainted = match end {
            End::Failed(code) if C::LENDS && call.keeps(&*self.core.store) => Some(code),
            End::Panicked if C::LENDS => Some(code::NO_ANSWER),
            End::Answered | End::Failed(_) | End::Panicked if is_late && C::KEEPS_LATE => {
                Some(code::DEADLINE)
            }
            _ => None,
        };
        let late = match (tainted, is_late) {
            (Some(code), _) => {
                // The pool may still use it, so nobody else ever does.
                keep_for_ever(call);
                if !is_late {
                    self.core.quarantine();
                }
                *stage = Stage::Tainted(code);
                None
            }
            (None, true) => {
                *stage = Stage::Gone;
                Some(call)
            }
            (None, false) => {
                *stage = Stage::Back(call, end);
                None
            }
        };
        drop(stage);
        if is_late {
            self.core.returned(tainted.is_none(), C::LENDS);
        }
        if let Some(call) = late {
            call.come_home();
        }
        // Last, since this may close the pool, and that may take long.
        self.core.leave();
    }
}

impl<C: Call> Item for Carrier<C> {
    fn step(&mut self) -> Step {
        if self.progress == Progress::Queued {
            return match self.begin() {
                true => Step::More,
                false => Step::Done,
            };
        }
        let Some(call) = &mut self.call else {
            return Step::Done;
        };
        self.progress = Progress::Called;
        call.run(&*self.core.store);
        let failure = call.failure(&*self.core.store);
        self.end(failure.map_or(End::Answered, End::Failed));
        Step::Done
    }

    fn name(&self) -> &'static str {
        self.call.as_ref().map_or("pool call", Call::name)
    }
}

impl<C: Call> Drop for Carrier<C> {
    /// Runs also when the pool panicked or the lane was closed: nobody waits for an answer that
    /// does not come.
    fn drop(&mut self) {
        match self.progress {
            Progress::Queued => {
                let mut stage = self.ticket.lock();
                let queued = std::mem::replace(&mut *stage, Stage::Gone);
                *stage = match queued {
                    Stage::Queued(call) => Stage::Back(call, End::Unmade),
                    other => other,
                };
            }
            Progress::Begun => self.end(End::Unmade),
            Progress::Called => self.end(End::Panicked),
            Progress::Ended => {}
        }
    }
}

/// The caller's end of a call, ended or not: from here on it has the call or has lost it.
pub(super) fn conclude<C: Call>(
    core: &Core,
    ticket: &Ticket<C>,
    permit: Option<Permit>,
) -> (Made<C>, Fate) {
    let mut stage = ticket.lock();
    match std::mem::replace(&mut *stage, Stage::Gone) {
        Stage::Queued(call) => {
            core.missed(permit, false, C::LENDS);
            (Made::Back(call), Fate::Missed)
        }
        Stage::Back(call, end) => {
            core.ended(permit, end);
            let fate = match end {
                End::Unmade => Fate::Closed,
                End::Panicked => Fate::Silent,
                End::Answered | End::Failed(_) => Fate::Answered,
            };
            (Made::Back(call), fate)
        }
        Stage::Tainted(code) => {
            core.failed(permit, code, true);
            let fate = match code {
                code::NO_ANSWER => Fate::Silent,
                _ => Fate::Answered,
            };
            (Made::Kept(code), fate)
        }
        Stage::Running => {
            *stage = Stage::Late;
            core.missed(permit, true, C::LENDS);
            (Made::Kept(code::DEADLINE), Fate::Missed)
        }
        // The caller concludes once.
        Stage::Late | Stage::Gone => (Made::Kept(code::NO_ANSWER), Fate::Silent),
    }
}
