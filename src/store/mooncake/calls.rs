//! The calls of a client, and the handles on it that are stores.

use std::ffi::{c_char, c_int};
use std::ops::Range as Indices;
use std::ptr;
use std::sync::Arc;

use parking_lot::RwLock;

use super::client::Client;
use super::codes;
use super::exit::Inside;
use super::lists::Lists;
use crate::device::memory::{Source, Target};
use crate::error::{self, bail};
use crate::fork::Process;
use crate::keys::Keys;
use crate::layout::Range;
use crate::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, answer_all, code,
};

/// Pages per call of the library: above some 2,000 transfers to one peer it loses that peer for good.
const KEYS_PER_CALL: usize = 1024;

/// Lists that are kept to be used again.
const MOST_SPARE: usize = 16;

/// What the store can do; `tenant`: it is in a tenant's part of the pool.
pub fn capabilities(tenant: bool) -> Capabilities {
    Capabilities {
        name: "mooncake",
        pieces_per_key: 1,
        keys_per_call: KEYS_PER_CALL,
        soft_pin_ttl: false,
        groups: false,
        places: false,
        tenant,
        device_memory: false,
        can_be_late: true,
        replicas: false,
        ends_by_itself: false,
        tells_already_there: false,
        spares_wrong_targets: false,
        logs_failures: false,
    }
}

/// An answer, or for one that a call left out, what the call said of itself.
fn said(answer: i64, of_the_call: c_int) -> i64 {
    match answer {
        answer if answer != i64::from(codes::UNTOUCHED) => answer,
        _ if of_the_call < 0 => i64::from(of_the_call),
        _ => i64::from(code::NO_ANSWER),
    }
}

/// As [`said`], for answers of the narrow kind.
fn told(answer: c_int, of_the_call: c_int) -> c_int {
    c_int::try_from(said(answer.into(), of_the_call)).unwrap_or(code::NO_ANSWER)
}

/// The parts of a batch that are one call each.
fn parts(count: usize) -> impl Iterator<Item = Indices<usize>> {
    let starts = (0..count).step_by(KEYS_PER_CALL);
    starts.map(move |start| start..count.min(start + KEYS_PER_CALL))
}

