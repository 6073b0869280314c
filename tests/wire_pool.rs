//! The store "mooncake-tcp" against a real pool, each test in a process of its own with a pool of its own
//! (`scripts/pool`). They run where `KVB_MOONCAKE_LIBRARY` is set: `eval "$(scripts/pool env)"`. Of that
//! library only the tests that say so use anything.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod calls;
mod real_pool;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use calls::{exist, get, numbered, put, remove};
use kvbridge::config::Config;
use kvbridge::device::memory::{Source, Target};
use kvbridge::error::Kind;
use kvbridge::keys::Keys;
use kvbridge::lane::Mode;
use kvbridge::store::guarded::{Guarded, Settings};
use kvbridge::store::mooncake::Patience;
use kvbridge::store::wire::{Connection, PATIENCE};
use kvbridge::store::{
    GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, code,
    conformance, mooncake,
};
use kvbridge::sync::SystemClock;
use real_pool::{Member, NOTHING_LENT, master, wire_config};

fn with_pool(segment: &str, test: &str) {
    with_pool_of(&["--segment", segment], test);
}

fn with_pool_of(options: &[&str], test: &str) {
    real_pool::with_pool(options, &[], test);
}

/// `more`: further members, each with a comma behind it. Most tests are not about time, and have enough.
fn config_for(master: &str, more: &str) -> Config {
    config_within(master, more, 20_000)
}

fn config_within(master: &str, more: &str, ms: u32) -> Config {
    wire_config(master, more, [ms; 3])
}

fn open(more: &str) -> Arc<Connection> {
    Connection::open(&config_for(&master(), more), PATIENCE).unwrap()
}

fn guarded(store: Arc<dyn Store>) -> Arc<Guarded> {
    let long = Duration::from_secs(60);
    let settings = Settings {
        lookup: long,
        load: long,
        save: long,
        registration: long,
        close: long,
        cooldown: Duration::ZERO,
        bound: 2,
        callers: 4,
    };
    let clock = Arc::new(SystemClock::new());
    Guarded::start(store, settings, clock, &Mode::Threads).unwrap()
}

#[test]
fn a_real_pool_passes_the_suite() {
    with_pool("64", "suite");
}

#[test]
#[ignore = "needs a pool"]
fn suite() {
    let connection = open(NOTHING_LENT);
    conformance::check(&|| connection.handle().unwrap()).unwrap();
    conformance::check(&|| guarded(connection.handle().unwrap())).unwrap();
}

#[test]
fn what_one_client_stores_another_reads() {
    with_pool("256", "two_clients");
}

#[test]
#[ignore = "needs a pool"]
fn two_clients() {
    let (writer, reader) = (open(NOTHING_LENT), open(NOTHING_LENT));
    let (writer, reader) = (writer.handle().unwrap(), reader.handle().unwrap());
    // More than one request holds, and than one connection's buffers.
    let (all, page) = (numbered("pages", 3000), vec![0xa5_u8; 20_000]);
    assert_eq!(exist(&*reader, &all), vec![Presence::Absent; 3000]);
    assert_eq!(put(&*writer, &all, &page), vec![PutOutcome::Stored; 3000]);
    assert_eq!(
        put(&*reader, &all, &page),
        vec![PutOutcome::AlreadyThere; 3000]
    );
    assert_eq!(exist(&*reader, &all), vec![Presence::Present; 3000]);
    let (outcomes, landed) = get(&*reader, &all, page.len());
    assert_eq!(outcomes, vec![GetOutcome::Landed(20_000); 3000]);
    assert!(landed.chunks(page.len()).all(|it| it == page));
    // The lookup leased them.
    let one = numbered("pages", 1);
    assert_eq!(remove(&*writer, &one, false), [RemoveOutcome::Leased]);
    assert_eq!(remove(&*writer, &one, true), [RemoveOutcome::Removed]);
    assert_eq!(exist(&*reader, &one), [Presence::Absent]);
    assert_eq!(get(&*reader, &one, 20_000).0, [GetOutcome::Missing]);
    writer.close().unwrap();
    assert_eq!(reader.health(), Health::Up);
    reader.close().unwrap();
}

#[test]
fn a_full_pool_says_so_and_stores_what_fits() {
    with_pool("16", "full");
}

#[test]
#[ignore = "needs a pool"]
fn full() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let page = vec![1_u8; 1 << 20];
    let outcomes = put(&*store, &numbered("page", 40), &page);
    let stored = outcomes
        .iter()
        .filter(|&&it| it == PutOutcome::Stored)
        .count();
    let refused = outcomes
        .iter()
        .filter(|&&it| it == PutOutcome::NoSpace)
        .count();
    assert!(stored > 0 && refused > 0, "{outcomes:?}");
    assert_eq!(stored + refused, 40, "{outcomes:?}");
}

