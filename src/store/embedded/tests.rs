//! The pool's rules one by one, then all of them against an obvious model, then under threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::*;
use crate::error::Kind;
use crate::lane::{ManualClock, SystemClock};

const TTL: Duration = Duration::from_millis(100);
const PAGE: usize = 1024;

fn page_key(number: usize) -> Vec<u8> {
    format!("kvb1/ns/model/0011223344556677/{number:064x}").into_bytes()
}

fn one(key: &[u8]) -> Keys {
    let mut keys = Keys::default();
    keys.push(key);
    keys
}

fn put(pool: &Pool, key: &[u8], bytes: &[u8]) -> PutOutcome {
    let (mut sources, mut out) = ([Source::from(bytes)], Vec::new());
    let pieces = Pieces::one_each(&mut sources);
    pool.put(&one(key), pieces, &PutOptions::default(), &mut out);
    assert_eq!(out.len(), 1);
    out[0]
}

fn get(pool: &Pool, key: &[u8], size: usize) -> std::result::Result<Vec<u8>, GetOutcome> {
    let (mut landing, mut out) = (vec![0xee; size], Vec::new());
    let mut targets = [Target::from(&mut landing[..])];
    pool.get(&one(key), Pieces::one_each(&mut targets), &mut out);
    match out[..] {
        [GetOutcome::Landed(landed)] if landed == size as u64 => Ok(landing),
        [outcome] => Err(outcome),
        _ => panic!("{} outcomes", out.len()),
    }
}

fn exist(pool: &Pool, key: &[u8]) -> bool {
    let mut out = Vec::new();
    pool.exist(&one(key), &mut out);
    out == [Presence::Present]
}

/// Whether the pool has the key, without touching its lease or age.
fn has(pool: &Pool, key: &[u8]) -> bool {
    let shared = pool.shared().unwrap();
    shared.peek(key)
}

fn remove(pool: &Pool, key: &[u8], force: bool) -> RemoveOutcome {
    let mut out = Vec::new();
    pool.remove(&one(key), force, &mut out);
    out[0]
}

fn pool(pages: usize, ratio: f64) -> (Arc<Pool>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new());
    let capacity = (pages * PAGE) as u64;
    let pool = Pool::new(capacity, ratio, TTL, clock.clone()).unwrap();
    (pool, clock)
}

fn filled(pages: usize, ratio: f64) -> (Arc<Pool>, Arc<ManualClock>) {
    let (pool, clock) = pool(pages, ratio);
    for i in 0..pages {
        assert_eq!(
            put(&pool, &page_key(i), &[i as u8; PAGE]),
            PutOutcome::Stored
        );
    }
    assert_eq!(pool.stats().unwrap().evictions, 0);
    (pool, clock)
}

#[test]
fn a_put_without_room_evicts_the_ratio_oldest_access_first() {
    let (pool, _clock) = filled(20, 0.2);
    // The oldest two become the newest; a read and a second put count as access.
    assert_eq!(get(&pool, &page_key(0), PAGE).unwrap(), [0; PAGE]);
    assert_eq!(
        put(&pool, &page_key(1), &[9; PAGE]),
        PutOutcome::AlreadyThere
    );
    assert_eq!(put(&pool, &page_key(20), &[20; PAGE]), PutOutcome::Stored);
    let gone: Vec<usize> = (0..=20).filter(|&i| !has(&pool, &page_key(i))).collect();
    assert_eq!(gone, [2, 3, 4, 5]);
    let stats = pool.stats().unwrap();
    assert_eq!((stats.evictions, stats.bytes_evicted), (4, 4 * PAGE as u64));
    assert_eq!((stats.objects, stats.bytes_used), (17, 17 * PAGE as u64));
}

