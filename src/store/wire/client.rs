//! A process in a pool: what all handles of a connection share.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::alive::Lent;
use super::disk::{Disks, Found, Terms};
use super::master::{Answers, Master};
use super::messages::Replicas;
use super::pack::{Answer, Text};
use super::rpc::Failure;
use super::transfer::Peers;
use super::{codes, get, put};
use crate::config::Config;
use crate::device::memory::{Source, Target};
use crate::fork::Process;
use crate::keys::Keys;
use crate::store::mooncake::codes as outcomes;
use crate::store::{
    Capabilities, GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
};
use crate::sync::Arc;

/// How long calls may take. Each ends by itself then.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// exist.
    pub lookup: Duration,
    /// get.
    pub load: Duration,
    /// put and remove.
    pub save: Duration,
}

impl Times {
    /// An eighth less than the configuration's: whoever waits that long hears what became of each key.
    pub fn new(config: &Config) -> Self {
        let shorter = |time: Duration| time - time / 8;
        Self {
            lookup: shorter(config.lookup_timeout()),
            load: shorter(config.load_timeout()),
            save: shorter(config.save_timeout()),
        }
    }
}

/// A client of a pool. Threads: any number at once.
#[derive(Debug)]
pub struct Client {
    pub(super) master: Arc<Master>,
    pub(super) peers: Peers,
    pub(super) disks: Disks,
    pub(super) times: Times,
    pub(super) capabilities: Capabilities,
    /// In how many places each object shall be.
    pub(super) replicas: u64,
    /// The log has that the pool has fewer.
    pub(super) told_of_few: AtomicBool,
    /// Memory that this process lends to the pool, if it lends any.
    pub(super) lent: Option<Lent>,
    pub(super) process: Process,
}

/// The keys as the protocol has them.
pub(super) fn names(keys: &Keys) -> Vec<Text<'_>> {
    keys.iter().map(Text).collect()
}

/// A moment that is not the end of time.
pub(super) fn after(begun: Instant, time: Duration) -> Instant {
    // No clock of a machine gets there.
    const LONG: Duration = Duration::from_secs(1 << 30);
    begun + time.min(LONG)
}

/// Says in the log why a call failed, and gives the code of its keys.
pub(super) fn note(call: &str, failure: &Failure) -> i32 {
    match failure {
        // Who is told the code counts them.
        Failure::Deadline | Failure::Lost(_) => tracing::debug!("{call}: {failure}"),
        Failure::Nonsense(_) | Failure::Refused(_) => tracing::warn!("{call}: {failure}"),
    }
    codes::of(failure)
}

/// One answer per key, with the failure's code where one is missing.
pub(super) fn settled<T>(call: &str, answers: Answers<T>) -> impl Iterator<Item = Answer<T>> {
    let lost = answers.failure().map(|failure| note(call, failure));
    let answers = answers.or(lost.unwrap_or(crate::store::code::NO_ANSWER));
    answers.map(|answer| answer.map_err(codes::said))
}

impl Client {
    pub(super) fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        let deadline = after(Instant::now(), self.times.lookup);
        out.extend(self.presences("exist", &names(keys), deadline));
    }

    /// Whether keys are there, as part of this `call`.
    pub(super) fn presences(
        &self,
        call: &str,
        names: &[Text<'_>],
        deadline: Instant,
    ) -> impl Iterator<Item = Presence> {
        let answers = self.master.exist(names, deadline);
        settled(call, answers).map(|answer| match answer {
            Ok(true) => Presence::Present,
            Ok(false) => Presence::Absent,
            Err(code) => Presence::Unknown(code),
        })
    }

    pub(super) fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) -> Result<(), i32> {
        put::put(self, keys, sources, options, out)
    }

    pub(super) fn get(
        &self,
        keys: &Keys,
        mut targets: Pieces<'_, Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) {
        let deadline = after(Instant::now(), self.times.load);
        let names = names(keys);
        let mut on_disk = Found::default();
        let locate = |deadline: Instant, found: &mut dyn FnMut(usize, Answer<Replicas<'_>>)| {
            self.master.locate(&names, deadline, |index, answer| {
                on_disk.note(index, &answer);
                found(index, answer);
            })
        };
        get::get(
            locate,
            &self.peers,
            self.times.load,
            targets.reborrow(),
            keys.len(),
            out,
        );
        // What memory did not bring.
        let terms = Terms {
            tenant: self.master.tenant(),
            family: self.master.family(),
            peers: &self.peers,
            deadline,
        };
        self.disks.read(&on_disk, keys, targets, terms, out);
    }

    pub(super) fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        let deadline = after(Instant::now(), self.times.save);
        let answers = self.master.remove(&names(keys), force, deadline);
        out.extend(settled("remove", answers).map(|answer| match answer {
            Ok(()) => RemoveOutcome::Removed,
            Err(code) => outcomes::remove(code),
        }));
    }
}

impl Drop for Client {
    /// Takes back what was lent, and closes all connections. Blocks: a few seconds at most.
    fn drop(&mut self) {
        // What is lent, and its threads, are those of the process this one was forked from.
        if !self.process.is_this() {
            std::mem::forget(self.lent.take());
            return;
        }
        if let Some(lent) = self.lent.take() {
            lent.end();
        }
    }
}
