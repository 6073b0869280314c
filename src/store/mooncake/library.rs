//! The library: loaded once, and never unloaded.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_void};
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::client::Client;
use super::exit;
use super::signals::{Blocked, Handlers, apart};
use super::symbols::Symbols;
use super::{waits, watcher};
use crate::error::{Result, bail};
use crate::fork::Process;

/// What is loaded, by name. Held during a load: what a load changes in the process is told from what
/// was before, and of two that run at once one would take the other's changes for the host's wish.
static LOADED: Mutex<BTreeMap<String, &'static Library>> = Mutex::new(BTreeMap::new());

/// Mooncake's library. It stays loaded as long as the process: its threads outlive its clients, and
/// their code must stay where it is.
#[derive(Debug)]
pub struct Library {
    name: String,
    pub(super) symbols: Symbols,
    /// Only the process that loaded it may use it: a forked one has none of its threads.
    process: Process,
}

impl Library {
    /// Loads the library of this name, which the loader searches for, or at this path; the same one
    /// for the same name. Handlers and mask are as before when this returns; threads that the load
    /// started take no signals but those of faults.
    ///
    /// Blocks: while it is loaded, some 50 ms the first time. Errors: `InvalidArgument`, the name
    /// holds a NUL; `PoolRefused`, with the loader's reason or the names of what it lacks, or since
    /// this process was forked from one that had loaded it.
    ///
    /// # Safety
    /// Runs what the library does when it is loaded. What it exports under the names of Mooncake's C
    /// interface must be that.
    pub unsafe fn open(name: &str) -> Result<&'static Self> {
        let Ok(path) = CString::new(name) else {
            bail!(InvalidArgument, "the library {name:?} holds a NUL");
        };
        let mut libraries = LOADED.lock();
        if let Some(library) = libraries.get(name) {
            library.check_process()?;
            return Ok(library);
        }
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
        // SAFETY: open for good, and nobody has called a function of it through us yet. A host that
        // uses it as well has called them through its entries before.
        let (disarmed, bounded) = unsafe { (watcher::disarm(found), waits::bound(found)) };
        tracing::debug!(library = name, disarmed, "waits for signals taken out");
        if !bounded {
            tracing::warn!(
                "the library {name:?} reads its settings in a way of its own: its waits are bounded only where the environment says so"
            );
        }
        let library = Box::leak(Box::new(Self {
            name: name.to_owned(),
            symbols,
            process: Process::this(),
        }));
        library.watch_exit();
        libraries.insert(name.to_owned(), library);
        Ok(library)
    }

    /// Has the end of this process wait for calls, and let none begin.
    pub(super) fn watch_exit(&self) {
        exit::watch(self.process);
    }

    /// Whether clients can be told apart by tenant.
    pub fn has_tenants(&self) -> bool {
        self.symbols.setup_with_tenant.is_some()
    }

    /// Makes a client without a connection. Threads that this starts take no signals.
    ///
    /// Blocks: some 100 ms the first time. Errors: `NoThread`; `PoolFailed`, there is none;
    /// `PoolRefused` in a forked process.
    pub fn client(&'static self) -> Result<Client> {
        apart(|| self.client_here())?
    }

    /// [`client`](Self::client) on this thread, which must end soon and has all signals blocked.
    pub(super) fn client_here(&'static self) -> Result<Client> {
        self.check_process()?;
        // SAFETY: takes nothing.
        let handle = unsafe { (self.symbols.create)() };
        let Some(handle) = NonNull::new(handle) else {
            bail!(PoolFailed, "the library {:?} made no client", self.name);
        };
        Ok(Client::new(self, handle))
    }

    fn check_process(&self) -> Result<()> {
        if !self.process.is_this() {
            bail!(
                PoolRefused,
                "the library {:?} was loaded before this process was forked, and works in process {} alone",
                self.name,
                self.process.id()
            );
        }
        Ok(())
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
