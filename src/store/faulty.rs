//! A store that breaks another by script, so that an integration can be tested without a cluster.
//!
//! A [`Script`] is a list of rules; each says in which calls, for which keys, what goes wrong. For
//! a key the first rule that fits decides; hooks run for every rule that fits. What an action means:
//!
//! | action | exist | put | get | remove |
//! | --- | --- | --- | --- | --- |
//! | `Lose` | absent | stored, it says, but is not | missing | missing, and stays |
//! | `Fail(code)` | unknown | failed, not stored | failed, nothing lands | failed, and stays |
//! | `NoSpace` | – | no space, not stored | – | – |
//! | `ClaimPresent` | present | already there, not stored | – | – |
//! | `Truncate` | – | the first half is stored | the first half lands; wrong size | – |
//! | `Corrupt` | – | stored with one byte flipped | lands with one byte flipped | – |
//! | `WrongLength(n)` | the outcome list of the whole call is n longer, or shorter when negative ||||
//! | `Hook(f)` | `f` runs before the call, on the caller's thread; it may wait ||||
//!
//! "–" leaves the key alone. Without a rule that fits, a call goes straight through.

mod rules;
mod script;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

pub use rules::{Action, Call, Rule, Script, Which};
use script::{Gate, Timed};

use super::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, code,
};
use crate::device::memory::{Source, Target, write_over};
use crate::error::Result;
use crate::keys::Keys;
use crate::layout::Range;

/// How much was asked of the store, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls begun.
    pub calls: u64,
    /// Keys in them.
    pub keys: u64,
}

/// The wrapper. Threads: as the store inside it; call numbers are given out as calls begin.
pub struct Faulty {
    inner: Arc<dyn Store>,
    faults: Arc<Faults>,
    capabilities: Capabilities,
}

/// A script and how far it is: what all handles on one faulty store share.
#[derive(Debug, Default)]
pub struct Faults {
    script: Mutex<Arc<Vec<Timed>>>,
    counts: [Counter; 4],
    gate: Arc<Gate>,
    /// The script has calls that take their time, or a pool that is out of reach: what wraps the store must
    /// take it for one that can be late.
    can_be_late: bool,
}

impl Faults {
    /// Reads a script's text; see `docs/faults.md`. `InvalidArgument` names every problem.
    pub fn from_json(text: &[u8]) -> Result<Arc<Self>> {
        let mut faults = Self::default();
        let (script, can_be_late) = script::parse(text, &faults.gate)?;
        faults.can_be_late = can_be_late;
        *faults.script.lock() = Arc::new(script);
        Ok(Arc::new(faults))
    }

    /// Ends all calls that hang; none hangs from now on.
    pub fn release(&self) {
        self.gate.release();
    }
}

#[derive(Debug, Default)]
struct Counter {
    calls: AtomicU64,
    keys: AtomicU64,
}

/// What the script says about one call.
struct Plan {
    /// Per key, none for keys left alone; empty when no rule fits the call.
    actions: Vec<Option<Action>>,
    length: isize,
}

impl std::fmt::Debug for Faulty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Faulty")
            .field("faults", &self.faults)
            .finish_non_exhaustive()
    }
}

