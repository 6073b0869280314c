//! The pool that a configuration names, opened once; workers and tools get handles on it.

use std::sync::Arc;

use super::Store;
use super::embedded::{self, Pool};
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
}

impl Connection {
    /// Opens the pool of a configuration, after everything that speaks against it was looked at.
    ///
    /// Errors: `EngineRefused`; `Unsupported`, this build lacks the kind of store;
    /// `ConfigInvalid`, the embedded pool is open with another capacity; `NoMemory`.
    pub fn open(config: &Config, engine: &Engine) -> Result<Self> {
        let terms = engine.terms(config)?;
        match config.store() {
            StoreKind::Embedded => {
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
            other => bail!(
                Unsupported,
                "the store \"{}\" is not supported in this build; \"embedded\" is",
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
        }
    }

    /// The numbers of an embedded pool.
    ///
    /// Errors: `Unsupported` for pools that are not; `Closed`.
    pub fn stats(&self) -> Result<embedded::Stats> {
        match self {
            Self::Embedded(pool) => pool.stats(),
        }
    }

    /// This connection for another owner.
    ///
    /// Errors: `Closed`.
    pub fn share(&self) -> Result<Self> {
        match self {
            Self::Embedded(pool) => Ok(Self::Embedded(pool.handle()?)),
        }
    }
}
