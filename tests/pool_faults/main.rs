//! An engine on a real pool whose processes are killed, stopped and starved. Each test runs in a
//! process of its own with a pool of its own (`scripts/pool`): `eval "$(scripts/pool env)"` and `cargo test --test pool_faults`,
//! or `scripts/test faults`. With `KVB_MUST_RUN` a test that cannot run here fails. With `KVB_SLOW` the library's own waits are not shortened;
//! with `KVB_WIRE` the engine uses the store "mooncake-tcp".

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "each test tells what it measured")]
#![allow(unsafe_code, reason = "opens a pool as a host does")]

mod engine;
mod lender;
mod master;
mod network;
#[path = "../real_pool/mod.rs"]
mod real_pool;
#[path = "../rig/mod.rs"]
mod rig;
mod space;
mod start;

use std::env;
use std::time::{Duration, Instant};

use kvbridge::error::{Kind, Result};
use rig::{T, prompt};

/// Runs a test in a process of its own, with a pool that is started with these options, and shows what it measured.
fn with_pool(options: &[&str], environment: &[(&str, &str)], test: &str) {
    let output = real_pool::with_pool(options, environment, test);
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter(|line| line.starts_with("FAULT "))
        .for_each(|line| println!("{line}"));
}

/// Whether the engine uses the store "mooncake-tcp", else "mooncake".
fn is_wire() -> bool {
    env::var_os("KVB_WIRE").is_some()
}

#[test]
#[should_panic(expected = "had not ended after 100ms:\nbegun")]
fn a_test_that_hangs_fails() {
    let mut command = std::process::Command::new("sh");
    // Another process has the same output, and would keep it open.
    command.args(["-c", "echo begun; sleep 1000; true"]);
    real_pool::output_within(&mut command, Duration::from_millis(100));
}

/// A shutdown while the pool fails answers at its deadline: with the library a call is inside still, while calls of
/// "mooncake-tcp" have ended by themselves.
fn ended_in_time(closed: &[Result<()>]) {
    match closed {
        [Ok(())] if is_wire() => {}
        [Err(error)] if !is_wire() => assert_eq!(error.kind(), Kind::Busy, "{error}"),
        _ => panic!("{closed:?}"),
    }
}

/// Whether the waits of Mooncake's are left as long as they are in production.
fn is_slow() -> bool {
    env::var_os("KVB_SLOW").is_some()
}

/// A pool whose master takes a silent client for dead after 3 s, not 10, and forgets after 5 s, not 30, that somebody
/// began to write a page.
const POOL: [&str; 6] = [
    "--segment",
    "64",
    "--set",
    "client_ttl=3",
    "--set",
    "put_start_discard_timeout_sec=5",
];

fn options() -> &'static [&'static str] {
    &POOL[..if is_slow() { 2 } else { POOL.len() }]
}

/// A prompt of `blocks` whole blocks and one token.
fn blocks(kind: i32, blocks: usize) -> Vec<i32> {
    prompt(kind, blocks * T + 1)
}

/// Does something again and again for so long, at least once.
fn for_a_while(time: Duration, mut act: impl FnMut(i32)) {
    let began = Instant::now();
    for round in 0.. {
        act(round);
        if began.elapsed() >= time {
            return;
        }
    }
}
