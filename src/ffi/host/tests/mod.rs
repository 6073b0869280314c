mod behind;

use super::*;
use crate::device::memory::{Source, Target};
use crate::error::Kind;
use crate::ffi::store::{
    KVB_ABSENT, KVB_GET_FAILED, KVB_GET_LANDED, KVB_GET_MISSING, KVB_GET_WRONG_SIZE, KVB_PRESENT,
    KVB_PUT_ALREADY_THERE, KVB_PUT_FAILED, KVB_PUT_NO_SPACE, KVB_PUT_STORED, KVB_REMOVE_FAILED,
    KVB_REMOVE_LEASED, KVB_REMOVE_MISSING, KVB_REMOVE_REMOVED, KVB_UNKNOWN,
};
use crate::keys::Keys;
use crate::lane::Mode;
use crate::store::embedded::Pool;
use crate::store::guarded::{Guarded, Settings};
use crate::store::host::{self, Handle};
use crate::store::{
    GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, conformance,
};
use crate::sync::SystemClock;
use behind::{Behind, Seen, down, exist, whole};
use parking_lot::Mutex;
use std::ffi::CStr;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

fn config(more: &str) -> Config {
    let text = format!(r#"{{"model_key": "m"{more}, "kvbridge": {{"store": "host"}}}}"#);
    Config::from_json(text.as_bytes()).unwrap()
}

fn opened(given: &kvb_store_table) -> Arc<Handle> {
    // SAFETY: a table of these tests, whose `Behind` outlives its store.
    let (table, debt) = unsafe { table(given, &config("")) }.unwrap();
    let store = host::open(table);
    debt.owe();
    store
}

fn refusal(given: &kvb_store_table) -> crate::error::Error {
    // SAFETY: as above.
    unsafe { table(given, &config("")) }
        .map(|_| ())
        .unwrap_err()
}

fn keys(names: &[&str]) -> Keys {
    let mut keys = Keys::new();
    names.iter().for_each(|name| keys.push(name.as_bytes()));
    keys
}

fn put_all(store: &dyn Store, keys: &Keys, options: &PutOptions<'_>) -> Vec<PutOutcome> {
    let bytes = [7_u8; 8];
    let mut sources = vec![Source::from(&bytes[..]); keys.len()];
    let mut out = Vec::new();
    store.put(keys, Pieces::one_each(&mut sources), options, &mut out);
    out
}

#[test]
fn a_table_over_an_embedded_pool_is_a_store() {
    for serial in [0, 1] {
        for keys_per_call in [0, 1, 3] {
            let behind = Behind::new();
            let table = kvb_store_table {
                serial,
                keys_per_call,
                ..whole(&behind)
            };
            let first = opened(&table);
            conformance::check(&|| first.handle().unwrap()).unwrap();
            assert!(behind.calls() > 50 && behind.releases() == 0);
            drop(first);
            assert_eq!(behind.releases(), 1);
        }
    }
}

#[test]
fn behind_a_guard_it_is_one_as_well() {
    let behind = Behind::new();
    let first = opened(&whole(&behind));
    let settings = Settings::new(&config(""), 2, 4);
    let clock = Arc::new(SystemClock::new());
    conformance::check(&|| {
        let store = first.handle().unwrap();
        Guarded::start(store, settings, clock.clone(), &Mode::Threads).unwrap()
    })
    .unwrap();
    drop(first);
    // The last handle may be dropped by a thread of a guard, which nobody waits for.
    while behind.releases() == 0 {
        std::thread::yield_now();
    }
    assert_eq!(behind.releases(), 1);
}

#[test]
fn what_a_put_asks_for_reaches_the_host() {
    let behind = Behind::new();
    let given = kvb_store_table {
        keys_per_call: 2,
        ..whole(&behind)
    };
    // SAFETY: as in `opened`.
    let (table, _) =
        unsafe { table(&raw const given, &config(r#", "tenant_id": "t-1""#)) }.unwrap();
    let store = host::open(table);
    let bytes = [1_u8; 30];
    let mut sources: Vec<Source<'_>> = bytes.chunks(5).map(Source::from).collect();
    let groups = keys(&["g", "", "g"]);
    let options = PutOptions {
        soft_pin_ttl: Some(Duration::from_micros(1500)),
        groups: Some(&groups),
        places: None,
    };
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut sources, &[3, 3, 6]);
    store.put(&keys(&["a", "b", "c"]), pieces, &options, &mut out);
    assert_eq!(out, [PutOutcome::Stored; 3]);
    let text = |list: &[&str]| {
        list.iter()
            .map(|text| (*text).to_owned())
            .collect::<Vec<_>>()
    };
    let expected = [
        Seen {
            keys: text(&["a", "b"]),
            groups: text(&["g", ""]),
            pieces: 3,
            ends: vec![3, 3],
            soft_pin_ttl_ms: 2,
            tenant: "t-1".to_owned(),
        },
        Seen {
            keys: text(&["c"]),
            groups: text(&["g"]),
            pieces: 3,
            ends: vec![3],
            soft_pin_ttl_ms: 2,
            tenant: "t-1".to_owned(),
        },
    ];
    assert_eq!(behind.seen.lock()[..], expected);
}

#[test]
fn what_a_table_cannot_do_is_refused_without_a_call() {
    let behind = Behind::new();
    let store = opened(&kvb_store_table {
        soft_pin_ttl: 0,
        groups: 0,
        remove: None,
        pieces_per_key: 0,
        ..whole(&behind)
    });
    let (one, none) = (keys(&["k"]), PutOptions::default());
    let groups = keys(&["g"]);
    let asks = [
        PutOptions {
            soft_pin_ttl: Some(Duration::from_secs(1)),
            ..none
        },
        PutOptions {
            groups: Some(&groups),
            ..none
        },
    ];
    for options in asks {
        let refused = [PutOutcome::Failed(code::UNSUPPORTED_OPTION)];
        assert_eq!(put_all(&*store, &one, &options), refused);
    }
    let mut out = Vec::new();
    store.remove(&one, false, &mut out);
    assert_eq!(out, [RemoveOutcome::Failed(code::UNSUPPORTED_CALL)]);
    // Two pieces for a pool that takes one, and memory that only a device reaches.
    let bytes = [0_u8; 8];
    let mut sources = [Source::from(&bytes[..4]), Source::from(&bytes[4..])];
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut sources, &[2]);
    store.put(&one, pieces, &none, &mut out);
    assert_eq!(out, [PutOutcome::Failed(code::MALFORMED_CALL)]);
    let (source, target) = crate::device::memory::nowhere();
    store.put(&one, Pieces::one_each(&mut [source]), &none, &mut out);
    assert_eq!(out, [PutOutcome::Failed(code::UNREACHABLE_MEMORY)]);
    let mut out = Vec::new();
    store.get(&one, Pieces::one_each(&mut [target]), &mut out);
    assert_eq!(out, [GetOutcome::Failed(code::UNREACHABLE_MEMORY)]);
    assert_eq!(behind.calls(), 0);
    // With the capability it is passed on as it is.
    let behind = Behind::new();
    let store = opened(&kvb_store_table {
        device_memory: 1,
        get: Some(exist),
        put: Some(exist),
        ..whole(&behind)
    });
    let (source, _) = crate::device::memory::nowhere();
    let mut out = Vec::new();
    store.put(&one, Pieces::one_each(&mut [source]), &none, &mut out);
    assert_eq!((behind.calls(), out.len()), (1, 1));
}

#[test]
fn functions_and_flags_are_checked() {
    let behind = Behind::new();
    let good = whole(&behind);
    for (name, broken) in [
        (
            "exist",
            kvb_store_table {
                exist: None,
                ..good
            },
        ),
        ("put", kvb_store_table { put: None, ..good }),
        ("get", kvb_store_table { get: None, ..good }),
    ] {
        let error = refusal(&broken);
        assert_eq!(error.kind(), Kind::NullPointer);
        let start = format!("table->{name} is NULL");
        assert!(error.message().starts_with(&start), "{error}");
    }
    for (name, broken) in [
        ("serial", kvb_store_table { serial: 2, ..good }),
        (
            "tenant",
            kvb_store_table {
                tenant: 255,
                ..good
            },
        ),
        ("groups", kvb_store_table { groups: 2, ..good }),
        (
            "soft_pin_ttl",
            kvb_store_table {
                soft_pin_ttl: 9,
                ..good
            },
        ),
        (
            "device_memory",
            kvb_store_table {
                device_memory: 2,
                ..good
            },
        ),
        (
            "struct_size",
            kvb_store_table {
                struct_size: 3,
                ..good
            },
        ),
        // In the middle of a pointer.
        (
            "struct_size",
            kvb_store_table {
                struct_size: std::mem::offset_of!(kvb_store_table, release) as u32 + 1,
                ..good
            },
        ),
    ] {
        let error = refusal(&broken);
        assert_eq!(error.kind(), Kind::InvalidArgument);
        let start = format!("table->{name} is");
        assert!(error.message().starts_with(&start), "{error}");
    }
    // A table that was refused owes nothing.
    assert_eq!(behind.releases(), 0);
}

#[test]
fn shorter_and_longer_tables_work() {
    let behind = Behind::new();
    let good = whole(&behind);
    // Of an earlier version: nothing behind the required functions.
    let mut short = good;
    short.struct_size = std::mem::offset_of!(kvb_store_table, remove) as u32;
    let store = opened(&short);
    let one = keys(&["k"]);
    let stored = put_all(&*store, &one, &PutOptions::default());
    assert_eq!(stored, [PutOutcome::Stored]);
    let can = store.capabilities();
    assert!(!can.soft_pin_ttl && !can.groups && !can.tenant && can.pieces_per_key == 1);
    assert!(can.can_be_late && can.keys_per_call == usize::MAX);
    assert_eq!(store.health(), Health::Up);
    let range = Range {
        start: 4096,
        size: 1,
    };
    store
        .register(range)
        .and_then(|()| store.unregister(range))
        .unwrap();
    drop(store);
    assert_eq!((behind.releases(), behind.ranges.lock().len()), (0, 0));
    // Of a later one.
    #[repr(C)]
    struct Longer(kvb_store_table, [u64; 4]);
    let longer = Longer(
        kvb_store_table {
            struct_size: size_of::<Longer>() as u32,
            ..good
        },
        [u64::MAX; 4],
    );
    let store = opened(&longer.0);
    let there = put_all(&*store, &one, &PutOptions::default());
    assert_eq!(there, [PutOutcome::AlreadyThere]);
    drop(store);
    assert_eq!(behind.releases(), 1);
}

#[test]
fn ranges_and_health_go_to_the_host() {
    let behind = Behind::new();
    let store = opened(&whole(&behind));
    let range = Range {
        start: 0x8000,
        size: 64,
    };
    store.register(range).unwrap();
    store.unregister(range).unwrap();
    let seen = [(0x8000, 64, true), (0x8000, 64, false)];
    assert_eq!(behind.ranges.lock()[..], seen);
    let error = store.unregister(Range { size: 1, ..range }).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    assert_eq!(
        error.message(),
        "the host's unregister_memory answered -7, for 1 bytes at 0x8000"
    );
    let store = opened(&kvb_store_table {
        health: Some(down),
        ..whole(&behind)
    });
    assert_eq!(store.health(), Health::Down(-55));
}

#[test]
fn the_last_handle_releases_once_and_not_while_a_call_is_inside() {
    static GATE: std::sync::Barrier = std::sync::Barrier::new(2);
    unsafe extern "C-unwind" fn wait(context: *mut c_void, call: *const kvb_store_call) -> i32 {
        GATE.wait();
        GATE.wait();
        // SAFETY: called by the library.
        unsafe { exist(context, call) }
    }
    let behind = Behind::new();
    let store = opened(&kvb_store_table {
        exist: Some(wait),
        ..whole(&behind)
    });
    let other = store.handle().unwrap();
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let mut out = Vec::new();
            other.exist(&keys(&["k"]), &mut out);
            out
        });
        GATE.wait();
        store.close().unwrap();
        store.close().unwrap();
        assert!(store.handle().is_err());
        other.close().unwrap();
        assert_eq!(behind.releases(), 0, "a call is inside");
        GATE.wait();
        assert_eq!(inside.join().unwrap(), [Presence::Absent]);
        assert_eq!(behind.releases(), 1);
    });
    drop((store, other));
    assert_eq!(behind.releases(), 1);
}

