//! From the file's members to settings. Every problem is collected; only a file without any
//! becomes a configuration.

use super::json::{self, Members, Value, shown};
use super::values::{
    boolean, bytes, choice, filled, host_port, hostname, integer, number_format, ratio, seconds,
    some_bytes, text,
};
use super::{Config, LocalReuseBackoff, Origin, Role, SHARED_VARIABLE, Settings, StoreKind};
use crate::error::{Error, Kind, Result, bail};
use crate::keys::{PageFormat, Scheme};
use std::fmt::Display;

/// The object that holds what is only ours, as the first part of a field's name.
const OWN: &str = "kvbridge.";
const GIB: u64 = 1 << 30;

/// Reads and validates a file's content.
pub(super) fn parse(bytes: &[u8], origin: Origin) -> Result<Config> {
    let mut problems = Vec::new();
    let members = json::read(bytes, &mut problems)?;
    let mut reader = Reader::new(members, problems);
    let mut warnings = Vec::new();
    let settings = settings(&mut reader, origin, &mut warnings);
    reader.unknown_fields(&mut warnings);
    match reader.problems.as_slice() {
        [] => Ok(Config { settings, warnings }),
        [one] => Err(Error::new(Kind::ConfigInvalid, one.as_str())),
        several => bail!(
            ConfigInvalid,
            "{} problems:\n  {}",
            several.len(),
            several.join("\n  ")
        ),
    }
}