#[test]
fn a_put_larger_than_the_ratio_evicts_what_it_needs() {
    let (pool, _clock) = filled(10, 0.0);
    assert_eq!(put(&pool, b"large", &[7; 3 * PAGE]), PutOutcome::Stored);
    assert_eq!(pool.stats().unwrap().evictions, 3);
    assert_eq!(put(&pool, b"small", &[7; 1]), PutOutcome::Stored);
    assert_eq!(pool.stats().unwrap().evictions, 4);
}

#[test]
fn leased_objects_stay_until_the_lease_ends() {
    let (pool, clock) = filled(4, 1.0);
    assert!(exist(&pool, &page_key(0)));
    assert_eq!(pool.leased().unwrap(), 1);
    assert_eq!(remove(&pool, &page_key(0), false), RemoveOutcome::Leased);
    assert_eq!(put(&pool, b"a", &[1; PAGE]), PutOutcome::Stored);
    assert!(has(&pool, &page_key(0)));
    assert_eq!(pool.stats().unwrap().evictions, 3);

    clock.advance(TTL - Duration::from_nanos(1));
    assert_eq!(remove(&pool, &page_key(0), false), RemoveOutcome::Leased);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(pool.leased().unwrap(), 0);
    assert_eq!(put(&pool, b"b", &[1; 4 * PAGE]), PutOutcome::Stored);
    assert!(!has(&pool, &page_key(0)));
}

#[test]
fn a_pool_full_of_leases_has_no_space_until_one_ends() {
    let (pool, clock) = filled(4, 0.25);
    for i in 0..4 {
        assert!(exist(&pool, &page_key(i)));
        clock.advance(Duration::from_millis(10));
    }
    for _ in 0..3 {
        assert_eq!(put(&pool, b"x", &[1; PAGE]), PutOutcome::NoSpace);
    }
    assert_eq!(pool.stats().unwrap().puts_refused, 3);
    // The first lease ends at 100 ms; it is 40 ms now.
    clock.advance(Duration::from_millis(60));
    assert_eq!(put(&pool, b"x", &[1; PAGE]), PutOutcome::Stored);
    assert!(!has(&pool, &page_key(0)) && has(&pool, &page_key(1)));
    // The new object is not leased, and goes before the leased ones that are older.
    assert_eq!(put(&pool, b"y", &[1; PAGE]), PutOutcome::Stored);
    assert!(!has(&pool, b"x") && has(&pool, &page_key(1)));
}

#[test]
fn puts_that_were_refused_are_stored_once_there_is_space() {
    let (pool, _clock) = filled(4, 0.25);
    for i in 0..4 {
        assert!(exist(&pool, &page_key(i)));
    }
    for i in 10..13 {
        assert_eq!(
            put(&pool, &page_key(i), &[i as u8; PAGE]),
            PutOutcome::NoSpace
        );
        assert!(!exist(&pool, &page_key(i)));
    }
    for i in 0..3 {
        assert_eq!(remove(&pool, &page_key(i), true), RemoveOutcome::Removed);
    }
    for i in 10..13 {
        assert_eq!(
            put(&pool, &page_key(i), &[i as u8; PAGE]),
            PutOutcome::Stored
        );
        assert_eq!(get(&pool, &page_key(i), PAGE).unwrap(), [i as u8; PAGE]);
    }
}

#[test]
fn objects_larger_than_the_pool_evict_nothing() {
    let (pool, _clock) = filled(4, 0.25);
    let outcome = put(&pool, b"x", &[1; 4 * PAGE + 1]);
    assert_eq!(outcome, PutOutcome::Failed(code::TOO_LARGE));
    assert_eq!(pool.stats().unwrap().objects, 4);
    assert_eq!(put(&pool, b"x", &[1; 4 * PAGE]), PutOutcome::Stored);
}

#[test]
fn space_in_fragments_is_joined_by_evicting_more() {
    // Every second granule-sized object is kept young, so that the first victims are scattered.
    let (pool, _clock) = pool(16, 0.0);
    for i in 0..256 {
        assert_eq!(put(&pool, &page_key(i), &[1; 64]), PutOutcome::Stored);
    }
    for i in (0..256).step_by(2) {
        assert!(get(&pool, &page_key(i), 64).is_ok());
    }
    assert_eq!(put(&pool, b"page", &[1; 4 * PAGE]), PutOutcome::Stored);
    assert!(has(&pool, b"page"));
}