/// Calls that were checked: every list has one element per key.
impl Client {
    /// Does a call's work with lists that are empty before and after it.
    fn with_lists<T>(&self, work: impl FnOnce(&mut Lists) -> T) -> T {
        let mut lists = self.spare.lock().pop().unwrap_or_default();
        let answer = work(&mut lists);
        lists.clear();
        let mut spare = self.spare.lock();
        if spare.len() < MOST_SPARE {
            spare.push(lists);
        }
        answer
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) -> Result<(), i32> {
        self.with_lists(|lists| {
            lists.push_keys(keys)?;
            lists.codes.resize(keys.len(), codes::UNTOUCHED);
            let call = self.symbols().batch_is_exist;
            // SAFETY: a client that is set up, as long as this is borrowed; lists of so many
            // elements, of texts that end with a NUL and of room for answers.
            let of_the_call = unsafe {
                call(
                    self.handle(),
                    lists.keys.as_mut_ptr(),
                    lists.keys.len(),
                    lists.codes.as_mut_ptr(),
                )
            };
            let answers = lists.codes.iter();
            out.extend(answers.map(|&answer| codes::presence(told(answer, of_the_call))));
            Ok(())
        })
    }

    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        out: &mut Vec<PutOutcome>,
    ) -> Result<(), i32> {
        self.with_lists(|lists| {
            lists.push_keys(keys)?;
            lists.push_sources(keys.len(), sources)?;
            lists.part_twins(keys);
            let call = self.symbols().batch_put_from;
            let mut failure = None;
            for part in parts(lists.keys.len()) {
                let end = part.end;
                lists.codes.resize(end, failure.unwrap_or(codes::UNTOUCHED));
                let (Some(keys), Some(buffers), Some(sizes), Some(codes)) = (
                    lists.keys.get_mut(part.clone()),
                    lists.buffers.get_mut(part.clone()),
                    lists.sizes.get(part.clone()),
                    lists.codes.get_mut(part),
                ) else {
                    return Err(code::MALFORMED_CALL);
                };
                if failure.is_some() {
                    continue;
                }
                // SAFETY: as for `exist`; each buffer is memory of its size that may be read as long
                // as the sources are lent. Without options, since their layout is not certain.
                let of_the_call = unsafe {
                    call(
                        self.handle(),
                        keys.as_mut_ptr(),
                        buffers.as_mut_ptr(),
                        sizes.as_ptr(),
                        sizes.len(),
                        ptr::null(),
                        codes.as_mut_ptr(),
                    )
                };
                for answer in codes {
                    *answer = told(*answer, of_the_call);
                    if codes::is_outage(*answer) {
                        failure = Some(*answer);
                    }
                }
            }
            self.confirm(lists, failure, out);
            lists.join_twins(out, |_, first| first);
            Ok(())
        })
    }

    /// Makes outcomes of what a put was answered, once the pool has said which keys are there: a 0 alone does not tell.
    /// `failure`: the outage that ended it.
    fn confirm(&self, lists: &mut Lists, failure: Option<i32>, out: &mut Vec<PutOutcome>) {
        out.extend(lists.codes.iter().map(|&answer| codes::put(answer)));
        let named = out.iter().zip(&lists.keys);
        let provisional = named.filter(|(outcome, _)| codes::is_provisional(**outcome));
        lists.asked.extend(provisional.map(|(_, &key)| key));
        if lists.asked.is_empty() {
            return;
        }
        let silence = failure.filter(|&code| codes::is_without_master(code));
        let unasked = silence.unwrap_or(codes::UNTOUCHED);
        lists.present.resize(lists.asked.len(), unasked);
        let mut of_the_call = 0;
        if silence.is_none() {
            // SAFETY: as for `exist`.
            of_the_call = unsafe {
                (self.symbols().batch_is_exist)(
                    self.handle(),
                    lists.asked.as_mut_ptr(),
                    lists.asked.len(),
                    lists.present.as_mut_ptr(),
                )
            };
        }
        let unsure = out.iter_mut().filter(|it| codes::is_provisional(**it));
        for (outcome, &answer) in unsure.zip(&lists.present) {
            let presence = codes::presence(told(answer, of_the_call));
            *outcome = codes::confirmed(*outcome, presence);
        }
    }

    fn get(
        &self,
        keys: &Keys,
        targets: Pieces<'_, Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) -> Result<(), i32> {
        self.with_lists(|lists| {
            lists.push_keys(keys)?;
            lists.push_targets(keys.len(), targets)?;
            lists.part_twins(keys);
            let call = self.symbols().batch_get_into;
            let mut failure = None;
            for part in parts(lists.keys.len()) {
                let (start, end) = (part.start, part.end);
                let untouched = failure.unwrap_or(codes::UNTOUCHED);
                lists.landed.resize(end, i64::from(untouched));
                let (Some(keys), Some(buffers), Some(sizes), Some(landed)) = (
                    lists.keys.get_mut(part.clone()),
                    lists.buffers.get_mut(part.clone()),
                    lists.sizes.get(part.clone()),
                    lists.landed.get_mut(part.clone()),
                ) else {
                    return Err(code::MALFORMED_CALL);
                };
                let mut of_the_call = 0;
                if failure.is_none() {
                    // SAFETY: as for `exist`; each buffer is memory of its size that may be written,
                    // by this call alone, as long as the targets are lent.
                    of_the_call = unsafe {
                        call(
                            self.handle(),
                            keys.as_mut_ptr(),
                            buffers.as_mut_ptr(),
                            sizes.as_ptr(),
                            sizes.len(),
                            landed.as_mut_ptr(),
                        )
                    };
                }
                for ((index, &answer), &size) in (start..end).zip(&*landed).zip(sizes) {
                    let mut outcome = codes::get(said(answer, of_the_call), size as u64);
                    if codes::is_misfit(outcome)
                        && let Some(&key) = lists.keys.get(index)
                    {
                        outcome = self.misfit(key, size as u64, outcome);
                    }
                    if let GetOutcome::Failed(code) = outcome
                        && codes::is_outage(code)
                    {
                        failure = Some(code);
                    }
                    out.push(outcome);
                }
            }
            lists.join_twins(out, |twin, first| lists.copy_landed(twin, first));
            Ok(())
        })
    }

    /// Why a get of this key was refused, as far as its size tells.
    fn misfit(&self, key: *const c_char, wanted: u64, refusal: GetOutcome) -> GetOutcome {
        // SAFETY: as for `exist`.
        let size = unsafe { (self.symbols().get_size)(self.handle(), key) };
        match codes::get(size, wanted) {
            // Of this very size: it was refused for another reason.
            GetOutcome::Landed(_) => refusal,
            other => other,
        }
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) -> Result<(), i32> {
        self.with_lists(|lists| {
            lists.push_keys(keys)?;
            let mut failure = None;
            for &key in &lists.keys {
                // SAFETY: as for `exist`. There is no such call for a batch.
                let answer = failure.unwrap_or_else(|| unsafe {
                    (self.symbols().remove)(self.handle(), key, c_int::from(force))
                });
                // Each further call would wait as long as this one did.
                failure = codes::is_outage(answer).then_some(answer);
                out.push(codes::remove(answer));
            }
            Ok(())
        })
    }
}

/// A handle on a client: a store. The client ends with the last one.
#[derive(Debug)]
pub(super) struct Handle {
    /// `None` once closed.
    client: RwLock<Option<Arc<Client>>>,
    capabilities: Capabilities,
    process: Process,
}

