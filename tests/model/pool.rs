//! The pool of the histories: a plain map whose objects can be looked at, lost and damaged, and
//! whose next call of a kind can be made to fail. It keeps a log of what it was asked.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvbridge::device::memory::{Source, Target};
use kvbridge::error::Result;
use kvbridge::keys::Keys;
use kvbridge::layout::Range;
use kvbridge::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store,
};
use parking_lot::{Mutex, MutexGuard};

use crate::random::Rng;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    Exist,
    Get,
    Put,
}

/// One key of one call.
pub struct Seen {
    /// Which of the calls it was part of.
    pub number: usize,
    pub call: Call,
    pub key: Vec<u8>,
    /// The answer was what one hopes for: present, landed, stored.
    pub good: bool,
    /// A put answered that the key is there already.
    pub there: bool,
    /// The answers had the wrong number.
    pub broken: bool,
}

pub struct Object {
    pub key: Vec<u8>,
    pub bytes: Vec<u8>,
    /// By us.
    pub damaged: bool,
}

#[derive(Default)]
pub struct State {
    pub objects: Vec<Object>,
    index: HashMap<Vec<u8>, usize, BuildHasherDefault<DefaultHasher>>,
    /// For exist, get and put: the next call fails, in the way that this number says.
    pub armed: [Option<u64>; 3],
    pub log: Vec<Seen>,
    /// From where each call since the log was taken came.
    pub calls: Vec<usize>,
    /// Failures that happened to calls of each kind.
    pub failed: [u64; 3],
    delays: Option<Rng>,
}

pub struct Pool {
    state: Mutex<State>,
    slow: AtomicBool,
    /// Pages carry no seal: what is cut off in silence would be served.
    raw: bool,
}

/// The connection of one rank.
pub struct Line {
    pool: Arc<Pool>,
    /// Where it comes from.
    place: usize,
    can: Capabilities,
}

/// What a guard asks for to see whether a pool answers.
const NOBODYS: &[u8] = b"kvbridge/does-it-answer";

/// How a call fails.
struct Fault {
    rng: Rng,
    /// Answers too few or too many.
    length: Option<isize>,
}

impl Fault {
    fn cut<A: Copy>(&self, out: &mut Vec<A>) {
        match self.length {
            Some(-1) => {
                out.pop();
            }
            Some(_) => out.extend(out.first().copied()),
            None => {}
        }
    }
}

/// How this key fails, in one of four ways, if it does.
fn hit(fault: &mut Option<Fault>) -> Option<usize> {
    let rng = &mut fault.as_mut()?.rng;
    rng.chance(1, 2).then(|| rng.below(4))
}

impl State {
    pub fn holds(&self, key: &[u8]) -> bool {
        self.index.contains_key(key)
    }

    pub fn find(&self, key: &[u8]) -> Option<&Object> {
        self.objects.get(*self.index.get(key)?)
    }

    pub fn store(&mut self, key: &[u8], bytes: Vec<u8>) {
        if self.holds(key) {
            return;
        }
        self.index.insert(key.to_vec(), self.objects.len());
        self.objects.push(Object {
            key: key.to_vec(),
            bytes,
            damaged: false,
        });
    }

    pub fn remove_at(&mut self, place: usize) {
        let object = self.objects.swap_remove(place);
        self.index.remove(&object.key);
        if let Some(moved) = self.objects.get(place) {
            self.index.insert(moved.key.clone(), place);
        }
    }

    pub fn remove(&mut self, key: &[u8]) -> bool {
        let place = self.index.get(key).copied();
        place.map(|place| self.remove_at(place)).is_some()
    }

    fn fault(&mut self, call: Call) -> Option<Fault> {
        let number = self.armed[call as usize].take()?;
        self.failed[call as usize] += 1;
        let mut rng = Rng::new(number);
        let length = match rng.below(4) {
            0 => Some(-1),
            1 => Some(1),
            _ => None,
        };
        Some(Fault { rng, length })
    }

    /// What was asked since this was called last.
    pub fn take_log(&mut self) -> (Vec<usize>, Vec<Seen>) {
        (
            std::mem::take(&mut self.calls),
            std::mem::take(&mut self.log),
        )
    }

    fn note(&mut self, call: Call, key: &[u8], good: bool) {
        if key == NOBODYS {
            return;
        }
        self.log.push(Seen {
            number: self.calls.len() - 1,
            call,
            key: key.to_vec(),
            good,
            there: false,
            broken: false,
        });
    }

    fn break_last(&mut self, count: usize) {
        let start = self.log.len().saturating_sub(count);
        for seen in &mut self.log[start..] {
            (seen.good, seen.broken) = (false, true);
        }
    }
}

impl Pool {
    pub fn new(raw: bool) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            slow: AtomicBool::new(false),
            raw,
        })
    }

    /// A connection whose calls can be late or not.
    pub fn line(self: &Arc<Self>, place: usize, can_be_late: bool) -> Arc<Line> {
        Arc::new(Line {
            pool: Arc::clone(self),
            place,
            can: Capabilities {
                name: "model",
                pieces_per_key: usize::MAX,
                keys_per_call: usize::MAX,
                soft_pin_ttl: false,
                groups: false,
                places: false,
                tenant: false,
                device_memory: false,
                can_be_late,
                replicas: false,
                ends_by_itself: false,
                tells_already_there: true,
                spares_wrong_targets: true,
                logs_failures: false,
            },
        })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Calls take up to some 100 µs from now on.
    pub fn be_slow(&self, seed: u64) {
        self.state.lock().delays = Some(Rng::new(seed));
        self.slow.store(true, Ordering::Relaxed);
    }

    fn delay(&self) {
        if !self.slow.load(Ordering::Relaxed) {
            return;
        }
        let time = match self.state.lock().delays.as_mut() {
            Some(rng) => rng.below(300).saturating_sub(200) as u64,
            None => 0,
        };
        std::thread::sleep(std::time::Duration::from_micros(time));
    }
}

