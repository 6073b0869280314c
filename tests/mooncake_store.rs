//! The store "mooncake" against a stand-in of Mooncake's library (cpp_tests/mooncake/stand_in.c), which
//! answers what a test tells it to: codes, limits, what it is called with, and when it may not be
//! called at all. `tests/mooncake_pool.rs` does it with the real one.

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    unsafe_code,
    reason = "counts allocations, loads the stand-in, and forks a process"
)]

mod calls;
mod stand_in;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use calls::{exist, numbered, remove};
use kvbridge::device::memory::{Source, Target};
use kvbridge::error::Kind;
use kvbridge::keys::Keys;
use kvbridge::lane::Mode;
use kvbridge::layout::Range;
use kvbridge::store::guarded::{Guarded, Settings};
use kvbridge::store::mooncake::{Connection, Library, Patience};
use kvbridge::store::{
    GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, code,
    conformance,
};
use kvbridge::sync::SystemClock;
use stand_in::{NOTHING_LENT, StandIn};

/// Counts what each thread allocates.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Not where a thread has ended already.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
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

fn keys(list: &[&str]) -> Keys {
    let mut keys = Keys::new();
    for key in list {
        keys.push(key.as_bytes());
    }
    keys
}

fn many(count: usize) -> Keys {
    numbered("k", count)
}

fn put(store: &dyn Store, keys: &Keys) -> Vec<PutOutcome> {
    calls::put(store, keys, &[7; 16])
}

fn get(store: &dyn Store, keys: &Keys, size: usize) -> Vec<GetOutcome> {
    calls::get(store, keys, size).0
}

// ---- opening ----

#[test]
fn setup_gets_what_the_configuration_says() {
    let library = StandIn::new("arguments");
    let master = library.master();
    let connection = library
        .open(
            r#""global_segment_size": "16MiB", "device_name": "d", "local_buffer_size": "2GiB",
            "metadata_server": "http://m/",  "#,
        )
        .unwrap();
    let expected = format!("127.0.0.1 http://m/ 16777216 0 tcp [d] {master} -");
    assert_eq!(library.arguments(), expected);
    drop(connection);
    let named = library.open(r#""local_hostname": "localhost:7000", "global_segment_size": 0,"#);
    let expected = format!("localhost:7000 P2PHANDSHAKE 0 0 tcp [] {master} -");
    assert_eq!(library.arguments(), expected);
    drop(named);
    library.wait_for("clients", 0);
}

#[test]
fn a_setup_that_fails_says_with_what_and_leaves_no_client() {
    let library = StandIn::new("fails");
    library.set("setup_code", -600);
    let error = library.open(NOTHING_LENT).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    for part in [
        "setup answered -600",
        &library.master(),
        "protocol = \"tcp\"",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
    library.wait_for("clients", 0);
}

#[test]
fn a_late_setup_ends_its_own_client() {
    let library = StandIn::new("late");
    library.set("setup_waits", 1);
    let config = library.config(NOTHING_LENT);
    let patience = Patience {
        setup: Duration::ZERO,
        ..Patience::new(&config)
    };
    let error = Connection::open(&config, patience).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    let expected = format!(
        "Mooncake had not connected to the master at \"{}\" after 0 ms; ",
        library.master()
    );
    assert!(error.message().starts_with(&expected), "{error}");
    library.wait_for("clients", 1);
    library.set("setup_waits", 0);
    library.wait_for("setups", 1);
    library.wait_for("clients", 0);
}

#[test]
fn setups_that_never_return_cost_a_bounded_number_of_threads() {
    // The count is the process's.
    alone("setups_hang", &[]);
}

#[test]
#[ignore = "setups_that_never_return_cost_a_bounded_number_of_threads runs it"]
fn setups_hang() {
    let library = StandIn::new("hangs");
    library.set("setup_waits", 1);
    let config = library.config(NOTHING_LENT);
    let patience = Patience {
        setup: Duration::ZERO,
        ..Patience::new(&config)
    };
    for stuck in 1..=8 {
        let error = Connection::open(&config, patience).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolFailed, "{error}");
        library.wait_for("clients", stuck);
    }
    for _ in 0..3 {
        let error = Connection::open(&config, Patience::new(&config)).unwrap_err();
        assert_eq!(error.kind(), Kind::NoThread);
        let start = "8 attempts to open a pool or to find a name have not returned";
        assert!(error.message().starts_with(start), "{error}");
    }
    assert_eq!(library.get("clients"), 8);
    library.set("setup_waits", 0);
    library.wait_for("setups", 8);
    library.wait_for("clients", 0);
    // The threads are over a moment after their clients.
    let opened = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        library.open(NOTHING_LENT).ok()
    });
    assert!(opened.is_some());
}

