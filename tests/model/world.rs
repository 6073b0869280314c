//! Who there is: servers with their ranks, requests, passes and pinned pages, and how they are made.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use kvbridge::lane::{Mode, Stepper};
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::Scheduler;
use kvbridge::worker::Worker;

use crate::door::Door;
use crate::history::PerKind;
use crate::late::{Late, Weather};
use crate::memory::Cache;
use crate::oracle::{Oracle, add_token, no_tokens};
use crate::parked::{Job, Load};
use crate::pool::Pool;
use crate::random::mix;
use crate::setup::{Place, Setup, T, Ways};

/// Pages per layer group and server.
pub const SLOTS: usize = 36;
/// Tokens that a request may have in the end.
pub const LONGEST: usize = 9 * T;

/// A broken promise.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Which invariant, in a few words.
    pub invariant: &'static str,
    pub text: String,
}

pub type Outcome<R = ()> = Result<R, Failure>;

macro_rules! broken {
    ($invariant:expr, $($text:tt)*) => {
        return Err($crate::world::Failure {
            invariant: $invariant,
            text: format!($($text)*),
        })
    };
}
pub(crate) use broken;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum State {
    /// To be matched, anew or again.
    Waiting,
    Matched,
    /// It has pages for an offer that a reservation holds, and that the next pass accepts.
    Accepting,
    /// It waits outside the batch for its asynchronous load.
    Parked,
    Allocated,
    /// It was in a pass.
    Running,
}

/// What the scheduler answered between two builds.
#[derive(Clone, Copy)]
pub struct Memo {
    pub from: usize,
    pub end: usize,
    pub builds: u64,
}

#[derive(Clone)]
pub struct Req {
    pub id: u64,
    /// Our own number of this life.
    pub life: u64,
    pub scope: usize,
    pub tokens: Vec<i32>,
    /// The marks of all its prefixes.
    pub marks: Vec<u64>,
    pub prompt: usize,
    /// It ends with so many tokens.
    pub limit: usize,
    pub state: State,
    pub local: usize,
    /// Tokens.
    pub offered: Range<usize>,
    /// The last answer was more than nothing.
    pub made: bool,
    pub memo: Option<Memo>,
    /// The id under which its offer is held.
    pub reservation: Option<u64>,
    /// Its asynchronous load, until it runs.
    pub load: Option<Load>,
    /// Blocks that are to be loaded before it runs, and that were loaded.
    pub restore: Range<usize>,
    pub loaded: Range<usize>,
    pub reported: usize,
    /// Tokens that the engine believes to have KV for.
    pub computed: usize,
    pub pages: Vec<Vec<i32>>,
    /// Pages that the scheduler was told of.
    pub told: Vec<usize>,
    /// The lists must be told anew.
    pub replace: bool,
    /// Number of the last pass built that had a new block of it: one whose save failed goes along.
    pub named_in: u64,
    /// A save was emitted.
    pub emitted: bool,
    /// Blocks below are queued or need not be.
    pub watermark: usize,
    /// Blocks whose save failed, with the number of builds before that.
    pub retries: BTreeMap<usize, u64>,
    /// Perhaps these too: another request had the same page in that call.
    pub perhaps: Vec<usize>,
    /// A page of it did not arrive. The engine may not know yet.
    pub lost: bool,
    pub lost_known: bool,
}

impl Req {
    pub fn new(id: u64, scope: usize) -> Self {
        Self {
            id,
            life: 0,
            scope,
            tokens: Vec::new(),
            marks: vec![no_tokens(scope)],
            prompt: 0,
            limit: 0,
            state: State::Waiting,
            local: 0,
            offered: 0..0,
            made: false,
            memo: None,
            reservation: None,
            load: None,
            restore: 0..0,
            loaded: 0..0,
            reported: 0,
            computed: 0,
            pages: Vec::new(),
            told: Vec::new(),
            replace: false,
            named_in: 0,
            emitted: false,
            watermark: 0,
            retries: BTreeMap::new(),
            perhaps: Vec::new(),
            lost: false,
            lost_known: false,
        }
    }