impl Line {
    /// A call comes in.
    fn enter(&self) -> MutexGuard<'_, State> {
        self.pool.delay();
        let mut state = self.pool.state.lock();
        state.calls.push(self.place);
        state
    }
}

impl Store for Line {
    fn capabilities(&self) -> &Capabilities {
        &self.can
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        let mut state = self.enter();
        let mut fault = state.fault(Call::Exist);
        out.clear();
        for key in keys.iter() {
            let answer = match hit(&mut fault) {
                Some(_) => Presence::Unknown(-7),
                None if state.holds(key) => Presence::Present,
                None => Presence::Absent,
            };
            state.note(Call::Exist, key, answer == Presence::Present);
            out.push(answer);
        }
        if let Some(fault) = fault.filter(|fault| fault.length.is_some()) {
            fault.cut(out);
            state.break_last(keys.len());
        }
    }

    fn put(
        &self,
        keys: &Keys,
        mut sources: Pieces<'_, Source<'_>>,
        _options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let mut state = self.enter();
        let mut fault = state.fault(Call::Put);
        out.clear();
        for (number, key) in keys.iter().enumerate() {
            let hit = hit(&mut fault);
            let there = state.holds(key);
            let answer = match hit {
                Some(0) => PutOutcome::NoSpace,
                Some(1) => PutOutcome::Failed(-3),
                _ if there => PutOutcome::AlreadyThere,
                // Somebody is writing it, and never will be done.
                Some(2) => PutOutcome::AlreadyThere,
                // Stored, but the answer got lost.
                Some(3) => PutOutcome::Failed(-4),
                _ => PutOutcome::Stored,
            };
            if !there && (answer == PutOutcome::Stored || answer == PutOutcome::Failed(-4)) {
                let mut bytes = Vec::new();
                for source in sources.of(number) {
                    bytes.extend_from_slice(source.bytes().unwrap());
                }
                state.store(key, bytes);
            }
            let failed = matches!(answer, PutOutcome::NoSpace | PutOutcome::Failed(_));
            state.note(Call::Put, key, !failed);
            if let Some(seen) = state.log.last_mut() {
                seen.there = answer == PutOutcome::AlreadyThere;
            }
            out.push(answer);
        }
        if let Some(fault) = fault.filter(|fault| fault.length.is_some()) {
            fault.cut(out);
            state.break_last(keys.len());
        }
    }

    fn get(&self, keys: &Keys, mut targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        let mut state = self.enter();
        let mut fault = state.fault(Call::Get);
        out.clear();
        for (number, key) in keys.iter().enumerate() {
            let hit = hit(&mut fault);
            let pieces = targets.of(number);
            let size: usize = pieces
                .iter_mut()
                .map(|one| one.bytes_mut().unwrap().len())
                .sum();
            let place = state.index.get(key).copied();
            let mut good = false;
            let answer = match place.map(|place| &state.objects[place]) {
                None => GetOutcome::Missing,
                Some(_) if hit == Some(0) => GetOutcome::Missing,
                Some(_) if hit == Some(1) => GetOutcome::WrongSize(size as u64 + 1),
                Some(object) if object.bytes.len() != size => {
                    GetOutcome::WrongSize(object.bytes.len() as u64)
                }
                Some(object) => {
                    let mut bytes = object.bytes.clone();
                    let landed = GetOutcome::Landed(size as u64);
                    good = !object.damaged;
                    let answer = match hit {
                        // Cut off in the middle, which nobody noticed.
                        Some(2) if !self.pool.raw => {
                            bytes[11..].fill(0x5a);
                            good = false;
                            landed
                        }
                        Some(2 | 3) => {
                            bytes[..20].fill(0xa5);
                            good = false;
                            GetOutcome::Failed(-9)
                        }
                        _ => landed,
                    };
                    let mut rest = &bytes[..];
                    for piece in pieces {
                        let room = piece.bytes_mut().unwrap();
                        let (part, left) = rest.split_at(room.len());
                        room.copy_from_slice(part);
                        rest = left;
                    }
                    answer
                }
            };
            state.note(Call::Get, key, good);
            out.push(answer);
        }
        if let Some(fault) = fault.filter(|fault| fault.length.is_some()) {
            fault.cut(out);
            state.break_last(keys.len());
        }
    }

    fn remove(&self, keys: &Keys, _force: bool, out: &mut Vec<RemoveOutcome>) {
        let mut state = self.enter();
        out.clear();
        out.extend(keys.iter().map(|key| match state.remove(key) {
            true => RemoveOutcome::Removed,
            false => RemoveOutcome::Missing,
        }));
    }

    fn register(&self, _range: Range) -> Result<()> {
        drop(self.enter());
        Ok(())
    }

    fn unregister(&self, _range: Range) -> Result<()> {
        drop(self.enter());
        Ok(())
    }

    fn health(&self) -> Health {
        drop(self.enter());
        Health::Up
    }

    fn is_outage(&self, _: i32) -> bool {
        false
    }
    fn may_still_write(&self, _: i32) -> bool {
        false
    }
    fn may_still_read(&self, _: i32) -> bool {
        false
    }
    fn close(&self) -> Result<()> {
        drop(self.enter());
        Ok(())
    }
}