impl Faulty {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn Store>, script: Script) -> Arc<Self> {
        let store = Self::over(inner, Arc::default());
        store.set_script(script);
        store
    }

    /// Wraps a store as one whose calls can be late, and whose failures with [`code::UNREACHABLE`] leave
    /// pieces in the pool's hands.
    pub fn late(inner: Arc<dyn Store>, script: Script) -> Arc<Self> {
        let faults = Faults {
            can_be_late: true,
            ..Faults::default()
        };
        let store = Self::over(inner, Arc::new(faults));
        store.set_script(script);
        store
    }

    /// Wraps a store as one that is guarded although [its calls end by themselves](Capabilities::ends_by_itself).
    pub fn prompt(inner: Arc<dyn Store>, script: Script) -> Arc<Self> {
        let mut capabilities = inner.capabilities().clone();
        (capabilities.can_be_late, capabilities.ends_by_itself) = (true, true);
        let store = Self::with(inner, Arc::default(), capabilities);
        store.set_script(script);
        store
    }

    /// Wraps a store under faults that other handles may have too.
    pub fn over(inner: Arc<dyn Store>, faults: Arc<Faults>) -> Arc<Self> {
        let mut capabilities = inner.capabilities().clone();
        capabilities.can_be_late |= faults.can_be_late;
        // A call that hangs by script would hang its caller.
        capabilities.ends_by_itself &= !faults.can_be_late;
        Self::with(inner, faults, capabilities)
    }

    fn with(inner: Arc<dyn Store>, faults: Arc<Faults>, capabilities: Capabilities) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults,
            capabilities,
        })
    }

    /// Replaces the script for calls that begin from now on. Call numbers go on counting.
    pub fn set_script(&self, script: Script) {
        let script = script.into_iter().map(|rule| (rule, 1)).collect();
        *self.faults.script.lock() = Arc::new(script);
    }

    /// What was asked so far, in calls of this kind.
    pub fn count(&self, call: Call) -> Count {
        let mut sum = Count::default();
        for (i, counter) in self.faults.counts.iter().enumerate() {
            if call == Call::Any || call as usize == i {
                sum.calls += counter.calls.load(Ordering::SeqCst);
                sum.keys += counter.keys.load(Ordering::SeqCst);
            }
        }
        sum
    }

    /// Counts the call, runs the hooks and picks each key's action.
    fn begin(&self, call: Call, keys: &Keys) -> Plan {
        let mut number = 0;
        if let Some(counter) = self.faults.counts.get(call as usize) {
            counter.keys.fetch_add(keys.len() as u64, Ordering::SeqCst);
            number = counter.calls.fetch_add(1, Ordering::SeqCst);
        }
        let script = Arc::clone(&self.faults.script.lock());
        let mut plan = Plan {
            actions: Vec::new(),
            length: 0,
        };
        for (rule, every) in script.iter() {
            let is_meant = rule.call == call || rule.call == Call::Any;
            let is_due = rule.at.contains(&number)
                && number.wrapping_sub(rule.at.start).checked_rem(*every) == Some(0);
            if !is_meant || !is_due {
                continue;
            }
            let chosen = rule.keys.of(keys);
            if chosen.is_empty() && rule.keys != Which::All {
                continue;
            }
            match &rule.action {
                Action::Hook(hook) => hook(),
                Action::WrongLength(by) => plan.length = *by,
                action => {
                    plan.actions.resize(keys.len(), None);
                    for key in chosen {
                        if let Some(slot) = plan.actions.get_mut(key) {
                            slot.get_or_insert_with(|| action.clone());
                        }
                    }
                }
            }
        }
        plan
    }
}

impl Plan {
    fn action(&self, key: usize) -> Option<&Action> {
        self.actions.get(key)?.as_ref()
    }

    /// Puts the outcomes decided here and those of the store, which were asked for the keys
    /// without one, into one list.
    fn merge<T: Copy>(&self, decided: &[Option<T>], asked: Vec<T>, out: &mut Vec<T>) {
        out.clear();
        if asked.len() != decided.iter().filter(|outcome| outcome.is_none()).count() {
            out.extend(asked);
            return;
        }
        let mut asked = asked.into_iter();
        out.extend(
            decided
                .iter()
                .filter_map(|own| own.or_else(|| asked.next())),
        );
    }

    /// Makes the list's length as wrong as the script wants it.
    fn stretch<T: Copy>(&self, filler: T, out: &mut Vec<T>) {
        let length = out.len().saturating_add_signed(self.length);
        let filler = out.last().copied().unwrap_or(filler);
        out.resize(length, filler);
    }
}

fn subset<T>(keys: &Keys, decided: &[Option<T>]) -> Keys {
    let mut rest = keys.clone();
    rest.retain(|i| decided.get(i).is_some_and(Option::is_none));
    rest
}