#[test]
fn without_a_master_the_library_is_not_asked() {
    let library = StandIn::new("no_master");
    let config = library.config(NOTHING_LENT);
    let gone = StandIn {
        master: TcpListener::bind("127.0.0.1:0").unwrap(),
        path: library.path.clone(),
        library: library.library,
    };
    let config_of_gone = gone.config(NOTHING_LENT);
    let address = gone.master();
    drop(gone);
    let error = Connection::open(&config_of_gone, Patience::new(&config)).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    let start = format!("the master at \"{address}\" cannot be reached: ");
    assert!(error.message().starts_with(&start), "{error}");
    assert_eq!(library.get("clients"), 0);
    assert_eq!(library.arguments(), "");
}

#[test]
fn what_mooncake_cannot_do_is_refused_before_anything_is_connected() {
    let library = StandIn::new("cannot");
    let others = "\"mooncake-tcp\" can, \"host\" if its functions can";
    for (more, named, then) in [
        (
            r#""soft_pin_ttl_ms": 5, "global_segment_size": 0,"#,
            "soft_pin_ttl_ms is set",
            others,
        ),
        (
            r#""group_blocks": true, "global_segment_size": 0,"#,
            "group_blocks is set",
            others,
        ),
        (
            r#""global_segment_size": 4096,"#,
            "global_segment_size = 4096",
            "(16 MiB) or more",
        ),
    ] {
        let error = library.open(more).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolRefused);
        assert!(error.message().starts_with(named), "{error}");
        assert!(error.message().contains(then), "{error}");
    }
    assert_eq!(library.arguments(), "");
}

#[test]
fn a_tenant_needs_a_library_and_a_master_that_keep_tenants_apart() {
    let with_tenant = r#""tenant_id": "acme", "global_segment_size": 0,"#;
    let old = StandIn::built("old", &["-DWITHOUT_TENANTS"]);
    let error = old.open(with_tenant).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    assert!(
        error
            .message()
            .starts_with("tenant_id = \"acme\", but the library"),
        "{error}"
    );
    assert_eq!(old.arguments(), "");
    assert!(!old.store().capabilities().tenant);

    let library = StandIn::new("tenants");
    let error = library.open(with_tenant).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    assert!(
        error.message().contains("does not keep tenants apart"),
        "{error}"
    );
    assert!(library.arguments().contains(" kvbridge-probe-"));

    library.set("knows_tenants", 1);
    let error = library
        .open(r#""tenant_id": "evil", "global_segment_size": 0,"#)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    assert!(
        error
            .message()
            .starts_with("tenant_id = \"evil\" is not known"),
        "{error}"
    );
    let store = library.open(with_tenant).unwrap().handle().unwrap();
    assert!(library.arguments().ends_with(" acme"));
    assert!(store.capabilities().tenant);
    // The probe of the first attempt left nothing behind.
    assert_eq!(put(&*store, &keys(&["k"])), [PutOutcome::Stored]);
    drop(store);
    library.wait_for("clients", 0);
}

// ---- the library's settings ----

