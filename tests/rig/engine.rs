//! The engine itself: ranks, the scheduler and the requests that live on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{Cache, Jumping, Lent, Setup, T, content, pool, request};
use kvbridge::device::Stream;
use kvbridge::error::Result;
use kvbridge::keys::Tokens;
use kvbridge::lane::{Clock, Mode, Stepper};
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::{FinishReason, GroupPages, Scheduler, Step};
use kvbridge::stats::Stats;
use kvbridge::store::Store;
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Faulty, Script};
use kvbridge::sync::SystemClock;
use kvbridge::worker::{Fence, Worker};

pub struct Rank {
    pub worker: Worker,
    pub cache: Cache,
    pub lent: Arc<Lent>,
    pub number: u32,
}

/// What the rig's engine knows of a request.
#[derive(Clone, Default)]
pub struct Live {
    pub tokens: Vec<i32>,
    /// Tokens reported to the scheduler.
    pub reported: usize,
    /// Tokens with valid KV.
    pub computed: usize,
    /// Tokens that the next pass restores.
    pub restore: usize,
    /// Per group one page per block.
    pub pages: Vec<Vec<i32>>,
    /// Pages per group that were reported.
    pub paged: usize,
}

pub struct Rig {
    pub setup: Setup,
    pub pool: Arc<Pool>,
    pub faulty: Arc<Faulty>,
    pub ranks: Vec<Rank>,
    pub scheduler: Scheduler,
    pub stepper: Arc<Stepper>,
    pub clock: Arc<Jumping>,
    pub live: BTreeMap<u64, Live>,
    pub free: Vec<i32>,
    /// Requests that ended and are not reported by every rank: their pages and who reported them.
    pub ending: BTreeMap<u64, (Vec<Vec<i32>>, Vec<bool>)>,
    announce: Vec<u64>,
    /// Given with every bind.
    pub fence: Fence,
    /// Requests that wait for their load: the tokens it brings, and which ranks reported it.
    pub parked: BTreeMap<u64, (usize, Vec<bool>)>,
}

/// What one poll of all ranks came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Requests that every rank has reported as saved by now.
    pub saved: Vec<u64>,
    /// Requests that every rank has reported as loaded by now.
    pub loaded: Vec<u64>,
    /// Those of them that lost a page.
    pub failed: Vec<u64>,
}

impl Rig {
    pub fn new(setup: Setup) -> Self {
        Self::on(setup, pool(1 << 22))
    }

    pub fn on(setup: Setup, pool: Arc<Pool>) -> Self {
        let handle = pool.handle().unwrap();
        let faulty = Faulty::new(handle, Script::new());
        Self::with(setup, pool, faulty.clone(), faulty)
    }

    /// `store` is what the workers get; it may wrap `faulty`.
    pub fn with(setup: Setup, pool: Arc<Pool>, faulty: Arc<Faulty>, store: Arc<dyn Store>) -> Self {
        let lent = (0..setup.world).map(|_| Lent::new(Arc::clone(&store), setup.pins));
        let lent = lent.collect();
        Self::lent(setup, pool, faulty, lent)
    }

    /// One store per rank, which its worker closes; the rig's own pool stays empty.
    pub fn owning(setup: Setup, stores: Vec<Arc<dyn Store>>) -> Self {
        let unused = pool(1 << 16);
        let faulty = Faulty::new(unused.clone(), Script::new());
        let lent = stores.into_iter().map(Lent::own).collect();
        Self::lent(setup, unused, faulty, lent)
    }

