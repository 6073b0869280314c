//! A client of a pool: its handle, and how it ends.

use std::ffi::c_void;
use std::ptr::NonNull;

use parking_lot::Mutex;

use super::exit::Inside;
use super::library::Library;
use super::lists::Lists;
use super::signals::{apart, start_apart};
use super::symbols::Symbols;
use crate::error::Result;
use crate::fork::Process;

/// A client. Ending it takes about a second, and up to 18 without a master; dropping it leaves that
/// to a thread of its own.
#[derive(Debug)]
pub struct Client {
    library: &'static Library,
    handle: NonNull<c_void>,
    process: Process,
    /// Lists of calls that are over, for the next ones.
    pub(super) spare: Mutex<Vec<Lists>>,
}

// SAFETY: the library takes calls on one client from any threads at once, and has it ended by any.
unsafe impl Send for Client {}
// SAFETY: as above; nothing here changes a client but dropping it.
unsafe impl Sync for Client {}

impl Client {
    /// `handle`: made by this library just now, and nobody else's.
    pub(super) fn new(library: &'static Library, handle: NonNull<c_void>) -> Self {
        Self {
            library,
            handle,
            process: Process::this(),
            spare: Mutex::new(Vec::new()),
        }
    }

    pub(super) fn symbols(&self) -> &'static Symbols {
        &self.library.symbols
    }

    pub(super) fn handle(&self) -> *mut c_void {
        self.handle.as_ptr()
    }

    /// Whether this is another process than the one that made it, and has none of its threads: a
    /// call would never return, or break that process.
    pub(super) fn is_forked(&self) -> bool {
        !self.process.is_this()
    }

    /// Ends it.
    ///
    /// Blocks: about a second, up to 18 without a master. Errors: `NoThread`, it is not ended.
    pub fn end(mut self) -> Result<()> {
        let ending = self.take();
        std::mem::forget(self);
        ending.map_or(Ok(()), |ending| apart(|| ending.run()))
    }

    /// What is left to do; nothing in a forked process. Once.
    fn take(&mut self) -> Option<Ending> {
        self.spare.get_mut().clear();
        self.spare.get_mut().shrink_to_fit();
        (!self.is_forked()).then_some(Ending {
            library: self.library,
            handle: self.handle,
        })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(ending) = self.take() else {
            return;
        };
        if let Err(error) = start_apart(|| ending.run()) {
            tracing::warn!("a client of Mooncake stays: {error}");
        }
    }
}

/// A client that nobody has any more.
struct Ending {
    library: &'static Library,
    handle: NonNull<c_void>,
}

// SAFETY: as for a client.
unsafe impl Send for Ending {}

impl Ending {
    fn run(self) {
        // A process that ends takes its clients with it.
        let Some(_inside) = Inside::enter() else {
            return;
        };
        // SAFETY: the library made it, nobody else has it, and no call on it runs.
        unsafe { (self.library.symbols.destroy)(self.handle.as_ptr()) };
    }
}
