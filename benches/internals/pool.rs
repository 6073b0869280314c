//! The embedded pool against a bare hash table and against bare copies.

use std::cell::RefCell;
use std::hash::{BuildHasherDefault, Hasher};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvbridge::keys::{Geometry, Keys, Naming, PageFormat, Scheme, Shard, Template};
use kvbridge::page::{FOOTER_BYTES, Verdict, seal, verify};
use kvbridge::store::embedded::Pool;
use kvbridge::store::{Pieces, PutOptions, Store};
use kvbridge::sync::SystemClock;

use super::clock::Stopwatch;
use super::{Outcome, Pair};

/// Larger than the last cache, so that copies come from memory as pages do.
const SET: usize = 256 << 20;
/// What is copied in one turn.
const BATCH: usize = 4 << 20;
/// The engine's side of the copies.
const CACHE: usize = 128 << 20;

fn template(page_bytes: u64) -> Outcome<Template> {
    let naming = Naming {
        scheme: Scheme::Kvb1,
        namespace: "trtllm".to_owned(),
        model_key: "llama-3.1-70b-instruct".to_owned(),
        weights_digest: String::new(),
        page_format: PageFormat::Sealed,
        tokens_per_block: 32,
    };
    let geometry = Geometry {
        number_format: "float16",
        layout_tag: "",
        layer_group: 0,
        window: 0,
        layer_ids: &[0],
        region_sizes: &[page_bytes],
    };
    let shard = Shard::Rank { world: 1, rank: 0 };
    Ok(Template::page(&naming, &geometry, shard)?)
}

fn digest(number: usize) -> [u8; 32] {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn keys(template: &Template, numbers: impl Iterator<Item = usize>) -> Outcome<Keys> {
    let mut keys = Keys::new();
    for number in numbers {
        keys.push_key(template, &digest(number))?;
    }
    Ok(keys)
}

/// Digests are as good as hashes.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 = u64::from_le_bytes(*first);
        }
    }

    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

pub fn lookups(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    for objects in [100_000, 2_000_000] {
        each(lookup(objects)?)?;
    }
    Ok(())
}

/// Existence questions of a prompt's size against the same digests in a bare table.
fn lookup(objects: usize) -> Outcome<Pair> {
    const ASKED: usize = 4096;
    const SETS: usize = 48;
    let clock = Arc::new(SystemClock::new());
    let pool = Pool::new(objects as u64 * 64, 0.0, Duration::from_secs(3600), clock)?;
    let template = template(64)?;
    let mut bare: hashbrown::HashMap<[u8; 32], (u64, u64), BuildHasherDefault<Identity>> =
        hashbrown::HashMap::default();
    let numbers: Vec<usize> = (0..objects).collect();
    let payload = [0_u8; 8];
    let mut outcomes = Vec::new();
    for numbers in numbers.chunks(4096) {
        let keys = keys(&template, numbers.iter().copied())?;
        let mut sources: Vec<_> = numbers.iter().map(|_| payload[..].into()).collect();
        pool.put(
            &keys,
            Pieces::one_each(&mut sources),
            &PutOptions::default(),
            &mut outcomes,
        );
        for &number in numbers {
            bare.insert(digest(number), (number as u64, 1));
        }
    }
    if pool.stats()?.objects != objects as u64 {
        return Err("the pool did not keep all objects".into());
    }
    let asked = |set: usize| (0..ASKED).map(move |n| (set * ASKED + n) * 7_919 * 104_729 % objects);
    let mut questions = Vec::new();
    let mut digests: Vec<Vec<[u8; 32]>> = Vec::new();
    for set in 0..SETS {
        questions.push(keys(&template, asked(set))?);
        // Other ones than the pool is asked for at the same time: nothing is shared but the caches.
        digests.push(asked(SETS + set).map(digest).collect());
    }
    let bare = Mutex::new(bare);
    let (mut presences, mut found) = (Vec::new(), Vec::new());
    let (mut set, mut other) = (0, 0);
    Ok(Pair {
        row: "lookup_embedded",
        workload: format!("{ASKED} of {} k keys", objects / 1000),
        against: "÷ bare hashbrown",
        units: ASKED,
        ours: Box::new(move || {
            set = (set + 1) % SETS;
            let start = Stopwatch::start();
            pool.exist(&questions[set], &mut presences);
            black_box(&presences);
            start.elapsed()
        }),
        contender: Box::new(move || {
            other = (other + 1) % SETS;
            let start = Stopwatch::start();
            found.clear();
            let bare = bare.lock();
            if let Ok(bare) = &bare {
                found.extend(
                    digests[other]
                        .iter()
                        .map(|digest| bare.get(digest).is_some_and(|value| value.1 != 0)),
                );
            }
            black_box(&found);
            start.elapsed()
        }),
    })
}