    fn lent(setup: Setup, pool: Arc<Pool>, faulty: Arc<Faulty>, lent: Vec<Arc<Lent>>) -> Self {
        let (stepper, clock) = (Stepper::new(), Arc::new(Jumping::default()));
        let mode = match setup.stepped {
            true => Mode::Stepped(Arc::clone(&stepper)),
            false => Mode::Threads,
        };
        let time: Arc<dyn Clock> = match setup.stepped {
            true => Arc::clone(&clock) as _,
            // What passes there passes for everybody.
            false => Arc::new(SystemClock::new()),
        };
        let config = setup.config();
        let ranks: Vec<Rank> = (0..setup.world)
            .zip(lent)
            .map(|(number, lent)| {
                let time = Arc::clone(&time);
                let engine = setup.engine(number);
                let mut worker =
                    Worker::with_clock(&config, &engine, lent.clone(), &mode, time).unwrap();
                let cache = Cache::new(&setup);
                worker.register_layout(cache.register()).unwrap();
                Rank {
                    worker,
                    cache,
                    lent,
                    number,
                }
            })
            .collect();
        let handle = ranks[0].worker.handle();
        let scheduler = Scheduler::new(handle.terms().clone(), handle.link().unwrap()).unwrap();
        Self {
            free: (0..setup.slots as i32).rev().collect(),
            setup,
            pool,
            faulty,
            ranks,
            scheduler,
            stepper,
            clock,
            live: BTreeMap::new(),
            ending: BTreeMap::new(),
            announce: Vec::new(),
            fence: Fence::None,
            parked: BTreeMap::new(),
        }
    }

    /// Goes on with another worker, and a scheduler beside it, on the single rank.
    pub fn replace_worker(&mut self, worker: Worker) {
        let handle = worker.handle();
        self.scheduler = Scheduler::new(handle.terms().clone(), handle.link().unwrap()).unwrap();
        self.ranks[0].worker = worker;
    }

    pub fn stats(&self) -> Stats {
        self.ranks[0].worker.handle().stats()
    }

    pub fn offer(&mut self, id: u64, tokens: &[i32], local: usize) -> u64 {
        let offer = self
            .scheduler
            .match_request(&request(id, tokens), local as u64)
            .unwrap();
        assert_eq!(offer.is_async, self.setup.async_load && offer.tokens > 0);
        offer.tokens
    }

    pub fn take_pages(&mut self, count: usize) -> Vec<i32> {
        (0..count).map(|_| self.free.pop().unwrap()).collect()
    }

    /// Matches, allocates the whole prompt and honours the whole offer, which is the answer.
    pub fn admit(&mut self, id: u64, tokens: &[i32]) -> u64 {
        let offered = self.offer(id, tokens, 0);
        self.settle(id, tokens, offered, offered as usize);
        offered
    }

    /// Allocates the whole prompt and honours a part of what was offered behind an empty local
    /// match. With asynchronous offers the request waits from then on.
    pub fn settle(&mut self, id: u64, tokens: &[i32], offered: u64, honoured: usize) {
        self.allocate(id, tokens, 0, honoured);
        if self.setup.async_load && offered > 0 {
            self.live.get_mut(&id).unwrap().restore = 0;
            self.parked
                .insert(id, (honoured, vec![false; self.ranks.len()]));
        }
    }

    /// Matches and honours nothing: everything is computed again.
    pub fn allocate_fresh(&mut self, id: u64, tokens: &[i32]) {
        self.offer(id, tokens, 0);
        self.allocate(id, tokens, 0, 0);
    }

    /// Allocates pages for the whole prompt and honours so many tokens behind the local match.
    pub fn allocate(&mut self, id: u64, tokens: &[i32], local: usize, honoured: usize) {
        let blocks = tokens.len().div_ceil(T);
        let pages: Vec<Vec<i32>> = (0..self.setup.groups.len())
            .map(|_| self.take_pages(blocks))
            .collect();
        let lists: Vec<GroupPages<'_>> = self
            .setup
            .groups
            .iter()
            .zip(&pages)
            .map(|(group, pages)| GroupPages {
                group: group.id,
                first_block: 0,
                indices: pages,
                replace: false,
            })
            .collect();
        self.scheduler
            .allocated(id, honoured as u64, &lists)
            .unwrap();
        for block in 0..local / T {
            self.compute_block(tokens, &pages, block);
        }
        self.live.insert(
            id,
            Live {
                tokens: tokens.to_vec(),
                reported: 0,
                computed: local,
                restore: honoured,
                paged: blocks,
                pages,
            },
        );
    }

