//! What is remembered of owners between batches: how they are reached, connections that stand, and which of them
//! were silent lately.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::store::wire::socket::Socket;
use crate::sync::{Arc, Mutex};

/// Most owners that are remembered; the one that was not needed for the longest time goes.
const MOST_OWNERS: usize = 1024;
/// Most idle connections to all owners together: handles are the process's, and it needs them for other things.
const MOST_IDLE: usize = 256;

/// An owner that goes on hanging is left alone for no longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// In less time than this nobody tells an owner that hangs from one that is far away or has much to do.
const LEAST_SILENCE: Duration = Duration::from_millis(50);

/// How long an owner that is waited for must have been silent to count as one that hangs, when the time for a batch is over:
/// half of the `patience` that it has otherwise, or of all that `time`, if that is less.
pub(in crate::store::wire) fn hangs_after(patience: Duration, time: Duration) -> Duration {
    (patience / 2).min((time / 2).max(LEAST_SILENCE))
}

/// A connection that is kept.
pub(in crate::store::wire) trait Quiet {
    /// Whether it stands and nothing has arrived on it.
    fn is_quiet(&self) -> bool;
}

impl Quiet for (Socket, SocketAddr) {
    fn is_quiet(&self) -> bool {
        self.0.is_quiet()
    }
}

/// The memory of all threads that use a [`Peers`](super::Peers), or of others that ask owners: `O` is how one is reached, `C`
/// a connection to it.
#[derive(Debug)]
pub(in crate::store::wire) struct Known<O, C> {
    entries: Mutex<HashMap<String, Entry<O, C>>>,
    swept: Mutex<Instant>,
    idle_time: Duration,
    idle_most: usize,
    first_pause: Duration,
}

#[derive(Debug)]
struct Entry<O, C> {
    owner: Option<Arc<O>>,
    idle: Vec<Idle<C>>,
    shunned_until: Option<Instant>,
    /// For how long it was shunned last, if it has served nothing since.
    pause: Option<Duration>,
    used: Instant,
}

#[derive(Debug)]
struct Idle<C> {
    connection: C,
    since: Instant,
}

impl<O, C: Quiet> Known<O, C> {
    /// Nobody yet. Connections wait for `idle_time` to be used again, at most `idle_most` to one owner. Who hangs is shunned
    /// for `first_pause`, and twice as long each time again, but for that or half a minute at most.
    pub fn new(idle_time: Duration, idle_most: usize, first_pause: Duration) -> Self {
        Self {
            entries: Mutex::new(HashMap::new()),
            swept: Mutex::new(Instant::now()),
            idle_time,
            idle_most,
            first_pause,
        }
    }

    /// The owner, if it was found before; `Err` while it is shunned.
    pub fn find(&self, endpoint: &str, now: Instant) -> Result<Option<Arc<O>>, ()> {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(endpoint) else {
            return Ok(None);
        };
        entry.used = now;
        match entry.shunned_until {
            Some(until) if now < until => Err(()),
            _ => Ok(entry.owner.clone()),
        }
    }

    /// Remembers how an owner is reached.
    pub fn learn(&self, endpoint: &str, owner: &Arc<O>, now: Instant) {
        self.change(endpoint, now, |entry| {
            entry.owner = Some(Arc::clone(owner));
            entry.idle.clear();
            entry.shunned_until = None;
        });
    }

    /// Forgets how an owner is reached, if that is still what is remembered of it.
    pub fn forget(&self, endpoint: &str, owner: &Arc<O>) {
        let mut entries = self.entries.lock();
        let is_same = |entry: &Entry<O, C>| {
            entry
                .owner
                .as_ref()
                .is_some_and(|it| Arc::ptr_eq(it, owner))
        };
        if entries.get(endpoint).is_some_and(is_same) {
            entries.remove(endpoint);
        }
    }

    /// Leaves an owner alone that hangs, for longer each time until it serves something.
    pub fn shun(&self, endpoint: &str, now: Instant) {
        let first = self.first_pause;
        self.change(endpoint, now, |entry| {
            entry.owner = None;
            entry.idle.clear();
            // Others that waited for it at the same time say nothing new.
            if entry.shunned_until.is_none_or(|until| now >= until) {
                let next = entry.pause.map_or(first, |last| last.saturating_mul(2));
                let pause = next.min(LONGEST_PAUSE.max(first));
                entry.pause = Some(pause);
                entry.shunned_until = Some(now + pause);
            }
        });
    }

