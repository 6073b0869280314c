//! The pool that a configuration names, opened once; workers and tools get handles on it.

use std::sync::Arc;

use super::embedded::{self, Pool};
use super::{Capabilities, Store, mooncake};
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
    /// A client of Mooncake's library.
    Mooncake(Arc<mooncake::Connection>),
}

impl Connection {
    /// Opens the pool of a configuration, after everything that speaks against it was looked at.
    ///
    /// Blocks: for a pool that is reached over a network, as long as [`mooncake::Patience`] says at
    /// most. Errors: `EngineRefused`; `Unsupported`, this build lacks the kind of store;
    /// `ConfigInvalid`, the embedded pool is open with another capacity; `NoMemory`; `PoolRefused`,
    /// `PoolFailed`, `NoThread` as [`mooncake::Connection::open`] says.
    pub fn open(config: &Config, engine: &Engine) -> Result<Self> {
        let terms = engine.terms(config)?;
        // Staging is held against what is left when a layout is registered.
        let budget = Budget {
            ranks: terms.ranks_on_node,
            segment: config.global_segment_size(),
            staging: 0,
        };
        match config.store() {
            StoreKind::Embedded => {
                if !embedded::is_open(config.pool()) {
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
            StoreKind::Mooncake => {
                budget.check(node::available_memory())?;
                let patience = mooncake::Patience::new(config);
                let connection = mooncake::Connection::open(config, patience)?;
                Ok(Self::Mooncake(connection))
            }
            other => bail!(
                Unsupported,
                "the store \"{}\" is not supported in this build; \"embedded\" and \"mooncake\" are",
                other.name()
            ),
        }
    }

    /// A handle of its own, to be closed by whoever asked for it. Nothing bounds the time of its calls.
    ///
    /// Errors: `Closed`; `BadState`, see [`mooncake::Connection::handle`].
    pub fn handle(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::Embedded(pool) => Ok(pool.handle()?),
            Self::Mooncake(connection) => connection.handle(),
        }
    }

    /// The numbers of an embedded pool.
    ///
    /// Errors: `Unsupported` for pools that are not; `Closed`.
    pub fn stats(&self) -> Result<embedded::Stats> {
        match self {
            Self::Embedded(pool) => pool.stats(),
            Self::Mooncake(_) => bail!(
                Unsupported,
                "the store \"mooncake\" has no numbers of the pool; its master has them"
            ),
        }
    }

    /// This connection for another owner.
    ///
    /// Errors: `Closed`.
    pub fn share(&self) -> Result<Self> {
        match self {
            Self::Embedded(pool) => Ok(Self::Embedded(pool.handle()?)),
            Self::Mooncake(connection) => Ok(Self::Mooncake(Arc::clone(connection))),
        }
    }
}

/// Refuses what a configuration asks for and a store cannot do: dropped silently it would be an option
/// that an operator believes to have, and tenants would share what they believe to be apart.
///
/// Errors: `PoolRefused`.
pub fn check_capabilities(config: &Config, can: &Capabilities) -> Result<()> {
    for (asked, able, field) in [
        (
            config.soft_pin_ttl_ms().is_some(),
            can.soft_pin_ttl,
            "soft_pin_ttl_ms",
        ),
        (config.group_blocks(), can.groups, "group_blocks"),
        (config.tenant_id().is_some(), can.tenant, "tenant_id"),
    ] {
        if asked && !able {
            bail!(
                PoolRefused,
                "{field} is set, but the store \"{}\" cannot do it; \"mooncake-tcp\" is meant for that, or \"host\" if its functions can",
                can.name
            );
        }
    }
    Ok(())
}
