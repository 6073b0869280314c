//! A small engine for tests of the two halves: ranks with caches in host memory, one scheduler, one
//! pool that can be made to fail, and a block allocator. Page bytes are a function of what the
//! page stands for (tokens up to the block's end, layer group, shard), so that a wrong page shows.

#![allow(dead_code, reason = "each test file uses a part of the rig")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "a cache is registered on the rig's word")]

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use kvbridge::config::Config;
use kvbridge::device::{CacheMemory, Device, HostDevice, HostMemory, Stream};
use kvbridge::engine::{DeviceChoice, Drafter, Engine, Serving};
use kvbridge::error::Result;
use kvbridge::keys::{Chain, Geometry, Keys, Naming, Scope, Shard, Template, Tokens, seed};
use kvbridge::lane::{ManualClock, Mode, Stepper};
use kvbridge::layout::{Group, Layout, Part, Range, Region};
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::{FinishReason, GroupPages, Request, Scheduler, Step};
use kvbridge::stats::Stats;
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Action, Call, Faulty, Rule, Script, Which};
use kvbridge::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store,
};
use kvbridge::worker::{Fence, Worker};

pub const T: usize = 16;

/// One layer group: region sizes of its two parts.
#[derive(Clone)]
pub struct GroupShape {
    pub id: u32,
    pub sharded: Vec<u64>,
    pub replicated: Vec<u64>,
}

#[derive(Clone)]
pub struct Setup {
    /// Tensor-parallel ranks, or 1.
    pub world: u32,
    /// Attention DP: this owner among so many.
    pub owner: Option<(u32, u32)>,
    pub serving: Serving,
    pub drafter: Drafter,
    pub role: &'static str,
    pub namespace: &'static str,
    pub scheme: &'static str,
    pub format: &'static str,
    pub batch: u32,
    pub staging: u64,
    pub save_timeout_ms: u64,
    pub async_load: bool,
    pub supplies_fences: bool,
    /// More fields of the configuration, each with a comma behind it.
    pub more: &'static str,
    /// The same for the part that is only this library's.
    pub kvbridge: &'static str,
    pub chunk: u32,
    pub groups: Vec<GroupShape>,
    pub slots: u64,
    pub stepped: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            world: 1,
            owner: None,
            serving: Serving::Aggregated,
            drafter: Drafter::None,
            role: "both",
            namespace: "ns",
            scheme: "kvb1",
            format: "bfloat16",
            batch: 4,
            staging: 65536,
            save_timeout_ms: 20_000,
            async_load: false,
            supplies_fences: false,
            more: "",
            kvbridge: "",
            chunk: 512,
            groups: vec![GroupShape {
                id: 0,
                sharded: vec![96, 32],
                replicated: Vec::new(),
            }],
            slots: 256,
            stepped: true,
        }
    }
}

impl Setup {
    pub fn config(&self) -> Config {
        let text = format!(
            r#"{{{} "model_key": "m", "role": "{}", "namespace": "{}", "transfer_batch_size": {},
                "staging_buffer_bytes": {}, "async_load": {},
                "kvbridge": {{{} "key_scheme": "{}", "lookup_chunk_blocks": {}, "save_timeout_ms": {}}}}}"#,
            self.more,
            self.role,
            self.namespace,
            self.batch,
            self.staging,
            self.async_load,
            self.kvbridge,
            self.scheme,
            self.chunk,
            self.save_timeout_ms
        );
        Config::from_json(text.as_bytes()).unwrap()
    }

    pub fn engine(&self, rank: u32) -> Engine {
        let (tp_rank, tp_size) = self.owner.unwrap_or((rank, self.world));
        Engine {
            tokens_per_block: T as u32,
            tp_rank,
            tp_size,
            pp_size: 1,
            cp_size: 1,
            ranks_on_node: 1,
            attention_dp: self.owner.is_some(),
            serving: self.serving,
            drafter: self.drafter,
            max_draft_len: Some(3),
            draft_shares_cache: true,
            supplies_fences: self.supplies_fences,
            device: DeviceChoice::Host,
        }
    }
}