    /// A connection to an owner that stands.
    pub fn take(&self, endpoint: &str, owner: &Arc<O>, now: Instant) -> Option<C> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(endpoint)?;
        if !entry
            .owner
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, owner))
        {
            return None;
        }
        while let Some(idle) = entry.idle.pop() {
            let is_young = now.saturating_duration_since(idle.since) < self.idle_time;
            if is_young && idle.connection.is_quiet() {
                return Some(idle.connection);
            }
        }
        None
    }

    /// Keeps a connection for the next batch. The owner has served over it.
    pub fn give(&self, endpoint: &str, owner: &Arc<O>, connection: C, now: Instant) {
        let mut entries = self.entries.lock();
        let idle: usize = entries.values().map(|entry| entry.idle.len()).sum();
        let Some(entry) = entries.get_mut(endpoint) else {
            return;
        };
        let is_same = entry
            .owner
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, owner));
        if is_same {
            entry.pause = None;
        }
        if is_same && entry.idle.len() < self.idle_most && idle < MOST_IDLE {
            entry.idle.push(Idle {
                connection,
                since: now,
            });
        }
    }

    /// Closes connections that nobody used for the idle time.
    pub fn sweep(&self, now: Instant) {
        let mut entries = self.entries.lock();
        for entry in entries.values_mut() {
            entry
                .idle
                .retain(|idle| now.saturating_duration_since(idle.since) < self.idle_time);
        }
    }

    /// [`sweep`](Self::sweep), if that was not done lately: an owner that is gone is asked for nothing any more, so that
    /// nobody else would notice that its connections have ended.
    pub fn sweep_at_times(&self, now: Instant) {
        {
            let mut swept = self.swept.lock();
            if now.saturating_duration_since(*swept) < self.idle_time / 4 {
                return;
            }
            *swept = now;
        }
        self.sweep(now);
    }

    /// For how long an owner was shunned last, if it has served nothing since.
    #[cfg(test)]
    pub fn pause(&self, endpoint: &str) -> Option<Duration> {
        self.entries.lock().get(endpoint)?.pause
    }

    /// Closes all connections and forgets everybody.
    pub fn clear(&self) {
        self.entries.lock().clear();
    }

    fn change(&self, endpoint: &str, now: Instant, change: impl FnOnce(&mut Entry<O, C>)) {
        let mut entries = self.entries.lock();
        if entries.len() >= MOST_OWNERS && !entries.contains_key(endpoint) {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used);
            if let Some(oldest) = oldest.map(|(name, _)| name.clone()) {
                entries.remove(&oldest);
            }
        }
        let entry = entries.entry(endpoint.to_owned()).or_insert_with(|| Entry {
            owner: None,
            idle: Vec::new(),
            shunned_until: None,
            pause: None,
            used: now,
        });
        entry.used = now;
        change(entry);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ask::Owner;
    use super::*;
    use crate::store::wire::transfer::frame::Version;
    use crate::store::wire::transfer::owner::Description;

    type Known = super::Known<Owner, (Socket, SocketAddr)>;

    fn owner() -> Arc<Owner> {
        Arc::new(Owner {
            addresses: Vec::new(),
            description: Description {
                host: None,
                port: 1,
                version: Version::Two,
                ranges: Vec::new(),
            },
        })
    }

    fn known() -> Known {
        Known::new(Duration::from_secs(1), 1, Duration::from_secs(2))
    }

    #[test]
    fn the_owner_that_was_not_needed_for_the_longest_time_is_forgotten() {
        let known = known();
        let start = Instant::now();
        let at = |step: usize| start + Duration::from_millis(step as u64);
        let name = |number: usize| format!("owner-{number}");
        for number in 0..MOST_OWNERS {
            known.learn(&name(number), &owner(), at(number));
        }
        let is_known = |number| matches!(known.find(&name(number), at(MOST_OWNERS)), Ok(Some(_)));
        assert!(is_known(0), "and needed just now");
        known.learn("another", &owner(), at(MOST_OWNERS + 1));
        assert!(is_known(0) && !is_known(1) && is_known(2));
        assert_eq!(known.entries.lock().len(), MOST_OWNERS);
    }

    #[test]
    fn what_was_learnt_since_is_not_forgotten() {
        let known = known();
        let (old, new, now) = (owner(), owner(), Instant::now());
        known.learn("a", &old, now);
        known.learn("a", &new, now);
        known.forget("a", &old);
        let found = known.find("a", now);
        assert!(matches!(found, Ok(Some(found)) if Arc::ptr_eq(&found, &new)));
        known.forget("a", &new);
        assert!(matches!(known.find("a", now), Ok(None)));
    }

    #[test]
    fn an_owner_that_goes_on_hanging_is_shunned_for_longer_each_time() {
        let known = known();
        let mut now = Instant::now();
        // Shuns it; the seconds until it is asked again.
        let mut shun = || {
            known.shun("a", now);
            let before = now;
            while known.find("a", now).is_err() {
                // As batches that began to wait for it before.
                known.shun("a", now);
                now += Duration::from_secs(1);
            }
            (now - before).as_secs()
        };
        let pauses: Vec<u64> = (0..7).map(|_| shun()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30, 30]);
        // It says where it is, and hangs again.
        let found = owner();
        known.learn("a", &found, Instant::now());
        assert_eq!(shun(), 30);
        assert!(known.find("b", Instant::now()).is_ok());
    }

    /// Tests wait longer than anybody else.
    #[test]
    fn a_long_pause_stays_as_it_is() {
        let known = Known::new(Duration::from_secs(1), 1, Duration::from_secs(100));
        let now = Instant::now();
        known.shun("a", now);
        assert!(known.find("a", now + Duration::from_secs(99)).is_err());
        let then = now + Duration::from_secs(100);
        known.shun("a", then);
        assert!(known.find("a", then + Duration::from_secs(100)).is_ok());
    }
}