#[test]
fn order_is_exact_over_many_scans() {
    const OBJECTS: usize = 12_000;
    let clock = Arc::new(ManualClock::new());
    let capacity = OBJECTS as u64 * 64;
    let pool = Pool::new(capacity, 0.05, TTL, clock.clone()).unwrap();
    let mut order: Vec<usize> = Vec::new();
    let mut next = 0;
    for round in 0..60 {
        let before = pool.stats().unwrap().evictions;
        while pool.stats().unwrap().evictions == before && order.len() < OBJECTS {
            assert_eq!(put(&pool, &page_key(next), &[1; 64]), PutOutcome::Stored);
            order.push(next);
            next += 1;
        }
        if order.len() < OBJECTS {
            continue;
        }
        // Some of every age become young again, some of those leased.
        for step in 0..300 {
            let touched = order.remove(step * 37 % (order.len() / 2));
            if step % 3 == 0 {
                assert!(exist(&pool, &page_key(touched)));
            } else {
                assert!(get(&pool, &page_key(touched), 64).is_ok());
            }
            order.push(touched);
        }
        clock.advance(TTL * (round % 3));
        assert_eq!(put(&pool, &page_key(next), &[1; 64]), PutOutcome::Stored);
        let evicted = (pool.stats().unwrap().evictions - before) as usize;
        assert_eq!(evicted, OBJECTS / 20);
        let gone: Vec<usize> = order.drain(..evicted).collect();
        assert!(gone.iter().all(|&key| !has(&pool, &page_key(key))));
        assert!(order.iter().all(|&key| has(&pool, &page_key(key))));
        order.push(next);
        next += 1;
    }
    assert!(pool.stats().unwrap().evictions > 2 * OBJECTS as u64);
}

#[test]
fn a_batch_larger_than_the_pool_stores_what_fits() {
    let (pool, _clock) = filled(4, 0.25);
    let (mut keys, page) = (Keys::default(), [5; PAGE]);
    (10..16).for_each(|i| keys.push(&page_key(i)));
    let (mut sources, mut out) = ([Source::from(&page[..]); 6], Vec::new());
    let pieces = Pieces::one_each(&mut sources);
    pool.put(&keys, pieces, &PutOptions::default(), &mut out);
    assert_eq!(out[..4], [PutOutcome::Stored; 4]);
    assert_eq!(out[4..], [PutOutcome::NoSpace; 2]);
    assert_eq!(pool.stats().unwrap().objects, 4);
}

#[test]
fn device_memory_is_refused() {
    let (pool, _clock) = pool(4, 0.25);
    let unreachable = code::UNREACHABLE_MEMORY;
    let (source, target) = crate::device::memory::nowhere();
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    let options = PutOptions::default();
    pool.put(
        &one(b"k"),
        Pieces::one_each(&mut [source]),
        &options,
        &mut puts,
    );
    assert_eq!(puts, [PutOutcome::Failed(unreachable)]);
    assert_eq!(put(&pool, b"k", &[1; 8]), PutOutcome::Stored);
    pool.get(&one(b"k"), Pieces::one_each(&mut [target]), &mut gets);
    assert_eq!(gets, [GetOutcome::Failed(unreachable)]);
}