    pub fn push(&mut self, token: i32) {
        let last = self.marks[self.tokens.len()];
        self.tokens.push(token);
        self.marks.push(add_token(last, token));
    }

    /// The mark that the KV of a token comes from; with a lookahead beyond the prompt nobody knows it.
    pub fn mark(&self, token: usize, lookahead: usize) -> u64 {
        let prefix = token + 1 + lookahead;
        match self.marks.get(prefix) {
            Some(mark) => *mark,
            None => mix(
                self.marks[self.tokens.len()],
                7_000 + token as u64 + self.life,
            ),
        }
    }

    pub fn is_admitted(&self) -> bool {
        matches!(self.state, State::Allocated | State::Running)
    }

    /// Its asynchronous load travelled, and it has not run since.
    pub fn is_on_its_way(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.emitted)
    }

    /// Some rank may still write into its pages for that load.
    pub fn is_landing(&self) -> bool {
        self.state == State::Parked && self.is_on_its_way() && !self.is_spoilt()
    }

    /// Its load failed, and the engine knows.
    pub fn is_spoilt(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.spoilt)
    }

    pub fn has_pages(&self, block: usize) -> bool {
        let mut lists = self.pages.iter();
        lists.all(|pages| pages.get(block).is_some_and(|page| *page >= 0))
    }
}

/// One request's part of a pass.
#[derive(Clone)]
pub struct Plan {
    pub id: u64,
    pub life: u64,
    pub from: usize,
    pub restore: Range<usize>,
    pub scheduled: usize,
    /// Draft tokens that turn out right; `None` for a chunk of the prompt.
    pub accepted: Option<usize>,
    /// Blocks that count as published once it ran.
    pub frontier: usize,
    /// Blocks that must be published after it, and those that may be.
    pub due: Vec<usize>,
    pub retries: Vec<usize>,
    pub perhaps: Vec<usize>,
}

pub struct Pass {
    pub metadata: Arc<Metadata>,
    /// Number of builds up to it.
    pub number: u64,
    pub plans: Vec<Plan>,
    /// Lives whose asynchronous loads it carries.
    pub parks: Vec<u64>,
    /// Lives that ended since the build before it.
    pub ended: Vec<u64>,
    pub started: bool,
    pub forwarded: bool,
    pub saved: bool,
    /// It will not run.
    pub dropped: bool,
}

impl Pass {
    pub fn is_open(&self) -> bool {
        !self.forwarded && !self.dropped
    }
}

/// Pages of a request that ended, until all ranks have reported it.
pub struct Pin {
    pub req: Req,
    /// Per rank.
    pub announced: Vec<bool>,
    pub reported: Vec<bool>,
}

/// The saves of one pass, or the load of one request, on one rank.
pub struct Item {
    pub server: usize,
    pub rank: usize,
    pub load: Option<Job>,
    /// Lives with their blocks: what may be touched, and whether it must be.
    pub parts: Vec<Part>,
    /// Builds before the first of its calls that got no answer.
    pub disturbed: Option<u64>,
}

#[derive(Clone)]
pub struct Part {
    pub id: u64,
    pub life: u64,
    pub block: usize,
    /// The mark of the block.
    pub mark: u64,
    pub must: bool,
    /// Per kind of page.
    pub done: u32,
}

pub struct Rank {
    pub worker: Worker,
    pub cache: Cache,
    /// Ids that were announced and not reported.
    pub awaited: Vec<u64>,
    /// An error is due, surely or perhaps: loads of a pass were dropped under TP.
    pub owes_error: bool,
    pub may_owe_error: bool,
    /// What the last bind could not say is still to be said.
    pub owes_fence: bool,
    /// Nothing can be loaded any more.
    pub is_broken: bool,
    /// Where its cache was before the engine slept.
    pub gone: Vec<Cache>,
    pub weather: Weather,
}