/// Two layer groups that make three kinds of pages: the first one has a replicated part, the second
/// one two regions.
pub fn two_groups() -> Vec<GroupShape> {
    vec![
        GroupShape {
            id: 3,
            sharded: vec![64],
            replicated: vec![40],
        },
        GroupShape {
            id: 9,
            sharded: vec![24, 16],
            replicated: Vec::new(),
        },
    ]
}

/// What goes wrong with these keys in every call of one kind.
pub fn rule(call: Call, keys: Which, action: Action) -> Rule {
    Rule {
        call,
        at: 0..u64::MAX,
        keys,
        action,
    }
}

/// A pool with room for `bytes` whose clock stands still and whose leases end at once.
pub fn pool(bytes: u64) -> Arc<Pool> {
    Pool::new(bytes, 0.05, Duration::ZERO, Arc::new(ManualClock::new())).unwrap()
}

/// A store that its users cannot close, so that they can share it.
pub struct Lent(pub Arc<dyn Store>);

impl Store for Lent {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }
    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        self.0.exist(keys, out);
    }
    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, kvbridge::device::memory::Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        self.0.put(keys, sources, options, out);
    }
    fn get(
        &self,
        keys: &Keys,
        targets: Pieces<'_, kvbridge::device::memory::Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) {
        self.0.get(keys, targets, out);
    }
    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        self.0.remove(keys, force, out);
    }
    fn register(&self, range: Range) -> Result<()> {
        self.0.register(range)
    }
    fn unregister(&self, range: Range) -> Result<()> {
        self.0.unregister(range)
    }
    fn health(&self) -> Health {
        self.0.health()
    }
    fn close(&self) -> Result<()> {
        Ok(())
    }
}

/// One rank's cache: per group and part its regions.
pub struct Cache {
    regions: BTreeMap<(usize, Part), Vec<(HostMemory, u64)>>,
    pub layout: Layout,
}

impl Cache {
    pub fn new(setup: &Setup) -> Self {
        let mut layout = Layout::new(0);
        let mut regions: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (position, shape) in setup.groups.iter().enumerate() {
            layout
                .add_group(Group {
                    id: shape.id,
                    window: 0,
                    number_format: setup.format.to_owned(),
                    layout_tag: String::new(),
                    layer_ids: vec![shape.id],
                })
                .unwrap();
            for (part, sizes) in [
                (Part::Sharded, &shape.sharded),
                (Part::Replicated, &shape.replicated),
            ] {
                for &size in sizes {
                    let memory = HostMemory::new(size * setup.slots).unwrap();
                    let region = Region {
                        base: memory.range().start,
                        size,
                        stride: size,
                        slots: setup.slots,
                        reservation_base: 0,
                    };
                    match part {
                        Part::Sharded => layout.add_region(shape.id, region).unwrap(),
                        Part::Replicated => layout.add_replicated_region(shape.id, region).unwrap(),
                    }
                    regions
                        .entry((position, part))
                        .or_default()
                        .push((memory, size));
                }
            }
        }
        Self { regions, layout }
    }

    pub fn register(&self) -> CacheMemory {
        self.register_on(Arc::new(HostDevice))
    }

    pub fn register_on(&self, device: Arc<dyn Device>) -> CacheMemory {
        // SAFETY: the rig keeps the memory beside the worker, and touches no page in flight unless
        // a test is about exactly that.
        unsafe { CacheMemory::new(self.layout.clone(), device) }.unwrap()
    }

    pub fn parts(&self) -> Vec<(usize, Part)> {
        self.regions.keys().copied().collect()
    }

    pub fn write(&mut self, (group, part): (usize, Part), page: i32, bytes: &[u8]) {
        let mut rest = bytes;
        for (memory, size) in self.regions.get_mut(&(group, part)).unwrap() {
            let (own, other) = rest.split_at(*size as usize);
            let start = page as usize * *size as usize;
            memory.bytes_mut()[start..start + own.len()].copy_from_slice(own);
            rest = other;
        }
    }

    pub fn read(&self, (group, part): (usize, Part), page: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (memory, size) in &self.regions[&(group, part)] {
            let start = page as usize * *size as usize;
            bytes.extend_from_slice(&memory.bytes()[start..start + *size as usize]);
        }
        bytes
    }