    /// Builds a pass with these chunks: request and tokens to compute.
    pub fn build(&mut self, chunks: &[(u64, usize)]) -> Arc<Metadata> {
        let lives: Vec<(u64, Live, usize)> = chunks
            .iter()
            .map(|&(id, scheduled)| (id, self.live[&id].clone(), scheduled))
            .collect();
        let steps: Vec<Step<'_>> = lives
            .iter()
            .map(|(id, live, scheduled)| Step {
                request_id: *id,
                new_tokens: Tokens::I32(&live.tokens[live.reported..]),
                pages: &[],
                computed_position: live.computed as u64,
                scheduled_tokens: *scheduled as u64,
            })
            .collect();
        let metadata = self.scheduler.build(&steps).unwrap();
        for (id, live, _) in &lives {
            self.live.get_mut(id).unwrap().reported = live.tokens.len();
        }
        metadata
    }

    /// Binds on every rank; where there are several, what travels is bytes.
    pub fn bind(&mut self, metadata: &Arc<Metadata>) {
        let mut bytes = Vec::new();
        metadata.encode(&mut bytes);
        for rank in &mut self.ranks {
            let metadata = match rank.number {
                0 => Arc::clone(metadata),
                _ => Arc::new(Metadata::decode(&bytes).unwrap()),
            };
            rank.worker.bind(metadata, self.fence.clone());
        }
    }

    /// Starts loads on every rank; the first error.
    pub fn start_load(&mut self) -> Result<()> {
        let results: Vec<_> = self
            .ranks
            .iter_mut()
            .map(|rank| rank.worker.start_load(Stream::default()))
            .collect();
        results.into_iter().collect()
    }

    /// Puts a block's bytes into every rank's cache.
    fn compute_block(&mut self, tokens: &[i32], pages: &[Vec<i32>], block: usize) {
        for rank in &mut self.ranks {
            for kind in rank.cache.parts() {
                let size = rank.cache.page_bytes(kind);
                let bytes = content(tokens, block, kind, rank.number, size);
                rank.cache.write(kind, pages[kind.0][block], &bytes);
            }
        }
    }

    /// The forward pass: restored tokens count, chunks are computed, complete blocks get their bytes.
    pub fn forward(&mut self, chunks: &[(u64, usize)]) {
        for &(id, scheduled) in chunks {
            let mut live = self.live.remove(&id).unwrap();
            let from = live.computed + live.restore;
            live.computed = (from + scheduled).min(live.tokens.len());
            live.restore = 0;
            for block in from / T..live.computed / T {
                self.compute_block(&live.tokens, &live.pages, block);
            }
            self.live.insert(id, live);
        }
    }

    pub fn wait_for_save(&mut self) {
        for rank in &mut self.ranks {
            rank.worker.wait_for_save(Stream::default()).unwrap();
        }
    }

    /// A whole pass that works.
    pub fn pass(&mut self, chunks: &[(u64, usize)]) -> Arc<Metadata> {
        let metadata = self.build(chunks);
        self.bind(&metadata);
        self.start_load().unwrap();
        self.forward(chunks);
        self.wait_for_save();
        metadata
    }

    /// Every block with valid KV holds what it should on every rank.
    pub fn check(&self, id: u64) {
        let live = &self.live[&id];
        for block in 0..live.computed / T {
            for rank in &self.ranks {
                for kind in rank.cache.parts() {
                    let found = rank.cache.read(kind, live.pages[kind.0][block]);
                    let wanted = content(&live.tokens, block, kind, rank.number, found.len());
                    assert!(
                        found == wanted,
                        "request {id} block {block} {kind:?} rank {}: {:x?} …",
                        rank.number,
                        &found[..4]
                    );
                }
            }
        }
    }

