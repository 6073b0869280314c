//! The configuration: one JSON object, validated as a whole and immutable afterwards.
//!
//! The top level is the file that other engines' Mooncake connectors read, so that one file serves
//! all; fields that only they know are listed in one warning. What is only ours stands in the
//! object `"kvbridge"`, where an unknown field is an error. All problems of a file are reported at
//! once. What a field asks for may still be refused when a pool is opened: here only the file is
//! judged.
//!
//! | file | story |
//! | --- | --- |
//! | `choices.rs` | settings that are one word out of a list |
//! | `size.rs` | sizes |
//! | `address.rs` | host:port |
//! | `json.rs` | the file's members, with the text of each value |
//! | `values.rs` | one reader per kind of value |
//! | `parse.rs` | members to settings, every problem collected |
//! | `render.rs` | settings back to JSON |

mod address;
mod choices;
pub(crate) mod json;
mod parse;
mod render;
mod size;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use parse::nearest;

pub use choices::{LocalReuseBackoff, Role, StoreKind};

use crate::error::{Error, Kind, Result, bail};
use crate::keys::{PageFormat, Scheme};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The variable that names our file.
pub const VARIABLE: &str = "KVBRIDGE_CONFIG";
/// The variable that names the file shared with other engines' connectors.
pub const SHARED_VARIABLE: &str = "MOONCAKE_CONFIG_PATH";

/// A validated configuration. Immutable, so it may be read from any thread.
///
/// Two configurations are equal when their settings are; warnings do not count.
#[derive(Debug, Clone)]
pub struct Config {
    settings: Settings,
    warnings: Vec<String>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings
    }
}

/// The settings as the file gives them, defaults filled in. Fields that only some roles use are
/// kept in every role: the getters decide whether they have an effect, rendering shows them.
#[derive(Debug, Clone, PartialEq)]
struct Settings {
    master_server_address: Option<String>,
    metadata_server: String,
    protocol: String,
    device_name: String,
    local_hostname: Option<String>,
    global_segment_size: u64,
    local_buffer_size: u64,
    tenant_id: Option<String>,
    role: Role,
    namespace: String,
    model_key: Option<String>,
    transfer_batch_size: u32,
    stage_through_host: bool,
    staging_buffer_bytes: u64,
    async_load: bool,
    async_load_workers: u32,
    local_reuse_backoff: LocalReuseBackoff,
    soft_pin_ttl_ms: Option<u64>,
    group_blocks: bool,
    /// Seconds: the number of the file, so that it renders as it was written.
    stats_interval: Option<f64>,
    store: StoreKind,
    pool: String,
    library: String,
    key_scheme: Scheme,
    page_format: PageFormat,
    weights_digest: String,
    number_format: Option<String>,
    lookup_timeout_ms: u64,
    load_timeout_ms: u64,
    save_timeout_ms: u64,
    breaker_cooldown_ms: u64,
    lookup_chunk_blocks: u32,
    eviction_ratio: f64,
    lease_ttl_ms: u64,
    replica_num: u32,
}

/// What the environment says about where the file is: looked up once, and given by tests.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// The value of [`VARIABLE`]. An empty one counts as absent.
    pub own: Option<OsString>,
    /// The value of [`SHARED_VARIABLE`]. An empty one counts as absent.
    pub shared: Option<OsString>,
}

impl Environment {
    /// Reads both variables of this process.
    pub fn of_process() -> Self {
        Self {
            own: std::env::var_os(VARIABLE),
            shared: std::env::var_os(SHARED_VARIABLE),
        }
    }
}

/// How the file was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// It was meant for this library.
    Own,
    /// Through [`SHARED_VARIABLE`]: written for several engines, so it sets none of their own
    /// settings.
    Shared,
}

impl Config {
    /// Reads the file at `path`, or without a path the one that `KVBRIDGE_CONFIG` names, else the
    /// one that `MOONCAKE_CONFIG_PATH` names.
    ///
    /// Blocks while the file is read. Errors: `ConfigUnreadable` when there is no file or it
    /// cannot be read, `ConfigInvalid` with every problem of its content.
    pub fn from_file(path: Option<&Path>) -> Result<Self> {
        // The environment is not touched when the caller has said which file it wants.
        match path {
            Some(_) => Self::from_file_in(path, &Environment::default()),
            None => Self::from_file_in(None, &Environment::of_process()),
        }
    }

