//! Mooncake's library is found and refused as it should be, and leaves the host's signals alone:
//! with stand-ins that the tests compile, and in a test that has to be asked for (`scripts/test mooncake`) with the
//! real one, which `KVB_MOONCAKE_LIBRARY` names (`scripts/pool env`).

#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(
    unsafe_code,
    reason = "loads libraries and asks the system about signals"
)]

mod process;

use std::process::Command;
use std::{env, fs, mem};

use kvbridge::error::{Error, Kind};
use kvbridge::store::mooncake::Library;
use parking_lot::Mutex;
use process::{blocked, handlers};

/// Tests of what a load does to the process, one at a time.
static PROCESS: Mutex<()> = Mutex::new(());

const NEEDED: [&str; 11] = [
    "create",
    "destroy",
    "setup",
    "health_check",
    "batch_put_from",
    "batch_get_into",
    "batch_is_exist",
    "remove",
    "get_size",
    "register_buffer",
    "unregister_buffer",
];

/// Compiles a library of functions that do nothing, but for what `code` defines.
fn stand_in(name: &str, functions: &[&str], code: &str) -> String {
    linked(name, functions, code, "-Wl,-z,lazy")
}

fn linked(name: &str, functions: &[&str], code: &str, how: &str) -> String {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let source = format!("{folder}/{name}.c");
    let library = format!("{folder}/lib{name}.so");
    let mut text = code.to_owned();
    for function in functions {
        text += &format!("long mooncake_store_{function}(void) {{ return 0; }}\n");
    }
    fs::write(&source, text).unwrap();
    let status = Command::new("cc")
        .args([
            "-shared", "-fPIC", "-w", "-pthread", how, "-o", &library, &source,
        ])
        .status()
        .unwrap();
    assert!(status.success());
    library
}

fn without<'a>(names: &[&'a str], out: &[&str]) -> Vec<&'a str> {
    let kept = names.iter().filter(|name| !out.contains(name));
    kept.copied().collect()
}

fn refusal(library: &str) -> Error {
    let _one = PROCESS.lock();
    // SAFETY: what these tests load does nothing but what they say.
    unsafe { Library::open(library) }.unwrap_err()
}

#[test]
fn a_library_that_is_not_there_is_named_with_the_loaders_reason() {
    let error = refusal("libno-such-library.so");
    assert_eq!(error.kind(), Kind::PoolRefused);
    let start = "the library \"libno-such-library.so\" cannot be loaded: ";
    assert!(error.message().starts_with(start), "{error}");
    assert!(
        error.message().contains("cannot open shared object"),
        "{error}"
    );
}

#[test]
fn a_name_with_a_nul_is_no_name() {
    assert_eq!(refusal("lib\0.so").kind(), Kind::InvalidArgument);
}

#[test]
fn another_library_is_refused_with_all_that_it_lacks() {
    let error = refusal("libm.so.6");
    assert_eq!(error.kind(), Kind::PoolRefused);
    let needed = NEEDED.map(|name| format!("mooncake_store_{name}"));
    let expected = format!(
        "the library \"libm.so.6\" is not Mooncake's store: it lacks {}",
        needed.join(", ")
    );
    assert_eq!(error.message(), expected);
}

#[test]
fn two_missing_functions_are_named_in_one_error() {
    let library = stand_in("lacks_two", &without(&NEEDED, &["remove", "get_size"]), "");
    let error = refusal(&library);
    assert!(
        error
            .message()
            .ends_with("it lacks mooncake_store_remove, mooncake_store_get_size"),
        "{error}"
    );
}

#[test]
fn what_is_optional_may_be_missing() {
    let _one = PROCESS.lock();
    let old = stand_in("old", &NEEDED, "");
    let new = stand_in(
        "new",
        &[&NEEDED[..], &["setup_with_tenant"][..]].concat(),
        "",
    );
    // SAFETY: as in `refusal`.
    let (old, new) = unsafe { (Library::open(&old), Library::open(&new)) };
    assert!(!old.unwrap().has_tenants());
    assert!(new.unwrap().has_tenants());
}

#[test]
fn no_client_is_an_error() {
    let _one = PROCESS.lock();
    let library = stand_in("no_client", &NEEDED, "");
    // SAFETY: as in `refusal`.
    let library = unsafe { Library::open(&library) }.unwrap();
    let error = library.client().unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
}

// ---- signals ----

/// What the real library does, in small: takes handlers and starts a thread when it is loaded, starts
/// another and blocks a signal in its caller when it makes a client. Its threads note whether they
/// could be given another signal.
const TAKES_SIGNALS: &str = r"
#include <pthread.h>
#include <signal.h>
int interruptible, started;
static void taken(int number) {}
static void *run(void *unused) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, 0, &mask);
  interruptible += !sigismember(&mask, SIGUSR2);
  ++started;
  return 0;
}
static void start(void) {
  pthread_t thread;
  pthread_create(&thread, 0, run, 0);
  pthread_join(thread, 0);
}
__attribute__((constructor)) static void loaded(void) {
  struct sigaction action = {.sa_handler = taken, .sa_flags = SA_ONSTACK};
  sigaction(SIGSEGV, &action, 0);
  sigaction(SIGURG, &action, 0);
  signal(SIGPIPE, SIG_IGN);
  start();
}
void *mooncake_store_create(void) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &one, 0);
  start();
  return &started;
}
static int ended;
void mooncake_store_destroy(void *client) { ended += client == &started; }
long mooncake_store_get_size(void) { return started * 100 + interruptible * 10 + ended; }
";

