//! A pool that is too small: what is evicted, and that no byte is wrong meanwhile.

use std::time::{Duration, Instant};

use kvbridge::device::memory::Source;
use kvbridge::keys::Keys;
use kvbridge::store::{
    GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, code,
};

use crate::calls::{exist, get, numbered, remove};
use crate::exchange::LENT;
use crate::real_pool::NOTHING_LENT;
use crate::{open, with_pool, with_pool_of};

/// Threads that put, get and remove in a pool that is too small, with two owners: what lands is what was put.
#[test]
fn no_byte_is_wrong_under_pressure() {
    let lease = "default_kv_lease_ttl=200";
    with_pool_of(&["--segment", "32", "--set", lease], "pressure::soak");
}

/// `KVB_SOAK`: for so many seconds.
#[test]
#[ignore = "needs a pool"]
fn soak() {
    const PAGE: usize = 40_000;
    const BATCH: usize = 16;
    let seconds = std::env::var("KVB_SOAK").map_or(5, |it| it.parse().unwrap());
    let time = Duration::from_secs(seconds);
    let connections = [open(LENT), open(NOTHING_LENT)];
    let began = Instant::now();
    let landed: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let store = connections[thread as usize % 2].handle().unwrap();
                scope.spawn(move || {
                    let mut random = thread;
                    let mut landed = 0;
                    while began.elapsed() < time {
                        random = random
                            .wrapping_mul(6_364_136_223_846_793_005)
                            .wrapping_add(1);
                        let first = (random >> 33) as usize % 300 * BATCH;
                        landed += one_round(&*store, first, BATCH, PAGE, random >> 60);
                    }
                    store.close().unwrap();
                    landed
                })
            })
            .collect();
        threads.into_iter().map(|it| it.join().unwrap()).sum()
    });
    assert!(landed > 1000, "only {landed} pages");
}

/// The pages that landed of a batch that was put, or, once in a while, removed.
fn one_round(store: &dyn Store, first: usize, batch: usize, page: usize, dice: u64) -> usize {
    let byte = |key: usize, at: usize| (key * 131 + at / 64 * 7 + at) as u8;
    let content = |key: usize| (0..page).map(|at| byte(key, at)).collect::<Vec<u8>>();
    let mut keys = Keys::new();
    (first..first + batch).for_each(|key| keys.push(format!("soak/{key}").as_bytes()));
    if dice == 0 {
        for outcome in remove(store, &keys, false) {
            // Somebody is writing it.
            let is_fine = |code: i32| code == -703;
            assert!(
                !matches!(outcome, RemoveOutcome::Failed(code) if !is_fine(code)),
                "{outcome:?}"
            );
        }
        return 0;
    }
    let pages: Vec<Vec<u8>> = (first..first + batch).map(content).collect();
    if dice.is_multiple_of(2) {
        let mut sources: Vec<Source<'_>> = pages.iter().map(|it| Source::from(&it[..])).collect();
        let mut out = Vec::new();
        let options = PutOptions::default();
        store.put(&keys, Pieces::one_each(&mut sources), &options, &mut out);
        for outcome in out {
            // Another thread is writing it, or it was evicted since.
            let is_fine = |code: i32| code == code::BEING_WRITTEN;
            assert!(
                !matches!(outcome, PutOutcome::Failed(code) if !is_fine(code)),
                "{outcome:?}"
            );
        }
    }
    let (outcomes, bytes) = get(store, &keys, page);
    let mut landed = 0;
    for ((outcome, bytes), wanted) in outcomes.iter().zip(bytes.chunks(page)).zip(&pages) {
        match outcome {
            GetOutcome::Landed(_) => {
                assert!(bytes == wanted, "other bytes under a key");
                landed += 1;
            }
            GetOutcome::Missing | GetOutcome::Failed(code::LEASE_EXPIRED) => {}
            other => panic!("{other:?}"),
        }
    }
    landed
}

fn put_with(store: &dyn Store, keys: &Keys, size: usize, options: &PutOptions<'_>) {
    let bytes = vec![1_u8; size];
    for key in keys.iter() {
        let mut one = Keys::new();
        one.push(key);
        let groups = options.groups.map(|groups| {
            let mut own = Keys::new();
            let index = keys.iter().position(|it| it == key).unwrap();
            own.push(groups.get(index));
            own
        });
        let options = PutOptions {
            groups: groups.as_ref(),
            ..*options
        };
        let mut out = Vec::new();
        // The pool evicts after it has refused.
        for _ in 0..300 {
            let mut sources = [Source::from(&bytes[..])];
            store.put(&one, Pieces::one_each(&mut sources), &options, &mut out);
            if out != [PutOutcome::NoSpace] {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(out, [PutOutcome::Stored]);
    }
}

#[test]
fn soft_pins_and_groups_decide_what_goes() {
    with_pool("32", "pressure::options");
}

#[test]
#[ignore = "needs a pool"]
fn options() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let none = PutOptions::default();
    let pinned = PutOptions {
        soft_pin_ttl: Some(Duration::from_secs(3600)),
        ..none
    };
    let (pins, grouped) = (numbered("pinned", 8), numbered("grouped", 16));
    put_with(&*store, &pins, 1 << 20, &pinned);
    let mut groups = Keys::new();
    for index in 0..16 {
        groups.push(format!("group {}", index % 4).as_bytes());
    }
    let together = PutOptions {
        groups: Some(&groups),
        ..none
    };
    put_with(&*store, &grouped, 1 << 20, &together);
    put_with(&*store, &numbered("plain", 60), 1 << 20, &none);
    assert_eq!(exist(&*store, &pins), [Presence::Present; 8]);
    let there = exist(&*store, &grouped);
    for group in 0..4 {
        let members: Vec<_> = there.iter().skip(group).step_by(4).collect();
        assert!(members.iter().all(|it| **it == *members[0]), "{there:?}");
    }
    assert!(there.contains(&Presence::Absent), "nothing was evicted");
    // Longer than the master takes.
    let endless = PutOptions {
        soft_pin_ttl: Some(Duration::from_secs(1 << 30)),
        ..none
    };
    let mut out = Vec::new();
    let bytes = [1_u8];
    let mut sources = [Source::from(&bytes[..])];
    store.put(
        &numbered("endless", 1),
        Pieces::one_each(&mut sources),
        &endless,
        &mut out,
    );
    assert_eq!(out, [PutOutcome::Failed(-600)]);
}