/// The concatenation of the pieces; `None` when one is not host memory.
fn gather(pieces: &[Source<'_>]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for piece in pieces {
        bytes.extend_from_slice(piece.bytes()?);
    }
    Some(bytes)
}

fn flip(bytes: &mut [u8]) {
    let middle = bytes.len() / 2;
    if let Some(byte) = bytes.get_mut(middle) {
        *byte ^= 0x01;
    }
}

impl Store for Faulty {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        let plan = self.begin(Call::Exist, keys);
        if plan.actions.is_empty() {
            self.inner.exist(keys, out);
        } else {
            let decided: Vec<_> = (0..keys.len())
                .map(|i| match plan.action(i)? {
                    Action::Lose => Some(Presence::Absent),
                    Action::Fail(code) => Some(Presence::Unknown(*code)),
                    Action::ClaimPresent => Some(Presence::Present),
                    _ => None,
                })
                .collect();
            let mut asked = Vec::new();
            self.inner.exist(&subset(keys, &decided), &mut asked);
            plan.merge(&decided, asked, out);
        }
        plan.stretch(Presence::Present, out);
    }

    fn put(
        &self,
        keys: &Keys,
        mut sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let plan = self.begin(Call::Put, keys);
        let malformed = !sources.fits(keys.len())
            || options
                .groups
                .is_some_and(|groups| groups.len() != keys.len())
            || options
                .places
                .is_some_and(|places| places.len() != keys.len());
        if plan.actions.is_empty() || malformed {
            self.inner.put(keys, sources, options, out);
            return plan.stretch(PutOutcome::Stored, out);
        }
        let mut decided = Vec::with_capacity(keys.len());
        let mut spoilt: Vec<Option<Vec<u8>>> = Vec::with_capacity(keys.len());
        for i in 0..keys.len() {
            let (mut outcome, mut bytes) = (None, None);
            match plan.action(i) {
                Some(Action::Lose) => outcome = Some(PutOutcome::Stored),
                Some(Action::Fail(code)) => outcome = Some(PutOutcome::Failed(*code)),
                Some(Action::NoSpace) => outcome = Some(PutOutcome::NoSpace),
                Some(Action::ClaimPresent) => outcome = Some(PutOutcome::AlreadyThere),
                Some(action @ (Action::Truncate | Action::Corrupt)) => {
                    match gather(sources.of(i)) {
                        Some(mut object) => {
                            if matches!(action, Action::Truncate) {
                                object.truncate(object.len() / 2);
                            } else {
                                flip(&mut object);
                            }
                            bytes = Some(object);
                        }
                        None => outcome = Some(PutOutcome::Failed(code::UNREACHABLE_MEMORY)),
                    }
                }
                _ => {}
            }
            decided.push(outcome);
            spoilt.push(bytes);
        }
        let (mut pieces, mut ends) = (Vec::new(), Vec::new());
        for (i, bytes) in spoilt.iter().enumerate() {
            if !matches!(decided.get(i), Some(None)) {
                continue;
            }
            match bytes {
                Some(bytes) => pieces.push(Source::from(&bytes[..])),
                None => pieces.extend_from_slice(sources.of(i)),
            }
            ends.push(pieces.len());
        }
        let groups = options.groups.map(|groups| subset(groups, &decided));
        let places = options.places.map(|places| {
            let kept = places.iter().zip(&decided);
            let kept = kept.filter(|(_, outcome)| outcome.is_none());
            kept.map(|(place, _)| *place).collect::<Vec<_>>()
        });
        let options = PutOptions {
            soft_pin_ttl: options.soft_pin_ttl,
            groups: groups.as_ref(),
            places: places.as_deref(),
        };
        let mut asked = Vec::new();
        let rest = Pieces::grouped(&mut pieces, &ends);
        self.inner
            .put(&subset(keys, &decided), rest, &options, &mut asked);
        plan.merge(&decided, asked, out);
        plan.stretch(PutOutcome::Stored, out);
    }

    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        let plan = self.begin(Call::Get, keys);
        if plan.actions.is_empty() || !targets.fits(keys.len()) {
            self.inner.get(keys, targets, out);
            return plan.stretch(GetOutcome::Missing, out);
        }
        // Spoilt objects land beside their targets first.
        let mut decided = Vec::with_capacity(keys.len());
        let mut landings: Vec<Option<Vec<u8>>> = Vec::with_capacity(keys.len());
        let mut lists = targets.into_lists(keys.len());
        for (i, list) in lists.iter().enumerate() {
            let (mut outcome, mut landing) = (None, None);
            match plan.action(i) {
                Some(Action::Lose) => outcome = Some(GetOutcome::Missing),
                Some(Action::Fail(code)) => outcome = Some(GetOutcome::Failed(*code)),
                Some(Action::Truncate | Action::Corrupt) => {
                    let size = list.iter().map(Target::size).fold(0, u64::saturating_add);
                    landing = Some(vec![0; usize::try_from(size).unwrap_or(0)]);
                }
                _ => {}
            }
            decided.push(outcome);
            landings.push(landing);
        }
        let (mut pieces, mut ends) = (Vec::new(), Vec::new());
        let forwarded = lists.iter_mut().zip(&mut landings).zip(&decided);
        for ((list, landing), _) in forwarded.filter(|(_, outcome)| outcome.is_none()) {
            match landing {
                Some(landing) => pieces.push(Target::from(&mut landing[..])),
                None => pieces.extend(list.iter_mut().map(Target::reborrow)),
            }
            ends.push(pieces.len());
        }
        let mut asked = Vec::new();
        let rest = Pieces::grouped(&mut pieces, &ends);
        self.inner.get(&subset(keys, &decided), rest, &mut asked);
        drop(pieces);
        let forwarded = (0..keys.len()).zip(lists).zip(&mut landings).zip(&decided);
        let forwarded = forwarded.filter(|(_, outcome)| outcome.is_none());
        for ((((i, list), landing), _), outcome) in forwarded.zip(&mut asked) {
            let (Some(landing), GetOutcome::Landed(_)) = (landing, &outcome) else {
                continue;
            };
            if matches!(plan.action(i), Some(Action::Truncate)) {
                landing.truncate(landing.len() / 2);
                *outcome = GetOutcome::WrongSize(landing.len() as u64);
            } else {
                flip(landing);
            }
            if !write_over(landing, list) {
                *outcome = GetOutcome::Failed(code::UNREACHABLE_MEMORY);
            }
        }
        plan.merge(&decided, asked, out);
        plan.stretch(GetOutcome::Missing, out);
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        let plan = self.begin(Call::Remove, keys);
        if plan.actions.is_empty() {
            self.inner.remove(keys, force, out);
        } else {
            let decided: Vec<_> = (0..keys.len())
                .map(|i| match plan.action(i)? {
                    Action::Lose => Some(RemoveOutcome::Missing),
                    Action::Fail(code) => Some(RemoveOutcome::Failed(*code)),
                    _ => None,
                })
                .collect();
            let mut asked = Vec::new();
            self.inner
                .remove(&subset(keys, &decided), force, &mut asked);
            plan.merge(&decided, asked, out);
        }
        plan.stretch(RemoveOutcome::Missing, out);
    }

    fn register(&self, range: Range) -> Result<()> {
        self.inner.register(range)
    }

    fn unregister(&self, range: Range) -> Result<()> {
        self.inner.unregister(range)
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn is_outage(&self, number: i32) -> bool {
        matches!(number, code::UNREACHABLE | code::STILL_IN_USE) || self.inner.is_outage(number)
    }

    fn may_still_write(&self, number: i32) -> bool {
        matches!(number, code::UNREACHABLE | code::STILL_IN_USE)
            || self.inner.may_still_write(number)
    }

    fn may_still_read(&self, number: i32) -> bool {
        number == code::STILL_IN_USE || self.inner.may_still_read(number)
    }

    fn close(&self) -> Result<()> {
        self.inner.close()
    }
}