#[test]
fn waits_are_bounded_for_the_library_alone() {
    let library = StandIn::new("waits");
    assert_eq!(library.setting(c"MC_STORE_CLIENT_SETUP_RETRIES"), None);
    // SAFETY: what was compiled for this test.
    unsafe { Library::open(&library.path) }.unwrap();
    for (name, value) in [
        (c"MC_RPC_TIMEOUT_MS", "1000"),
        (c"MC_STORE_CLIENT_SETUP_RETRIES", "1"),
        (c"MC_TCP_STATUS_TIMEOUT_SEC", "10"),
        (c"MC_TCP_LANES_PER_PEER", "16"),
        (c"MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER", "65535"),
    ] {
        assert_eq!(library.setting(name).as_deref(), Some(value), "{name:?}");
        assert!(std::env::var_os(name.to_str().unwrap()).is_none());
    }
    let path = std::env::var("PATH").unwrap();
    assert_eq!(library.setting(c"PATH"), Some(path));
    assert_eq!(library.setting(c"MC_NO_SUCH_SETTING"), None);
}

/// Runs an ignored test of this file in a process of its own.
fn alone(test: &str, environment: &[(&str, &str)]) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(environment.iter().copied())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.contains("test result: ok. 1 passed");
    assert!(output.status.success() && passed, "{output:#?}");
}

#[test]
fn the_operators_settings_and_switch_count() {
    let own = ("MC_RPC_TIMEOUT_MS", "77");
    alone("settings_of_an_operator", &[own]);
    alone(
        "settings_of_an_operator",
        &[own, ("KVBRIDGE_MOONCAKE_WAITS", "off")],
    );
}

#[test]
#[ignore = "the_operators_settings_and_switch_count runs it"]
fn settings_of_an_operator() {
    let is_off = std::env::var_os("KVBRIDGE_MOONCAKE_WAITS").is_some();
    let library = StandIn::new(if is_off { "switched_off" } else { "operator" });
    // SAFETY: what was compiled for this test.
    unsafe { Library::open(&library.path) }.unwrap();
    assert_eq!(library.setting(c"MC_RPC_TIMEOUT_MS").as_deref(), Some("77"));
    let other = library.setting(c"MC_STORE_CLIENT_SETUP_RETRIES");
    assert_eq!(other.is_none(), is_off);
}

// ---- calls ----

#[test]
fn the_suite_of_all_stores() {
    let library = StandIn::new("suite");
    let connection = library.open(NOTHING_LENT).unwrap();
    conformance::check(&|| connection.handle().unwrap()).unwrap();
    let guarded = || -> Arc<dyn Store> {
        let patience = Duration::from_secs(60);
        let settings = Settings {
            lookup: patience,
            load: patience,
            save: patience,
            registration: patience,
            close: patience,
            cooldown: patience,
            bound: 2,
            callers: 4,
        };
        let clock = Arc::new(SystemClock::new());
        let store = connection.handle().unwrap();
        Guarded::start(store, settings, clock, &Mode::Threads).unwrap()
    };
    conformance::check(&guarded).unwrap();
    // Handles closed; the connection has the client still.
    assert_eq!(library.get("clients"), 1);
    drop(connection);
    library.wait_for("clients", 0);
}

