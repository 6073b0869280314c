//! From a configuration to a client that is connected, or to the reason why not.
//!
//! What can be known to fail is refused before the library is asked: it would take minutes to say
//! so, or say it in the middle of a transfer. Whatever may wait runs on a thread apart, under a
//! deadline; a setup that is late ends its own client when it returns.

use std::ffi::CString;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::calls::{self, Handle};
use super::client::Client;
use super::exit::Inside;
use super::library::Library;
use super::signals::apart_within;
use super::{address, codes};
use crate::config::Config;
use crate::device::memory::Source;
use crate::error::{Result, bail};
use crate::keys::Keys;
use crate::node::{self, Locked};
use crate::store::connection::check_capabilities;
use crate::store::{Capabilities, Pieces, PutOptions, PutOutcome, Store};

/// The least that can be lent, in bytes: Mooncake refuses less.
const LEAST_SEGMENT: u64 = 16 << 20;

/// Where the system lists its RDMA devices.
const RDMA_DEVICES: &str = "/sys/class/infiniband";

/// With one of these Mooncake does without an RDMA device though the protocol is "rdma".
const OTHER_TRANSPORTS: [&str; 5] = [
    "MC_FORCE_TCP",
    "MC_FORCE_MNNVL",
    "MC_INTRANODE_NVLINK",
    "MC_INTRA_NVLINK",
    "MC_USE_NVLINK_IPC",
];

/// How long opening waits.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a connection to the master, and as long again for names.
    pub master: Duration,
    /// For the library to connect, with all that is lent mapped and registered.
    pub setup: Duration,
}

impl Patience {
    /// 5 seconds for the master; 30 for the library, and one more per GiB that is lent.
    pub fn new(config: &Config) -> Self {
        let lent = Duration::from_secs(config.global_segment_size() >> 30);
        Self {
            master: Duration::from_secs(5),
            setup: Duration::from_secs(30).saturating_add(lent),
        }
    }
}

/// A client that is connected. Handles keep it, so this may go before them; with the last of all it
/// ends.
#[derive(Debug)]
pub struct Connection {
    client: Arc<Client>,
    capabilities: Capabilities,
}

impl Connection {
    /// Loads the library and connects as the configuration says, which is one for this store.
    ///
    /// Blocks: as long as `patience` says at most, and while the library is loaded, some 50 ms.
    /// Errors: `PoolRefused`, something of the configuration, the library or this machine does not go
    /// together; `NoMemory`, RDMA would lock more than this process may; `PoolFailed`, the master cannot be reached, or the library could not connect in
    /// time; `NoThread`.
    pub fn open(config: &Config, patience: Patience) -> Result<Arc<Self>> {
        let capabilities = calls::capabilities(config.tenant_id().is_some());
        check_capabilities(config, &capabilities)?;
        check_segment(config.global_segment_size())?;
        let is_forced = OTHER_TRANSPORTS
            .iter()
            .any(|variable| std::env::var_os(variable).is_some());
        if config.protocol() == "rdma" && !is_forced {
            check_rdma(Path::new(RDMA_DEVICES), config.device_name())?;
            locked(config).check(node::locked_memory_limit())?;
        }
        // SAFETY: the operator names the library as Mooncake's, and what lacks its functions is refused.
        let library = unsafe { Library::open(config.library()) }?;
        if let Some(tenant) = config.tenant_id()
            && !library.has_tenants()
        {
            bail!(
                PoolRefused,
                "tenant_id = \"{tenant}\", but the library \"{}\" has no tenants; it needs a newer Mooncake",
                config.library()
            );
        }
        let setup = Setup::new(config, own_address(config, patience.master)?)?;
        let (within, master) = (patience.setup.as_millis(), setup.master_text.clone());
        let client = apart_within(patience.setup, move || setup.connect(library))?;
        let Some(client) = client else {
            bail!(
                PoolFailed,
                "Mooncake had not connected to the master at \"{master}\" after {within} ms; what it began ends when its setup returns"
            );
        };
        Ok(Arc::new(Self {
            client: Arc::new(client?),
            capabilities,
        }))
    }

    /// A handle of its own, to be closed by whoever asked for it.
    ///
    /// Errors: `BadState` in a process that was forked from the one that connected.
    pub fn handle(&self) -> Result<Arc<dyn Store>> {
        if self.client.is_forked() {
            bail!(
                BadState,
                "this process was forked from the one that connected, in which alone Mooncake's library works"
            );
        }
        let client = Arc::clone(&self.client);
        Ok(Arc::new(Handle::new(client, self.capabilities.clone())))
    }
}

/// Refuses to lend less than Mooncake takes.
pub(in crate::store) fn check_segment(bytes: u64) -> Result<()> {
    if (1..LEAST_SEGMENT).contains(&bytes) {
        bail!(
            PoolRefused,
            "global_segment_size = {bytes}: Mooncake lends {LEAST_SEGMENT} bytes (16 MiB) or more, or with 0 none"
        );
    }
    Ok(())
}