/// A client during one call.
struct Used {
    /// Before the mark, since it may be the last to have it.
    client: Arc<Client>,
    _inside: Inside,
}

impl std::ops::Deref for Used {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Handle {
    pub(super) fn new(client: Arc<Client>, capabilities: Capabilities) -> Self {
        Self {
            client: RwLock::new(Some(client)),
            capabilities,
            process: Process::this(),
        }
    }

    /// The client for one call, or the code of all its answers.
    fn client(&self) -> Result<Used, i32> {
        // Before the lock, which another thread may have held as this process was forked.
        if !self.process.is_this() {
            return Err(code::FORKED);
        }
        let inside = Inside::enter().ok_or(code::CLOSED)?;
        let client = self.client.read().clone().ok_or(code::CLOSED)?;
        Ok(Used {
            client,
            _inside: inside,
        })
    }

    fn client_for(&self, call: &str) -> error::Result<Used> {
        match self.client() {
            Ok(client) => Ok(client),
            Err(code::FORKED) => bail!(
                BadState,
                "{call}: this process was forked from process {}, in which alone Mooncake's library works",
                self.process.id()
            ),
            Err(_) => bail!(Closed, "{call}: this handle on the pool was closed"),
        }
    }
}

impl Store for Handle {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        out.clear();
        let made = self.client().and_then(|client| client.exist(keys, out));
        if let Err(code) = made {
            answer_all(out, keys.len(), Presence::Unknown(code));
        }
    }

    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let PutOptions {
            soft_pin_ttl,
            groups,
            places,
        } = options;
        out.clear();
        let made = match () {
            () if !sources.fits(keys.len()) => Err(code::MALFORMED_CALL),
            () if soft_pin_ttl.is_some() || groups.is_some() || places.is_some() => {
                Err(code::UNSUPPORTED_OPTION)
            }
            () => self
                .client()
                .and_then(|client| client.put(keys, sources, out)),
        };
        if let Err(code) = made {
            answer_all(out, keys.len(), PutOutcome::Failed(code));
        }
    }

    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        out.clear();
        let made = match targets.fits(keys.len()) {
            false => Err(code::MALFORMED_CALL),
            true => self
                .client()
                .and_then(|client| client.get(keys, targets, out)),
        };
        if let Err(code) = made {
            answer_all(out, keys.len(), GetOutcome::Failed(code));
        }
    }

    /// One call per key: the library has no other.
    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        out.clear();
        let made = self
            .client()
            .and_then(|client| client.remove(keys, force, out));
        if let Err(code) = made {
            answer_all(out, keys.len(), RemoveOutcome::Failed(code));
        }
    }

    fn register(&self, range: Range) -> error::Result<()> {
        let client = self.client_for("register")?;
        let (start, size) = (range.start as usize, range.size as usize);
        let start = ptr::with_exposed_provenance_mut(start);
        // SAFETY: a client that is set up. The library notes the range; it is memory as long as
        // pieces of it are lent.
        let answer = unsafe { (client.symbols().register_buffer)(client.handle(), start, size) };
        if answer != 0 {
            bail!(
                PoolFailed,
                "register: Mooncake answered {answer} for {size} bytes at {start:p}"
            );
        }
        Ok(())
    }

    fn unregister(&self, range: Range) -> error::Result<()> {
        let client = self.client_for("unregister")?;
        let start = ptr::with_exposed_provenance_mut(range.start as usize);
        // SAFETY: a client that is set up.
        let answer = unsafe { (client.symbols().unregister_buffer)(client.handle(), start) };
        if answer != 0 {
            bail!(
                PoolFailed,
                "unregister: Mooncake answered {answer} for {} bytes at {start:p}",
                range.size
            );
        }
        Ok(())
    }

    /// What the library noticed last; it asks nobody.
    fn health(&self) -> Health {
        let client = match self.client() {
            Ok(client) => client,
            Err(code) => return Health::Down(code),
        };
        // SAFETY: a client that is set up.
        match unsafe { (client.symbols().health_check)(client.handle()) } {
            0 => Health::Up,
            code => Health::Down(code),
        }
    }

    fn is_outage(&self, code: i32) -> bool {
        codes::is_outage(code)
    }

    fn may_still_write(&self, code: i32) -> bool {
        codes::may_still_write(code)
    }

    /// What is sent late lands in memory that the master has taken back from that key, whatever it is.
    fn may_still_read(&self, _: i32) -> bool {
        false
    }

    /// The last handle ends the client and waits for that: about a second, up to 18 without a master.
    fn close(&self) -> error::Result<()> {
        if !self.process.is_this() {
            return Ok(());
        }
        let client = self.client.write().take();
        match client.and_then(Arc::into_inner) {
            Some(client) => client.end(),
            None => Ok(()),
        }
    }
}
