//! The pool that a configuration names, opened once; workers and tools get handles on it.

use std::sync::Arc;

use super::embedded::{self, Pool};
use super::{Capabilities, Store, host, mooncake, wire};
use crate::config::{Config, Role, StoreKind};
use crate::engine::{DeviceChoice, Engine, Terms};
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
    /// A client of Mooncake's protocol.
    MooncakeTcp(Arc<wire::Connection>),
    /// A pool behind functions of the host.
    Host(Arc<host::Handle>),
}

impl Connection {
    /// Opens the pool of a configuration, after everything that speaks against it was looked at. `table` is
    /// what the host lends for the kind "host", and goes with no other.
    ///
    /// Blocks: for a pool that is reached over a network, as long as [`mooncake::Patience`] says at
    /// most. Errors: `EngineRefused`; `InvalidArgument`, the kind does not go with what was lent;
    /// `ConfigInvalid`, the embedded pool is open with another capacity; `NoMemory`; `PoolRefused`,
    /// `PoolFailed`, `NoThread` as [`mooncake::Connection::open`] and [`wire::Connection::open`] say.
    pub fn open(config: &Config, engine: &Engine, table: Option<host::Table>) -> Result<Self> {
        let connection = Self::open_kind(config, engine, table)?;
        let capabilities = match &connection {
            Self::Embedded(pool) => pool.capabilities(),
            Self::Host(pool) => pool.capabilities(),
            // Have refused what they cannot do before they lent anything.
            Self::Mooncake(_) | Self::MooncakeTcp(_) => return Ok(connection),
        };
        check_capabilities(config, capabilities)?;
        Ok(connection)
    }

    fn open_kind(config: &Config, engine: &Engine, table: Option<host::Table>) -> Result<Self> {
        let terms = engine.terms(config)?;
        // Staging is held against what is left when a layout is registered.
        let budget = Budget {
            ranks: terms.ranks_on_node,
            segment: config.global_segment_size(),
            staging: 0,
        };
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
            (StoreKind::Mooncake, None) => {
                check_direct(
                    &terms,
                    &mooncake::capabilities(config.tenant_id().is_some()),
                )?;
                budget.check(node::available_memory())?;
                let patience = mooncake::Patience::new(config);
                let connection = mooncake::Connection::open(config, patience)?;
                Ok(Self::Mooncake(connection))
            }
            (StoreKind::MooncakeTcp, None) => {
                let newest = wire::family::Family::ALL[0];
                check_direct(
                    &terms,
                    &wire::capabilities(newest, config.tenant_id().is_some()),
                )?;
                budget.check(node::available_memory())?;
                let connection = wire::Connection::open(config, wire::PATIENCE)?;
                Ok(Self::MooncakeTcp(connection))
            }
        }
    }

    /// A handle of its own, to be closed by whoever asked for it. Nothing bounds the time of its calls.
    ///
    /// Errors: `Closed`; `BadState`, see [`mooncake::Connection::handle`].
    pub fn handle(&self) -> Result<Arc<dyn Store>> {
        match self {
            Self::Embedded(pool) => Ok(pool.handle()?),
            Self::Mooncake(connection) => connection.handle(),
            Self::MooncakeTcp(connection) => connection.handle(),
            Self::Host(pool) => Ok(pool.handle()?),
        }
    }

    /// The numbers of an embedded pool.
    ///
    /// Errors: `Unsupported` for pools that are not; `Closed`.
    pub fn stats(&self) -> Result<embedded::Stats> {
        match self {
            Self::Embedded(pool) => pool.stats(),
            Self::Mooncake(_) | Self::MooncakeTcp(_) => bail!(
                Unsupported,
                "a Mooncake store has no numbers of the pool; its master has them"
            ),
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
            Self::Mooncake(connection) => Ok(Self::Mooncake(Arc::clone(connection))),
            Self::MooncakeTcp(connection) => Ok(Self::MooncakeTcp(Arc::clone(connection))),
            Self::Host(pool) => Ok(Self::Host(pool.handle()?)),
        }
    }
}

/// Refuses what a configuration asks for and a store cannot do: dropped silently it would be an option
/// that an operator believes to have, and tenants would share what they believe to be apart.
///
/// Errors: `PoolRefused`.
pub fn check_capabilities(config: &Config, can: &Capabilities) -> Result<()> {
    const MOST: &str = "\"mooncake-tcp\" can, \"host\" if its functions can";
    for (asked, able, field, others) in [
        (
            config.soft_pin_ttl_ms().is_some(),
            can.soft_pin_ttl,
            "soft_pin_ttl_ms",
            MOST,
        ),
        (config.group_blocks(), can.groups, "group_blocks", MOST),
        (
            config.replica_num() > 1,
            can.replicas,
            "kvbridge.replica_num",
            "\"mooncake-tcp\" can",
        ),
        (
            config.tenant_id().is_some(),
            can.tenant,
            "tenant_id",
            "\"mooncake\" and \"mooncake-tcp\" can if their master keeps tenants apart, \"host\" if its functions do",
        ),
    ] {
        if asked && !able {
            let others = match can.name {
                // Only where another one could.
                "host" if others.contains("\"host\"") => {
                    "its table does not say that its functions can"
                }
                "mooncake-tcp" => "it needs a newer master",
                _ => others,
            };
            bail!(
                PoolRefused,
                "{field} is set, but the store \"{}\" cannot do it; {others}",
                can.name
            );
        }
    }
    Ok(())
}

/// Refuses a store that cannot reach the cache where it shall read and write that itself.
///
/// Errors: `PoolRefused`.
pub fn check_direct(terms: &Terms, can: &Capabilities) -> Result<()> {
    let is_needed = terms.direct && terms.role != Role::Capacity;
    if is_needed && matches!(terms.device, DeviceChoice::Cuda(_)) && !can.device_memory {
        let hint = match can.name {
            "host" => "its table does not say that its functions can",
            _ => "\"host\" can if its functions can",
        };
        bail!(
            PoolRefused,
            "stage_through_host = false, and the cache lies on a device, but the store \"{}\" takes memory of the host alone; {hint}",
            can.name
        );
    }
    Ok(())
}
