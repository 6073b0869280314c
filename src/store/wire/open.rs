//! From a configuration to a client that is connected, or to the reason why not.
//!
//! What is asked for and cannot be done is refused before any memory is lent.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::alive::{self, Lent, Memory};
use super::client::{Client, Times};
use super::disk::Disks;
use super::family::Family;
use super::handle::Handle;
use super::master::Master;
use super::messages::{PIN, Replica, ReplicateConfig};
use super::pack::{Answer, Text, Uuid};
use super::rpc::Failure;
use super::segment::{self, Segment};
use super::transfer::{Directory, Peers, Settings, announce, http};
use crate::config::Config;
use crate::error::{Error, Kind, Result, bail};
use crate::fork::Process;
use crate::store::connection::check_capabilities;
use crate::store::mooncake::{address, codes, setup, signals};
use crate::store::{Capabilities, Store};
use crate::sync::Arc;

/// How long opening may wait for the master, names included.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// How long a metadata server is waited for at the end.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// The tenant of those who name none.
const NO_TENANT: &str = "default";

/// A client that is connected. Handles keep it, so this may go before them; with the last of all it ends.
#[derive(Debug)]
pub struct Connection {
    client: Arc<Client>,
    process: Process,
}

/// What the store can do with a master of these versions.
pub fn capabilities(family: Family, tenant: bool) -> Capabilities {
    Capabilities {
        name: "mooncake-tcp",
        pieces_per_key: usize::MAX,
        keys_per_call: 1 << 16,
        soft_pin_ttl: family >= Family::V0_3_13,
        groups: true,
        places: false,
        tenant,
        device_memory: false,
        // It cannot: each call ends by itself. But a caller waits no longer than its own deadline, and the breaker
        // keeps it from a pool that is gone, only where the guard makes the calls.
        can_be_late: true,
        replicas: true,
        ends_by_itself: true,
        tells_already_there: true,
        spares_wrong_targets: true,
        logs_failures: false,
    }
}

impl Connection {
    /// Connects as the configuration says.
    ///
    /// Blocks: for `patience` for each of the names' server, the master, the address of our own, the metadata server, and
    /// the master again for what is lent.
    /// Errors: `PoolRefused`, something of the configuration, the master or this machine does not go
    /// together; `PoolFailed`, the master cannot be reached or does not answer; `NoThread`, `NoMemory`.
    pub fn open(config: &Config, patience: Duration) -> Result<Arc<Self>> {
        let Some(address) = config.master_server_address() else {
            bail!(PoolRefused, "master_server_address is not set");
        };
        let directory = directory(config.metadata_server())?;
        let addresses = resolve(address, patience)?;
        let tenant = config.tenant_id().unwrap_or(NO_TENANT);
        let id = random();
        let deadline = Instant::now() + patience;
        let connect = |tenant: &str| {
            Master::connect(addresses.clone(), tenant, id, deadline)
                .map_err(|failure| refusal(address, &failure))
        };
        let master = Arc::new(connect(tenant)?);
        let capabilities = capabilities(master.family(), config.tenant_id().is_some());
        setup::check_segment(config.global_segment_size())?;
        check_capabilities(config, &capabilities).map_err(|error| {
            let versions = master.family().versions();
            error.within(format_args!("the master is a Mooncake {versions}"))
        })?;
        if config.tenant_id().is_some() {
            let stranger = format!("kvbridge-probe-{:016x}", random().0);
            check_tenants(address, &connect(&stranger)?, &master, tenant, deadline)?;
        } else if is_unknown(&master, deadline).map_err(|failure| refusal(address, &failure))? {
            bail!(
                PoolRefused,
                "tenant_id is not set, but the master at \"{address}\" keeps tenants apart, and takes no page without one"
            );
        }
        if let Some(ttl_ms) = config.soft_pin_ttl_ms() {
            check_pin(address, &master, ttl_ms, deadline)?;
        }
        let segment = serve(config, &directory, patience)?;
        let lent = match &segment {
            Some(segment) => {
                let (segment, deadline) = (Arc::clone(segment), Instant::now() + patience);
                Some(lend(&master, segment, directory.clone(), deadline)?)
            }
            None => None,
        };
        tracing::info!(
            "connected to Mooncake's master at \"{address}\", which speaks as {} does, {} bytes lent",
            master.family().versions(),
            config.global_segment_size()
        );
        let client = Arc::new(Client {
            master,
            peers: Peers::new(Settings {
                own: segment,
                ..Settings::new(directory)
            }),
            disks: Disks::new(),
            times: Times::new(config),
            capabilities,
            replicas: config.replica_num().into(),
            told_of_few: AtomicBool::new(false),
            lent,
            process: Process::this(),
        });
        Ok(Arc::new(Self {
            client,
            process: Process::this(),
        }))
    }

