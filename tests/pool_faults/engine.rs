//! An engine that goes on while its pool fails: every call of its thread is timed and held against its
//! deadline, and every page that it uses is compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvbridge::config::Config;
use kvbridge::error::{Error, Kind, Result};
use kvbridge::scheduler::FinishReason;
use kvbridge::stats::{PoolCounts, Stats};
use kvbridge::store::{Store, wire};

use crate::is_wire;
use crate::real_pool::{NOTHING_LENT, master, open, wire_config};
use crate::rig::{GroupShape, Lines, Rig, Setup, T};

/// What a call may take beyond its deadline on a machine that has much else to do.
pub const SLACK: Duration = Duration::from_millis(1500);

/// How long a spare set of staging slots may take to be known to the pool.
const SPARE: Duration = Duration::from_secs(1);

/// The log of a test has fewer warnings: an outage is said, and each request that it costs.
const MOST_WARNINGS: usize = 40;

/// How long anything may take that has no deadline of its own.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The deadlines of the engine's configuration.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    pub lookup: Duration,
    pub load: Duration,
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// Blocks of the first offer.
    pub offered: usize,
    /// How often its load failed and it began anew.
    pub handed_back: usize,
}

pub struct Engine {
    pub rig: Rig,
    pub lines: Lines,
    deadlines: Deadlines,
    longest: BTreeMap<&'static str, Duration>,
    next_id: u64,
    handed_back: usize,
    checked: usize,
    resumed: Option<Duration>,
}

/// A client of its own per rank, as if each were a process.
fn clients(world: u32, config: &Config) -> Vec<Arc<dyn Store>> {
    if !is_wire() {
        let opened = (0..world).map(|_| open(NOTHING_LENT).handle().unwrap());
        return opened.collect();
    }
    let times = [
        config.lookup_timeout(),
        config.load_timeout(),
        config.save_timeout(),
    ];
    let times = times.map(|time| time.as_millis() as u32);
    let config = wire_config(&master(), NOTHING_LENT, times);
    let connect = || wire::Connection::open(&config, wire::PATIENCE).unwrap();
    (0..world).map(|_| connect().handle().unwrap()).collect()
}

/// Short deadlines: 300 ms for lookups, 1.5 s for loads, 2 s for saves; what failed is tried again after 200 ms.
pub fn setup() -> Setup {
    Setup {
        stepped: false,
        batch: 64,
        save_timeout_ms: 2000,
        kvbridge: r#""lookup_timeout_ms": 300, "load_timeout_ms": 1500, "breaker_cooldown_ms": 200,"#,
        ..Setup::default()
    }
}

/// Pages of half a MiB.
pub fn large() -> Setup {
    Setup {
        groups: vec![GroupShape {
            id: 0,
            sharded: vec![1 << 18, 1 << 18],
            replicated: Vec::new(),
        }],
        slots: 48,
        batch: 8,
        staging: 1 << 24,
        ..setup()
    }
}

impl Engine {
    pub fn new(setup: Setup) -> Self {
        // Of the whole process: the library has threads.
        static LINES: std::sync::OnceLock<Lines> = std::sync::OnceLock::new();
        let lines = LINES.get_or_init(|| {
            let lines = Lines::default();
            tracing::subscriber::set_global_default(lines.clone()).unwrap();
            lines
        });
        let config = setup.config();
        let deadlines = Deadlines {
            lookup: config.lookup_timeout(),
            load: config.load_timeout(),
        };
        let stores = clients(setup.world, &config);
        Self {
            rig: Rig::owning(setup, stores),
            lines: lines.clone(),
            deadlines,
            longest: BTreeMap::new(),
            next_id: 1,
            handed_back: 0,
            checked: 0,
            resumed: None,
        }
    }

    pub fn stats(&self) -> Stats {
        self.rig.stats()
    }

    pub fn pool(&self) -> PoolCounts {
        self.rig.ranks[0].worker.handle().pool_counts()
    }

    // ---- calls ----

    /// Makes a call of the engine's thread that may wait for `patience`.
    fn timed<R>(
        &mut self,
        call: &'static str,
        patience: Duration,
        make: impl FnOnce(&mut Rig) -> R,
    ) -> R {
        let began = Instant::now();
        let result = make(&mut self.rig);
        let took = began.elapsed();
        let limit = patience + SLACK;
        assert!(took <= limit, "{call} took {took:?}, at most {limit:?}");
        let longest = self.longest.entry(call).or_default();
        *longest = took.max(*longest);
        result
    }

