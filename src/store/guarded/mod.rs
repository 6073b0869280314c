//! A store whose calls end by a deadline, around one whose calls may not.
//!
//! Calls are made on threads of the guard's. The caller waits until the deadline; the call that has not
//! returned by then is *late*: it keeps its thread, the store and all that it was given until it
//! does, if ever. Late calls are bounded, and a [`Breaker`] keeps others from a pool that does not answer. `docs/design/guard.md`
//! says who owns what when.
//!
//! Around a store that cannot be late there is nothing to do: its calls go straight through.

mod call;
mod copied;
mod ends;
mod inline;
#[cfg(test)]
#[cfg(loom)]
mod loom;
mod owned;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;

pub use call::Made;
pub use owned::{Buffers, Get, Put};

use std::time::Duration;

use self::call::{Call, Carrier, Core, End, Fate, Stage, Tally, Ticket, conclude};
use self::owned::{AskHealth, Exist, PageCall, Remove};
use super::breaker::{Breaker, Permit, State};
use super::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, answer_all, code,
};
use crate::config::Config;
use crate::device::memory::{Source, Target};
use crate::error::Result;
use crate::keys::Keys;
use crate::lane::{Drain, Lane, Mode};
use crate::layout::Range;
use crate::stats::PoolCounts;
use crate::sync::{Arc, Clock, Mutex};

/// Asked for where a pool is only to answer.
const NOBODYS_KEY: &[u8] = b"kvbridge/does-it-answer";

/// Calls of lookups that are kept to be used again.
const MOST_SPARE: usize = 8;

/// How long memory may take to be made known to a pool, which pins it where the network wants that.
const REGISTRATION: Duration = Duration::from_secs(30);

/// So many late calls and quarantined buffers may a pool keep before it is left alone.
pub const MOST_HELD: usize = 8;

/// How long a pool may take to close and to give memory back, whatever a caller's own deadline: in the middle of that
/// a process should not end.
pub const LEAST_PATIENCE: Duration = Duration::from_secs(3);

/// How patient a guard is. A time of zero makes every call late.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// For exist and health.
    pub lookup: Duration,
    /// For get.
    pub load: Duration,
    /// For put and remove.
    pub save: Duration,
    /// For registrations.
    pub registration: Duration,
    /// For close.
    pub close: Duration,
    /// How long the breaker stays open before a probe.
    pub cooldown: Duration,
    /// At so many late calls and quarantined buffers no call is made any more; 0 counts as 1.
    pub bound: usize,
    /// So many callers at once find a thread; more wait, and their deadlines run. 0 counts as 1.
    pub callers: usize,
}

impl Settings {
    /// The times of a configuration. A close may take as long as a save.
    pub fn new(config: &Config, bound: usize, callers: usize) -> Self {
        Self {
            lookup: config.lookup_timeout(),
            load: config.load_timeout(),
            save: config.save_timeout(),
            registration: REGISTRATION,
            close: config.save_timeout(),
            cooldown: config.breaker_cooldown(),
            bound,
            callers,
        }
    }
}

/// The guard. Threads: as any store. Blocks: each call until its deadline at most.
pub struct Guarded {
    core: Arc<Core>,
    settings: Settings,
    /// None around a store that cannot be late.
    lane: Option<Lane>,
    spare: Mutex<Vec<Exist>>,
}