/// What Mooncake registers with its adapters: the segment, and a worker's staging, which may be less than its budget.
fn locked(config: &Config) -> Locked {
    let role = config.role();
    let directions = u64::from(role.reads()) + u64::from(role.writes());
    Locked {
        segment: config.global_segment_size(),
        staging: match config.stage_through_host() {
            true => config.staging_buffer_bytes().saturating_mul(directions),
            false => 0,
        },
    }
}

/// Without a device Mooncake connects all the same, and every transfer fails.
fn check_rdma(devices: &Path, wanted: &str) -> Result<()> {
    let found: Vec<_> = std::fs::read_dir(devices)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .collect();
    if found.is_empty() {
        bail!(
            PoolRefused,
            "protocol = \"rdma\", but this machine has no RDMA device ({} has none); \"tcp\" does without",
            devices.display()
        );
    }
    let names = wanted.split(',').map(str::trim);
    for name in names.filter(|name| !name.is_empty()) {
        if !found.iter().any(|device| device == name) {
            bail!(
                PoolRefused,
                "device_name = \"{wanted}\", but there is no RDMA device \"{name}\": there are {}",
                found.join(", ")
            );
        }
    }
    Ok(())
}

/// Sees that the master is there, and finds the name under which others reach this process.
pub(in crate::store) fn own_address(config: &Config, patience: Duration) -> Result<String> {
    let Some(master) = config.master_server_address().map(str::to_owned) else {
        bail!(PoolRefused, "master_server_address is not set");
    };
    let (own, address) = (config.local_hostname().map(str::to_owned), master.clone());
    let found = apart_within(patience.saturating_mul(2), move || -> Result<String> {
        let route: IpAddr = address::reach(&address, patience)?;
        match own {
            Some(own) => address::check_own(&own, route).map(|()| own),
            None => Ok(address::own(&address, route).to_string()),
        }
    })?;
    found.unwrap_or_else(|| {
        bail!(
            PoolFailed,
            "the master at \"{master}\" cannot be reached: no answer after {} ms",
            patience.saturating_mul(2).as_millis()
        )
    })
}

/// What `setup` is called with.
struct Setup {
    master: CString,
    master_text: String,
    own: CString,
    metadata: CString,
    protocol: CString,
    device: CString,
    segment: u64,
    tenant: Option<CString>,
}

impl Setup {
    fn new(config: &Config, own: String) -> Result<Self> {
        let text = |field: &str, value: &str| match CString::new(value) {
            Ok(text) => Ok(text),
            Err(_) => bail!(PoolRefused, "{field} = {value:?} holds a NUL"),
        };
        let master = config.master_server_address().unwrap_or_default();
        Ok(Self {
            master: text("master_server_address", master)?,
            master_text: master.to_owned(),
            own: text("local_hostname", &own)?,
            metadata: text("metadata_server", config.metadata_server())?,
            protocol: text("protocol", config.protocol())?,
            device: text("device_name", config.device_name())?,
            segment: config.global_segment_size(),
            tenant: match config.tenant_id() {
                Some(tenant) => Some(text("tenant_id", tenant)?),
                None => None,
            },
        })
    }

    /// Makes a client and connects it, on this thread, which must end soon and has all signals blocked.
    fn connect(&self, library: &'static Library) -> Result<Client> {
        if let Some(tenant) = &self.tenant {
            self.check_tenants(library, tenant)?;
        }
        let client = self.client(library, self.segment, self.tenant.as_ref())?;
        library.watch_exit();
        tracing::info!(
            "connected to Mooncake's master at \"{}\" as {}, {} bytes lent",
            self.master_text,
            self.own.to_string_lossy(),
            self.segment
        );
        Ok(client)
    }

    fn client(
        &self,
        library: &'static Library,
        segment: u64,
        tenant: Option<&CString>,
    ) -> Result<Client> {
        let client = library.client_here()?;
        let Some(_inside) = Inside::enter() else {
            bail!(Closed, "the process ends");
        };
        let symbols = client.symbols();
        // None of our calls needs a buffer of the library's own, and over RDMA it would be pinned.
        let buffer = 0;
        let (own, metadata) = (self.own.as_ptr(), self.metadata.as_ptr());
        let (protocol, device) = (self.protocol.as_ptr(), self.device.as_ptr());
        let (handle, master) = (client.handle(), self.master.as_ptr());
        // SAFETY: a client that nobody else has, once; texts that end with a NUL.
        let answer = unsafe {
            match (tenant, symbols.setup_with_tenant) {
                (Some(tenant), Some(setup)) => setup(
                    handle,
                    own,
                    metadata,
                    segment,
                    buffer,
                    protocol,
                    device,
                    master,
                    tenant.as_ptr(),
                ),
                _ => (symbols.setup)(
                    handle, own, metadata, segment, buffer, protocol, device, master,
                ),
            }
        };
        if answer != 0 {
            bail!(
                PoolFailed,
                "Mooncake could not connect to the master at \"{}\": its setup answered {answer} (protocol = {:?}, device_name = {:?}, metadata_server = {:?}, as {:?}, global_segment_size = {segment}); its own lines on standard error say more",
                self.master_text,
                self.protocol,
                self.device,
                self.metadata,
                self.own
            );
        }
        Ok(client)
    }