/// What a stand-in's own `mooncake_store_get_size` answers.
fn size_of_nothing(path: &str) -> i64 {
    let path = std::ffi::CString::new(path).unwrap();
    // SAFETY: a function of a library that is open already.
    unsafe {
        let library = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        let function = libc::dlsym(library, c"mooncake_store_get_size".as_ptr());
        assert!(!function.is_null());
        mem::transmute::<*mut libc::c_void, extern "C" fn() -> i64>(function)()
    }
}

#[test]
fn handlers_and_masks_are_the_hosts() {
    let _one = PROCESS.lock();
    let functions = without(&NEEDED, &["create", "destroy", "get_size"]);
    let path = stand_in("takes_signals", &functions, TAKES_SIGNALS);
    // SAFETY: a handler that does nothing, for a signal that nobody sends.
    unsafe {
        // Rust ignores it; a host's own choice must come back as well.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    let before = (handlers(), blocked());
    // SAFETY: as in `refusal`.
    let library = unsafe { Library::open(&path) }.unwrap();
    assert_eq!((handlers(), blocked()), before);
    library.client().unwrap().end().unwrap();
    assert_eq!((handlers(), blocked()), before);
    assert!(blocked().is_empty());

    // What its threads saw: two were started, none of them could be interrupted, one client ended.
    assert_eq!(size_of_nothing(&path), 201);
}

/// Starts a thread that waits for a signal, as the real one does. Asked for a size, sends it that
/// signal, then another one to a thread that waits by a way that nobody has changed, and answers 10
/// if the latter took its, and 1 if the former did.
const WAITS_FOR_SIGNALS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
static pthread_t waiting;
static volatile int taken;
static int (*unchanged)(const sigset_t *, int *);
static void *wait_changed(void *set) {
  int number;
  if (sigwait(set, &number) == 0) taken += 1;
  return 0;
}
static void *wait_unchanged(void *set) {
  int number;
  if (unchanged(set, &number) == 0) taken += 10;
  return 0;
}
static sigset_t set;
void *mooncake_store_create(void) {
  sigemptyset(&set);
  sigaddset(&set, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &set, 0);
  pthread_create(&waiting, 0, wait_changed, &set);
  return &waiting;
}
long mooncake_store_get_size(void) {
  pthread_t thread;
  sigset_t before;
  unchanged = dlsym(RTLD_DEFAULT, "sigwait");
  pthread_sigmask(SIG_BLOCK, &set, &before);
  pthread_kill(waiting, SIGUSR1);
  pthread_create(&thread, 0, wait_unchanged, &set);
  pthread_kill(thread, SIGUSR1);
  pthread_join(thread, 0);
  pthread_sigmask(SIG_SETMASK, &before, 0);
  return taken;
}
"#;

#[test]
fn no_thread_of_the_library_takes_the_hosts_signals() {
    let _one = PROCESS.lock();
    let functions = without(&NEEDED, &["create", "get_size"]);
    // With the table of jumps as the compiler makes it, read-only, and without one.
    for (name, how) in [
        ("waits_lazy", "-Wl,-z,lazy"),
        ("waits_now", "-Wl,-z,relro,-z,now"),
        ("waits_no_plt", "-fno-plt"),
    ] {
        let path = linked(name, &functions, WAITS_FOR_SIGNALS, how);
        // SAFETY: as in `refusal`.
        let library = unsafe { Library::open(&path) }.unwrap();
        let client = library.client().unwrap();
        assert_eq!(size_of_nothing(&path), 10, "{name}");
        client.end().unwrap();
    }
}

/// For each thread that the library started, whether it could be given a SIGTERM.
fn interruptible() -> Vec<bool> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task").unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap_or_default();
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        if field("Name:") == "kvb-apart" {
            let mask = u64::from_str_radix(&field("SigBlk:"), 16).unwrap();
            found.push(mask >> (libc::SIGTERM - 1) & 1 == 0);
        }
    }
    found
}

#[test]
#[ignore = "needs Mooncake's library"]
fn the_real_library_leaves_signals_alone() {
    let _one = PROCESS.lock();
    let path = env::var_os("KVB_MOONCAKE_LIBRARY").unwrap();
    let before = (handlers(), blocked());
    // SAFETY: the library that it is.
    let library = unsafe { Library::open(path.to_str().unwrap()) }.unwrap();
    assert!(library.has_tenants());
    for _ in 0..2 {
        library.client().unwrap().end().unwrap();
        assert_eq!((handlers(), blocked()), before);
    }
    // Long enough for its threads to be where they stay.
    std::thread::sleep(std::time::Duration::from_millis(500));
    let found = interruptible();
    assert!(!found.is_empty() && !found.contains(&true), "{found:?}");
}
