//! The stand-in of the CUDA driver, compiled and driven. A test runs in a process of its own, in
//! which the loader finds the stand-in as the driver's library.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(unsafe_code, reason = "calls functions of the stand-in")]

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// Says to a process which test it is to run.
const CHILD: &str = "KVB_CUDA_TEST";

/// Runs `body` in a process of its own, in which the stand-in is the driver.
pub fn in_child(test: &str, body: impl FnOnce()) {
    in_children(test, &[&[]], body);
}

/// The same once for each variant of the stand-in, which definitions make.
pub fn in_children(test: &str, variants: &[&[&str]], body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    for definitions in variants {
        run(test, &built(definitions));
    }
}

/// The same where the loader finds no driver, whatever the machine has.
pub fn without_driver(test: &str, body: impl FnOnce()) {
    if is_child(test) {
        return body();
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("cuda-none");
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        // The loader looks no further when it finds something that is no library.
        std::fs::write(folder.join(name), "no library\n").unwrap();
    }
    run(test, &folder);
}

fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|name| name == test)
}

fn run(test: &str, folder: &Path) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(CHILD, test)
        .env("LD_LIBRARY_PATH", folder)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{text}", output.status);
    assert!(text.contains("1 passed"), "the child ran nothing:\n{text}");
}

/// The folder with this variant of the library, under both of its names.
fn built(definitions: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let name = format!("cuda{}", definitions.concat());
    let mut built = BUILT.lock().unwrap();
    let folder = built.entry(name.clone()).or_insert_with(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(&name);
        std::fs::create_dir_all(&folder).unwrap();
        // Others may build the same at once, or run on it.
        let made = folder.join(format!("made-{}", std::process::id()));
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/cpp_tests/cuda");
        let compiled = Command::new("c++")
            .args([
                "-std=c++17",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-shared",
            ])
            .args(["-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"])
            .arg(&made)
            .args(["controls.cc", "devices.cc", "kernels.cc", "stand_in.cc"])
            .current_dir(sources)
            .args(
                definitions
                    .iter()
                    .map(|definition| format!("-D{definition}")),
            )
            .status()
            .expect("these tests need a C++ compiler called c++");
        assert!(compiled.success());
        std::fs::rename(made, folder.join("libcuda.so.1")).unwrap();
        let link = folder.join("libcuda.so");
        match symlink("libcuda.so.1", &link) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => panic!("{error}"),
            _ => {}
        }
        folder
    });
    folder.clone()
}

/// Declares how the stand-in's functions are called.
macro_rules! functions {
    ($( $name:ident($($argument:ident: $type:ty),*) $(-> $answer:ty)?; )+) => {
        $(
            pub fn $name($($argument: $type),*) $(-> $answer)? {
                let found = find(stringify!($name));
                // SAFETY: the stand-in's function of this name, as its header declares it.
                unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $answer)?>(found)($($argument),*)
                }
            }
        )+
    };
}

/// Handles are numbers here, so that tests can give them to threads.
pub type Handle = usize;

#[expect(non_snake_case, reason = "the driver's names")]
mod raw {
    use super::*;
    functions! {
        cuInit(flags: c_uint) -> c_int;
        cuCtxGetCurrent(out: *mut Handle) -> c_int;
        cuCtxSetCurrent(context: Handle) -> c_int;
        cuStreamCreate(out: *mut Handle, flags: c_uint) -> c_int;
        cuStreamDestroy_v2(stream: Handle) -> c_int;
        cuStreamSynchronize(stream: Handle) -> c_int;
        cuMemAlloc_v2(out: *mut u64, size: usize) -> c_int;
        cuMemFree_v2(start: u64) -> c_int;
        cuMemcpyAsync(to: u64, from: u64, size: usize, stream: Handle) -> c_int;
        cuMemsetD8Async(start: u64, value: u8, size: usize, stream: Handle) -> c_int;
        stand_in_context(device: c_int) -> Handle;
        stand_in_destroy_context(context: Handle);
        stand_in_read(to: *mut u8, from: u64, size: usize);
        stand_in_write(to: u64, from: *const u8, size: usize);
        stand_in_hold(stream: Handle, on: c_int);
        stand_in_lazy(on: c_int);
        stand_in_fail(function: *const c_char, nth: c_long, code: c_int);
        stand_in_skip(function: *const c_char, on: c_int);
        stand_in_calls(function: *const c_char) -> c_long;
        stand_in_failed() -> *const c_char;
        stand_in_reset();
        stand_in_waiting(function: *const c_char) -> c_long;
        stand_in_copies_in_flight() -> c_long;
        stand_in_alive() -> c_long;
        stand_in_set_version(version: c_int);
    }
}