pub struct Server {
    pub place: &'static Place,
    pub scheduler: Scheduler,
    pub ranks: Vec<Rank>,
    pub reqs: Vec<Req>,
    /// Per group.
    pub free: Vec<Vec<i32>>,
    pub pins: Vec<Pin>,
    pub announce: Vec<u64>,
    pub built: VecDeque<Pass>,
    pub bound: Option<Pass>,
    pub builds: u64,
    /// Ids whose pages had to stay, until the first rank reported them.
    pub pinned: Vec<u64>,
    /// Per id: offers end before this block, whose load failed.
    pub failed: BTreeMap<u64, (usize, u64)>,
    /// Ids of lives that lost a page and ended before the engine heard of it.
    pub perhaps_failed: Vec<u64>,
    pub may_have_failed: bool,
    /// Lives that ended since the last build.
    pub ended: Vec<u64>,
    /// Fences that may still be closed.
    pub doors: Vec<Arc<Door>>,
    /// Number of the last reservation.
    pub reservations: u64,
}

impl Server {
    pub fn reads(&self) -> bool {
        self.place.role != "producer"
    }

    pub fn writes(&self) -> bool {
        self.place.role != "consumer"
    }

    /// Whether a pass that is not bound yet carries the load of this life.
    pub fn is_travelling(&self, life: u64) -> bool {
        self.built.iter().any(|pass| pass.parks.contains(&life))
    }

    pub fn is_busy(&self, life: u64) -> bool {
        let passes = self.built.iter().chain(&self.bound);
        passes
            .filter(|pass| pass.is_open())
            .any(|pass| pass.plans.iter().any(|plan| plan.life == life))
    }
}

/// What a history came to.
#[derive(Default, Clone)]
pub struct Tally {
    pub events: usize,
    pub kinds: PerKind,
    pub most_live: usize,
    pub saved_pages: u64,
    pub loaded_pages: u64,
    pub failed_loads: u64,
    pub parked: u64,
    pub late: u64,
}

pub struct World<'a> {
    pub setup: &'static Setup,
    pub ways: Ways,
    pub oracle: &'a mut Oracle,
    pub pool: Arc<Pool>,
    pub stepper: Arc<Stepper>,
    pub servers: Vec<Server>,
    /// In the stepper's order; empty with threads.
    pub items: Vec<Item>,
    /// In the stepper's order.
    pub lates: Vec<Late>,
    /// Pages that a late call may write: server, rank, kind, page.
    pub lent: Vec<(usize, usize, usize, i32)>,
    pub lives: u64,
    pub poison: u64,
    pub threads: bool,
    /// An error that stays was met and looked at: nothing more happens.
    pub over: bool,
    /// What happened, for people; only when asked for.
    pub story: Option<Vec<String>>,
    pub tally: Tally,
}

impl<'a> World<'a> {
    pub fn new(setup: &'static Setup, ways: Ways, oracle: &'a mut Oracle, threads: bool) -> Self {
        let stepper = Stepper::new();
        let mode = match threads {
            true => Mode::Threads,
            false => Mode::Stepped(Arc::clone(&stepper)),
        };
        let pool = Pool::new(setup.raw);
        let servers = setup.servers.iter().enumerate().map(|(server, place)| {
            let config = setup.config(place, &ways);
            let ranks: Vec<Rank> = (0..setup.world)
                .map(|rank| {
                    let engine = setup.engine(place, rank, &ways);
                    let line = pool.line(server * setup.world as usize + rank as usize, ways.late);
                    let weather = Weather::default();
                    let clock = Arc::clone(&weather.clock);
                    let worker = Worker::with_clock(&config, &engine, line, &mode, clock);
                    let mut worker = worker.unwrap();
                    let cache = Cache::new(setup, SLOTS);
                    worker.register_layout(cache.register()).unwrap();
                    Rank {
                        worker,
                        cache,
                        awaited: Vec::new(),
                        owes_error: false,
                        may_owe_error: false,
                        owes_fence: false,
                        is_broken: false,
                        gone: Vec::new(),
                        weather,
                    }
                })
                .collect();
            let handle = ranks[0].worker.handle();
            let link = handle.link().unwrap();
            Server {
                place,
                scheduler: Scheduler::new(handle.terms().clone(), link).unwrap(),
                ranks,
                reqs: Vec::new(),
                free: vec![(0..SLOTS as i32).rev().collect(); setup.groups.len()],
                pins: Vec::new(),
                announce: Vec::new(),
                built: VecDeque::new(),
                bound: None,
                builds: 0,
                pinned: Vec::new(),
                failed: BTreeMap::new(),
                perhaps_failed: Vec::new(),
                may_have_failed: false,
                ended: Vec::new(),
                doors: Vec::new(),
                reservations: 1_000,
            }
        });
        let servers = servers.collect();
        let mut world = Self {
            setup,
            ways,
            oracle,
            pool,
            stepper,
            servers,
            items: Vec::new(),
            lates: Vec::new(),
            lent: Vec::new(),
            lives: 0,
            poison: 0,
            threads,
            over: false,
            story: None,
            tally: Tally::default(),
        };
        for server in 0..world.servers.len() {
            for group in 0..setup.groups.len() {
                for page in 0..SLOTS as i32 {
                    world.spoil(server, group, page);
                }
            }
        }
        world
    }

