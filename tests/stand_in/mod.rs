//! The stand-in of Mooncake's library, compiled and driven.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(unsafe_code, reason = "calls functions of the stand-in")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::transmute;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Arc;

use kvbridge::config::Config;
use kvbridge::error::Error;
use kvbridge::store::Store;
use kvbridge::store::mooncake::{Connection, Patience};

/// Begins a configuration that lends nothing.
pub const NOTHING_LENT: &str = r#""global_segment_size": 0,"#;

/// A test's own copy of the stand-in, and something that listens where its master should be.
pub struct StandIn {
    pub path: String,
    pub library: *mut c_void,
    pub master: TcpListener,
}

impl StandIn {
    pub fn new(name: &str) -> Self {
        Self::built(name, &[])
    }

    pub fn built(name: &str, flags: &[&str]) -> Self {
        let path = format!("{}/libstand_in_{name}.so", env!("CARGO_TARGET_TMPDIR"));
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/cpp_tests/mooncake/stand_in.c");
        let compiled = Command::new("cc")
            .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-shared"])
            .args(["-fPIC", "-pthread", "-o", &path, source])
            .args(flags)
            .status()
            .expect("these tests need a C compiler called cc");
        assert!(compiled.success());
        let text = CString::new(path.as_str()).unwrap();
        // SAFETY: a library that does nothing when it is loaded.
        let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        let master = TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            path,
            library,
            master,
        }
    }

    fn function(&self, name: &CStr) -> *mut c_void {
        // SAFETY: a library that stays open.
        let found = unsafe { libc::dlsym(self.library, name.as_ptr()) };
        assert!(!found.is_null(), "{name:?}");
        found
    }

    pub fn set(&self, name: &str, value: i32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in's own function.
        unsafe {
            let set = self.function(c"stand_in_set");
            transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(set)(
                name.as_ptr(),
                value,
            );
        }
    }

    pub fn get(&self, name: &str) -> i32 {
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in's own function.
        unsafe {
            let get = self.function(c"stand_in_get");
            transmute::<*mut c_void, extern "C" fn(*const c_char) -> c_int>(get)(name.as_ptr())
        }
    }

    /// Waits until the number has this value.
    pub fn wait_for(&self, name: &str, value: i32) {
        let name = CString::new(name).unwrap();
        // SAFETY: the stand-in's own function.
        unsafe {
            let wait = self.function(c"stand_in_await");
            transmute::<*mut c_void, extern "C" fn(*const c_char, c_int)>(wait)(
                name.as_ptr(),
                value,
            );
        }
    }

    pub fn arguments(&self) -> String {
        // SAFETY: the stand-in's own function; the text is copied while nobody calls setup.
        unsafe {
            let arguments = self.function(c"stand_in_arguments");
            let text = transmute::<*mut c_void, extern "C" fn() -> *const c_char>(arguments)();
            CStr::from_ptr(text).to_str().unwrap().to_owned()
        }
    }

    pub fn setting(&self, name: &CStr) -> Option<String> {
        // SAFETY: the stand-in's own function.
        unsafe {
            let setting = self.function(c"stand_in_setting");
            let setting = transmute::<*mut c_void, extern "C" fn(*const c_char) -> *const c_char>(
                setting,
            )(name.as_ptr());
            (!setting.is_null()).then(|| CStr::from_ptr(setting).to_str().unwrap().to_owned())
        }
    }

    pub fn master(&self) -> String {
        self.master.local_addr().unwrap().to_string()
    }

    /// `more`: further members, each with a comma behind it.
    pub fn config(&self, more: &str) -> Config {
        let text = format!(
            r#"{{{more}"master_server_address": "{}", "model_key": "m", "protocol": "tcp",
                "kvbridge": {{"store": "mooncake", "library": "{}"}}}}"#,
            self.master(),
            self.path
        );
        Config::from_json(text.as_bytes()).unwrap()
    }

    pub fn open(&self, more: &str) -> Result<Arc<Connection>, Error> {
        let config = self.config(more);
        Connection::open(&config, Patience::new(&config))
    }

    pub fn store(&self) -> Arc<dyn Store> {
        self.open(NOTHING_LENT).unwrap().handle().unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        assert_eq!(
            self.get("crashes"),
            0,
            "the real library would have crashed"
        );
        assert_eq!(self.get("visible"), 0, "a signal could interrupt it");
        assert_eq!(self.get("options"), 0, "puts have no options");
    }
}