    /// A handle of its own, to be closed by whoever asked for it.
    ///
    /// Errors: `BadState` in a process that was forked from the one that connected.
    pub fn handle(&self) -> Result<Arc<dyn Store>> {
        if !self.process.is_this() {
            bail!(
                BadState,
                "this process was forked from the one that connected, whose connections these are"
            );
        }
        Ok(Arc::new(Handle::new(Arc::clone(&self.client))))
    }
}

/// Two numbers that nobody else has, but for a chance that nobody needs to count with.
fn random() -> Uuid {
    // Keyed from the system's randomness.
    let number = || RandomState::new().build_hasher().finish();
    Uuid(number(), number())
}

fn directory(metadata_server: &str) -> Result<Directory> {
    if metadata_server == "P2PHANDSHAKE" {
        return Ok(Directory::Handshake);
    }
    match http::Server::parse(metadata_server) {
        Some(server) => Ok(Directory::Http(server)),
        None => bail!(
            PoolRefused,
            "metadata_server = \"{metadata_server}\": the store \"mooncake-tcp\" finds owners with \"P2PHANDSHAKE\" or at an \"http://\" server, named as http://host[:port][/path]; \"mooncake\" knows others"
        ),
    }
}

fn resolve(master: &str, patience: Duration) -> Result<Vec<SocketAddr>> {
    let text = master.to_owned();
    let found = signals::apart_within(patience, move || address::resolve(&text, None))?;
    match found {
        Some(Ok(addresses)) => Ok(addresses),
        Some(Err(error)) => bail!(
            PoolFailed,
            "the master at \"{master}\" cannot be reached: {error}"
        ),
        None => bail!(
            PoolFailed,
            "the master at \"{master}\" cannot be reached: its name has no address after {} ms",
            patience.as_millis()
        ),
    }
}

fn refusal(master: &str, failure: &Failure) -> Error {
    let (kind, what) = match failure {
        Failure::Deadline | Failure::Lost(_) => (Kind::PoolFailed, "cannot be reached"),
        Failure::Nonsense(_) | Failure::Refused(_) => (Kind::PoolRefused, "cannot be used"),
    };
    Error::new(
        kind,
        format!("the master at \"{master}\" {what}: {failure}"),
    )
}

/// Refuses a master that takes tenants and does not keep them apart, as it does unless it was told to: then it
/// would say to a tenant that nobody registered that it does not know it. And one that says so of ours: it
/// would refuse every page.
fn check_tenants(
    address: &str,
    stranger: &Master,
    ours: &Master,
    tenant: &str,
    deadline: Instant,
) -> Result<()> {
    let is_unknown = |master: &Master| {
        is_unknown(master, deadline).map_err(|failure| refusal(address, &failure))
    };
    if !is_unknown(stranger)? {
        bail!(
            PoolRefused,
            "tenant_id is set, but the master at \"{address}\" does not keep tenants apart: it was started without --enable_multi_tenants"
        );
    }
    if is_unknown(ours)? {
        bail!(
            PoolRefused,
            "tenant_id = \"{tenant}\" is not known to the master at \"{address}\""
        );
    }
    Ok(())
}

