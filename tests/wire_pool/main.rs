//! The store "mooncake-tcp" against a real pool, each test in a process of its own with a pool of its own
//! (`scripts/pool`). They need `KVB_MOONCAKE_LIBRARY`: `eval "$(scripts/pool env)"`. Of that
//! library only the tests that say so use anything.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "../calls/mod.rs"]
mod calls;
mod disk;
mod exchange;
mod faults;
mod pressure;
#[path = "../real_pool/mod.rs"]
mod real_pool;

use std::sync::Arc;
use std::time::Duration;

use calls::{exist, get, numbered, put, remove};
use kvbridge::config::Config;
use kvbridge::device::memory::Source;
use kvbridge::error::Kind;
use kvbridge::lane::Mode;
use kvbridge::store::guarded::{Guarded, Settings};
use kvbridge::store::wire::{Connection, PATIENCE};
use kvbridge::store::{
    GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, conformance,
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
    for (tenant, text) in [
        (
            r#""tenant_id": "red", "#,
            "tenant_id = \"red\" is not known",
        ),
        ("", "tenant_id is not set"),
        (r#""tenant_id": "", "#, "tenant_id is not set"),
    ] {
        let config = config_for(&master(), &format!("{tenant}{NOTHING_LENT}"));
        let error = Connection::open(&config, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolRefused);
        assert!(error.message().contains(text), "{error}");
    }
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

#[test]
fn a_pin_that_the_master_does_not_take_is_refused() {
    // The one that it takes for those who name none must be no longer.
    let options = ["default_kv_soft_pin_ttl=1s", "max_kv_soft_pin_ttl=5s"];
    let options = options.map(|it| ["--set", it]).concat();
    let options = [&["--segment", "64"], &options[..]].concat();
    with_pool_of(&options, "pins_of_five_seconds");
    // Also while nobody lends memory.
    with_pool("0", "pins_of_a_day");
}

/// Opens stores with a pin of `most` milliseconds, which is taken, and with one more, which is not.
fn check_pins(most: u64) -> Arc<Connection> {
    let pinned = |ms: u64| {
        let more = format!(r#""soft_pin_ttl_ms": {ms}, {NOTHING_LENT}"#);
        Connection::open(&config_for(&master(), &more), PATIENCE)
    };
    let error = pinned(most + 1).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    let text = format!("soft_pin_ttl_ms = {}, ", most + 1);
    assert!(error.message().contains(&text), "{error}");
    assert!(error.message().contains("(-600)"), "{error}");
    pinned(most).unwrap()
}

#[test]
#[ignore = "needs a pool"]
fn pins_of_five_seconds() {
    let store = check_pins(5000).handle().unwrap();
    let options = PutOptions {
        soft_pin_ttl: Some(Duration::from_secs(5)),
        ..PutOptions::default()
    };
    let mut out = Vec::new();
    let mut sources = [Source::from(&[5; 4096][..])];
    let pieces = Pieces::one_each(&mut sources);
    store.put(&numbered("page", 1), pieces, &options, &mut out);
    assert_eq!(out, [PutOutcome::Stored]);
}

#[test]
#[ignore = "needs a pool"]
fn pins_of_a_day() {
    check_pins(24 * 60 * 60 * 1000);
}