    /// The offer to a request that is allocated with it; tokens.
    pub fn admit(&mut self, id: u64, tokens: &[i32]) -> usize {
        let lookup = self.deadlines.lookup;
        let offered = self.timed("lookup", lookup, |rig| rig.offer(id, tokens, 0));
        self.rig.settle(id, tokens, offered, offered as usize);
        offered as usize
    }

    /// Builds and binds a pass of these chunks.
    pub fn bind(&mut self, chunks: &[(u64, usize)]) {
        let metadata = self.timed("build", Duration::ZERO, |rig| rig.build(chunks));
        self.timed("bind", Duration::ZERO, |rig| rig.bind(&metadata));
    }

    /// Loads on every rank, one after the other; the first error.
    pub fn load(&mut self) -> Result<()> {
        // A probe, a spare set of slots, the load itself.
        let Deadlines { lookup, load } = self.deadlines;
        let patience = (lookup + SPARE + load) * self.rig.ranks.len() as u32;
        self.timed("load", patience, Rig::start_load)
    }

    /// The requests of the pass that lost a page; under TP all of them after an error.
    fn lost(&mut self, result: Result<()>, chunks: &[(u64, usize)]) -> Vec<u64> {
        let ranks = &mut self.rig.ranks;
        let named = ranks[0].worker.take_failed_loads().to_vec();
        match result {
            Ok(()) => named,
            Err(error) => {
                assert!(ranks.len() > 1, "{error}");
                assert_eq!(error.kind(), Kind::LoadFailed, "{error}");
                assert!(named.is_empty());
                chunks.iter().map(|(id, _)| *id).collect()
            }
        }
    }

    fn run(&mut self, chunks: &[(u64, usize)]) {
        self.rig.forward(chunks);
        self.timed("save", Duration::ZERO, Rig::wait_for_save);
    }

    /// A pass of one request that computes so many tokens behind what was restored. False: it lost its load and has
    /// to begin anew.
    pub fn pass(&mut self, id: u64, scheduled: usize) -> bool {
        let chunks = [(id, scheduled)];
        self.bind(&chunks);
        let result = self.load();
        if !self.lost(result, &chunks).is_empty() {
            self.reset(id);
            return false;
        }
        self.run(&chunks);
        self.check(id);
        true
    }

    /// The request was handed back; its pages are overwritten.
    pub fn reset(&mut self, id: u64) {
        self.rig.reset(id);
        self.handed_back += 1;
    }

    pub fn check(&mut self, id: u64) {
        self.rig.check(id);
        let live = &self.rig.live[&id];
        self.checked += live.computed / T * live.pages.len() * self.rig.ranks.len();
    }

    pub fn poll(&mut self) {
        self.timed("poll", Duration::ZERO, |rig| rig.poll_all(&[]))
            .unwrap();
    }

    pub fn finish(&mut self, id: u64) {
        self.rig.finish(id, FinishReason::Ended);
        self.poll();
    }

    pub fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    // ---- requests ----

    /// The whole life of a request.
    pub fn serve(&mut self, tokens: &[i32]) -> Served {
        self.make_room(tokens.len().div_ceil(T));
        let id = self.new_id();
        let mut first = None;
        for handed_back in 0..10 {
            let offered = self.admit(id, tokens);
            let first = *first.get_or_insert(offered / T);
            let done = match self.rig.setup.async_load {
                true if offered > 0 => self.wait_for_load(id),
                _ => true,
            };
            let restored = self.rig.live.get(&id).map_or(0, |live| live.computed);
            let rest = match self.rig.setup.async_load {
                true => tokens.len() - restored,
                false => tokens.len() - offered,
            };
            if done && self.pass(id, rest) {
                self.finish(id);
                return Served {
                    offered: first,
                    handed_back,
                };
            }
        }
        panic!("request {id} was handed back again and again");
    }

    /// Parks a request until its load was reported. False: it failed.
    fn wait_for_load(&mut self, id: u64) -> bool {
        self.bind(&[]);
        self.load().unwrap();
        self.timed("save", Duration::ZERO, Rig::wait_for_save);
        let limit = self.parking();
        let began = Instant::now();
        let failed = loop {
            let polled = self
                .timed("poll", Duration::ZERO, |rig| rig.poll_all(&[id]))
                .unwrap();
            if polled.loaded.contains(&id) {
                break polled.failed.contains(&id);
            }
            let took = began.elapsed();
            assert!(took <= limit, "parked for {took:?}, at most {limit:?}");
            pause();
        };
        let parked = self.longest.entry("parked").or_default();
        *parked = began.elapsed().max(*parked);
        if failed {
            self.reset(id);
        }
        !failed
    }