#[test]
fn handles_of_one_name_share_a_pool_that_lives_as_long_as_they() {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let make = |capacity| open("handles test", capacity, 0.05, TTL, Arc::clone(&clock));
    let first = make(1 << 20).unwrap();
    assert_eq!(put(&first, b"k", b"bytes"), PutOutcome::Stored);
    let second = make(1 << 20).unwrap();
    assert_eq!(get(&second, b"k", 5).unwrap(), b"bytes");

    let refused = make(2 << 20).unwrap_err();
    assert_eq!(refused.kind(), Kind::ConfigInvalid);
    for number in ["1048576", "2097152"] {
        assert!(refused.message().contains(number), "{refused}");
    }

    first.close().unwrap();
    assert!(!exist(&first, b"k"));
    assert_eq!(first.stats().unwrap_err().kind(), Kind::Closed);
    assert_eq!(get(&second, b"k", 5).unwrap(), b"bytes");
    second.close().unwrap();
    let third = make(2 << 20).unwrap();
    assert!(!exist(&third, b"k"));
}

#[test]
fn impossible_pools_are_refused() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let make = |capacity, ratio| {
        let made = Pool::new(capacity, ratio, TTL, Arc::clone(&clock));
        made.unwrap_err().kind()
    };
    assert_eq!(make(0, 0.1), Kind::ConfigInvalid);
    assert_eq!(make(1 << 20, f64::NAN), Kind::ConfigInvalid);
    assert_eq!(make(1 << 20, -0.1), Kind::ConfigInvalid);
    assert_eq!(make(1 << 20, 1.1), Kind::ConfigInvalid);
    assert_eq!(make(1 << 62, 0.1), Kind::NoMemory);
}

/// What the model knows of an object.
struct Known {
    bytes: Vec<u8>,
    access: u64,
    lease: Duration,
}

#[derive(Debug, Clone)]
enum Op {
    Exist(usize),
    Put(usize, usize),
    Get(usize),
    Remove(usize, bool),
    Advance(u64),
}

