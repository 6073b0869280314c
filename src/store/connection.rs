//! The pool that a configuration names, opened once; workers and tools get handles on it.

use std::sync::Arc;

use super::Store;
use super::embedded::{self, Pool};
use super::host;
use crate::config::{Config, StoreKind};
use crate::engine::Engine;
use crate::error::{Result, bail};
use crate::node::{self, Budget};
use crate::sync::SystemClock;

/// An open pool. Handles keep what they need of it, so it may go before them.
#[derive(Debug)]
pub enum Connection {
    /// A pool of this process.
    Embedded(Arc<Pool>),
    /// A pool behind functions of the host.
    Host(Arc<host::Handle>),
}

impl Connection {
    /// Opens the pool of a configuration, after everything that speaks against it was looked at. `table` is
    /// what the host lends for the kind "host", and goes with no other.
    ///
    /// Errors: `EngineRefused`; `Unsupported`, this build lacks the kind of store; `InvalidArgument`, the
    /// kind does not go with what was lent;
    /// `ConfigInvalid`, the embedded pool is open with another capacity; `NoMemory`.
    pub fn open(config: &Config, engine: &Engine, table: Option<host::Table>) -> Result<Self> {
        let terms = engine.terms(config)?;
        match (config.store(), table) {
            (StoreKind::Host, Some(table)) => Ok(Self::Host(host::open(table))),
            (StoreKind::Host, None) => bail!(
                InvalidArgument,
                "the store \"host\" needs a table of functions: open a kvb_store with one, and make \
                 the workers on that store"
            ),
            (other, Some(_)) => bail!(
                InvalidArgument,
                "table: kvbridge.store is \"{}\"; a table of functions is for \"host\" alone",
                other.name()
            ),
            (StoreKind::Embedded, None) => {
                if !embedded::is_open(config.pool()) {
                    // Staging is held against what is left when a layout is registered.
                    let budget = Budget {
                        ranks: terms.ranks_on_node,
                        segment: config.global_segment_size(),
                        staging: 0,
                    };
                    budget.check(node::available_memory())?;
                }
                let pool = embedded::open(
                    config.pool(),
                    config.global_segment_size(),
                    config.eviction_ratio(),
                    config.lease_ttl(),
                    Arc::new(SystemClock::new()),
                )?;
                Ok(Self::Embedded(pool))
            }
            (other, None) => bail!(
                Unsupported,
                "the store \"{}\" is not supported in this build; \"embedded\" and \"host\" are",
                other.name()
            ),
        }
    }

    /// A handle of its own, to be closed by whoever asked for it. Nothing bounds the time of its calls.
    ///
    /// Errors: `Closed`.
    pub fn handle(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::Embedded(pool) => Ok(pool.handle()?),
            Self::Host(pool) => Ok(pool.handle()?),
        }
    }

    /// The numbers of an embedded pool.
    ///
    /// Errors: `Unsupported` for pools that are not; `Closed`.
    pub fn stats(&self) -> Result<embedded::Stats> {
        match self {
            Self::Embedded(pool) => pool.stats(),
            Self::Host(_) => bail!(
                Unsupported,
                "a pool of the host's has no numbers here; an embedded one has"
            ),
        }
    }

    /// This connection for another owner.
    ///
    /// Errors: `Closed`.
    pub fn share(&self) -> Result<Self> {
        match self {
            Self::Embedded(pool) => Ok(Self::Embedded(pool.handle()?)),
            Self::Host(pool) => Ok(Self::Host(pool.handle()?)),
        }
    }
}