fn find(name: &str) -> *mut c_void {
    let found = look(name);
    assert!(!found.is_null(), "{name}");
    found
}

fn look(name: &str) -> *mut c_void {
    let name = text(name);
    // SAFETY: loads the stand-in, which does nothing when it is loaded, and asks for a name.
    unsafe {
        let library = libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW);
        assert!(!library.is_null());
        libc::dlsym(library, name.as_ptr())
    }
}

fn text(function: &str) -> CString {
    CString::new(function).unwrap()
}

fn ok(code: c_int) {
    assert_eq!(code, 0);
}

/// A context that is not a primary one, and current on the calling thread.
pub fn context(device: c_int) -> Handle {
    ok(raw::cuInit(0));
    let context = raw::stand_in_context(device);
    set_current(context);
    context
}

pub fn destroy_context(context: Handle) {
    raw::stand_in_destroy_context(context);
}

pub fn set_current(context: Handle) {
    ok(raw::cuCtxSetCurrent(context));
}

pub fn current() -> Handle {
    let mut current = 1;
    ok(raw::cuCtxGetCurrent(&raw mut current));
    current
}

/// A stream of the engine's, of the current context; a blocking one is ordered against stream 0.
pub fn stream(blocking: bool) -> Handle {
    let mut stream = 0;
    ok(raw::cuStreamCreate(
        &raw mut stream,
        c_uint::from(!blocking),
    ));
    stream
}

pub fn destroy_stream(stream: Handle) {
    ok(raw::cuStreamDestroy_v2(stream));
}

pub fn synchronize(stream: Handle) {
    ok(raw::cuStreamSynchronize(stream));
}

pub fn allocate(size: usize) -> u64 {
    let mut start = 0;
    ok(raw::cuMemAlloc_v2(&raw mut start, size));
    start
}

pub fn free(start: u64) {
    ok(raw::cuMemFree_v2(start));
}

/// Work of the engine's on its stream.
pub fn fill(stream: Handle, start: u64, value: u8, size: usize) {
    ok(raw::cuMemsetD8Async(start, value, size, stream));
}

/// Work of the engine's on its stream.
pub fn copy(stream: Handle, to: u64, from: u64, size: usize) {
    ok(raw::cuMemcpyAsync(to, from, size, stream));
}

/// What device memory holds now, whatever streams do.
pub fn read(from: u64, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    raw::stand_in_read(bytes.as_mut_ptr(), from, size);
    bytes
}

pub fn write(to: u64, bytes: &[u8]) {
    raw::stand_in_write(to, bytes.as_ptr(), bytes.len());
}

pub fn hold(stream: Handle, on: bool) {
    raw::stand_in_hold(stream, c_int::from(on));
}

/// Streams run only while somebody waits in the driver.
pub fn lazy(on: bool) {
    raw::stand_in_lazy(c_int::from(on));
}

/// The nth call of a function from now on fails, of any function with "", and every one with 0.
pub fn fail(function: &str, nth: i64, code: c_int) {
    raw::stand_in_fail(text(function).as_ptr(), nth, code);
}

/// The function answers 0 and does nothing.
pub fn skip(function: &str) {
    raw::stand_in_skip(text(function).as_ptr(), 1);
}

/// The function that failed last since the last reset.
pub fn failed() -> String {
    // SAFETY: a text that stays.
    let text = unsafe { CStr::from_ptr(raw::stand_in_failed()) };
    text.to_str().unwrap().to_owned()
}

/// Whether this variant has a function.
pub fn has(function: &str) -> bool {
    !look(function).is_null()
}

/// Ends failures and skips, and counts anew.
pub fn reset() {
    raw::stand_in_reset();
}

/// Calls of a function since the last reset; of all with "".
pub fn calls(function: &str) -> i64 {
    raw::stand_in_calls(text(function).as_ptr())
}

/// Whether a thread waits in this function.
pub fn is_waited_in(function: &str) -> bool {
    raw::stand_in_waiting(text(function).as_ptr()) > 0
}

pub fn copies_in_flight() -> i64 {
    raw::stand_in_copies_in_flight()
}

/// Streams, events, allocations and registrations.
pub fn alive() -> i64 {
    raw::stand_in_alive()
}

pub fn set_version(version: c_int) {
    raw::stand_in_set_version(version);
}