#[test]
fn codes_become_outcomes_per_key() {
    let library = StandIn::new("codes");
    let store = library.store();
    let two = keys(&["a", "b"]);
    library.set("answer_from", 1);
    for (code, put_is, get_is) in [
        (-200, PutOutcome::NoSpace, GetOutcome::Failed(-200)),
        (-704, PutOutcome::Failed(-704), GetOutcome::Missing),
        (-703, PutOutcome::Failed(-703), GetOutcome::Missing),
        (
            -707,
            PutOutcome::Failed(-707),
            GetOutcome::Failed(code::LEASE_EXPIRED),
        ),
        (-800, PutOutcome::Failed(-800), GetOutcome::Failed(-800)),
        (-1, PutOutcome::Failed(-1), GetOutcome::Failed(-1)),
    ] {
        library.set("answer", code);
        assert_eq!(put(&*store, &two), [PutOutcome::Stored, put_is]);
        assert_eq!(get(&*store, &two, 16), [GetOutcome::Landed(16), get_is]);
        assert_eq!(
            exist(&*store, &two),
            [Presence::Present, Presence::Unknown(code)]
        );
    }
    library.set("answer", 0);
    assert_eq!(
        remove(&*store, &keys(&["a"]), false),
        [RemoveOutcome::Leased]
    );
    assert_eq!(
        remove(&*store, &keys(&["a", "a"]), true),
        [RemoveOutcome::Removed, RemoveOutcome::Missing]
    );
    for code in [-800, -900, -901] {
        assert!(store.is_outage(code));
    }
    assert!(!store.is_outage(-704) && !store.is_outage(code::CLOSED));
    library.set("health", -5);
    assert_eq!(store.health(), Health::Down(-5));
    store.close().unwrap();
}

/// Somebody else is writing the key, or died while doing so: Mooncake says 0, and nothing is there.
#[test]
fn a_put_counts_as_stored_when_the_key_is_there() {
    let library = StandIn::new("provisional");
    let store = library.store();
    assert_eq!(put(&*store, &keys(&["b"])), [PutOutcome::Stored]);
    library.set("drops_puts", 1);
    let batch = keys(&["a", "b", "c", "a"]);
    let absent = PutOutcome::Failed(code::BEING_WRITTEN);
    let wanted = [absent, PutOutcome::Stored, absent, absent];
    assert_eq!(put(&*store, &batch), wanted);
    assert!(!store.is_outage(code::BEING_WRITTEN));
    library.set("drops_puts", 0);
    assert_eq!(put(&*store, &batch), [PutOutcome::Stored; 4]);
    // A lender that is lost takes its own pages alone; the others are asked for.
    library.set("answer", -800);
    library.set("answer_from", 1);
    let lost = PutOutcome::Failed(-800);
    let calls = library.get("calls");
    assert_eq!(put(&*store, &keys(&["a", "b"])), [PutOutcome::Stored, lost]);
    assert_eq!(library.get("calls") - calls, 2);
    // What cannot be asked for is not known to be stored.
    library.set("answer", 0);
    for code in [-900, -5] {
        library.set("answer_exist", code);
        assert_eq!(put(&*store, &batch), [PutOutcome::Failed(code); 4]);
    }
    // A put of which nothing can be there needs no question.
    library.set("answer", -200);
    library.set("answer_from", 0);
    let calls = library.get("calls");
    assert_eq!(put(&*store, &batch), [PutOutcome::NoSpace; 4]);
    assert_eq!(library.get("calls") - calls, 1);
}

/// The question that follows a put is a part of it: one deadline, and one word about the pool.
#[test]
fn a_put_whose_question_fails_is_an_outage() {
    let library = StandIn::new("unconfirmed");
    let patience = Duration::from_secs(60);
    let settings = Settings {
        lookup: patience,
        load: patience,
        save: patience,
        registration: patience,
        close: patience,
        cooldown: patience,
        bound: 2,
        callers: 1,
    };
    let clock = Arc::new(SystemClock::new());
    let guard = Guarded::start(library.store(), settings, clock, &Mode::Threads).unwrap();
    library.set("answer_exist", -901);
    let one = keys(&["a"]);
    assert_eq!(put(&*guard, &one), [PutOutcome::Failed(-901)]);
    assert_eq!(put(&*guard, &one), [PutOutcome::Failed(code::BREAKER_OPEN)]);
    let counts = guard.counts();
    assert_eq!((counts.failures, counts.opened), (1, 1));
    assert_eq!((counts.quarantined, counts.late), (0, 0));
    guard.close().unwrap();
}