    /// [`Config::from_file`] with the environment as an argument.
    pub fn from_file_in(path: Option<&Path>, environment: &Environment) -> Result<Self> {
        let named = |value: &Option<OsString>| {
            value
                .as_ref()
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let (path, origin, found) = if let Some(path) = path {
            (path.to_owned(), Origin::Own, String::new())
        } else if let Some(path) = named(&environment.own) {
            (path, Origin::Own, format!(" (from {VARIABLE})"))
        } else if let Some(path) = named(&environment.shared) {
            (path, Origin::Shared, format!(" (from {SHARED_VARIABLE})"))
        } else {
            bail!(
                ConfigUnreadable,
                "no configuration: no path was given, and neither {VARIABLE} nor \
                 {SHARED_VARIABLE} is set"
            );
        };
        let context = format!("{}{found}", path.display());
        let bytes = read_bounded(&path).map_err(|error| {
            Error::new(Kind::ConfigUnreadable, error.to_string()).within(&context)
        })?;
        parse::parse(&bytes, origin)
            .inspect(|config| config.announce(&context))
            .map_err(|error| error.within(&context))
    }

    /// Reads the content of a configuration file.
    ///
    /// Errors: `ConfigInvalid` with every problem of the content.
    pub fn from_json(bytes: &[u8]) -> Result<Self> {
        parse::parse(bytes, Origin::Own).inspect(|config| config.announce("configuration"))
    }

    /// The effective configuration as a JSON object: every field, also those left to their
    /// defaults; `null` where a field has no value. Reading it gives an equal configuration.
    pub fn render(&self) -> String {
        render::render(&self.settings)
    }

    /// What the operator should know though the file is accepted, one sentence each. All were
    /// logged when the file was read.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn announce(&self, context: &str) {
        for warning in &self.warnings {
            tracing::warn!("{context}: {warning}");
        }
    }

    /// The Mooncake master, `host:port`. Always there for the Mooncake stores.
    pub fn master_server_address(&self) -> Option<&str> {
        self.settings.master_server_address.as_deref()
    }

    /// Where Mooncake's transfer engines find each other; `P2PHANDSHAKE` for no server.
    pub fn metadata_server(&self) -> &str {
        &self.settings.metadata_server
    }

    /// Mooncake's transport (`rdma`, `tcp`, …). Which ones exist is up to its build.
    pub fn protocol(&self) -> &str {
        &self.settings.protocol
    }

    /// The network devices for that transport; empty for Mooncake's own choice.
    pub fn device_name(&self) -> &str {
        &self.settings.device_name
    }

    /// The name under which other servers reach this one. `None`: the address that the route to
    /// the master leaves from, found when the pool is opened.
    pub fn local_hostname(&self) -> Option<&str> {
        self.settings.local_hostname.as_deref()
    }

    /// Bytes that this server lends to the pool; for the embedded pool its capacity. May be 0.
    pub fn global_segment_size(&self) -> u64 {
        self.settings.global_segment_size
    }

    /// Bytes of Mooncake's own transfer buffer.
    pub fn local_buffer_size(&self) -> u64 {
        self.settings.local_buffer_size
    }

    /// The tenant in whose part of the pool pages are kept.
    pub fn tenant_id(&self) -> Option<&str> {
        self.settings.tenant_id.as_deref()
    }

    /// What this server does with the pool.
    pub fn role(&self) -> Role {
        self.settings.role
    }

    /// The first part of every key. Not empty.
    pub fn namespace(&self) -> &str {
        &self.settings.namespace
    }

    /// The checkpoint's name in every key. Empty only with [`Role::Capacity`].
    pub fn model_key(&self) -> &str {
        self.settings.model_key.as_deref().unwrap_or("")
    }

    /// Pages per call to the pool, at least 1.
    pub fn transfer_batch_size(&self) -> u32 {
        self.settings.transfer_batch_size
    }

    /// Whether pages go through staging memory of the host. `false` (the pool moves device memory
    /// itself) comes only with raw pages.
    pub fn stage_through_host(&self) -> bool {
        self.settings.stage_through_host
    }

