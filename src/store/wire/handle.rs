//! Handles on a client: the store.

use parking_lot::RwLock;

use super::client::Client;
use super::codes;
use crate::device::memory::{Source, Target};
use crate::error::{self, bail};
use crate::fork::Process;
use crate::keys::Keys;
use crate::layout::Range;
use crate::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store, answer_all, code,
};
use crate::sync::Arc;

/// A store on a client that other handles may share. The last one to be closed ends it.
#[derive(Debug)]
pub(super) struct Handle {
    client: RwLock<Option<Arc<Client>>>,
    capabilities: Capabilities,
    process: Process,
}

impl Handle {
    pub(super) fn new(client: Arc<Client>) -> Self {
        Self {
            capabilities: client.capabilities.clone(),
            client: RwLock::new(Some(client)),
            process: Process::this(),
        }
    }

    /// The client, for one call.
    fn client(&self) -> Result<Arc<Client>, i32> {
        // Its connections are those of the process it was forked from: two would talk over one.
        if !self.process.is_this() {
            return Err(code::FORKED);
        }
        self.client.read().clone().ok_or(code::CLOSED)
    }

    fn check(&self, call: &str) -> error::Result<()> {
        match self.client() {
            Ok(_) => Ok(()),
            Err(code::FORKED) => bail!(
                BadState,
                "{call}: this process was forked from process {}, whose connections these are",
                self.process.id()
            ),
            Err(_) => bail!(Closed, "{call}: this handle on the pool was closed"),
        }
    }
}

impl Store for Handle {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        out.clear();
        match self.client() {
            Ok(client) => client.exist(keys, out),
            Err(code) => answer_all(out, keys.len(), Presence::Unknown(code)),
        }
    }

    fn put(
        &self,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        out.clear();
        let made = match sources.fits(keys.len()) {
            false => Err(code::MALFORMED_CALL),
            true => self
                .client()
                .and_then(|client| client.put(keys, sources, options, out)),
        };
        if let Err(code) = made {
            answer_all(out, keys.len(), PutOutcome::Failed(code));
        }
    }

    fn get(&self, keys: &Keys, targets: Pieces<'_, Target<'_>>, out: &mut Vec<GetOutcome>) {
        out.clear();
        let made = match targets.fits(keys.len()) {
            false => Err(code::MALFORMED_CALL),
            true => self.client().map(|client| client.get(keys, targets, out)),
        };
        if let Err(code) = made {
            answer_all(out, keys.len(), GetOutcome::Failed(code));
        }
    }

    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        out.clear();
        match self.client() {
            Ok(client) => client.remove(keys, force, out),
            Err(code) => answer_all(out, keys.len(), RemoveOutcome::Failed(code)),
        }
    }

    /// Nothing: sockets take any memory of the process.
    fn register(&self, _: Range) -> error::Result<()> {
        self.check("register")
    }

    fn unregister(&self, _: Range) -> error::Result<()> {
        self.check("unregister")
    }

    /// Whether the last connection to the master could be made.
    fn health(&self) -> Health {
        match self.client() {
            Ok(client) => match client.master.trouble() {
                None => Health::Up,
                Some(_) => Health::Down(code::UNREACHABLE),
            },
            Err(code) => Health::Down(code),
        }
    }

    fn is_outage(&self, code: i32) -> bool {
        codes::is_outage(code)
    }

    /// Never: a socket with an answer outstanding is closed before its call returns.
    fn may_still_write(&self, _: i32) -> bool {
        false
    }

    fn may_still_read(&self, _: i32) -> bool {
        false
    }

    /// The last handle takes back what is lent: a few seconds at most.
    fn close(&self) -> error::Result<()> {
        if self.process.is_this() {
            // A statement of its own: calls that come meanwhile must not wait for the lock while the client ends.
            let client = self.client.write().take();
            drop(client);
        }
        Ok(())
    }
}