impl std::fmt::Debug for Guarded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guarded")
            .field("lane", &self.lane)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Guarded {
    /// Puts a guard around a store. `NoThread` if its threads cannot be started.
    ///
    /// With threads a deadline passes by the machine's clock even while `clock` stands still; one that passes by `clock` alone
    /// is noticed when any call of this guard moves on.
    pub fn start(
        store: Arc<dyn Store>,
        settings: Settings,
        clock: Arc<dyn Clock>,
        mode: &Mode,
    ) -> Result<Arc<Self>> {
        let lane = match store.capabilities().can_be_late {
            true => {
                let threads = settings
                    .bound
                    .max(1)
                    .saturating_add(settings.callers.max(1));
                Some(Lane::start("kvb-pool", threads, mode)?)
            }
            false => None,
        };
        let state = Mutex::new(call::State {
            breaker: Breaker::new(settings.cooldown, settings.bound),
            tally: Tally::default(),
            inside: 0,
            closed: false,
            close_on_leave: false,
            close_begun: false,
        });
        Ok(Arc::new(Self {
            core: Arc::new(Core {
                store,
                clock,
                state,
            }),
            settings,
            lane,
            spare: Mutex::new(Vec::new()),
        }))
    }

    /// The numbers at this moment.
    pub fn counts(&self) -> PoolCounts {
        let state = self.core.state.lock();
        let tally = &state.tally;
        PoolCounts {
            state: state.breaker.state(),
            deadlines: tally.deadlines,
            failures: tally.failures,
            opened: tally.opened,
            refused: tally.refused,
            returned: tally.returned,
            late: tally.late as u64,
            quarantined: tally.quarantined as u64,
        }
    }

    /// Reads one object per key into buffers that the call owns. See [`Store::get`].
    pub fn get_owned<B: Buffers>(&self, call: Get<B>) -> Made<Get<B>> {
        self.move_pages(call, self.settings.load)
    }

    /// Stores one object per key out of buffers that the call owns. See [`Store::put`].
    pub fn put_owned<B: Buffers>(&self, call: Put<B>) -> Made<Put<B>> {
        self.move_pages(call, self.settings.save)
    }

    fn move_pages<C: PageCall>(&self, mut call: C, patience: Duration) -> Made<C> {
        let Some(lane) = &self.lane else {
            call.run(&*self.core.store);
            return Made::Back(call);
        };
        if call.keys().is_empty() {
            // Leaves no answers.
            call.answer(code::NO_ANSWER);
            return Made::Back(call);
        }
        let (mut made, code) = match self.admit_pages(lane, call.keys()) {
            Ok(permit) => {
                let (made, fate) = self.carry_out(lane, call, patience, Some(permit));
                (made, fate.code())
            }
            Err(code) => (Made::Back(call), Some(code)),
        };
        // The call has answers, whoever gives them.
        if let (Made::Back(call), Some(code)) = (&mut made, code) {
            call.answer(code);
        }
        made
    }

    /// When a lookup that begins now has to end; `None` around a store that cannot be late.
    pub fn lookup_deadline(&self) -> Option<Duration> {
        self.lane.as_ref()?;
        Some(self.core.clock.now().saturating_add(self.settings.lookup))
    }

    /// [`Store::exist`] as a part of a lookup that has to end by `deadline`.
    pub fn exist_by(&self, deadline: Option<Duration>, keys: &Keys, out: &mut Vec<Presence>) {
        let (Some(lane), Some(deadline)) = (&self.lane, deadline) else {
            return self.core.store.exist(keys, out);
        };
        if keys.is_empty() {
            return out.clear();
        }
        let permit = match self.admit() {
            Ok(permit) => permit,
            Err(code) => return answer_all(out, keys.len(), Presence::Unknown(code)),
        };
        let mut call = self.spare.lock().pop().unwrap_or_default();
        call.keys.clear();
        call.keys.extend(keys);
        let left = deadline.saturating_sub(self.core.clock.now());
        let (made, fate) = self.carry_out(lane, call, left, Some(permit));
        match (made, fate.code()) {
            (Made::Back(mut call), None) => {
                std::mem::swap(out, &mut call.out);
                let mut spare = self.spare.lock();
                if spare.len() < MOST_SPARE {
                    spare.push(call);
                }
            }
            (Made::Kept(code), _) | (Made::Back(_), Some(code)) => {
                answer_all(out, keys.len(), Presence::Unknown(code));
            }
        }
    }

    /// Waits until `is_true`, which is asked whenever a call of the pool has moved on; what it answered last.
    ///
    /// Blocks: at most for `patience`; not around a store that cannot be late.
    pub fn wait_until(&self, patience: Duration, is_true: impl FnMut() -> bool) -> bool {
        let mut is_true = is_true;
        match &self.lane {
            Some(lane) => lane.wait_until(Some(patience), is_true),
            None => is_true(),
        }
    }

    /// Whether calls that lend buffers are made now. Where that is to be found out, the pool is asked for a key that
    /// nobody stores, for as long as a lookup may take.
    pub fn is_passable(&self) -> bool {
        let Some(lane) = &self.lane else {
            return !self.core.state.lock().closed;
        };
        let mut keys = Keys::new();
        keys.push(NOBODYS_KEY);
        let Ok(permit) = self.admit_pages(lane, &keys) else {
            return false;
        };
        self.core.ended(Some(permit), End::Unmade);
        true
    }

    /// Permission for a call, or the code of all its answers.
    fn admit(&self) -> std::result::Result<Permit, i32> {
        let now = self.core.clock.now();
        let mut state = self.core.state.lock();
        if state.closed {
            return Err(code::CLOSED);
        }
        match state.breaker.admit(now) {
            Some(permit) => Ok(permit),
            None => {
                state.tally.refused += 1;
                Err(code::BREAKER_OPEN)
            }
        }
    }

    /// [`admit`](Self::admit) for calls that lend buffers. They do not probe, since a probe that fails
    /// would cost the buffers: a lookup of the first key does.
    fn admit_pages(&self, lane: &Lane, keys: &Keys) -> std::result::Result<Permit, i32> {
        let permit = self.admit()?;
        if !permit.is_probe() {
            return Ok(permit);
        }
        let mut probe = Exist::default();
        probe.keys.push(keys.get(0));
        let _ = self.carry_out(lane, probe, self.settings.lookup, Some(permit));
        let permit = self.admit()?;
        if permit.is_probe() {
            // That probe was never made. Neither is this one.
            self.core.ended(Some(permit), End::Unmade);
            return Err(code::BREAKER_OPEN);
        }
        Ok(permit)
    }

    /// Has a call made and waits for it until the deadline.
    fn carry_out<C: Call>(
        &self,
        lane: &Lane,
        call: C,
        patience: Duration,
        permit: Option<Permit>,
    ) -> (Made<C>, Fate) {
        let core = &self.core;
        let deadline = core.clock.now().saturating_add(patience);
        let ticket: Ticket<C> = Arc::new(Mutex::new(Stage::Queued(call)));
        let item = Carrier::new(Arc::clone(core), Arc::clone(&ticket));
        // An item that is refused gives the call back as it is dropped.
        drop(lane.push(Box::new(item)));
        let has_ended = || !matches!(*ticket.lock(), Stage::Queued(_) | Stage::Running);
        lane.wait_until(Some(patience), || {
            has_ended() || core.clock.now() >= deadline
        });
        let (made, fate) = conclude(core, &ticket, permit);
        if fate == Fate::Silent
            && let Some(panic) = lane.take_panic()
        {
            tracing::error!("a call of the pool panicked: {panic}");
        }
        (made, fate)
    }
}

