//! Bytes exchanged with Mooncake's own clients, and memory that this process lends.

use std::process::Command;
use std::time::Duration;

use kvbridge::device::memory::{Source, Target};
use kvbridge::keys::Keys;
use kvbridge::store::mooncake::{self, Patience};
use kvbridge::store::{
    GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, conformance,
};

use crate::calls::{exist, get, numbered, put, remove};
use crate::real_pool::{self, Member, NOTHING_LENT, master};
use crate::{open, with_pool};

const NAME: &str = "exchange";
pub const COUNT: usize = 40;
const SIZE: usize = 100_000;

/// What the Python programs store and expect.
fn content(key: usize) -> Vec<u8> {
    let byte = |i: usize| (i * 31 + key * 7 + (i >> 12)) as u8;
    (0..SIZE).map(byte).collect()
}

/// Runs a program that uses Mooncake's Python client.
pub fn python(program: &str, name: &str) {
    let root = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(format!("{root}/build/pool/venv/bin/python"))
        .arg(format!("{root}/cpp_tests/mooncake/{program}"))
        .args([&master(), &COUNT.to_string(), &SIZE.to_string(), name])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:#?}");
}

pub fn put_content(store: &dyn Store, name: &str) {
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

pub fn get_content(store: &dyn Store, name: &str) {
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
    with_pool("64", "exchange::exchange");
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

pub const LENT: &str = r#""global_segment_size": "64MiB", "#;

/// Puts until all are there, which a pool that lost something takes some time for.
pub fn put_in_the_end(store: &dyn Store, keys: &Keys) {
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
    with_pool("0", "exchange::lent");
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

/// Against the master at `KVB_POOL_MASTER`, whatever its version is, with memory that this process lends:
/// `scripts/wire-versions`.
#[test]
#[ignore = "needs a master"]
fn any_version() {
    let (lender, other) = (open(LENT).handle().unwrap(), open(NOTHING_LENT));
    conformance::check(&|| other.handle().unwrap()).unwrap();
    let other = other.handle().unwrap();
    // A full pool makes a master of 0.3.12 evict something, as soon as there is anything that it may.
    put_content(&*lender, "spare");
    std::thread::sleep(Duration::from_secs(1));
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
    // For longer than a master waits for a sign of life. Looking renews the leases.
    for _ in 0..7 {
        let all = numbered("lender's", COUNT);
        assert_eq!(exist(&*other, &all), vec![Presence::Present; COUNT]);
        std::thread::sleep(Duration::from_secs(2));
    }
    get_content(&*other, "lender's");
    lender.close().unwrap();
    let gone = numbered("lender's", COUNT);
    assert_eq!(exist(&*other, &gone), vec![Presence::Absent; COUNT]);
    other.close().unwrap();
}