#[test]
fn who_opened_nothing_is_not_released() {
    let behind = Behind::new();
    // SAFETY: as in `opened`.
    let (table, debt) = unsafe { table(&whole(&behind), &config("")) }.unwrap();
    drop(host::open(table));
    drop(debt);
    assert_eq!(behind.releases(), 0);
}

/// Calls the store again that it is called by.
struct Nested {
    store: Mutex<Option<Arc<Handle>>>,
    answers: Mutex<Vec<Presence>>,
}

unsafe extern "C-unwind" fn call_again(context: *mut c_void, call: *const kvb_store_call) -> i32 {
    // SAFETY: called by the library, with one key.
    unsafe {
        let nested = &*context.cast::<Nested>();
        let store = nested.store.lock().clone().unwrap();
        store.exist(&keys(&["again"]), &mut nested.answers.lock());
        (*call).outcomes.write(KVB_PRESENT);
    }
    0
}

#[test]
fn a_call_that_comes_back_fails_instead_of_waiting_for_itself() {
    for serial in [0, 1] {
        let behind = Behind::new();
        let nested = Nested {
            store: Mutex::new(None),
            answers: Mutex::default(),
        };
        let store = opened(&kvb_store_table {
            context: ptr::from_ref(&nested).cast_mut().cast(),
            exist: Some(call_again),
            release: None,
            serial,
            ..whole(&behind)
        });
        *nested.store.lock() = Some(store.handle().unwrap());
        let mut out = Vec::new();
        store.exist(&keys(&["k"]), &mut out);
        assert_eq!(out, [Presence::Present]);
        let refused = [Presence::Unknown(code::NESTED_CALL)];
        assert_eq!(nested.answers.lock()[..], refused);
        nested.store.lock().take();
    }
}

