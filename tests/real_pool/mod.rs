//! Real Mooncake pools for tests (`scripts/pool`): each test runs in a process of its own with a pool of
//! its own, whose processes it may stop and kill.

#![allow(dead_code, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]
#![allow(unsafe_code, reason = "stops and kills processes")]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use std::{env, fs, thread};

use kvbridge::config::Config;
use kvbridge::store::mooncake::{Connection, Patience};

const LIBRARY: &str = "KVB_MOONCAKE_LIBRARY";

/// A member of a configuration: the client lends no memory.
pub const NOTHING_LENT: &str = r#""global_segment_size": 0,"#;

// ---- pools, and processes that use them ----

/// A pool that ends with this.
struct Started(BTreeMap<String, String>);

impl Started {
    fn new(options: &[&str]) -> Self {
        let output = scripts_pool(&[&["start"], options].concat());
        let lines = output.lines().filter_map(|line| line.split_once('='));
        Self(
            lines
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
        )
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        scripts_pool(&["stop", "--port", &self.0["KVB_POOL_PORT"]]);
    }
}

fn scripts_pool(arguments: &[&str]) -> String {
    let output = Command::new("scripts/pool")
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(arguments)
        // Meant for the process of a test.
        .env_remove("LD_PRELOAD")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:#?}");
    String::from_utf8(output.stdout).unwrap()
}

/// How long such a process may live, which is far longer than any does: one that hangs shall fail its test, not keep
/// everybody waiting.
const LIFE: Duration = Duration::from_secs(300);

/// Runs an ignored test of this file in a process of its own, in this environment, with a pool that is started
/// with these options; what it wrote.
pub fn with_pool(options: &[&str], environment: &[(&str, &str)], test: &str) -> Output {
    // No test that is run passes without its pool; `cargo test` by itself leaves those files out, see Cargo.toml.
    assert!(
        env::var_os(LIBRARY).is_some(),
        "{LIBRARY} is not set: eval \"$(scripts/pool env)\""
    );
    let pool = Started::new(options);
    let loopback = concat!(env!("CARGO_MANIFEST_DIR"), "/build/pool/loopback.so");
    let mut command = Command::new(env::current_exe().unwrap());
    command
        .args(["--exact", test, "--ignored", "--nocapture"])
        .envs(&pool.0)
        .envs(environment.iter().copied())
        .env("LD_PRELOAD", loopback);
    let output = output_within(&mut command, LIFE);
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = text.contains("test result: ok. 1 passed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && passed,
        "{text}\n{errors}\n{}",
        output.status
    );
    output
}

/// What a process wrote that ends within this time; else it is killed, with all that it started, and the test fails.
pub fn output_within(command: &mut Command, limit: Duration) -> Output {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.process_group(0).spawn().unwrap();
    let group = child.id() as i32;
    let (said, ended) = mpsc::channel();
    thread::spawn(move || said.send(child.wait_with_output().unwrap()));
    if let Ok(output) = ended.recv_timeout(limit) {
        return output;
    }
    // SAFETY: the processes of this test.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    let output = ended.recv().unwrap();
    panic!(
        "had not ended after {limit:?}:\n{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

// ---- what such a process does with its pool ----

pub fn master() -> String {
    env::var("KVB_POOL_MASTER").unwrap()
}

/// `more`: further members, each with a comma behind it.
pub fn config_for(master: &str, more: &str) -> Config {
    config_over("tcp", master, more)
}

/// Over this transport of Mooncake's.
pub fn config_over(protocol: &str, master: &str, more: &str) -> Config {
    let text = format!(
        r#"{{{more}"master_server_address": "{master}", "model_key": "m", "protocol": "{protocol}",
            "kvbridge": {{"library": "{}"}}}}"#,
        env::var(LIBRARY).unwrap()
    );
    Config::from_json(text.as_bytes()).unwrap()
}

pub fn open(more: &str) -> Arc<Connection> {
    let config = config_for(&master(), more);
    Connection::open(&config, Patience::new(&config)).unwrap()
}

/// A configuration of the store "mooncake-tcp". `times`: milliseconds for lookups, loads and saves.
pub fn wire_config(master: &str, more: &str, times: [u32; 3]) -> Config {
    let [lookup, load, save] = times;
    let text = format!(
        r#"{{{more}"master_server_address": "{master}", "model_key": "m", "kvbridge": {{"store": "mooncake-tcp",
            "lookup_timeout_ms": {lookup}, "load_timeout_ms": {load}, "save_timeout_ms": {save}}}}}"#
    );
    Config::from_json(text.as_bytes()).unwrap()
}

/// A process of the pool.
#[derive(Debug, Clone, Copy)]
pub enum Member {
    Master,
    /// The one that lends memory.
    Lender,
}

impl Member {
    fn pid(self) -> i32 {
        let name = match self {
            Self::Master => "master",
            Self::Lender => "segment",
        };
        let file = format!("{}/{name}.pid", env::var("KVB_POOL_LOGS").unwrap());
        let numbers = fs::read_to_string(file).unwrap();
        numbers.split(' ').next().unwrap().parse().unwrap()
    }

    fn send(self, signal: i32) {
        // SAFETY: a process of this test's pool.
        assert_eq!(unsafe { libc::kill(self.pid(), signal) }, 0);
    }

    pub fn kill(self) {
        self.send(libc::SIGKILL);
    }

    /// Returns when none of its threads runs any more.
    pub fn stop(self) {
        self.send(libc::SIGSTOP);
        let is_stopped = |thread: fs::DirEntry| {
            // One that ended meanwhile has no file.
            let stat = fs::read_to_string(thread.path().join("stat"));
            // The name before the state may hold anything.
            stat.is_ok_and(|it| it.rsplit_once(") ").is_some_and(|it| it.1.starts_with('T')))
        };
        let threads = format!("/proc/{}/task", self.pid());
        while !fs::read_dir(&threads)
            .unwrap()
            .all(|it| is_stopped(it.unwrap()))
        {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets it go on after [`stop`](Self::stop).
    pub fn wake(self) {
        self.send(libc::SIGCONT);
    }

    /// Starts another in place of one that was killed: a master on the same port that knows nothing, or so many MiB of
    /// empty memory. Returns when it serves.
    pub fn replace(self, options: &[&str]) {
        let port = env::var("KVB_POOL_PORT").unwrap();
        let command: &[&str] = match self {
            Self::Master => &["start", "--segment", "0", "--port", &port],
            Self::Lender => &["lend", "--port", &port],
        };
        scripts_pool(&[command, options].concat());
    }
}