    pub fn tell(&mut self, text: impl FnOnce() -> String) {
        if let Some(story) = &mut self.story {
            story.push(text());
        }
    }

    /// Overwrites a page that belongs to nobody.
    pub fn spoil(&mut self, server: usize, group: usize, page: i32) {
        for rank in &mut self.servers[server].ranks {
            for kind in self.setup.group_kinds(group) {
                self.poison += 1;
                let mut bytes = [0; crate::setup::PAGE];
                for (place, part) in bytes.chunks_exact_mut(8).enumerate() {
                    let value = mix(0xdead, self.poison * 8 + place as u64);
                    part.copy_from_slice(&value.to_le_bytes());
                }
                rank.cache.write(kind, page, 0, &bytes);
            }
        }
    }

    pub fn give_page(&mut self, server: usize, group: usize, page: i32) {
        if page >= 0 {
            self.spoil(server, group, page);
            self.servers[server].free[group].push(page);
        }
    }

    pub fn give_pages(&mut self, server: usize, pages: &[Vec<i32>]) {
        for (group, list) in pages.iter().enumerate() {
            for &page in list {
                self.give_page(server, group, page);
            }
        }
    }

    /// Writes the KV of a token whose mark is given, on all ranks, where it has pages.
    pub fn compute(&mut self, server: usize, pages: &[Vec<i32>], token: usize, mark: u64) {
        let block = token / T;
        for (number, rank) in self.servers[server].ranks.iter_mut().enumerate() {
            for (kind, what) in self.setup.kinds.iter().enumerate() {
                let page = pages[what.group].get(block).copied().unwrap_or(-1);
                if page >= 0 {
                    let shard = crate::oracle::shard(self.setup, kind, number);
                    let value = crate::oracle::kv(mark, kind, shard);
                    let place = token % T * 8;
                    rank.cache.write(kind, page, place, &value.to_le_bytes());
                }
            }
        }
    }

    pub fn position(&self, server: usize, life: u64) -> Option<usize> {
        let reqs = &self.servers[server].reqs;
        reqs.iter().position(|req| req.life == life)
    }

    /// Whether saves of this life (of any, for `None`) of the id are queued on some rank of the server.
    pub fn is_saving(&self, server: usize, id: u64, life: Option<u64>) -> bool {
        if self.threads {
            let ranks = self.servers[server].ranks.iter();
            return ranks
                .map(|rank| rank.worker.handle().gauges().saves_in_flight)
                .any(|count| count > 0);
        }
        let mut items = self.items.iter().filter(|item| item.server == server);
        items.any(|item| {
            let mut parts = item.parts.iter();
            parts.any(|part| part.id == id && life.is_none_or(|life| life == part.life))
        }) || self.is_lent(server, None, id, life)
    }

    pub fn live(&self) -> usize {
        let reqs = self.servers.iter().flat_map(|server| &server.reqs);
        reqs.filter(|req| req.state != State::Waiting).count()
    }
}

impl Drop for World<'_> {
    /// No thread may wait for a fence when its worker is dropped.
    fn drop(&mut self) {
        (0..self.servers.len()).for_each(|server| self.open_doors(server));
    }
}