#[test]
fn the_word_of_a_call_itself_counts_for_nothing_but_what_it_left_out() {
    let library = StandIn::new("left_out");
    let store = library.store();
    let one = keys(&["a"]);
    library.set("call_code", -9);
    assert_eq!(put(&*store, &one), [PutOutcome::Stored]);
    assert_eq!(get(&*store, &one, 16), [GetOutcome::Landed(16)]);
    assert_eq!(exist(&*store, &one), [Presence::Present]);
    library.set("says_nothing", 1);
    assert_eq!(put(&*store, &one), [PutOutcome::Failed(-9)]);
    assert_eq!(get(&*store, &one, 16), [GetOutcome::Failed(-9)]);
    assert_eq!(exist(&*store, &one), [Presence::Unknown(-9)]);
    library.set("call_code", 0);
    assert_eq!(put(&*store, &one), [PutOutcome::Failed(code::NO_ANSWER)]);
    assert_eq!(
        get(&*store, &one, 16),
        [GetOutcome::Failed(code::NO_ANSWER)]
    );
    assert_eq!(exist(&*store, &one), [Presence::Unknown(code::NO_ANSWER)]);
}

#[test]
fn sizes_are_asked_for_only_where_a_buffer_was_refused() {
    let library = StandIn::new("sizes");
    let store = library.store();
    let two = keys(&["a", "b"]);
    put(&*store, &two);
    let calls = library.get("calls");
    assert_eq!(get(&*store, &two, 20), [GetOutcome::WrongSize(16); 2]);
    assert_eq!(library.get("calls") - calls, 1);
    assert_eq!(get(&*store, &two, 4), [GetOutcome::WrongSize(16); 2]);
    assert_eq!(library.get("calls") - calls, 4);
    for (size, outcome) in [
        (4, GetOutcome::Failed(-600)),
        (-704, GetOutcome::Missing),
        (-900, GetOutcome::Failed(-900)),
    ] {
        library.set("size_answer", size);
        assert_eq!(get(&*store, &two, 4), [outcome; 2]);
    }
}

#[test]
fn a_key_that_comes_twice_is_given_to_the_library_once() {
    let library = StandIn::new("twins");
    let store = library.store();
    let batch = keys(&["a", "b", "a", "c", "b", "a"]);
    let bytes: Vec<_> = (1..=6).map(|value| vec![value; 16]).collect();
    let mut sources: Vec<_> = bytes.iter().map(|it| Source::from(&it[..])).collect();
    let (mut out, options) = (Vec::new(), PutOptions::default());
    store.put(&batch, Pieces::one_each(&mut sources), &options, &mut out);
    assert_eq!(out, [PutOutcome::Stored; 6]);

    let mut landing = [0_u8; 96];
    let mut targets: Vec<_> = landing.chunks_mut(16).map(Target::from).collect();
    let mut out = Vec::new();
    store.get(&batch, Pieces::one_each(&mut targets), &mut out);
    assert_eq!(out, [GetOutcome::Landed(16); 6]);
    // Those of the first put of each key.
    let landed: Vec<_> = landing.chunks(16).map(|it| it[0]).collect();
    assert_eq!(landed, [1, 2, 1, 4, 2, 1]);
    assert_eq!(library.get("largest"), 3);

    // What the library says of one is said of both; of another size, of none.
    let batch = keys(&["x", "a", "x", "a"]);
    assert_eq!(
        get(&*store, &batch, 4),
        [
            GetOutcome::Missing,
            GetOutcome::WrongSize(16),
            GetOutcome::Missing,
            GetOutcome::WrongSize(16)
        ]
    );
    let (mut large, mut small) = ([0; 16], [0; 8]);
    let mut targets = [Target::from(&mut large[..]), Target::from(&mut small[..])];
    store.get(&keys(&["a", "a"]), Pieces::one_each(&mut targets), &mut out);
    let malformed = GetOutcome::Failed(code::MALFORMED_CALL);
    assert_eq!(out, [GetOutcome::Landed(16), malformed]);
}