/// Touched memory that starts on a page.
struct Memory {
    bytes: Vec<u8>,
    skip: usize,
}

impl Memory {
    fn new(size: usize) -> Self {
        let bytes = vec![1_u8; size + 4096];
        let skip = bytes.as_ptr().align_offset(4096);
        Self { bytes, skip }
    }

    fn part(&mut self, at: usize, size: usize) -> &mut [u8] {
        let start = self.skip + at;
        &mut self.bytes[start..start + size]
    }
}

/// The pool with its objects, the engine's cache, and where the next turn goes on in both.
struct Transfers {
    pool: Arc<Pool>,
    keys: Vec<Keys>,
    cache: Rc<RefCell<Memory>>,
    page: usize,
    batch: usize,
    place: usize,
}

impl Transfers {
    fn new(page: usize, cache: &Rc<RefCell<Memory>>) -> Outcome<Self> {
        let clock = Arc::new(SystemClock::new());
        let pool = Pool::new(SET as u64, 0.0, Duration::from_secs(3600), clock)?;
        let template = template(page as u64)?;
        let per_batch = BATCH / page;
        let mut batches = Vec::new();
        for batch in 0..SET / BATCH {
            batches.push(keys(&template, batch * per_batch..(batch + 1) * per_batch)?);
        }
        let mut transfers = Self {
            pool,
            keys: batches,
            cache: Rc::clone(cache),
            page,
            batch: 0,
            place: 0,
        };
        for _ in 0..SET / BATCH {
            transfers.put();
        }
        Ok(transfers)
    }

    fn begin(&mut self) -> (usize, usize) {
        let at = (self.batch, self.place);
        self.batch = (self.batch + 1) % self.keys.len();
        self.place = (self.place + BATCH) % CACHE;
        at
    }

    /// The ends of pages of two pieces each.
    fn ends(&self) -> Vec<usize> {
        (1..=BATCH / self.page).map(|page| 2 * page).collect()
    }

    fn put(&mut self) -> Duration {
        if self.batch == 0 {
            let mut outcomes = Vec::new();
            for keys in &self.keys {
                self.pool.remove(keys, true, &mut outcomes);
            }
        }
        let (batch, place) = self.begin();
        let mut cache = self.cache.borrow_mut();
        let cache: &[u8] = cache.part(place, BATCH);
        let mut sources: Vec<_> = cache.chunks_exact(self.page / 2).map(Into::into).collect();
        let ends = self.ends();
        let mut outcomes = Vec::with_capacity(ends.len());
        let start = Stopwatch::start();
        self.pool.put(
            &self.keys[batch],
            Pieces::grouped(&mut sources, &ends),
            &PutOptions::default(),
            &mut outcomes,
        );
        black_box(&outcomes);
        start.elapsed()
    }

    fn get(&mut self) -> Duration {
        let (batch, place) = self.begin();
        let mut cache = self.cache.borrow_mut();
        let cache = cache.part(place, BATCH);
        let mut targets: Vec<_> = cache
            .chunks_exact_mut(self.page / 2)
            .map(Into::into)
            .collect();
        let ends = self.ends();
        let mut outcomes = Vec::with_capacity(ends.len());
        let start = Stopwatch::start();
        self.pool.get(
            &self.keys[batch],
            Pieces::grouped(&mut targets, &ends),
            &mut outcomes,
        );
        black_box(&outcomes);
        start.elapsed()
    }
}

/// The same copies without a pool, half the cache away from where the pool's are.
struct Copies {
    memory: Memory,
    cache: Rc<RefCell<Memory>>,
    page: usize,
    batch: usize,
    place: usize,
}

impl Copies {
    fn new(page: usize, cache: &Rc<RefCell<Memory>>) -> Self {
        Self {
            memory: Memory::new(SET),
            cache: Rc::clone(cache),
            page,
            batch: 0,
            place: CACHE / 2,
        }
    }