/// Reads every field, in the order in which the documentation lists them.
fn settings(reader: &mut Reader<'_>, origin: Origin, warnings: &mut Vec<String>) -> Settings {
    let master = reader.optional("master_server_address", host_port);
    let metadata_server = reader.field("metadata_server", filled);
    let protocol = reader.field("protocol", filled);
    let device_name = reader.field("device_name", text);
    let local_hostname = reader.optional("local_hostname", hostname);
    let global_segment_size = reader.field("global_segment_size", bytes);
    let local_buffer_size = reader.field("local_buffer_size", some_bytes);
    let tenant_id = reader.optional("tenant_id", text);
    let role = reader.field("role", choice(Role::NAMES, Role::from_name));
    let namespace = reader.field("namespace", filled);
    let model_key = reader.optional("model_key", filled);
    let transfer_batch_size = reader.field("transfer_batch_size", integer(1..=u32::MAX));
    let stage_through_host = reader.field("stage_through_host", boolean);
    let staging_buffer_bytes = reader.field("staging_buffer_bytes", some_bytes);
    let async_load = reader.field("async_load", boolean);
    let async_load_workers = reader.field("async_load_workers", integer(1..=64));
    let local_reuse_backoff = match origin {
        Origin::Own => reader.field(
            "local_reuse_backoff",
            choice(LocalReuseBackoff::NAMES, LocalReuseBackoff::from_name),
        ),
        Origin::Shared => {
            // It changes what the engine does, and a file for several engines speaks for none.
            if let Some(raw) = reader.take("local_reuse_backoff") {
                warnings.push(format!(
                    "local_reuse_backoff: {} is ignored and \"off\" used, since the file was \
                     found through {SHARED_VARIABLE}",
                    shown(raw)
                ));
            }
            Found::Absent
        }
    };
    let soft_pin_ttl_ms = reader.optional("soft_pin_ttl_ms", integer(1..=u64::MAX));
    let group_blocks = reader.field("group_blocks", boolean);
    let stats_interval = reader.optional("stats_interval", seconds);

    let store = reader.field(
        "kvbridge.store",
        choice(StoreKind::NAMES, StoreKind::from_name),
    );
    let pool = reader.field("kvbridge.pool", filled);
    let library = reader.field("kvbridge.library", filled);
    let key_scheme = reader.field(
        "kvbridge.key_scheme",
        choice(Scheme::NAMES, Scheme::from_name),
    );
    let page_format = reader.field(
        "kvbridge.page_format",
        choice(PageFormat::NAMES, PageFormat::from_name),
    );
    let weights_digest = reader.field("kvbridge.weights_digest", text);
    let number_format = reader.optional("kvbridge.number_format", number_format);
    let lookup_timeout_ms = reader.field("kvbridge.lookup_timeout_ms", integer(1..=u64::MAX));
    let load_timeout_ms = reader.field("kvbridge.load_timeout_ms", integer(1..=u64::MAX));
    let save_timeout_ms = reader.field("kvbridge.save_timeout_ms", integer(1..=u64::MAX));
    let breaker_cooldown_ms = reader.field("kvbridge.breaker_cooldown_ms", integer(1..=u64::MAX));
    let lookup_chunk_blocks = reader.field("kvbridge.lookup_chunk_blocks", integer(1..=u32::MAX));
    let eviction_ratio = reader.field("kvbridge.eviction_ratio", ratio);
    let lease_ttl_ms = reader.field("kvbridge.lease_ttl_ms", integer(0..=u64::MAX));
    let replica_num = reader.field("kvbridge.replica_num", integer(1..=16u32));

    // Rules between fields. A field with a problem of its own takes no part in them: its effect
    // is unknown, and a second message about it would mislead.
    if let Some(role) = role.known_or(Role::Both)
        && role.transfers()
        && matches!(model_key, Found::Absent)
    {
        reader.problem(
            "model_key",
            format_args!(
                "is missing: the role \"{}\" needs one, and there is no default, since two \
                 checkpoints must never agree by accident",
                role.name()
            ),
        );
    }
    let default_store = match master {
        Found::Absent => StoreKind::Embedded,
        Found::Bad | Found::Good(_) => StoreKind::Mooncake,
    };
    if let Some(store) = store.known_or(default_store)
        && store.needs_master()
        && matches!(master, Found::Absent)
    {
        reader.problem(
            "master_server_address",
            format_args!(
                "is missing: the store \"{}\" needs the master's host:port",
                store.name()
            ),
        );
    }
    let default_format = key_scheme
        .known_or(Scheme::Kvb1)
        .map(Scheme::default_page_format);
    if let (Some(Scheme::Trtllm), Found::Good(PageFormat::Sealed)) =
        (key_scheme.known_or(Scheme::Kvb1), &page_format)
    {
        reader.problem(
            "kvbridge.page_format",
            "\"sealed\" needs the key scheme \"kvb1\": pages named by \"trtllm\" are shared with \
             servers that store them raw",
        );
    } else if let (Found::Good(false), Some(PageFormat::Sealed)) = (
        &stage_through_host,
        default_format.and_then(|default| page_format.known_or(default)),
    ) {
        reader.problem(
            "stage_through_host",
            "false needs kvbridge.page_format \"raw\", but pages are \"sealed\": a seal cannot be \
             checked before the bytes are in the cache",
        );
    }

    Settings {
        master_server_address: master.good(),
        metadata_server: metadata_server.or("P2PHANDSHAKE"),
        protocol: protocol.or("rdma"),
        device_name: device_name.or(""),
        local_hostname: local_hostname.good().filter(|name| !name.is_empty()),
        global_segment_size: global_segment_size.or(3_355_443_200u64),
        local_buffer_size: local_buffer_size.or(GIB),
        tenant_id: tenant_id.good().filter(|tenant| !tenant.is_empty()),
        role: role.or(Role::Both),
        namespace: namespace.or("trtllm"),
        model_key: model_key.good(),
        transfer_batch_size: transfer_batch_size.or(64u32),
        stage_through_host: stage_through_host.or(true),
        staging_buffer_bytes: staging_buffer_bytes.or(GIB),
        async_load: async_load.or(false),
        async_load_workers: async_load_workers.or(2u32),
        local_reuse_backoff: local_reuse_backoff.or(LocalReuseBackoff::Off),
        soft_pin_ttl_ms: soft_pin_ttl_ms.good(),
        group_blocks: group_blocks.or(false),
        stats_interval: stats_interval.good(),
        store: store.or(default_store),
        pool: pool.or("default"),
        library: library.or("libmooncake_store.so"),
        page_format: page_format.or(default_format.unwrap_or(PageFormat::Sealed)),
        key_scheme: key_scheme.or(Scheme::Kvb1),
        weights_digest: weights_digest.or(""),
        number_format: number_format.good(),
        lookup_timeout_ms: lookup_timeout_ms.or(100u64),
        load_timeout_ms: load_timeout_ms.or(10_000u64),
        save_timeout_ms: save_timeout_ms.or(30_000u64),
        breaker_cooldown_ms: breaker_cooldown_ms.or(1_000u64),
        lookup_chunk_blocks: lookup_chunk_blocks.or(512u32),
        eviction_ratio: eviction_ratio.or(0.05),
        lease_ttl_ms: lease_ttl_ms.or(10_000u64),
        replica_num: replica_num.or(1u32),
    }
}

/// What the file says about one field.
enum Found<T> {
    /// Nothing: the default holds.
    Absent,
    /// Something wrong, which is among the problems already.
    Bad,
    Good(T),
}

impl<T> Found<T> {
    /// The value or the default. After `Bad` the default only fills the place: the file is refused.
    fn or(self, default: impl Into<T>) -> T {
        self.good().unwrap_or_else(|| default.into())
    }

    fn good(self) -> Option<T> {
        match self {
            Self::Good(value) => Some(value),
            Self::Absent | Self::Bad => None,
        }
    }

    /// The value or the default, for rules between fields; `None` after `Bad`.
    fn known_or(&self, default: T) -> Option<T>
    where
        T: Copy,
    {
        match self {
            Self::Good(value) => Some(*value),
            Self::Absent => Some(default),
            Self::Bad => None,
        }
    }
}