fn ops(sizes: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Op>> {
    let key = 0..24_usize;
    let op = prop_oneof![
        3 => key.clone().prop_map(Op::Exist),
        6 => (key.clone(), sizes).prop_map(|(key, size)| Op::Put(key, size)),
        3 => key.clone().prop_map(Op::Get),
        1 => (key, any::<bool>()).prop_map(|(key, force)| Op::Remove(key, force)),
        2 => (0..60_u64).prop_map(Op::Advance),
    ];
    proptest::collection::vec(op, 1..200)
}

/// Keys of every shape.
fn model_key(number: usize) -> Vec<u8> {
    match number % 3 {
        0 => page_key(number),
        1 => format!("trtllm/m/w1r0/lg0/t32b9/{number:032x}").into_bytes(),
        _ => format!("loose {number}").into_bytes(),
    }
}

/// Runs a history against the pool and the model. With `uniform` sizes the pool must be exact:
/// no space only if leases fill it, and the victims the oldest that are not leased.
fn run(ops: &[Op], pages: usize, uniform: bool) -> std::result::Result<(), TestCaseError> {
    let (pool, clock) = pool(pages, 0.2);
    let capacity = (pages * PAGE) as u64;
    let mut model: HashMap<usize, Known> = HashMap::new();
    let (mut access, mut round) = (0, 0_u8);
    for op in ops {
        let now = clock.now();
        access += 1;
        round = round.wrapping_add(1);
        match *op {
            Op::Exist(key) => {
                let there = exist(&pool, &model_key(key));
                prop_assert_eq!(there, model.contains_key(&key));
                if let Some(known) = model.get_mut(&key) {
                    (known.access, known.lease) = (access, now + TTL);
                }
            }
            Op::Get(key) => match model.get_mut(&key) {
                Some(known) => {
                    let size = known.bytes.len();
                    let wrong = get(&pool, &model_key(key), size + 1);
                    prop_assert_eq!(wrong, Err(GetOutcome::WrongSize(size as u64)));
                    let landed = get(&pool, &model_key(key), size);
                    prop_assert_eq!(landed.as_ref(), Ok(&known.bytes));
                    known.access = access;
                }
                None => {
                    let missing = get(&pool, &model_key(key), 4);
                    prop_assert_eq!(missing, Err(GetOutcome::Missing));
                }
            },
            Op::Remove(key, force) => {
                let wanted = match model.get(&key) {
                    None => RemoveOutcome::Missing,
                    Some(known) if known.lease > now && !force => RemoveOutcome::Leased,
                    Some(_) => RemoveOutcome::Removed,
                };
                prop_assert_eq!(remove(&pool, &model_key(key), force), wanted);
                if wanted == RemoveOutcome::Removed {
                    model.remove(&key);
                }
            }
            Op::Advance(ms) => clock.advance(Duration::from_millis(ms)),
            Op::Put(key, size) => {
                let before = pool.stats().unwrap();
                let bytes = vec![round; size];
                let outcome = put(&pool, &model_key(key), &bytes);
                let after = pool.stats().unwrap();
                if let Some(known) = model.get_mut(&key) {
                    prop_assert_eq!(outcome, PutOutcome::AlreadyThere);
                    prop_assert_eq!(after, before);
                    known.access = access;
                    continue;
                }
                // What is gone was not leased, and was older than all unleased that stayed.
                let stays = |key: &usize| has(&pool, &model_key(*key));
                let (left, gone): (Vec<usize>, Vec<usize>) = model.keys().partition(|k| stays(k));
                prop_assert_eq!(gone.len() as u64, after.evictions - before.evictions);
                prop_assert!(gone.iter().all(|key| model[key].lease <= now));
                let unleased = left.iter().filter(|key| model[key].lease <= now);
                let oldest_left = unleased.map(|key| model[key].access).min();
                let newest_gone = gone.iter().map(|key| model[key].access).max();
                if let (Some(left), Some(gone)) = (oldest_left, newest_gone) {
                    prop_assert!(gone < left, "evicted {} and left {}", gone, left);
                }
                model.retain(|key, _| left.contains(key));

                // An eviction frees the ratio, or leaves nothing that could go.
                let evicted = after.bytes_evicted - before.bytes_evicted;
                let unit = (capacity / 5).max(size as u64);
                if evicted > 0 {
                    prop_assert!(evicted >= unit || oldest_left.is_none());
                }
                match outcome {
                    PutOutcome::Stored => {
                        let known = Known {
                            bytes,
                            access,
                            lease: Duration::ZERO,
                        };
                        model.insert(key, known);
                    }
                    PutOutcome::NoSpace if uniform => {
                        prop_assert!(oldest_left.is_none());
                        prop_assert_eq!(model.len(), pages);
                    }
                    PutOutcome::NoSpace => {
                        prop_assert!(oldest_left.is_none() || evicted >= 5 * unit);
                    }
                    other => prop_assert!(false, "{:?}", other),
                }
            }
        }
        let stats = pool.stats().unwrap();
        prop_assert!(stats.bytes_used <= capacity);
        let sum: usize = model
            .values()
            .map(|known| known.bytes.len().max(1).next_multiple_of(64))
            .sum();
        prop_assert_eq!(stats.bytes_used, sum as u64);
        prop_assert_eq!(stats.objects, model.len() as u64);
        for key in model.keys() {
            prop_assert!(has(&pool, &model_key(*key)), "{} lost", key);
        }
    }
    for (key, known) in &model {
        let bytes = get(&pool, &model_key(*key), known.bytes.len());
        prop_assert_eq!(bytes.as_ref(), Ok(&known.bytes));
    }
    Ok(())
}

proptest! {
    #[test]
    fn pages_of_one_size_follow_the_model(ops in ops(PAGE..PAGE + 1)) {
        run(&ops, 9, true)?;
    }

    #[test]
    fn objects_of_any_size_follow_the_model(ops in ops(0..3 * PAGE)) {
        run(&ops, 9, false)?;
    }
}

/// A value that says whose it is, all over.
fn described(key: usize, size: usize) -> Vec<u8> {
    let word = (key as u64)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes();
    word.iter().copied().cycle().take(size).collect()
}

/// Twice as much as there is room for: the pool is full all the time, and each put evicts down to 95 % of it. Of
/// pages whose sizes differ by multiples of `step` bytes, at least so many of 1000 bytes are in use.
fn soak(step: usize, least: u64) {
    const KEYS: usize = 640;
    const SHARE: usize = 4;
    const THREADS: u64 = 64;
    let size = |key: usize| PAGE + key % 64 * step;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let ttl = Duration::from_micros(50);
    let pool = Pool::new((400 * PAGE) as u64, 0.05, ttl, clock).unwrap();
    let landed = std::sync::atomic::AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    // Of the second half, when the pool has long been full.
    let fill = std::sync::atomic::AtomicU64::new(0);
    let samples = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (pool, landed, failed) = (&pool, &landed, &failed);
            let (fill, samples) = (&fill, &samples);
            scope.spawn(move || {
                let mut random = thread.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
                let mut next = move || {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    (random >> 20) as usize
                };
                for round in 0..2_000 {
                    if round >= 1_000 && round % 50 == 0 {
                        let stats = pool.stats().unwrap();
                        let used = stats.bytes_used * 1000 / stats.capacity;
                        fill.fetch_add(used, Ordering::Relaxed);
                        samples.fetch_add(1, Ordering::Relaxed);
                    }
                    let first = next() % KEYS;
                    let batch: Vec<usize> = (first..(first + SHARE).min(KEYS)).collect();
                    let mut keys = Keys::default();
                    batch.iter().for_each(|&key| keys.push(&model_key(key)));
                    match next() % 32 {
                        0..13 => {
                            let values: Vec<_> =
                                batch.iter().map(|&key| described(key, size(key))).collect();
                            let mut sources: Vec<Source<'_>> =
                                values.iter().map(|value| (&value[..]).into()).collect();
                            let mut out = Vec::new();
                            let pieces = Pieces::one_each(&mut sources);
                            pool.put(&keys, pieces, &PutOptions::default(), &mut out);
                        }
                        13..28 => {
                            let mut landings: Vec<_> =
                                batch.iter().map(|&key| vec![0; size(key)]).collect();
                            let mut targets: Vec<Target<'_>> =
                                landings.iter_mut().map(|l| (&mut l[..]).into()).collect();
                            let mut out = Vec::new();
                            pool.get(&keys, Pieces::one_each(&mut targets), &mut out);
                            for ((key, landing), outcome) in batch.iter().zip(landings).zip(out) {
                                if let GetOutcome::Landed(_) = outcome {
                                    landed.fetch_add(1, Ordering::Relaxed);
                                    if landing != described(*key, size(*key)) {
                                        failed.store(true, Ordering::Relaxed);
                                    }
                                }
                            }
                        }
                        28..31 => pool.exist(&keys, &mut Vec::new()),
                        _ => pool.remove(&keys, next() % 2 == 0, &mut Vec::new()),
                    }
                }
            });
        }
    });
    assert!(
        !failed.load(Ordering::Relaxed),
        "foreign or torn bytes landed"
    );
    assert!(landed.load(Ordering::Relaxed) > 0);
    let fill = fill.load(Ordering::Relaxed) / samples.load(Ordering::Relaxed);
    assert!(fill >= least, "{fill} of 1000: there was always room");
    let stats = pool.stats().unwrap();
    assert!(stats.evictions > 0 && stats.bytes_used <= stats.capacity);
    // Nothing leaked: every byte in use belongs to an object that is there.
    for key in 0..KEYS {
        remove(&pool, &model_key(key), true);
    }
    let stats = pool.stats().unwrap();
    assert_eq!((stats.objects, stats.bytes_used), (0, 0));
}

#[test]
fn under_threads_what_lands_is_what_its_key_says() {
    soak(0, 950);
}

/// Holes that do not fit cost some of the room.
#[test]
fn under_threads_pages_of_many_sizes_land_as_their_keys_say() {
    soak(8, 850);
}
