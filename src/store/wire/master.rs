//! The master: its calls, over connections that are opened when they are needed and kept.
//!
//! A call has a connection to itself until it ends, so that calls of several threads do not wait for
//! each other, and what goes wrong with one costs no other. Each new connection is asked for its layouts before it is used: behind
//! the same address may stand another version now.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use super::family::Family;
use super::messages::{
    ALL_REPLICAS, Exist, FetchTasks, Locate, Mount, Ping, Pong, PutEnd, PutRevoke, PutStart,
    Remount, Remove, Replica, Replicas, ReplicateConfig, Segment, Task, TaskDone, TaskEnded,
    Unmount, Written,
};
use super::pack::{Answer, Request, Text, Uuid};
use super::probe::probe;
use super::rpc::{Connection, Failure};
use super::socket::Socket;
use crate::sync::Mutex;

/// Keys of one request at most; longer batches are several requests, sent together.
pub const KEYS_PER_REQUEST: usize = 1024;

/// Idle connections that are kept.
const MOST_IDLE: usize = 16;

/// After a master could not be reached it is left alone so long, and twice as long each time again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// But no longer than this.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A master that listens at an address. Threads: any number at once. Every call blocks until its
/// deadline at most.
#[derive(Debug)]
pub struct Master {
    addresses: Vec<SocketAddr>,
    /// Whose keys.
    tenant: Vec<u8>,
    /// This process, in calls that say who makes them.
    client: Uuid,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    idle: Vec<Link>,
    /// Of the last connection.
    family: Family,
    /// No connection is tried before.
    pause: Option<(Instant, Duration)>,
    /// Why the last connection failed.
    trouble: Option<String>,
}

/// A connection whose layouts are known.
#[derive(Debug)]
struct Link {
    connection: Connection,
    family: Family,
}

/// May a call be made twice?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twice {
    /// It changes nothing that making it again would not.
    Yes,
    No,
}

impl Master {
    /// Connects to the first of `addresses` that answers, and finds out which layouts its master has.
    ///
    /// Errors: `Nonsense` for a master of an unknown version, with the type codes that were tried.
    pub fn connect(
        addresses: Vec<SocketAddr>,
        tenant: &str,
        client: Uuid,
        deadline: Instant,
    ) -> Result<Self, Failure> {
        let master = Self {
            addresses,
            tenant: tenant.into(),
            client,
            state: Mutex::new(State {
                idle: Vec::new(),
                family: Family::ALL[0],
                pause: None,
                trouble: None,
            }),
        };
        let link = master.link(deadline)?;
        master.keep(link);
        Ok(master)
    }

    /// The layouts of the last connection.
    pub fn family(&self) -> Family {
        self.state.lock().family
    }

    /// Whether the last attempt to reach it succeeded; if not, why.
    pub fn trouble(&self) -> Option<String> {
        self.state.lock().trouble.clone()
    }

    /// This process in calls.
    pub fn client(&self) -> Uuid {
        self.client
    }