    /// The error that polls end with instead of an answer about a parked request.
    pub fn await_error(&mut self, id: u64) -> Error {
        let began = Instant::now();
        loop {
            let polled = self.timed("poll", Duration::ZERO, |rig| rig.poll_all(&[id]));
            match polled {
                Ok(polled) => assert!(!polled.loaded.contains(&id)),
                Err(error) => return error,
            }
            assert!(began.elapsed() < self.parking(), "nothing is said");
            pause();
        }
    }

    /// How long a request may be parked.
    fn parking(&self) -> Duration {
        self.deadlines.lookup + SPARE + self.deadlines.load + SLACK
    }

    /// Waits until so many pages per group are free.
    fn make_room(&mut self, blocks: usize) {
        let began = Instant::now();
        while self.rig.free.len() < blocks * self.rig.setup.groups.len() {
            assert!(began.elapsed() < PATIENCE, "pages do not come back");
            pause();
            self.poll();
        }
    }

    /// Waits until no save or load is under way and all pages of requests that ended have come back.
    pub fn settle(&mut self) {
        self.rig.drain();
        self.poll();
        assert!(self.rig.ending.is_empty());
    }

    /// Serves a prompt until all its blocks come from the pool. The time since `began` counts as that until service resumed.
    pub fn resume(&mut self, tokens: &[i32], began: Instant) {
        loop {
            let served = self.serve(tokens);
            self.settle();
            if served.offered == (tokens.len() - 1) / T && served.handed_back == 0 {
                break;
            }
            assert!(
                began.elapsed() < PATIENCE,
                "{served:?}, {:?}, {:?}",
                self.pool(),
                self.stats()
            );
            pause();
        }
        let took = began.elapsed();
        self.resumed = Some(self.resumed.map_or(took, |before| before.max(took)));
    }

    /// Serves a prompt until all its blocks come from the pool.
    pub fn await_page(&mut self, tokens: &[i32]) {
        let before = self.resumed;
        self.resume(tokens, Instant::now());
        self.resumed = before;
    }

    /// The end, within `deadline` and what the pool's own close may take.
    pub fn shutdown(&mut self, deadline: Duration) -> Vec<Result<()>> {
        const CLOSE: Duration = Duration::from_secs(3);
        // Staging memory is taken back, then the pool is closed.
        let patience = (deadline + 2 * CLOSE) * self.rig.ranks.len() as u32;
        self.timed("shutdown", patience, |rig| {
            let workers = rig.ranks.iter_mut().map(|rank| &mut rank.worker);
            workers.map(|worker| worker.shutdown(deadline)).collect()
        })
    }

    /// The end of a pool that serves.
    pub fn shutdown_well(&mut self) {
        let closed = self.shutdown(Duration::from_secs(5));
        assert!(closed.iter().all(Result::is_ok), "{closed:?}");
    }

    /// Ends workers that are busy until they are not.
    pub fn shutdown_at_last(&mut self) {
        let began = Instant::now();
        while self.shutdown(Duration::ZERO).iter().any(Result::is_err) {
            assert!(began.elapsed() < PATIENCE, "the worker stays busy");
            pause();
        }
    }

    /// One line about the whole test.
    pub fn report(&self, fault: &str) {
        let stats = self.stats();
        assert_eq!(stats.bad_seals, 0, "a page was damaged");
        let warnings = self.lines.count_warnings();
        // There a lender that is lost is left alone by itself, and the pool is not: each request finds out.
        let most = match is_wire() {
            true => MOST_WARNINGS + stats.failed_load_requests as usize,
            false => MOST_WARNINGS,
        };
        assert!(warnings < most, "{warnings} warnings");
        let took = |call| {
            let took = self.longest.get(call).copied().unwrap_or_default();
            format!("{call} {:.2} s", took.as_secs_f64())
        };
        let calls = [
            "lookup", "load", "parked", "build", "bind", "save", "poll", "shutdown",
        ];
        let resumed = self.resumed.map_or("-".to_owned(), |took| {
            format!("{:.1} s", took.as_secs_f64())
        });
        let pool = self.pool();
        println!(
            "FAULT {fault}: longest {}; {} pages checked, 0 wrong; handed back {}; saves failed {}, no space {}; deadlines {}, failures {}, openings {}, quarantined {}; {} warnings; resumed after {resumed}",
            calls.map(took).join(", "),
            self.checked,
            self.handed_back,
            stats.failed_save_pages,
            stats.no_space_pages,
            pool.deadlines,
            pool.failures,
            pool.opened,
            pool.quarantined,
            warnings,
        );
    }
}

pub fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