impl Store for Guarded {
    fn capabilities(&self) -> &Capabilities {
        self.core.store.capabilities()
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        self.exist_by(self.lookup_deadline(), keys, out);
    }

    /// Copies where the call could be late: see [`Guarded::put_owned`] for the way without.
    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        match &self.lane {
            None => self.core.store.put(keys, sources, options, out),
            Some(lane) if self.capabilities().ends_by_itself => {
                self.put_inline(lane, keys, sources, options, out);
            }
            Some(_) => self.put_copied(keys, sources, options, out),
        }
    }

    /// Copies where the call could be late: see [`Guarded::get_owned`] for the way without.
    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        match &self.lane {
            None => self.core.store.get(keys, targets, out),
            Some(lane) if self.capabilities().ends_by_itself => {
                self.get_inline(lane, keys, targets, out);
            }
            Some(_) => self.get_copied(keys, targets, out),
        }
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        let Some(lane) = &self.lane else {
            return self.core.store.remove(keys, force, out);
        };
        if keys.is_empty() {
            return out.clear();
        }
        let permit = match self.admit() {
            Ok(permit) => permit,
            Err(code) => return answer_all(out, keys.len(), RemoveOutcome::Failed(code)),
        };
        let call = Remove {
            keys: keys.clone(),
            force,
            out: Vec::new(),
        };
        let (made, fate) = self.carry_out(lane, call, self.settings.save, Some(permit));
        match (made, fate.code()) {
            (Made::Back(mut call), None) => std::mem::swap(out, &mut call.out),
            (Made::Kept(code), _) | (Made::Back(_), Some(code)) => {
                answer_all(out, keys.len(), RemoveOutcome::Failed(code));
            }
        }
    }

    /// See [`Guarded::register_within`].
    fn register(&self, range: Range) -> Result<()> {
        self.register_within(range, self.settings.registration)
    }

    /// See [`Guarded::unregister_within`].
    fn unregister(&self, range: Range) -> Result<()> {
        self.unregister_within(range, self.settings.registration)
    }

    /// Down while the breaker is not closed. A pool's word on its own health may be old, so that it
    /// opens the breaker but never closes it.
    fn health(&self) -> Health {
        let Some(lane) = &self.lane else {
            return self.core.store.health();
        };
        let now = self.core.clock.now();
        let permit = {
            let mut state = self.core.state.lock();
            if state.closed {
                return Health::Down(code::CLOSED);
            }
            match state.breaker.state() {
                State::Closed => state.breaker.admit(now),
                State::Open | State::Probing => None,
            }
        };
        let Some(permit) = permit else {
            return Health::Down(code::BREAKER_OPEN);
        };
        let call = AskHealth(Health::Down(code::NO_ANSWER));
        let (made, fate) = self.carry_out(lane, call, self.settings.lookup, Some(permit));
        match (made, fate.code()) {
            (Made::Back(call), None) => call.0,
            (Made::Kept(code), _) | (Made::Back(_), Some(code)) => Health::Down(code),
        }
    }

    fn is_outage(&self, code: i32) -> bool {
        self.core.store.is_outage(code)
    }

    fn may_still_write(&self, code: i32) -> bool {
        self.core.store.may_still_write(code)
    }

    fn may_still_read(&self, code: i32) -> bool {
        self.core.store.may_still_read(code)
    }

    /// Waits for calls inside the pool and closes it, all by the deadline. `Busy` if one is still inside: whoever leaves
    /// last closes the pool, and nothing that it may use is freed. What the pool's own close says is passed on.
    fn close(&self) -> Result<()> {
        self.close_within(self.settings.close, Duration::ZERO)
    }
}

impl Drop for Guarded {
    /// Leaves threads alone that are stuck in the pool. Each has its own share of the store.
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            let stuck = lane.close(Duration::ZERO, Drain::Drop).stuck;
            if let Some(panic) = lane.take_panic() {
                tracing::error!("a call of the pool panicked: {panic}");
            }
            let inside = self.core.state.lock().inside;
            if stuck > 0 && inside > 0 {
                tracing::warn!("{inside} threads stay inside a pool that does not answer");
            }
        }
    }
}