#[test]
fn a_master_that_was_started_anew_is_used_again() {
    with_pool("64", "restart");
}

#[test]
#[ignore = "needs a pool"]
fn restart() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let (keys, page) = (numbered("page", 3), vec![5_u8; 4096]);
    assert_eq!(put(&*store, &keys, &page), [PutOutcome::Stored; 3]);
    Member::Master.kill();
    let outcomes = exist(&*store, &keys);
    let failed = |it: &Presence| matches!(it, Presence::Unknown(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    assert!(matches!(store.health(), Health::Down(_)));
    let outcomes = get(&*store, &keys, page.len()).0;
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    Member::Master.replace(&[]);
    let mut outcomes = Vec::new();
    for _ in 0..100 {
        outcomes = exist(&*store, &keys);
        if outcomes == [Presence::Absent; 3] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(outcomes, [Presence::Absent; 3]);
    assert_eq!(store.health(), Health::Up);
}

#[test]
fn tenants_are_kept_apart_or_refused() {
    with_pool_of(&["--segment", "64", "--tenant", "blue"], "tenants");
    with_pool("0", "no_tenants");
}

#[test]
#[ignore = "needs a pool"]
fn tenants() {
    let store = open(r#""global_segment_size": 0, "tenant_id": "blue","#)
        .handle()
        .unwrap();
    assert!(store.capabilities().tenant);
    let (keys, page) = (numbered("page", 3), vec![5_u8; 4096]);
    assert_eq!(put(&*store, &keys, &page), [PutOutcome::Stored; 3]);
    assert_eq!(exist(&*store, &keys), [Presence::Present; 3]);
    let (outcomes, landed) = get(&*store, &keys, page.len());
    assert_eq!(outcomes, [GetOutcome::Landed(4096); 3]);
    assert!(landed.iter().all(|&byte| byte == 5));
    let config = config_for(
        &master(),
        r#""global_segment_size": 0, "tenant_id": "red","#,
    );
    let error = Connection::open(&config, PATIENCE).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    assert!(
        error.message().contains("tenant_id = \"red\" is not known"),
        "{error}"
    );
}

#[test]
#[ignore = "needs a pool"]
fn no_tenants() {
    let config = config_for(
        &master(),
        r#""global_segment_size": 0, "tenant_id": "blue","#,
    );
    let error = Connection::open(&config, PATIENCE).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    assert!(
        error.message().contains("--enable_multi_tenants"),
        "{error}"
    );
}

// ---- with Mooncake's own clients ----

const NAME: &str = "exchange";
const COUNT: usize = 40;
const SIZE: usize = 100_000;

/// What the Python programs store and expect.
fn content(key: usize) -> Vec<u8> {
    let byte = |i: usize| (i * 31 + key * 7 + (i >> 12)) as u8;
    (0..SIZE).map(byte).collect()
}

/// Runs a program that uses Mooncake's Python client.
fn python(program: &str, name: &str) {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(format!("{root}/build/pool/venv/bin/python"))
        .arg(format!("{root}/cpp_tests/mooncake/{program}"))
        .args([&master(), &COUNT.to_string(), &SIZE.to_string(), name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:#?}");
}

fn put_content(store: &dyn Store, name: &str) {
    let all: Vec<Vec<u8>> = (0..COUNT).map(content).collect();
    // Two pieces each.
    let mut sources: Vec<Source<'_>> = all
        .iter()
        .flat_map(|it| [Source::from(&it[..7]), Source::from(&it[7..])])
        .collect();
    let ends: Vec<usize> = (1..=COUNT).map(|it| 2 * it).collect();
    let (mut out, options) = (Vec::new(), PutOptions::default());
    let pieces = Pieces::grouped(&mut sources, &ends);
    store.put(&numbered(name, COUNT), pieces, &options, &mut out);
    assert_eq!(out, vec![PutOutcome::Stored; COUNT]);
}

fn get_content(store: &dyn Store, name: &str) {
    let mut all: Vec<Vec<u8>> = vec![vec![0; SIZE]; COUNT];
    let mut targets: Vec<Target<'_>> = Vec::new();
    for it in &mut all {
        let (first, rest) = it.split_at_mut(70_001);
        targets.extend([Target::from(first), Target::from(rest)]);
    }
    let ends: Vec<usize> = (1..=COUNT).map(|it| 2 * it).collect();
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut targets, &ends);
    store.get(&numbered(name, COUNT), pieces, &mut out);
    assert_eq!(out, vec![GetOutcome::Landed(SIZE as u64); COUNT]);
    for (key, it) in all.iter().enumerate() {
        assert!(*it == content(key), "key {key}");
    }
}

#[test]
fn bytes_are_exchanged_with_mooncakes_own_clients() {
    with_pool("64", "exchange");
}

#[test]
#[ignore = "needs a pool"]
fn exchange() {
    let store = open(NOTHING_LENT).handle().unwrap();
    python("write.py", NAME);
    get_content(&*store, NAME);
    remove(&*store, &numbered(NAME, COUNT), true);
    put_content(&*store, NAME);
    python("read_back.py", NAME);
    // The C library, in this process.
    let config = real_pool::config_for(&master(), NOTHING_LENT);
    let official = mooncake::Connection::open(&config, Patience::new(&config)).unwrap();
    let official = official.handle().unwrap();
    let page = vec![9_u8; SIZE];
    let (theirs, ours) = (numbered("theirs", COUNT), numbered("ours", COUNT));
    assert_eq!(
        put(&*official, &theirs, &page),
        vec![PutOutcome::Stored; COUNT]
    );
    assert_eq!(put(&*store, &ours, &page), vec![PutOutcome::Stored; COUNT]);
    for (reader, keys) in [(&store, &theirs), (&official, &ours)] {
        let (outcomes, landed) = get(&**reader, keys, SIZE);
        assert_eq!(outcomes, vec![GetOutcome::Landed(SIZE as u64); COUNT]);
        assert!(landed.iter().all(|&byte| byte == 9));
    }
    official.close().unwrap();
}

// ---- memory of our own ----

const LENT: &str = r#""global_segment_size": "64MiB", "#;

/// Puts until all are there, which a pool that lost something takes some time for.
fn put_in_the_end(store: &dyn Store, keys: &Keys) {
    for _ in 0..600 {
        put(store, keys, &[3; 100]);
        if exist(store, keys).iter().all(|it| *it == Presence::Present) {
            return;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{:?}", put(store, keys, &[3; 100]));
}

#[test]
fn lent_memory_is_the_pools_until_it_is_taken_back() {
    with_pool("0", "lent");
}

#[test]
#[ignore = "needs a pool"]
fn lent() {
    let alone = open(NOTHING_LENT).handle().unwrap();
    let (keys, other) = (numbered("page", 3), numbered("other", 3));
    assert_eq!(put(&*alone, &keys, &[1; 8]), [PutOutcome::NoSpace; 3]);
    let lender = open(LENT).handle().unwrap();
    let lender_again = open(LENT);
    conformance::check(&|| lender_again.handle().unwrap()).unwrap();
    drop(lender_again);
    // The lender's own copies, another of our clients, and Mooncake's.
    put_content(&*lender, "a");
    get_content(&*lender, "a");
    get_content(&*alone, "a");
    python("read_back.py", "a");
    python("write.py", "b");
    get_content(&*lender, "b");
    get_content(&*alone, "b");
    put_content(&*alone, "c");
    python("read_back.py", "c");
    // A master that knows nothing hears of the memory again, and nothing of what was in it.
    Member::Master.kill();
    Member::Master.replace(&[]);
    put_in_the_end(&*alone, &keys);
    assert_eq!(exist(&*alone, &numbered("a", 1)), [Presence::Absent]);
    assert_eq!(get(&*lender, &keys, 100).0, [GetOutcome::Landed(100); 3]);
    // Closed by its owner: gone with what it holds.
    lender.close().unwrap();
    assert_eq!(exist(&*alone, &keys), [Presence::Absent; 3]);
    assert_eq!(put(&*alone, &other, &[1; 8]), [PutOutcome::NoSpace; 3]);
}

// ---- time and truth ----

#[test]
fn what_comes_after_its_lease_is_lost() {
    let lease = "default_kv_lease_ttl=1";
    with_pool_of(&["--segment", "256", "--set", lease], "leases");
}

#[test]
#[ignore = "needs a pool"]
fn leases() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let (keys, page) = (numbered("page", 4), vec![7_u8; 32 << 20]);
    assert_eq!(put(&*store, &keys, &page), [PutOutcome::Stored; 4]);
    // No machine moves 128 MiB in a millisecond.
    let outcomes = get(&*store, &keys, page.len()).0;
    let late = GetOutcome::Failed(code::LEASE_EXPIRED);
    assert_eq!(outcomes, [late; 4]);
    assert!(!store.is_outage(code::LEASE_EXPIRED));
}

#[test]
fn an_owner_that_stops_costs_the_deadline_and_never_writes_later() {
    with_pool("64", "stopped_owner");
}

#[test]
#[ignore = "needs a pool"]
fn stopped_owner() {
    let config = config_within(&master(), NOTHING_LENT, 3000);
    let store = Connection::open(&config, PATIENCE)
        .unwrap()
        .handle()
        .unwrap();
    let (keys, page) = (numbered("page", 64), vec![7_u8; 65_536]);
    assert_eq!(put(&*store, &keys, &page), vec![PutOutcome::Stored; 64]);
    Member::Lender.stop();
    let mut landing = vec![0_u8; page.len() * keys.len()];
    let mut targets: Vec<_> = landing.chunks_mut(page.len()).map(Target::from).collect();
    let mut out = Vec::new();
    store.get(&keys, Pieces::one_each(&mut targets), &mut out);
    drop(targets);
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code) if store.is_outage(*code) && !store.may_still_write(*code));
    assert!(out.iter().all(failed), "{out:?}");
    landing.fill(0xee);
    let other = numbered("other", 4);
    let outcomes = put(&*store, &other, &page);
    let failed = |it: &PutOutcome| matches!(it, PutOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    assert_eq!(exist(&*store, &other), [Presence::Absent; 4]);
    Member::Lender.wake();
    // It answers again, and what it owed goes nowhere.
    let mut outcomes = Vec::new();
    for _ in 0..300 {
        outcomes = get(&*store, &keys, page.len()).0;
        if outcomes == vec![GetOutcome::Landed(65_536); 64] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(outcomes, vec![GetOutcome::Landed(65_536); 64]);
    assert!(landing.iter().all(|&byte| byte == 0xee));
}

#[test]
fn an_owner_that_dies_costs_its_pages() {
    with_pool("64", "dead_owner");
}

#[test]
#[ignore = "needs a pool"]
fn dead_owner() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let (keys, page) = (numbered("page", 8), vec![7_u8; 65_536]);
    assert_eq!(put(&*store, &keys, &page), vec![PutOutcome::Stored; 8]);
    Member::Lender.kill();
    let outcomes = get(&*store, &keys, page.len()).0;
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    let outcomes = put(&*store, &numbered("other", 2), &page);
    let failed = |it: &PutOutcome| matches!(it, PutOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    Member::Lender.replace(&[]);
    put_in_the_end(&*store, &numbered("new", 3));
}

#[test]
fn a_master_that_stops_costs_the_deadline() {
    with_pool("64", "stopped_master");
}

#[test]
#[ignore = "needs a pool"]
fn stopped_master() {
    let config = config_within(&master(), NOTHING_LENT, 500);
    let store = Connection::open(&config, PATIENCE)
        .unwrap()
        .handle()
        .unwrap();
    let keys = numbered("page", 2);
    put_in_the_end(&*store, &keys);
    Member::Master.stop();
    let late = Presence::Unknown(code::DEADLINE);
    assert_eq!(exist(&*store, &keys), [late; 2]);
    // A new connection is not answered either, and the next one is not tried for a moment.
    let outcomes = get(&*store, &keys, 100).0;
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    let outcomes = put(&*store, &numbered("other", 1), &[1]);
    let failed = |it: &PutOutcome| matches!(it, PutOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    Member::Master.wake();
    put_in_the_end(&*store, &numbered("new", 1));
    assert_eq!(get(&*store, &keys, 100).0, [GetOutcome::Landed(100); 2]);
}

/// Threads that put, get and remove in a pool that is too small, with two owners: what lands is what was put.
#[test]
fn no_byte_is_wrong_under_pressure() {
    let lease = "default_kv_lease_ttl=200";
    with_pool_of(&["--segment", "32", "--set", lease], "soak");
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
            assert!(!matches!(outcome, PutOutcome::Failed(_)), "{outcome:?}");
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

// ---- what a put asks for ----

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
    with_pool("32", "options");
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

// ---- any master ----

/// Against the master at `KVB_POOL_MASTER`, whatever its version is, with memory that this process lends:
/// `scripts/wire-versions`.
#[test]
#[ignore = "needs a master"]
fn any_version() {
    let (lender, other) = (open(LENT).handle().unwrap(), open(NOTHING_LENT));
    conformance::check(&|| other.handle().unwrap()).unwrap();
    let other = other.handle().unwrap();
    put_content(&*lender, "lender's");
    get_content(&*other, "lender's");
    put_content(&*other, "other's");
    get_content(&*lender, "other's");
    let all = numbered("other's", COUNT);
    assert_eq!(exist(&*lender, &all), vec![Presence::Present; COUNT]);
    assert_eq!(
        remove(&*lender, &all, true),
        vec![RemoveOutcome::Removed; COUNT]
    );
    assert_eq!(exist(&*lender, &all), vec![Presence::Absent; COUNT]);
    // For longer than a master waits for a sign of life.
    std::thread::sleep(Duration::from_secs(13));
    get_content(&*other, "lender's");
    lender.close().unwrap();
    let gone = numbered("lender's", COUNT);
    assert_eq!(exist(&*other, &gone), vec![Presence::Absent; COUNT]);
    other.close().unwrap();
}
