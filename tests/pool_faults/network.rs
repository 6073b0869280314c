//! The network between an engine and its pool is cut: all of them live in a network namespace whose one
//! interface is taken down.

use std::env;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::engine::{Engine, pause, setup};
use crate::{blocks, for_a_while, is_slow, options, with_pool};

/// Gives the interface a state. Not everybody finds `ip` without help.
fn set_interface(state: &str) -> String {
    format!("PATH=$PATH:/sbin:/usr/sbin ip link set lo {state}")
}

/// The command that makes a namespace here, as root or by way of a user namespace; none where that is not allowed.
fn namespace() -> Option<Command> {
    let ways: [&[&str]; 2] = [&["--net"], &["--map-root-user", "--net"]];
    ways.into_iter().find_map(|way| {
        let command = |script: &str| {
            let mut command = Command::new("unshare");
            command.args(way).args(["sh", "-c", script]);
            command
        };
        let up = set_interface("up");
        let tried = command(&up).stderr(Stdio::null()).status();
        let inside = format!("{up} && exec \"$0\" \"$@\"");
        tried.is_ok_and(|it| it.success()).then(|| command(&inside))
    })
}

#[test]
fn the_network_is_cut() {
    let Some(mut command) = namespace() else {
        let must_run = env::var_os("KVB_MUST_RUN").is_some();
        assert!(!must_run, "no network namespaces here");
        println!("skipped: no network namespaces here");
        return;
    };
    let output = command
        .arg(env::current_exe().unwrap())
        .args(["--exact", "network::inside", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let passed = text.contains("test result: ok. 1 passed");
    assert!(output.status.success() && passed, "{text}\n{errors}");
    text.lines()
        .filter(|line| line.starts_with("FAULT "))
        .for_each(|line| println!("{line}"));
}

#[test]
#[ignore = "needs a network namespace"]
fn inside() {
    // Whoever asks for a free port elsewhere does not get this one: pools of all namespaces keep their files side by side.
    let port = ["--port", "7001"];
    with_pool(&[options(), &port].concat(), &[], "network::cut");
}

fn run(script: &str) {
    let mut command = Command::new("sh");
    command.args(["-c", script]).env_remove("LD_PRELOAD");
    assert!(command.status().unwrap().success(), "{script}");
}

#[test]
#[ignore = "needs a pool"]
fn cut() {
    let mut engine = Engine::new(setup());
    let known = blocks(1, 8);
    engine.serve(&known);
    engine.settle();
    let caught = engine.new_id();
    assert!(engine.admit(caught, &known) > 0);
    engine.bind(&[(caught, 1)]);
    run(&set_interface("down"));
    engine.load().unwrap();
    assert_eq!(engine.rig.ranks[0].worker.take_failed_loads(), [caught]);
    engine.reset(caught);
    let outage = Duration::from_secs(if is_slow() { 40 } else { 6 });
    for_a_while(outage, |round| {
        assert_eq!(engine.serve(&known).offered, 0);
        engine.serve(&blocks(1000 + round, 3));
        pause();
    });
    run(&set_interface("up"));
    engine.resume(&known, Instant::now());
    engine.shutdown_well();
    engine.report("network cut");
}