    /// Refuses a master that takes tenants and does not keep them apart, as it does unless it was
    /// told to: then it would say to a tenant that nobody registered that it does not know it. And
    /// one that says so of ours: it would refuse every page.
    fn check_tenants(&self, library: &'static Library, own: &CString) -> Result<()> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos();
        let key = format!("kvbridge-probe-{}-{now}", std::process::id());
        let Ok(stranger) = CString::new(key.as_str()) else {
            bail!(PoolRefused, "tenant_id: no name for a probe");
        };
        if !self.is_unknown(library, &stranger, &key)? {
            bail!(
                PoolRefused,
                "tenant_id is set, but the master at \"{}\" does not keep tenants apart: it was started without --enable_multi_tenants",
                self.master_text
            );
        }
        if self.is_unknown(library, own, &key)? {
            bail!(
                PoolRefused,
                "tenant_id = {own:?} is not known to the master at \"{}\"",
                self.master_text
            );
        }
        Ok(())
    }

    /// Puts one byte for this tenant, and takes it out again.
    fn is_unknown(&self, library: &'static Library, tenant: &CString, key: &str) -> Result<bool> {
        let client = self.client(library, 0, Some(tenant))?;
        let store = Handle::new(Arc::new(client), calls::capabilities(true));
        let (mut keys, mut put, mut removed) = (Keys::new(), Vec::new(), Vec::new());
        keys.push(key.as_bytes());
        let mut sources = [Source::from(&[0_u8][..])];
        let sources = Pieces::one_each(&mut sources);
        store.put(&keys, sources, &PutOptions::default(), &mut put);
        match put[..] {
            [PutOutcome::Failed(codes::UNKNOWN_TENANT)] => return Ok(true),
            [PutOutcome::Failed(code)] if codes::is_outage(code) => bail!(
                PoolFailed,
                "whether the master at \"{}\" keeps tenants apart is not known: it answered {code}",
                self.master_text
            ),
            [PutOutcome::Stored] => store.remove(&keys, true, &mut removed),
            _ => {}
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;

    #[test]
    fn what_is_lent_is_nothing_or_enough() {
        for good in [0, LEAST_SEGMENT, u64::MAX] {
            check_segment(good).unwrap();
        }
        for bad in [1, LEAST_SEGMENT - 1] {
            let error = check_segment(bad).unwrap_err();
            assert_eq!(error.kind(), Kind::PoolRefused);
            let start = format!("global_segment_size = {bad}: ");
            assert!(error.message().starts_with(&start), "{error}");
        }
    }

    #[test]
    fn rdma_needs_a_device() {
        let folder = std::env::temp_dir().join(format!("kvb-rdma-{}", std::process::id()));
        let error = check_rdma(&folder, "").unwrap_err();
        assert!(error.message().contains("no RDMA device"), "{error}");
        std::fs::create_dir(&folder).unwrap();
        assert!(check_rdma(&folder, "").is_err());
        std::fs::write(folder.join("mlx5_0"), "").unwrap();
        std::fs::write(folder.join("mlx5_1"), "").unwrap();
        for good in ["", "mlx5_1", "mlx5_0, mlx5_1"] {
            check_rdma(&folder, good).unwrap();
        }
        let error = check_rdma(&folder, "mlx5_0,mlx5_7").unwrap_err();
        assert_eq!(error.kind(), Kind::PoolRefused);
        assert!(error.message().contains("device \"mlx5_7\""), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn rdma_locks_the_segment_and_the_staging_of_a_role() {
        let of = |more: &str| {
            let text = format!(
                r#"{{{more} "model_key": "m", "global_segment_size": 100,
                    "staging_buffer_bytes": 7, "kvbridge": {{"page_format": "raw"}}}}"#
            );
            locked(&Config::from_json(text.as_bytes()).unwrap())
        };
        let locks = |staging| Locked {
            segment: 100,
            staging,
        };
        assert_eq!(of(""), locks(14));
        assert_eq!(of(r#""role": "consumer","#), locks(7));
        assert_eq!(of(r#""role": "capacity","#), locks(0));
        assert_eq!(of(r#""stage_through_host": false,"#), locks(0));
    }

    #[test]
    fn patience_grows_with_what_is_lent() {
        let of = |size: &str| {
            let text = format!(r#"{{"model_key":"m","global_segment_size":"{size}"}}"#);
            Patience::new(&Config::from_json(text.as_bytes()).unwrap()).setup
        };
        assert_eq!(of("0"), Duration::from_secs(30));
        assert_eq!(of("500GiB"), Duration::from_secs(530));
    }
}