#[test]
fn large_batches_are_cut_and_an_absent_pool_is_asked_once() {
    let library = StandIn::new("large");
    let store = library.store();
    let most = store.capabilities().keys_per_call;
    assert_eq!(most, 1024);
    let all = many(2 * most + 5);
    assert_eq!(put(&*store, &all), vec![PutOutcome::Stored; all.len()]);
    assert_eq!(
        get(&*store, &all, 16),
        vec![GetOutcome::Landed(16); all.len()]
    );
    assert_eq!(library.get("largest"), most as i32);
    // Each cut into three, and one question what became of the put.
    assert_eq!(library.get("calls"), 7);
    assert_eq!(exist(&*store, &all), vec![Presence::Present; all.len()]);

    library.set("answer", -900);
    library.set("answer_from", 1000);
    let calls = library.get("calls");
    let mut expected = vec![GetOutcome::Landed(16); all.len()];
    expected[1000..].fill(GetOutcome::Failed(-900));
    assert_eq!(get(&*store, &all, 16), expected);
    // Whether the first ones are there, nobody can be asked.
    let expected = vec![PutOutcome::Failed(-900); all.len()];
    assert_eq!(put(&*store, &all), expected);
    assert_eq!(library.get("calls") - calls, 2);
    library.set("answer_from", 0);
    assert_eq!(
        remove(&*store, &all, false),
        vec![RemoveOutcome::Failed(-900); all.len()]
    );
    assert_eq!(library.get("calls") - calls, 3);
}

#[test]
fn a_key_that_c_would_cut_short_and_what_is_no_single_piece_are_refused() {
    let library = StandIn::new("malformed");
    let store = library.store();
    let mut cut = keys(&["fine"]);
    cut.push(b"cut\0short");
    let calls = library.get("calls");
    let malformed = code::MALFORMED_CALL;
    assert_eq!(exist(&*store, &cut), [Presence::Unknown(malformed); 2]);
    assert_eq!(put(&*store, &cut), [PutOutcome::Failed(malformed); 2]);
    assert_eq!(get(&*store, &cut, 16), [GetOutcome::Failed(malformed); 2]);
    assert_eq!(
        remove(&*store, &cut, true),
        [RemoveOutcome::Failed(malformed); 2]
    );

    let (one, bytes, mut out) = (keys(&["a"]), [0_u8; 8], Vec::new());
    let mut sources = [Source::from(&bytes[..]); 2];
    let pieces = Pieces::grouped(&mut sources, &[2]);
    store.put(&one, pieces, &PutOptions::default(), &mut out);
    assert_eq!(out, [PutOutcome::Failed(malformed)]);
    // SAFETY: who gets it has to refuse it without reading.
    let mut elsewhere = [unsafe { Source::from_device(4096, 8) }];
    let pieces = Pieces::one_each(&mut elsewhere);
    store.put(&one, pieces, &PutOptions::default(), &mut out);
    assert_eq!(out, [PutOutcome::Failed(code::UNREACHABLE_MEMORY)]);
    assert_eq!(library.get("calls"), calls);
}

#[test]
fn warm_calls_allocate_nothing() {
    let library = StandIn::new("warm");
    let (store, all, page) = (library.store(), many(64), [7_u8; 16]);
    let mut landing = [0_u8; 64 * 16];
    let mut sources = [Source::from(&page[..]); 64];
    let mut targets: Vec<_> = landing.chunks_mut(16).map(Target::from).collect();
    let (mut present, mut put, mut got, mut removed) = Default::default();
    let options = PutOptions::default();
    let mut counts = Vec::new();
    for _ in 0..3 {
        let before = ALLOCATIONS.get();
        store.exist(&all, &mut present);
        store.put(&all, Pieces::one_each(&mut sources), &options, &mut put);
        store.get(&all, Pieces::one_each(&mut targets), &mut got);
        store.remove(&all, true, &mut removed);
        counts.push(ALLOCATIONS.get() - before);
        assert_eq!(got, [GetOutcome::Landed(16); 64]);
        assert_eq!(removed, [RemoveOutcome::Removed; 64]);
    }
    assert!(counts[0] > 0);
    assert_eq!(counts[1..], [0, 0]);
}

