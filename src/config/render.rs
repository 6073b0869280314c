//! From settings back to JSON: every field, in the order in which the documentation lists them.

use super::Settings;
use serde_json::Value;

/// Writes the settings as one JSON object that reads back as the same settings.
pub(super) fn render(settings: &Settings) -> String {
    // Named one by one: a setting that is added and not rendered does not compile.
    let Settings {
        master_server_address,
        metadata_server,
        protocol,
        device_name,
        local_hostname,
        global_segment_size,
        local_buffer_size,
        tenant_id,
        role,
        namespace,
        model_key,
        transfer_batch_size,
        stage_through_host,
        staging_buffer_bytes,
        async_load,
        async_load_workers,
        local_reuse_backoff,
        soft_pin_ttl_ms,
        group_blocks,
        stats_interval,
        store,
        pool,
        library,
        key_scheme,
        page_format,
        weights_digest,
        number_format,
        lookup_timeout_ms,
        load_timeout_ms,
        save_timeout_ms,
        breaker_cooldown_ms,
        lookup_chunk_blocks,
        eviction_ratio,
        lease_ttl_ms,
        replica_num,
    } = settings;
    let own = object(
        2,
        &[
            ("store", text(store.name())),
            ("pool", text(pool)),
            ("library", text(library)),
            ("key_scheme", text(key_scheme.name())),
            ("page_format", text(page_format.name())),
            ("weights_digest", text(weights_digest)),
            ("number_format", optional_text(number_format)),
            ("lookup_timeout_ms", lookup_timeout_ms.to_string()),
            ("load_timeout_ms", load_timeout_ms.to_string()),
            ("save_timeout_ms", save_timeout_ms.to_string()),
            ("breaker_cooldown_ms", breaker_cooldown_ms.to_string()),
            ("lookup_chunk_blocks", lookup_chunk_blocks.to_string()),
            ("eviction_ratio", float(Some(*eviction_ratio))),
            ("lease_ttl_ms", lease_ttl_ms.to_string()),
            ("replica_num", replica_num.to_string()),
        ],
    );
    object(
        1,
        &[
            (
                "master_server_address",
                optional_text(master_server_address),
            ),
            ("metadata_server", text(metadata_server)),
            ("protocol", text(protocol)),
            ("device_name", text(device_name)),
            ("local_hostname", optional_text(local_hostname)),
            ("global_segment_size", global_segment_size.to_string()),
            ("local_buffer_size", local_buffer_size.to_string()),
            ("tenant_id", optional_text(tenant_id)),
            ("role", text(role.name())),
            ("namespace", text(namespace)),
            ("model_key", optional_text(model_key)),
            ("transfer_batch_size", transfer_batch_size.to_string()),
            ("stage_through_host", stage_through_host.to_string()),
            ("staging_buffer_bytes", staging_buffer_bytes.to_string()),
            ("async_load", async_load.to_string()),
            ("async_load_workers", async_load_workers.to_string()),
            ("local_reuse_backoff", text(local_reuse_backoff.name())),
            (
                "soft_pin_ttl_ms",
                soft_pin_ttl_ms.map_or_else(null, |ttl| ttl.to_string()),
            ),
            ("group_blocks", group_blocks.to_string()),
            ("stats_interval", float(*stats_interval)),
            ("kvbridge", own),
        ],
    )
}

/// Members in the order given (`serde_json`'s map would sort them), indented by `depth`.
fn object(depth: usize, members: &[(&str, String)]) -> String {
    let indent = "  ".repeat(depth);
    let lines: Vec<String> = members
        .iter()
        .map(|(name, value)| format!("{indent}\"{name}\": {value}"))
        .collect();
    format!(
        "{{\n{}\n{}}}",
        lines.join(",\n"),
        "  ".repeat(depth.saturating_sub(1))
    )
}

fn null() -> String {
    Value::Null.to_string()
}

fn text(text: &str) -> String {
    Value::from(text).to_string()
}

fn optional_text(value: &Option<String>) -> String {
    value.as_deref().map_or_else(null, text)
}

/// The shortest spelling that reads back as the same number.
fn float(value: Option<f64>) -> String {
    value.map_or(Value::Null, Value::from).to_string()
}