/// Refuses a pin that is longer than the master allows: it would refuse every page.
fn check_pin(address: &str, master: &Master, ttl_ms: u64, deadline: Instant) -> Result<()> {
    let config = ReplicateConfig {
        replicas: 1,
        soft_pin_action: PIN,
        soft_pin_ttl_ms: Some(ttl_ms),
        ..ReplicateConfig::default()
    };
    let number = refused(master, &config, deadline).map_err(|it| refusal(address, &it))?;
    // Anything else, as that there is no room now, says nothing of the pin.
    if number == Some(codes::NOT_ALLOWED) {
        bail!(
            PoolRefused,
            "soft_pin_ttl_ms = {ttl_ms}, but the master at \"{address}\" refuses pages with such a pin ({}): it takes at most 24 h (86400000), unless it was started with another --max_kv_soft_pin_ttl",
            codes::NOT_ALLOWED
        );
    }
    Ok(())
}

/// Whether the master refuses its tenant.
fn is_unknown(master: &Master, deadline: Instant) -> std::result::Result<bool, Failure> {
    let config = ReplicateConfig {
        replicas: 1,
        ..ReplicateConfig::default()
    };
    Ok(refused(master, &config, deadline)? == Some(codes::UNKNOWN_TENANT))
}

/// With what number the master refuses to take a page like that, if it does: begins to put one byte, and takes that back.
fn refused(
    master: &Master,
    config: &ReplicateConfig<'_>,
    deadline: Instant,
) -> std::result::Result<Option<i32>, Failure> {
    let key = format!("kvbridge-probe-{:016x}", random().0);
    let keys = [Text(key.as_bytes())];
    let (mut number, mut is_started) = (None, false);
    let hear = |_, answer: Answer<Vec<Replica<'_>>>| match answer {
        Ok(_) => is_started = true,
        Err(it) => number = Some(it),
    };
    master.put_start(&keys, &[1], config, deadline, hear)?;
    if is_started {
        let revoked = master.put_revoke(&keys, deadline);
        if let Some(failure) = revoked.failure() {
            tracing::debug!("a probe is not taken back: {failure}");
        }
    }
    Ok(number)
}

/// Serves memory, which is not in the pool yet; nothing if the configuration lends none.
fn serve(
    config: &Config,
    directory: &Directory,
    patience: Duration,
) -> Result<Option<Arc<Segment>>> {
    let size = config.global_segment_size();
    if size == 0 {
        return Ok(None);
    }
    let name = setup::own_address(config, patience)?;
    let host = address::host_and_port(&name).0.to_owned();
    let text = host.clone();
    let found = signals::apart_within(patience, move || address::resolve(&text, Some(0)))?;
    let Some(bind) = found.and_then(|it| Some(it.ok()?.first()?.ip())) else {
        bail!(PoolFailed, "local_hostname = \"{name}\" has no address");
    };
    let segment = Segment::open(&segment::Settings {
        bind,
        host,
        size,
        limits: segment::Limits::default(),
    })?;
    if let Directory::Http(server) = directory {
        announce::publish(server, &segment, Instant::now() + patience)?;
    }
    Ok(Some(Arc::new(segment)))
}

/// Lent memory as it is served.
struct Served {
    segment: Arc<Segment>,
    directory: Directory,
}

impl alive::Server for Served {
    fn move_on(&self, deadline: Instant) -> Result<u64> {
        let base = self.segment.move_on();
        if let Directory::Http(server) = &self.directory {
            announce::publish(server, &self.segment, deadline)?;
        }
        Ok(base)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Directory::Http(server) = &self.directory {
            let deadline = Instant::now() + WITHDRAWAL;
            if let Err(error) = announce::withdraw(server, self.segment.endpoint(), deadline) {
                tracing::warn!("lent memory stays at the metadata server: {error}");
            }
        }
        self.segment.close();
    }
}

/// Puts memory that is served into the pool.
fn lend(
    master: &Arc<Master>,
    segment: Arc<Segment>,
    directory: Directory,
    deadline: Instant,
) -> Result<Lent> {
    let memory = Memory {
        name: segment.endpoint().to_owned(),
        endpoint: segment.endpoint().to_owned(),
        base: segment.base(),
        size: segment.size(),
    };
    let served = Served { segment, directory };
    let master = Arc::clone(master);
    Lent::begin(master, random(), memory, Box::new(served), deadline)
}