/// The members not yet read, the names that were asked for, and the problems so far.
struct Reader<'a> {
    top: Vec<(String, &'a str)>,
    own: Vec<(String, &'a str)>,
    known: Vec<&'static str>,
    problems: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(members: Members<'a>, problems: Vec<String>) -> Self {
        let mut reader = Self {
            top: members.0,
            own: Vec::new(),
            known: Vec::new(),
            problems,
        };
        if let Some(raw) = take(&mut reader.top, "kvbridge") {
            match serde_json::from_str::<Members<'a>>(raw) {
                Ok(members) => reader.own = members.0,
                Err(_) => {
                    reader.problem("kvbridge", format_args!("{} is not an object", shown(raw)))
                }
            }
        }
        reader
    }

    fn problem(&mut self, field: &str, text: impl Display) {
        self.problems.push(format!("{field}: {text}"));
    }

    /// Takes a field's text out of the members.
    fn take(&mut self, field: &'static str) -> Option<&'a str> {
        self.known.push(field);
        match field.strip_prefix(OWN) {
            Some(name) => take(&mut self.own, name),
            None => take(&mut self.top, field),
        }
    }

    /// Reads a field that has a default: `null` is no value of it.
    fn field<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&Value<'a>) -> std::result::Result<T, String>,
    ) -> Found<T> {
        let Some(raw) = self.take(field) else {
            return Found::Absent;
        };
        match Value::read(raw).and_then(|value| read(&value)) {
            Ok(value) => Found::Good(value),
            Err(reason) => {
                self.problem(field, format_args!("{} {reason}", shown(raw)));
                Found::Bad
            }
        }
    }

    /// Reads a field that may have no value, which `null` says too.
    fn optional<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&Value<'a>) -> std::result::Result<T, String>,
    ) -> Found<T> {
        let read = |value: &Value<'a>| match value {
            Value::Null => Ok(None),
            value => read(value).map(Some),
        };
        match self.field(field, read) {
            Found::Good(Some(value)) => Found::Good(value),
            Found::Good(None) | Found::Absent => Found::Absent,
            Found::Bad => Found::Bad,
        }
    }

    /// Judges what no field has taken: a problem each in our object, one warning at the top level.
    fn unknown_fields(&mut self, warnings: &mut Vec<String>) {
        for (name, raw) in std::mem::take(&mut self.own) {
            let hint = if self.known.contains(&name.as_str()) {
                "it stands at the top level, outside \"kvbridge\"".to_owned()
            } else {
                let near = nearest(&name, self.known.iter().filter_map(|f| f.strip_prefix(OWN)));
                format!("the nearest known field is \"{near}\"")
            };
            let text = format!("{} belongs to an unknown field; {hint}", shown(raw));
            self.problem(&format!("{OWN}{}", shown(&name)), text);
        }
        let unknown: Vec<String> = self
            .top
            .iter()
            .map(|(name, _)| {
                if self.known.contains(&format!("{OWN}{name}").as_str()) {
                    format!("{name} (a field of the object \"kvbridge\")")
                } else {
                    shown(name)
                }
            })
            .collect();
        if !unknown.is_empty() {
            warnings.push(format!(
                "fields that kvbridge does not know are ignored: {}",
                unknown.join(", ")
            ));
        }
    }
}

/// Takes every member of that name, so that a repeated one is no unknown field too.
fn take<'a>(members: &mut Vec<(String, &'a str)>, name: &str) -> Option<&'a str> {
    let mut found = None;
    members.retain(|(member, raw)| {
        let other = member != name;
        if !other {
            found.get_or_insert(*raw);
        }
        other
    });
    found
}

/// The known name with the fewest edits to `name`; the first of equals.
pub(crate) fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> &'k str {
    known
        .min_by_key(|candidate| distance(name, candidate))
        .unwrap_or("")
}

/// Edits (insert, delete, replace) between two names. Only the start of a long name counts.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    // The distances of a's start so far to each start of b.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (done, from) in a.chars().take(64).enumerate() {
        let mut diagonal = done;
        let mut left = done + 1;
        for (cell, &to) in row.iter_mut().skip(1).zip(&b) {
            let above = *cell;
            left = (diagonal + usize::from(from != to))
                .min(above + 1)
                .min(left + 1);
            diagonal = above;
            *cell = left;
        }
        if let Some(first) = row.first_mut() {
            *first = done + 1;
        }
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn edit_distance() {
        for (a, b, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("abc", "abc", 0),
            ("abc", "abd", 1),
            ("abc", "ac", 1),
            ("kitten", "sitting", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
        assert_eq!(
            nearest("poll", ["store", "pool", "library"].into_iter()),
            "pool"
        );
    }
}
