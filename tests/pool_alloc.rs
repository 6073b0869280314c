//! A warmed-up pool allocates nothing, whatever passes through it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(unsafe_code, reason = "a global allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvbridge::device::memory::{Source, Target};
use kvbridge::keys::Keys;
use kvbridge::lane::{Clock, ManualClock};
use kvbridge::store::{Pieces, PutOptions, Store, embedded::Pool};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const PAGE: usize = 4096;
const BATCH: usize = 64;

#[test]
fn exist_put_get_and_eviction_allocate_nothing_once_warm() {
    let clock = Arc::new(ManualClock::new());
    let capacity = (256 * PAGE) as u64;
    let ttl = Duration::from_millis(1);
    let pool = Pool::new(capacity, 0.05, ttl, Arc::clone(&clock) as Arc<dyn Clock>).unwrap();
    // More keys than the pool holds, so that every round evicts.
    let batches: Vec<Keys> = (0..16)
        .map(|batch| {
            let mut keys = Keys::default();
            for i in 0..BATCH {
                keys.push(format!("kvb1/n/m/{}/{:064x}", i % 4, batch * BATCH + i).as_bytes());
            }
            keys
        })
        .collect();
    let page = vec![7_u8; PAGE];
    let mut landing = vec![0_u8; PAGE * BATCH];
    let mut sources = vec![Source::from(&page[..]); BATCH];
    let mut targets: Vec<Target<'_>> = landing.chunks_mut(PAGE).map(Target::from).collect();
    let (mut present, mut put, mut got) = (Vec::new(), Vec::new(), Vec::new());
    let mut round = || {
        for keys in &batches {
            pool.exist(keys, &mut present);
            let pieces = Pieces::one_each(&mut sources);
            pool.put(keys, pieces, &PutOptions::default(), &mut put);
            pool.get(keys, Pieces::one_each(&mut targets), &mut got);
            clock.advance(Duration::from_millis(2));
        }
    };
    for _ in 0..4 {
        round();
    }
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    for _ in 0..4 {
        round();
    }
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0);
    assert!(pool.stats().unwrap().evictions > 4 * 512);
}