    /// Bytes of staging memory per direction, at least 1.
    pub fn staging_buffer_bytes(&self) -> u64 {
        self.settings.staging_buffer_bytes
    }

    /// Whether offers are loaded asynchronously.
    pub fn async_load(&self) -> bool {
        self.settings.async_load
    }

    /// Threads per rank for asynchronous loads, 1 to 64.
    pub fn async_load_workers(&self) -> u32 {
        self.settings.async_load_workers
    }

    /// What becomes of the engine's shortening of local matches. Always `Off` from a file found
    /// through `MOONCAKE_CONFIG_PATH`.
    pub fn local_reuse_backoff(&self) -> LocalReuseBackoff {
        self.settings.local_reuse_backoff
    }

    /// Milliseconds for which each page that is written is soft-pinned, at least 1; `None` for no
    /// pin. `None` in roles that do not write, whatever the file says.
    pub fn soft_pin_ttl_ms(&self) -> Option<u64> {
        self.settings
            .soft_pin_ttl_ms
            .filter(|_| self.settings.role.writes())
    }

    /// Whether all pages of a block go into one eviction group. `false` in roles that do not
    /// write, whatever the file says.
    pub fn group_blocks(&self) -> bool {
        self.settings.group_blocks && self.settings.role.writes()
    }

    /// The time between two lines of statistics, above zero; `None` for no lines. `None` in roles
    /// that do not read, whatever the file says.
    pub fn stats_interval(&self) -> Option<Duration> {
        self.settings
            .stats_interval
            .filter(|_| self.settings.role.reads())
            .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    }

    /// Which pool is behind the library.
    pub fn store(&self) -> StoreKind {
        self.settings.store
    }

    /// The embedded pool's name in this process. Not empty.
    pub fn pool(&self) -> &str {
        &self.settings.pool
    }

    /// The library that [`StoreKind::Mooncake`] loads: a path, or a name for the system's search.
    pub fn library(&self) -> &str {
        &self.settings.library
    }

    /// How pages are named.
    pub fn key_scheme(&self) -> Scheme {
        self.settings.key_scheme
    }

    /// What is stored for a page. Sealed only with [`Scheme::Kvb1`].
    pub fn page_format(&self) -> PageFormat {
        self.settings.page_format
    }

    /// The operator's digest of the weights, a part of every `kvb1` key; empty for none.
    pub fn weights_digest(&self) -> &str {
        &self.settings.weights_digest
    }

    /// The number format that every layer group must have; `None` to take it from the layout.
    pub fn number_format(&self) -> Option<&str> {
        self.settings.number_format.as_deref()
    }

    /// How long a lookup may wait for the pool, above zero.
    pub fn lookup_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.lookup_timeout_ms)
    }

    /// How long one call that loads pages may wait for the pool, above zero.
    pub fn load_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.load_timeout_ms)
    }

    /// How long one call that saves pages may wait for the pool, above zero.
    pub fn save_timeout(&self) -> Duration {
        Duration::from_millis(self.settings.save_timeout_ms)
    }

    /// How long an open breaker waits before it probes the pool, above zero.
    pub fn breaker_cooldown(&self) -> Duration {
        Duration::from_millis(self.settings.breaker_cooldown_ms)
    }

    /// Blocks whose existence is asked in one call, at least 1.
    pub fn lookup_chunk_blocks(&self) -> u32 {
        self.settings.lookup_chunk_blocks
    }

    /// The share of the embedded pool's capacity that one eviction frees, above 0, at most 1.
    pub fn eviction_ratio(&self) -> f64 {
        self.settings.eviction_ratio
    }

    /// How long an answer "present" protects an object of the embedded pool; zero for not at all.
    pub fn lease_ttl(&self) -> Duration {
        Duration::from_millis(self.settings.lease_ttl_ms)
    }

    /// In how many places the pool shall keep each page that is written, from 1 to 16. 1 in roles that do not write,
    /// whatever the file says.
    pub fn replica_num(&self) -> u32 {
        match self.settings.role.writes() {
            true => self.settings.replica_num,
            false => 1,
        }
    }
}

/// Reads a file up to just past the largest length that is accepted, so that a device or a wrong
/// path cannot fill the memory; the length itself is judged with the content.
fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?
        .take(json::MAX_BYTES as u64 + 1)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}