    fn copy(&mut self, into_pool: bool) -> Duration {
        let (batch, place) = (self.batch, self.place);
        self.batch = (self.batch + BATCH) % SET;
        self.place = (self.place + BATCH) % CACHE;
        let mut cache = self.cache.borrow_mut();
        let cache = cache.part(place, BATCH).chunks_exact_mut(self.page / 2);
        let memory = self.memory.part(batch, BATCH);
        let pieces: Vec<_> = cache
            .zip(memory.chunks_exact_mut(self.page / 2))
            .map(|(cache, memory)| {
                if into_pool {
                    (memory, cache)
                } else {
                    (cache, memory)
                }
            })
            .collect();
        let start = Stopwatch::start();
        for (to, from) in pieces {
            to.copy_from_slice(from);
        }
        start.elapsed()
    }
}

pub fn transfers(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    let cache = Rc::new(RefCell::new(Memory::new(CACHE)));
    for (page, size) in [(4 << 10, "4 KiB"), (64 << 10, "64 KiB"), (1 << 20, "1 MiB")] {
        for row in ["pool_put", "pool_get"] {
            let mut transfers = Transfers::new(page, &cache)?;
            let mut copies = Copies::new(page, &cache);
            let into_pool = row == "pool_put";
            each(Pair {
                row,
                workload: format!("raw pages of {size}, 2 regions"),
                against: "of a bare copy",
                units: BATCH / page,
                ours: Box::new(move || {
                    if into_pool {
                        transfers.put()
                    } else {
                        transfers.get()
                    }
                }),
                contender: Box::new(move || copies.copy(into_pool)),
            })?;
        }
    }
    Ok(())
}

/// Sealed objects that are got and checked page by page, as loads do.
struct Sealed {
    pool: Arc<Pool>,
    keys: Vec<Keys>,
    slots: Memory,
    next: usize,
    /// Pages per call.
    count: usize,
}

const PAGE: usize = 1 << 20;

impl Sealed {
    fn new(count: usize) -> Outcome<Self> {
        let clock = Arc::new(SystemClock::new());
        let capacity = (SET + SET / 16) as u64;
        let pool = Pool::new(capacity, 0.0, Duration::from_secs(3600), clock)?;
        let template = template(PAGE as u64)?;
        let payload: Vec<u8> = (0..PAGE).map(|at| ((at * 7) >> 3) as u8).collect();
        let mut batches = Vec::new();
        let mut outcomes = Vec::new();
        for batch in 0..SET / PAGE / count {
            let keys = keys(&template, batch * count..(batch + 1) * count)?;
            let seals: Vec<_> = keys.iter().map(|key| seal(key, &payload)).collect();
            let mut sources: Vec<_> = seals
                .iter()
                .flat_map(|seal| [payload[..].into(), seal[..].into()])
                .collect();
            let ends: Vec<_> = (1..=count).map(|page| 2 * page).collect();
            let options = PutOptions::default();
            let pieces = Pieces::grouped(&mut sources, &ends);
            pool.put(&keys, pieces, &options, &mut outcomes);
            batches.push(keys);
        }
        Ok(Self {
            pool,
            keys: batches,
            slots: Memory::new(count * (PAGE + 4096)),
            next: 0,
            count,
        })
    }

    fn get(&mut self, check: bool) -> Duration {
        let count = self.count;
        self.next = (self.next + 1) % self.keys.len();
        let keys = &self.keys[self.next];
        let mut outcomes = Vec::with_capacity(count);
        let slots = self.slots.part(0, count * (PAGE + 4096));
        let mut targets: Vec<_> = slots
            .chunks_exact_mut(PAGE + 4096)
            .map(|slot| (&mut slot[..PAGE + FOOTER_BYTES]).into())
            .collect();
        let start = Stopwatch::start();
        self.pool
            .get(keys, Pieces::one_each(&mut targets), &mut outcomes);
        let mut damaged = 0;
        if check {
            for (key, slot) in keys.iter().zip(slots.chunks_exact(PAGE + 4096)) {
                let verdict = verify(key, &slot[..PAGE + FOOTER_BYTES], PAGE);
                damaged += usize::from(verdict != Verdict::Intact);
            }
        }
        black_box((&outcomes, damaged));
        start.elapsed()
    }
}

pub fn seals(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    for count in [1, 16] {
        let (mut checked, mut plain) = (Sealed::new(count)?, Sealed::new(count)?);
        each(Pair {
            row: "sealed",
            workload: format!("pool_get, 1 MiB pages, {count} per call"),
            against: "÷ without verification",
            units: count,
            ours: Box::new(move || checked.get(true)),
            contender: Box::new(move || plain.get(false)),
        })?;
    }
    Ok(())
}