    /// Ends a request; pinned pages come back with the reports, others at once.
    pub fn finish(&mut self, id: u64, reason: FinishReason) -> bool {
        let pinned = self.scheduler.finished(id, reason);
        self.parked.remove(&id);
        if let Some(live) = self.live.remove(&id) {
            if pinned {
                let reported = vec![false; self.ranks.len()];
                self.ending.insert(id, (live.pages, reported));
                self.announce.push(id);
            } else {
                self.give_pages(live.pages);
            }
        }
        pinned
    }

    fn give_pages(&mut self, pages: Vec<Vec<i32>>) {
        for page in pages.into_iter().flatten().filter(|page| *page >= 0) {
            for rank in &mut self.ranks {
                for kind in rank.cache.parts() {
                    let size = rank.cache.page_bytes(kind);
                    rank.cache.write(kind, page, &vec![0xBB; size]);
                }
            }
            self.free.push(page);
        }
    }

    /// Polls every rank; ids that all have reported, whose pages are overwritten at once.
    pub fn poll(&mut self) -> Vec<u64> {
        self.poll_all(&[]).unwrap().saved
    }

    /// Polls every rank and announces these loads. Requests that all ranks have loaded count what
    /// was restored as computed, unless they lost a page.
    pub fn poll_all(&mut self, loading: &[u64]) -> Result<Polled> {
        let announced = std::mem::take(&mut self.announce);
        let mut polled = Polled::default();
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let reported = rank.worker.get_finished(&announced, loading)?;
            for id in reported.saved {
                let ending = self.ending.get_mut(id).expect("announced");
                let before = std::mem::replace(&mut ending.1[number], true);
                assert!(!before, "reported twice");
            }
            for id in reported.loaded {
                let parked = self.parked.get_mut(id).expect("announced");
                let before = std::mem::replace(&mut parked.1[number], true);
                assert!(!before, "reported twice");
            }
            polled
                .failed
                .extend_from_slice(rank.worker.take_failed_async_loads());
        }
        let whole = |ranks: &[bool]| ranks.iter().all(|one| *one);
        let saved = self.ending.iter().filter(|(_, ending)| whole(&ending.1));
        polled.saved = saved.map(|(id, _)| *id).collect();
        for id in &polled.saved {
            let (pages, _) = self.ending.remove(id).unwrap();
            self.give_pages(pages);
        }
        let loaded = self.parked.iter().filter(|(_, parked)| whole(&parked.1));
        polled.loaded = loaded.map(|(id, _)| *id).collect();
        for id in &polled.loaded {
            let (restored, _) = self.parked.remove(id).unwrap();
            if !polled.failed.contains(id) {
                self.live.get_mut(id).unwrap().computed += restored;
            }
        }
        Ok(polled)
    }

    /// The allocation of a request is released and it will run again: its pages are overwritten.
    pub fn reset(&mut self, id: u64) {
        self.scheduler.reset(id).unwrap();
        self.parked.remove(&id);
        if let Some(live) = self.live.remove(&id) {
            self.give_pages(live.pages);
        }
    }

    /// Lets queued saves end: by steps, or by waiting for the threads.
    pub fn drain(&mut self) {
        self.stepper.run_all();
        let start = std::time::Instant::now();
        while self.ranks.iter().any(|rank| {
            let gauges = rank.worker.handle().gauges();
            gauges.saves_in_flight + gauges.loads_in_flight > 0
        }) {
            assert!(start.elapsed() < Duration::from_secs(60), "saves hang");
            match self.setup.stepped {
                true => std::thread::yield_now(),
                false => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Prefills `tokens` as one chunk and publishes all its blocks; the request ends.
    pub fn publish(&mut self, id: u64, tokens: &[i32]) {
        let offered = self.admit(id, tokens) as usize;
        self.pass(&[(id, tokens.len() - offered)]);
        self.check(id);
        self.drain();
        self.finish(id, FinishReason::Ended);
        self.poll();
        assert!(self.ending.is_empty());
    }
}