#[test]
fn registrations_carry_the_code() {
    let library = StandIn::new("register");
    let store = library.store();
    let range = Range {
        start: 0x1000,
        size: 64,
    };
    store.register(range).unwrap();
    store.unregister(range).unwrap();
    library.set("register_code", -600);
    for (call, answer) in [
        ("register", store.register(range)),
        ("unregister", store.unregister(range)),
    ] {
        let error = answer.unwrap_err();
        assert_eq!(error.kind(), Kind::PoolFailed);
        let expected = format!("{call}: Mooncake answered -600 for 64 bytes at 0x1000");
        assert_eq!(error.message(), expected);
    }
}

// ---- handles, processes ----

#[test]
fn the_last_handle_ends_the_client() {
    let library = StandIn::new("handles");
    let connection = library.open(NOTHING_LENT).unwrap();
    let (first, second) = (connection.handle().unwrap(), connection.handle().unwrap());
    drop(connection);
    first.close().unwrap();
    first.close().unwrap();
    assert_eq!(
        exist(&*first, &keys(&["a"])),
        [Presence::Unknown(code::CLOSED)]
    );
    assert_eq!(first.health(), Health::Down(code::CLOSED));
    let range = Range {
        start: 4096,
        size: 1,
    };
    assert_eq!(first.register(range).unwrap_err().kind(), Kind::Closed);
    assert_eq!(exist(&*second, &keys(&["a"])), [Presence::Absent]);
    assert_eq!(library.get("clients"), 1);
    second.close().unwrap();
    // Waited for, since it was closed and not only dropped.
    assert_eq!(library.get("clients"), 0);
    let dropped = library.store();
    drop(dropped);
    library.wait_for("clients", 0);
}

#[test]
fn a_forked_process_is_refused_and_leaves_the_client_alone() {
    // Other tests' threads could hold locks that the forked process needs.
    alone("forked_process", &[]);
}

#[test]
#[ignore = "a_forked_process_is_refused_and_leaves_the_client_alone runs it"]
fn forked_process() {
    let library = StandIn::new("fork");
    let connection = library.open(NOTHING_LENT).unwrap();
    let store = connection.handle().unwrap();
    let one = keys(&["a"]);
    let calls = library.get("calls");
    // SAFETY: the child makes a few calls that take no lock of another thread's, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let forked = code::FORKED;
        let mut right = exist(&*store, &one) == [Presence::Unknown(forked)];
        right &= put(&*store, &one) == [PutOutcome::Failed(forked)];
        right &= get(&*store, &one, 16) == [GetOutcome::Failed(forked)];
        right &= remove(&*store, &one, true) == [RemoveOutcome::Failed(forked)];
        right &= store.health() == Health::Down(forked);
        let range = Range {
            start: 4096,
            size: 1,
        };
        let refusals = [
            store.register(range),
            store.unregister(range),
            connection.handle().map(drop),
        ];
        for refusal in refusals {
            right &= refusal.is_err_and(|error| {
                error.kind() == Kind::BadState && error.message().contains("forked")
            });
        }
        right &= store.close().is_ok();
        // SAFETY: what this process opened before stays as it is.
        right &= unsafe { Library::open(&library.path) }
            .is_err_and(|error| error.kind() == Kind::PoolRefused);
        drop((store, connection));
        right &= library.get("calls") == calls && library.get("clients") == 1;
        // SAFETY: ends the child without what its parent has set up for its own end.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child of above.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
    assert_eq!(exist(&*store, &one), [Presence::Absent]);
    store.close().unwrap();
}