    /// Which keys are complete. Renews their leases. One answer per key.
    pub fn exist(&self, keys: &[Text<'_>], deadline: Instant) -> Answers<bool> {
        let request = |part: Range<usize>| Exist {
            keys: &keys[part],
            tenant: self.tenant(),
        };
        self.collect(keys.len(), Twice::Yes, deadline, request)
    }

    /// Where objects are: `found` hears of each key, by its place, of some twice when a connection is lost in
    /// between. Renews their leases; those count from before this call.
    pub fn locate(
        &self,
        keys: &[Text<'_>],
        deadline: Instant,
        mut found: impl FnMut(usize, Answer<Replicas<'_>>),
    ) -> Result<(), Failure> {
        let request = |part: Range<usize>| Locate {
            keys: &keys[part],
            tenant: self.tenant(),
        };
        self.batch(
            keys.len(),
            Twice::Yes,
            deadline,
            request,
            |part, answers| spread(part, answers, &mut found),
        )
    }

    /// Takes memory for objects of these sizes: `started` hears of each key that was answered, by its place.
    ///
    /// After an error those that were not answered may have been started: the master forgets them by its own
    /// timeout.
    pub fn put_start(
        &self,
        keys: &[Text<'_>],
        sizes: &[u64],
        config: &ReplicateConfig<'_>,
        deadline: Instant,
        mut started: impl FnMut(usize, Answer<Vec<Replica<'_>>>),
    ) -> Result<(), Failure> {
        let request = |part: Range<usize>| PutStart {
            client: self.client,
            keys: &keys[part.clone()],
            sizes: &sizes[part.clone()],
            config: ReplicateConfig {
                groups: config.groups.as_ref().map(|groups| groups[part].to_vec()),
                ..config.clone()
            },
            tenant: self.tenant(),
        };
        if sizes.len() != keys.len()
            || config
                .groups
                .as_ref()
                .is_some_and(|g| g.len() != keys.len())
        {
            return Err(Failure::Nonsense(
                "a put's lists differ in length".to_owned(),
            ));
        }
        self.batch(keys.len(), Twice::No, deadline, request, |part, answers| {
            spread(part, answers, &mut started)
        })
    }

    /// Makes objects visible. One answer per key.
    pub fn put_end(&self, keys: &[Text<'_>], deadline: Instant) -> Answers<()> {
        let written: Vec<Written<'_>> = keys
            .iter()
            .map(|&key| Written {
                key,
                checksum: None,
            })
            .collect();
        let request = |part: Range<usize>| PutEnd {
            client: self.client,
            keys: &keys[part.clone()],
            written: &written[part],
            replicas: ALL_REPLICAS,
            tenant: self.tenant(),
        };
        self.collect(keys.len(), Twice::No, deadline, request)
    }

    /// Gives back what [`put_start`](Self::put_start) took. One answer per key.
    pub fn put_revoke(&self, keys: &[Text<'_>], deadline: Instant) -> Answers<()> {
        let request = |part: Range<usize>| PutRevoke {
            client: self.client,
            keys: &keys[part],
            replicas: ALL_REPLICAS,
            tenant: self.tenant(),
        };
        self.collect(keys.len(), Twice::No, deadline, request)
    }

    /// Removes objects; leased ones only with `force`. One answer per key.
    pub fn remove(&self, keys: &[Text<'_>], force: bool, deadline: Instant) -> Answers<()> {
        let request = |part: Range<usize>| Remove {
            keys: &keys[part],
            force,
            tenant: self.tenant(),
        };
        self.collect(keys.len(), Twice::No, deadline, request)
    }

    /// Lends a segment.
    pub fn mount(&self, segment: &Segment<'_>, deadline: Instant) -> Result<Answer<()>, Failure> {
        let (segment, client) = (segment.clone(), self.client);
        self.one(Mount { segment, client }, Twice::No, deadline, |answer| {
            answer
        })
    }

    /// Lends a segment again to a master that lost sight of this process.
    pub fn remount(&self, segment: &Segment<'_>, deadline: Instant) -> Result<Answer<()>, Failure> {
        let (segments, client) = (vec![segment.clone()], self.client);
        let request = Remount { segments, client };
        self.one(request, Twice::Yes, deadline, |answer| answer)
    }

    /// Takes a segment back, and all that is stored in it.
    pub fn unmount(&self, segment: Uuid, deadline: Instant) -> Result<Answer<()>, Failure> {
        let client = self.client;
        self.one(Unmount { segment, client }, Twice::No, deadline, |answer| {
            answer
        })
    }

    /// Says that this process is alive.
    pub fn ping(&self, deadline: Instant) -> Result<Answer<Pong>, Failure> {
        let client = self.client;
        self.one(Ping { client }, Twice::Yes, deadline, |answer| answer)
    }

    /// Takes up to `most` pieces of work that the master has for this process.
    pub fn fetch_tasks(
        &self,
        most: u64,
        deadline: Instant,
        mut take: impl FnMut(&Task<'_>),
    ) -> Result<Answer<()>, Failure> {
        let client = self.client;
        self.one(FetchTasks { client, most }, Twice::No, deadline, |answer| {
            answer.map(|tasks| tasks.iter().for_each(&mut take))
        })
    }

    /// Says what became of one of them.
    pub fn task_ended(&self, done: TaskDone<'_>, deadline: Instant) -> Result<Answer<()>, Failure> {
        let client = self.client;
        self.one(TaskEnded { client, done }, Twice::Yes, deadline, |answer| {
            answer
        })
    }

    /// Whose keys it is asked for.
    pub fn tenant(&self) -> Text<'_> {
        Text(&self.tenant)
    }

    fn one<R: Request + Clone, T>(
        &self,
        request: R,
        twice: Twice,
        deadline: Instant,
        mut take: impl FnMut(R::Reply<'_>) -> T,
    ) -> Result<T, Failure> {
        let mut found = None;
        self.batch(
            1,
            twice,
            deadline,
            |_| request.clone(),
            |_, answer| {
                found = Some(take(answer));
                Ok(())
            },
        )?;
        found.ok_or_else(|| Failure::Nonsense("no answer".to_owned()))
    }

    fn collect<R, T>(
        &self,
        keys: usize,
        twice: Twice,
        deadline: Instant,
        request: impl Fn(Range<usize>) -> R,
    ) -> Answers<T>
    where
        R: for<'m> Request<Reply<'m> = Vec<Answer<T>>>,
    {
        let mut list: Vec<Option<Answer<T>>> = Vec::new();
        list.resize_with(keys, || None);
        let mut put = |index: usize, answer| {
            if let Some(slot) = list.get_mut(index) {
                *slot = Some(answer);
            }
        };
        let failure = self
            .batch(keys, twice, deadline, request, |part, answers| {
                spread(part, answers, &mut put)
            })
            .err();
        Answers { list, failure }
    }

    /// Makes the requests for `keys` keys, in parts, and hands each part's answer on.
    fn batch<R: Request>(
        &self,
        keys: usize,
        twice: Twice,
        deadline: Instant,
        request: impl Fn(Range<usize>) -> R,
        mut take: impl FnMut(Range<usize>, R::Reply<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let parts: Vec<_> = (0..keys)
            .step_by(KEYS_PER_REQUEST)
            .map(|start| start..keys.min(start + KEYS_PER_REQUEST))
            .collect();
        if parts.is_empty() {
            return Ok(());
        }
        let mut work = |link: &mut Link| {
            let requests = parts.iter().cloned().map(&request);
            link.connection
                .call(link.family, requests, deadline, |index, reply| {
                    take(parts.get(index).cloned().unwrap_or_default(), reply)
                })
        };
        let was_idle = self.take_idle();
        let mut link = match was_idle {
            Some(mut link) => match work(&mut link) {
                Ok(()) => {
                    self.keep(link);
                    return Ok(());
                }
                // The master may have gone in the very moment, and another be there.
                Err(Failure::Lost(_)) if twice == Twice::Yes => self.link(deadline)?,
                Err(failure) => return Err(failure),
            },
            None => self.link(deadline)?,
        };
        work(&mut link)?;
        self.keep(link);
        Ok(())
    }

    fn take_idle(&self) -> Option<Link> {
        loop {
            let link = self.state.lock().idle.pop()?;
            if link.connection.is_quiet() {
                return Some(link);
            }
        }
    }

    fn keep(&self, link: Link) {
        let mut state = self.state.lock();
        state.trouble = None;
        if state.idle.len() < MOST_IDLE {
            state.idle.push(link);
        }
    }

    /// A new connection, unless one failed just now.
    fn link(&self, deadline: Instant) -> Result<Link, Failure> {
        let guess = {
            let state = self.state.lock();
            if let Some((until, _)) = state.pause
                && Instant::now() < until
            {
                let why = state.trouble.clone();
                return Err(Failure::Lost(why.unwrap_or_default()));
            }
            state.family
        };
        let made = self.try_link(guess, deadline);
        let mut state = self.state.lock();
        match &made {
            Ok(link) => {
                state.family = link.family;
                state.pause = None;
                state.trouble = None;
            }
            Err(failure) => {
                let pause = match state.pause {
                    Some((_, pause)) => pause.saturating_mul(2).min(LAST_PAUSE),
                    None => FIRST_PAUSE,
                };
                state.pause = Some((Instant::now() + pause, pause));
                state.trouble = Some(failure.to_string());
            }
        }
        made
    }

    fn try_link(&self, guess: Family, deadline: Instant) -> Result<Link, Failure> {
        let mut last = Failure::Lost("its name has no address".to_owned());
        for (index, &address) in self.addresses.iter().enumerate() {
            // One that does not answer leaves the others their share of the time.
            let left = deadline.saturating_duration_since(Instant::now());
            let others = u32::try_from(self.addresses.len() - index).unwrap_or(1);
            let until = Instant::now() + left / others.max(1);
            match Socket::connect(address, until) {
                Ok(socket) => {
                    let mut connection = Connection::new(socket);
                    let family = probe(&mut connection, guess, deadline)?;
                    return Ok(Link { connection, family });
                }
                Err(trouble) => {
                    let failure = Failure::from(trouble);
                    last = match &failure {
                        Failure::Lost(why) => Failure::Lost(format!("{address}: {why}")),
                        _ => failure,
                    };
                }
            }
        }
        Err(last)
    }
}

/// Answers per key; those that are missing were lost by the failure.
#[derive(Debug)]
pub struct Answers<T> {
    list: Vec<Option<Answer<T>>>,
    failure: Option<Failure>,
}

impl<T> Answers<T> {
    /// Why some are missing, if any are.
    pub fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// One per key, with `lost` for those that are missing.
    pub fn or(self, lost: i32) -> impl Iterator<Item = Answer<T>> {
        self.list
            .into_iter()
            .map(move |answer| answer.unwrap_or(Err(lost)))
    }
}

/// Hands the answers of one request on, of which there must be one per key.
fn spread<T>(
    part: Range<usize>,
    answers: Vec<T>,
    take: &mut impl FnMut(usize, T),
) -> Result<(), Failure> {
    if answers.len() != part.len() {
        return Err(Failure::Nonsense(format!(
            "{} answers for {} keys",
            answers.len(),
            part.len()
        )));
    }
    part.zip(answers)
        .for_each(|(index, answer)| take(index, answer));
    Ok(())
}
