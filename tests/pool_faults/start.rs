//! No master is there when an engine opens its pool, or somebody who takes the connection and never answers.

use std::ffi::c_char;
use std::net::TcpListener;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use kvbridge::ffi::config::{kvb_config, kvb_config_free, kvb_config_from_json};
use kvbridge::ffi::global::kvb_last_error;
use kvbridge::ffi::plain::kvb_engine;
use kvbridge::ffi::status::{KVB_OK, KVB_POOL_FAILED, kvb_status};
use kvbridge::ffi::store::{kvb_store, kvb_store_free, kvb_store_open};
use kvbridge::ffi::worker::{kvb_worker, kvb_worker_free, kvb_worker_new};
use kvbridge::store::mooncake::Patience;
use kvbridge::store::wire;

use crate::engine::SLACK;
use crate::real_pool::{NOTHING_LENT, config_for, master};
use crate::{is_wire, with_pool};

#[test]
fn opening_without_a_master_is_refused_in_time() {
    with_pool(&["--segment", "16"], &[], "start::without_master");
}

/// How long opening may wait for a connection to the master, and after that for the pool to be open.
fn deadlines(master: &str) -> [Duration; 2] {
    if is_wire() {
        return [wire::PATIENCE, Duration::ZERO];
    }
    let patience = Patience::new(&config_for(master, NOTHING_LENT));
    [patience.master, patience.setup]
}

fn config(master: &str) -> *mut kvb_config {
    let store = match is_wire() {
        true => r#""store": "mooncake-tcp""#.to_owned(),
        false => {
            let library = std::env::var("KVB_MOONCAKE_LIBRARY").unwrap();
            format!(r#""store": "mooncake", "library": "{library}""#)
        }
    };
    let text = format!(
        r#"{{{NOTHING_LENT} "master_server_address": "{master}", "model_key": "m", "protocol": "tcp",
            "staging_buffer_bytes": "64KiB", "kvbridge": {{{store}}}}}"#
    );
    let mut config = ptr::null_mut();
    // SAFETY: a text of that size, and a place for the answer.
    let status = unsafe { kvb_config_from_json(text.as_ptr(), text.len(), &raw mut config) };
    assert_eq!(status, KVB_OK, "{}", last_error());
    config
}

fn engine() -> kvb_engine {
    // SAFETY: all of it are numbers.
    let mut engine: kvb_engine = unsafe { mem::zeroed() };
    engine.struct_size = size_of::<kvb_engine>() as u32;
    engine.tokens_per_block = 16;
    engine.tp_size = 1;
    engine
}

fn last_error() -> String {
    let mut text = [0_u8; 4096];
    // SAFETY: a buffer of that size, which gets a text that ends.
    unsafe {
        kvb_last_error(
            text.as_mut_ptr().cast::<c_char>(),
            text.len(),
            ptr::null_mut(),
        )
    };
    let end = text.iter().position(|&it| it == 0).unwrap();
    String::from_utf8(text[..end].to_vec()).unwrap()
}

/// Opens a store with the pool of this master, and a worker; what each answered, and how long that took.
fn open(master: &str) -> [(&'static str, kvb_status, String, Duration); 2] {
    let (config, engine) = (config(master), engine());
    let timed = |call: &'static str, open: &dyn Fn() -> kvb_status| {
        let began = Instant::now();
        let status = open();
        let took = began.elapsed();
        let text = if status == KVB_OK {
            String::new()
        } else {
            last_error()
        };
        (call, status, text, took)
    };
    let all = [
        timed("kvb_store_open", &|| {
            let mut store: *mut kvb_store = ptr::null_mut();
            // SAFETY: both were made above; no table; a place for the answer. What is made is freed.
            unsafe {
                let status = kvb_store_open(config, &raw const engine, ptr::null(), &raw mut store);
                kvb_store_free(store);
                status
            }
        }),
        timed("kvb_worker_new", &|| {
            let mut worker: *mut kvb_worker = ptr::null_mut();
            // SAFETY: as above.
            unsafe {
                let status =
                    kvb_worker_new(config, &raw const engine, ptr::null_mut(), &raw mut worker);
                kvb_worker_free(worker);
                status
            }
        }),
    ];
    // SAFETY: it was made here, and nobody has it any more.
    unsafe { kvb_config_free(config) };
    all
}

/// Nothing is opened with this master, and each attempt says so in time.
fn refused(fault: &str, master: &str, deadline: Duration) {
    let mut took = Vec::new();
    for (call, status, text, time) in open(master) {
        assert_eq!(status, KVB_POOL_FAILED, "{call}: {text}");
        assert!(text.contains(master), "{call}: {text}");
        let limit = deadline + SLACK;
        assert!(time <= limit, "{call} took {time:?}, at most {limit:?}");
        took.push(format!("{call} {:.2} s", time.as_secs_f64()));
    }
    println!("FAULT {fault} at start: {}", took.join(", "));
}

#[test]
#[ignore = "needs a pool"]
fn without_master() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let [connected, open_after] = deadlines(&address);
    // It takes connections, by way of its backlog.
    refused("a silent master", &address, connected + open_after);
    drop(listener);
    refused("no master", &address, connected);
    // A master that is there is none the worse for it.
    for (call, status, text, _) in open(&master()) {
        assert_eq!(status, KVB_OK, "{call}: {text}");
    }
}