    /// All bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let regions = self.regions.values().flatten();
        regions.flat_map(|one| one.0.bytes()).copied().collect()
    }

    pub fn page_bytes(&self, kind: (usize, Part)) -> usize {
        self.regions[&kind].iter().map(|one| one.1 as usize).sum()
    }
}

/// What the page of a block holds on a rank.
pub fn content(
    tokens: &[i32],
    block: usize,
    kind: (usize, Part),
    rank: u32,
    size: usize,
) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    tokens[..(block + 1) * T].hash(&mut hasher);
    let shard = if kind.1 == Part::Replicated {
        u32::MAX
    } else {
        rank
    };
    (kind.0, kind.1, shard).hash(&mut hasher);
    let mut state = hasher.finish();
    (0..size)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

pub struct Rank {
    pub worker: Worker,
    pub cache: Cache,
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

/// Tokens of one prompt; equal numbers give equal tokens.
pub fn prompt(kind: i32, tokens: usize) -> Vec<i32> {
    (0..tokens as i32).map(|i| kind * 100_003 + i).collect()
}

pub fn request<'a>(id: u64, tokens: &'a [i32]) -> Request<'a> {
    Request {
        id,
        prompt: Tokens::I32(tokens),
        scope: Scope::default(),
        has_media: false,
        context_only: true,
    }
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
        let stepper = Stepper::new();
        let mode = match setup.stepped {
            true => Mode::Stepped(Arc::clone(&stepper)),
            false => Mode::Threads,
        };
        let config = setup.config();
        let ranks: Vec<Rank> = (0..setup.world)
            .map(|number| {
                let lent = Arc::new(Lent(Arc::clone(&store)));
                let mut worker = Worker::new(&config, &setup.engine(number), lent, &mode).unwrap();
                let cache = Cache::new(&setup);
                worker.register_layout(cache.register()).unwrap();
                Rank {
                    worker,
                    cache,
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

    pub fn script(&self, script: Script) {
        self.faulty.set_script(script);
    }

    pub fn asked(&self, call: Call) -> u64 {
        self.faulty.count(call).keys
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
        self.scheduler.reset(id);
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
            std::thread::yield_now();
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

    /// The key of one page.
    pub fn key(&self, tokens: &[i32], block: usize, kind: (usize, Part), rank: u32) -> Vec<u8> {
        let config = self.setup.config();
        let naming = Naming {
            scheme: config.key_scheme(),
            namespace: config.namespace().to_owned(),
            model_key: config.model_key().to_owned(),
            weights_digest: String::new(),
            page_format: config.page_format(),
            tokens_per_block: T as u32,
        };
        let shape = &self.setup.groups[kind.0];
        let (sizes, shard) = match kind.1 {
            Part::Replicated => (&shape.replicated, Shard::Replicated),
            Part::Sharded => {
                let world = self.setup.world;
                (&shape.sharded, Shard::Rank { world, rank })
            }
        };
        let geometry = Geometry {
            number_format: self.setup.format,
            layout_tag: "",
            layer_group: shape.id,
            window: 0,
            layer_ids: &[shape.id],
            region_sizes: sizes,
        };
        let template = Template::page(&naming, &geometry, shard).unwrap();
        let seed = seed(config.key_scheme(), &Scope::default()).unwrap();
        let mut chain = Chain::new(config.key_scheme(), T as u32, 0, seed).unwrap();
        chain.extend(Tokens::I32(tokens)).unwrap();
        let mut keys = Keys::new();
        keys.push_key(&template, chain.hash(block).unwrap())
            .unwrap();
        keys.get(0).to_vec()
    }

    /// Removes one page from the pool.
    pub fn remove(&self, tokens: &[i32], block: usize, kind: (usize, Part), rank: u32) {
        let mut keys = Keys::new();
        keys.push(&self.key(tokens, block, kind, rank));
        let mut out = Vec::new();
        self.pool.remove(&keys, true, &mut out);
        assert_eq!(out, [RemoveOutcome::Removed]);
    }

    /// Number of objects in the pool.
    pub fn stored(&self) -> u64 {
        self.pool.stats().unwrap().objects
    }
}
