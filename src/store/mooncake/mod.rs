//! Mooncake's own library, loaded at run time: the way to a pool over RDMA, NVLink or TCP as that
//! library was built. So far it is loaded and a client made and ended; a configuration that asks
//! for this store is still refused.
//!
//! `symbols` finds the functions, `signals` and `watcher` keep the host's signals its own. What the
//! library does to a process, and what is done about it, stands in `docs/design/mooncake.md`.

#![allow(
    unsafe_code,
    reason = "a foreign library is loaded and called, and signal masks are the system's"
)]

mod signals;
mod symbols;
mod watcher;

use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::Mutex;

use self::signals::{Blocked, Handlers, apart};
use self::symbols::Symbols;
use crate::error::{Result, bail};

/// One load at a time: what a load changes in the process is told from what was before, and of two
/// that run at once one would take the other's changes for the host's wish.
static LOADING: Mutex<()> = Mutex::new(());

/// Mooncake's library. It stays loaded as long as the process: its threads outlive its clients, and
/// their code must stay where it is.
#[derive(Debug)]
pub struct Library {
    name: String,
    symbols: Symbols,
}

impl Library {
    /// Loads the library of this name, which the loader searches for, or at this path. Handlers and
    /// mask are as before when this returns; threads that the load started take no signals but
    /// those of faults.
    ///
    /// Blocks: while it is loaded, some 50 ms the first time. Errors: `InvalidArgument`, the name
    /// holds a NUL; `PoolRefused`, with the loader's reason or the names of what it lacks.
    ///
    /// # Safety
    /// Runs what the library does when it is loaded. What it exports under the names of Mooncake's C
    /// interface must be that.
    pub unsafe fn open(name: &str) -> Result<Arc<Self>> {
        let Ok(path) = CString::new(name) else {
            bail!(InvalidArgument, "the library {name:?} holds a NUL");
        };
        let _one = LOADING.lock();
        let loaded = {
            let _blocked = Blocked::new();
            let handlers = Handlers::now();
            // SAFETY: the caller's promise.
            let loaded = unsafe { load(&path) };
            let changed = handlers.restore();
            tracing::debug!(library = name, changed, "handlers of signals put back");
            loaded
        };
        let Some(found) = loaded.handle else {
            bail!(
                PoolRefused,
                "the library {name:?} cannot be loaded: {}",
                loaded.reason
            );
        };
        // SAFETY: the handle is open and stays so; the rest is the caller's promise.
        let symbols =
            unsafe { Symbols::resolve(|symbol| libc::dlsym(found.as_ptr(), symbol.as_ptr())) };
        let symbols = symbols.map_err(|error| {
            error.within(format!("the library {name:?} is not Mooncake's store"))
        })?;
        // SAFETY: open for good, and nobody has called a function of it through us yet.
        let disarmed = unsafe { watcher::disarm(found) };
        tracing::debug!(library = name, disarmed, "waits for signals taken out");
        Ok(Arc::new(Self {
            name: name.to_owned(),
            symbols,
        }))
    }

    /// Whether clients can be told apart by tenant.
    pub fn has_tenants(&self) -> bool {
        self.symbols.setup_with_tenant.is_some()
    }

    /// Makes a client without a connection. Threads that this starts take no signals.
    ///
    /// Blocks: some 100 ms the first time. Errors: `NoThread`; `PoolFailed`, there is none.
    pub fn client(self: &Arc<Self>) -> Result<Client> {
        let create = self.symbols.create;
        // SAFETY: takes nothing. The address is passed on as a number, since it is no thread's own.
        let handle = apart(move || unsafe { create() }.expose_provenance())?;
        let Some(handle) = NonNull::new(std::ptr::with_exposed_provenance_mut(handle)) else {
            bail!(PoolFailed, "the library {:?} made no client", self.name);
        };
        Ok(Client {
            library: Arc::clone(self),
            handle,
        })
    }
}

/// A client of a pool, not connected yet. Dropping it ends it, which takes about a second.
#[derive(Debug)]
pub struct Client {
    library: Arc<Library>,
    handle: NonNull<c_void>,
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: `client` made it, nobody else has it, and no call on it runs.
        unsafe { (self.library.symbols.destroy)(self.handle.as_ptr()) };
    }
}

/// What the loader answered.
struct Loaded {
    handle: Option<NonNull<c_void>>,
    reason: String,
}

/// # Safety
/// Runs what the library does when it is loaded.
unsafe fn load(path: &CStr) -> Loaded {
    // SAFETY: a text; the rest is the caller's promise. All at once, so that what is missing is
    // heard of here and not in the middle of a call.
    let handle = NonNull::new(unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) });
    let mut reason = String::new();
    if handle.is_none() {
        // SAFETY: asks for this thread's last failure, a text that lasts until its next call.
        let text = unsafe { libc::dlerror() };
        if !text.is_null() {
            // SAFETY: as above.
            reason = unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned();
        }
    }
    Loaded { handle, reason }
}