#[test]
fn one_call_at_a_time_when_the_table_says_so() {
    static INSIDE: AtomicUsize = AtomicUsize::new(0);
    static MOST: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C-unwind" fn count(_: *mut c_void, call: *const kvb_store_call) -> i32 {
        let now = INSIDE.fetch_add(1, Ordering::SeqCst) + 1;
        MOST.fetch_max(now, Ordering::SeqCst);
        std::thread::yield_now();
        INSIDE.fetch_sub(1, Ordering::SeqCst);
        // SAFETY: called with one key.
        unsafe { (*call).outcomes.write(KVB_ABSENT) };
        0
    }
    let behind = Behind::new();
    let store = opened(&kvb_store_table {
        exist: Some(count),
        serial: 1,
        ..whole(&behind)
    });
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..500 {
                    let mut out = Vec::new();
                    store.exist(&keys(&["k"]), &mut out);
                    assert_eq!(out, [Presence::Absent]);
                }
            });
        }
    });
    assert_eq!(MOST.load(Ordering::SeqCst), 1);
}

#[test]
fn the_codes_of_the_header_are_those_of_the_store() {
    assert_eq!(KVB_STORE_UNREACHABLE, code::UNREACHABLE);
    assert_eq!(KVB_STORE_STILL_IN_USE, code::STILL_IN_USE);
    assert_eq!(KVB_STORE_NO_ANSWER, code::NO_ANSWER);
    let behind = Behind::new();
    let store = opened(&whole(&behind));
    for code in [
        KVB_STORE_UNREACHABLE,
        KVB_STORE_STILL_IN_USE,
        KVB_STORE_NO_ANSWER,
    ] {
        assert!(store.is_outage(code));
    }
    for code in [
        code::HOST_FAILED,
        code::BAD_ANSWER,
        -600,
        -800,
        code::CLOSED,
    ] {
        assert!(!store.is_outage(code));
    }
}
