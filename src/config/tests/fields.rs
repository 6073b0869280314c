//! Each field's default, good values and refusals, and its getter.

use super::{read, refusal, rendered};
use crate::config::{LocalReuseBackoff, Role, StoreKind};
use crate::keys::{PageFormat, Scheme};
use serde_json::Value;
use std::time::Duration;

/// A file with one more field. `name` may begin with `kvbridge.`; what the field needs beside it
/// comes in `others`, which ends in a comma when it is not empty.
fn file_with(others: &str, name: &str, value: &str) -> String {
    match name.strip_prefix("kvbridge.") {
        Some(own) => format!(r#"{{{others}"kvbridge":{{"{own}":{value}}}}}"#),
        None => format!(r#"{{{others}"{name}":{value}}}"#),
    }
}

const MODEL: &str = r#""model_key":"m","#;

fn others_for(name: &str) -> &'static str {
    match name {
        "model_key" => "",
        "kvbridge.store" => r#""model_key":"m","master_server_address":"h:1","#,
        _ => MODEL,
    }
}

type Row = (
    // name, default as rendered
    &'static str,
    &'static str,
    // accepted: as written, as rendered
    &'static [(&'static str, &'static str)],
    // refused: as written, a part of the reason
    &'static [(&'static str, &'static str)],
);

const SIZES_REFUSED: &[(&str, &str)] = &[
    (r#""4GB""#, "4GiB"),
    (r#""1.5""#, "fraction of a byte"),
    ("1.5", "fraction of a byte"),
    ("5.0", "fraction of a byte"),
    (r#""-5""#, "negative"),
    ("-5", "negative"),
    (r#""50%""#, "share"),
    (r#""1e9""#, "exponent"),
    (r#""8EiB""#, "unknown unit"),
    ("1e9", "exponent"),
    ("1e999", "exponent"),
    (r#""""#, "empty"),
    (r#""NaN""#, "not a size"),
    (r#""18446744073709551616""#, "more than"),
    ("18446744073709551616", "more than"),
    ("true", "boolean, not a size"),
    ("null", "null, not a size"),
    ("[1]", "array, not a size"),
    (r#"{"a":1}"#, "object, not a size"),
];
const SIZES: &[(&str, &str)] = &[
    (r#""4GiB""#, "4294967296"),
    (r#"" 4 GiB ""#, "4294967296"),
    (r#""1.5GiB""#, "1610612736"),
    (r#""4096""#, "4096"),
    ("4096", "4096"),
    ("18446744073709551615", "18446744073709551615"),
];
const ZERO: &[(&str, &str)] = &[("0", "above 0"), (r#""0GiB""#, "above 0")];
const BOOLEANS: &[(&str, &str)] = &[("true", "true"), ("false", "false")];
const BOOLEANS_REFUSED: &[(&str, &str)] = &[
    (r#""false""#, "string, not a JSON boolean"),
    (r#""true""#, "string, not a JSON boolean"),
    ("0", "number, not a JSON boolean"),
    ("null", "null, not a JSON boolean"),
];
const TEXT_REFUSED: &[(&str, &str)] = &[
    ("5", "number, not a string"),
    ("null", "null, not a string"),
    (r#""a\u0000b""#, "NUL"),
    (r#""\ud800""#, "not text"),
];
const FILLED_REFUSED: &[(&str, &str)] = &[
    (r#""""#, "is empty"),
    ("false", "boolean, not a string"),
    ("null", "null, not a string"),
    (r#""a\u0000b""#, "NUL"),
];
const COUNT_U32: &[(&str, &str)] = &[("1", "1"), ("4294967295", "4294967295")];
const COUNT_U32_REFUSED: &[(&str, &str)] = &[
    ("0", "from 1 to 4294967295"),
    ("-5", "from 1 to 4294967295"),
    ("1.5", "not an integer"),
    ("5.0", "not an integer"),
    ("1e2", "not an integer"),
    ("4294967296", "from 1 to 4294967295"),
    ("4294967360", "from 1 to 4294967295"),
    (r#""64""#, "string, not an integer"),
    ("true", "boolean, not an integer"),
    ("null", "null, not an integer"),
];
const COUNT_U64: &[(&str, &str)] = &[("1", "1"), ("18446744073709551615", "18446744073709551615")];
const COUNT_U64_REFUSED: &[(&str, &str)] = &[
    ("0", "from 1 to 18446744073709551615"),
    ("-1", "from 1 to"),
    ("2.5", "not an integer"),
    ("1e3", "not an integer"),
    ("18446744073709551616", "from 1 to 18446744073709551615"),
    (r#""100""#, "string, not an integer"),
    ("false", "boolean, not an integer"),
];

/// Every field, in the order of the documentation.
const ROWS: &[Row] = &[
    (
        "master_server_address",
        "null",
        &[
            (r#""master:50051""#, r#""master:50051""#),
            (r#""[::1]:50051""#, r#""[::1]:50051""#),
            ("null", "null"),
        ],
        &[
            (r#""master""#, "port is missing"),
            (r#""master:0""#, "no port"),
            (r#""""#, "port is missing"),
            ("50051", "number, not a string"),
        ],
    ),
    (
        "metadata_server",
        r#""P2PHANDSHAKE""#,
        &[(r#""http://h:8080/metadata""#, r#""http://h:8080/metadata""#)],
        FILLED_REFUSED,
    ),
    (
        "protocol",
        r#""rdma""#,
        &[(r#""tcp""#, r#""tcp""#)],
        FILLED_REFUSED,
    ),
    (
        "device_name",
        r#""""#,
        &[
            (r#""mlx5_0,mlx5_1""#, r#""mlx5_0,mlx5_1""#),
            (r#""""#, r#""""#),
        ],
        TEXT_REFUSED,
    ),
    (
        "local_hostname",
        "null",
        &[
            (r#""10.0.0.7""#, r#""10.0.0.7""#),
            (r#""node:12345""#, r#""node:12345""#),
            (r#""""#, "null"),
            ("null", "null"),
        ],
        &[
            (r#""a b""#, "neither a name"),
            ("7", "number, not a string"),
        ],
    ),
    ("global_segment_size", "3355443200", SIZES, SIZES_REFUSED),
    (
        "global_segment_size",
        "3355443200",
        &[("0", "0"), (r#""0""#, "0")],
        &[],
    ),
    ("local_buffer_size", "1073741824", SIZES, SIZES_REFUSED),
    ("local_buffer_size", "1073741824", &[], ZERO),
    (
        "tenant_id",
        "null",
        &[
            (r#""team""#, r#""team""#),
            (r#""""#, "null"),
            ("null", "null"),
        ],
        &[("5", "number, not a string"), (r#""\u0000""#, "NUL")],
    ),
    (
        "role",
        r#""both""#,
        &[
            (r#""producer""#, r#""producer""#),
            (r#""consumer""#, r#""consumer""#),
            (r#""both""#, r#""both""#),
            (r#""capacity""#, r#""capacity""#),
        ],
        &[
            (r#""Both""#, "none of producer, consumer, both, capacity"),
            (r#""""#, "none of"),
            ("1", "number, not a string"),
            ("null", "null, not a string"),
        ],
    ),
    (
        "namespace",
        r#""trtllm""#,
        &[(r#""a/ü""#, r#""a/ü""#)],
        FILLED_REFUSED,
    ),
    (
        "model_key",
        r#""m""#,
        &[(r#""org/model \"1\"""#, r#""org/model \"1\"""#)],
        &[
            (r#""""#, "is empty"),
            ("null", "is missing"),
            ("5", "number, not a string"),
        ],
    ),
    ("transfer_batch_size", "64", COUNT_U32, COUNT_U32_REFUSED),
    (
        "stage_through_host",
        "true",
        &[("true", "true")],
        BOOLEANS_REFUSED,
    ),
    ("staging_buffer_bytes", "1073741824", SIZES, SIZES_REFUSED),
    ("staging_buffer_bytes", "1073741824", &[], ZERO),
    ("async_load", "false", BOOLEANS, BOOLEANS_REFUSED),
    (
        "async_load_workers",
        "2",
        &[("1", "1"), ("64", "64")],
        &[
            ("0", "from 1 to 64"),
            ("65", "from 1 to 64"),
            ("4294967297", "from 1 to 64"),
            ("2.0", "not an integer"),
            (r#""2""#, "string, not an integer"),
        ],
    ),
    (
        "local_reuse_backoff",
        r#""off""#,
        &[(r#""off""#, r#""off""#), (r#""align""#, r#""align""#)],
        &[
            (r#""on""#, "none of off, align"),
            ("false", "boolean, not a string"),
        ],
    ),
    ("soft_pin_ttl_ms", "null", COUNT_U64, COUNT_U64_REFUSED),
    ("soft_pin_ttl_ms", "null", &[("null", "null")], &[]),
    ("group_blocks", "false", BOOLEANS, BOOLEANS_REFUSED),
    (
        "stats_interval",
        "null",
        &[
            ("10", "10.0"),
            ("0.5", "0.5"),
            ("1e2", "100.0"),
            ("null", "null"),
        ],
        &[
            ("0", "above 0"),
            ("0.0", "above 0"),
            ("-1", "above 0"),
            ("1e-30", "above 0"),
            ("1e400", "finite"),
            ("1e30", "finite"),
            (r#""10""#, "string, not a number"),
            ("true", "boolean, not a number"),
        ],
    ),
    (
        "kvbridge.store",
        r#""mooncake""#,
        &[
            (r#""embedded""#, r#""embedded""#),
            (r#""mooncake""#, r#""mooncake""#),
            (r#""mooncake-tcp""#, r#""mooncake-tcp""#),
            (r#""host""#, r#""host""#),
        ],
        &[
            (
                r#""redis""#,
                "none of embedded, mooncake, mooncake-tcp, host",
            ),
            ("null", "null, not a string"),
        ],
    ),
    (
        "kvbridge.pool",
        r#""default""#,
        &[(r#""a""#, r#""a""#)],
        FILLED_REFUSED,
    ),
    (
        "kvbridge.library",
        r#""libmooncake_store.so""#,
        &[(r#""/opt/l.so""#, r#""/opt/l.so""#)],
        FILLED_REFUSED,
    ),
    (
        "kvbridge.key_scheme",
        r#""kvb1""#,
        &[(r#""kvb1""#, r#""kvb1""#), (r#""trtllm""#, r#""trtllm""#)],
        &[
            (r#""vllm""#, "none of kvb1, trtllm"),
            ("1", "number, not a string"),
        ],
    ),
    (
        "kvbridge.page_format",
        r#""sealed""#,
        &[(r#""raw""#, r#""raw""#), (r#""sealed""#, r#""sealed""#)],
        &[
            (r#""zip""#, "none of raw, sealed"),
            ("true", "boolean, not a string"),
        ],
    ),
    (
        "kvbridge.weights_digest",
        r#""""#,
        &[(r#""sha256:00""#, r#""sha256:00""#), (r#""""#, r#""""#)],
        TEXT_REFUSED,
    ),
    (
        "kvbridge.number_format",
        "null",
        &[
            (r#""fp8_e4m3""#, r#""fp8_e4m3""#),
            (r#""custom:x""#, r#""custom:x""#),
            ("null", "null"),
        ],
        &[
            (r#""fp8""#, "none of float32"),
            (r#""""#, "none of float32"),
            (r#""custom:""#, "none of float32"),
            ("8", "number, not a string"),
        ],
    ),
    (
        "kvbridge.lookup_timeout_ms",
        "100",
        COUNT_U64,
        COUNT_U64_REFUSED,
    ),
    (
        "kvbridge.load_timeout_ms",
        "10000",
        COUNT_U64,
        COUNT_U64_REFUSED,
    ),
    (
        "kvbridge.save_timeout_ms",
        "30000",
        COUNT_U64,
        COUNT_U64_REFUSED,
    ),
    (
        "kvbridge.breaker_cooldown_ms",
        "1000",
        COUNT_U64,
        COUNT_U64_REFUSED,
    ),
    (
        "kvbridge.lookup_chunk_blocks",
        "512",
        COUNT_U32,
        COUNT_U32_REFUSED,
    ),
    (
        "kvbridge.eviction_ratio",
        "0.05",
        &[("1", "1.0"), ("0.25", "0.25"), ("5e-2", "0.05")],
        &[
            ("0", "share above 0"),
            ("1.01", "share above 0"),
            ("-0.1", "share above 0"),
            ("1e400", "share above 0"),
            (r#""0.05""#, "string, not a number"),
        ],
    ),
    (
        "kvbridge.lease_ttl_ms",
        "10000",
        &[("0", "0"), ("18446744073709551615", "18446744073709551615")],
        &[
            ("-1", "from 0 to 18446744073709551615"),
            ("0.5", "not an integer"),
            ("18446744073709551616", "from 0 to 18446744073709551615"),
        ],
    ),
    (
        "kvbridge.replica_num",
        "1",
        &[("2", "2"), ("16", "16")],
        &[
            ("0", "from 1 to 16"),
            ("17", "from 1 to 16"),
            ("1.5", "not an integer"),
        ],
    ),
];

#[test]
fn every_field_has_its_default() {
    for &(name, default, ..) in ROWS {
        let others = others_for(name);
        let others = if others.is_empty() { MODEL } else { others };
        let config = read(&format!("{{{}}}", others.trim_end_matches(',')));
        let default: Value = serde_json::from_str(default).expect("JSON");
        assert_eq!(rendered(&config, name), default, "{name}");
    }
}

#[test]
fn every_field_takes_its_good_values() {
    for &(name, _, accepted, _) in ROWS {
        for &(written, wanted) in accepted {
            let config = read(&file_with(others_for(name), name, written));
            let wanted: Value = serde_json::from_str(wanted).expect("JSON");
            assert_eq!(rendered(&config, name), wanted, "{name}: {written}");
            assert_eq!(config.warnings(), &[] as &[String], "{name}: {written}");
        }
    }
}

#[test]
fn every_refusal_names_field_value_and_reason() {
    for &(name, _, _, refused) in ROWS {
        for &(written, reason) in refused {
            let text = refusal(&file_with(others_for(name), name, written));
            // A missing value is named by its field alone.
            let named = if reason == "is missing" {
                format!("{name}: ")
            } else {
                format!("{name}: {written} ")
            };
            assert!(text.starts_with(&named), "{name}: {written}: {text}");
            assert!(text.contains(reason), "{name}: {written}: {text}");
            assert!(!text.contains('\n'), "one problem only: {text}");
        }
    }
}

#[test]
fn the_rows_are_all_fields() {
    let all: Value = serde_json::from_str(&read(r#"{"model_key":"m"}"#).render()).expect("JSON");
    let mut rendered: Vec<String> = Vec::new();
    for (name, value) in all.as_object().expect("an object") {
        match value.as_object() {
            Some(own) => rendered.extend(own.keys().map(|own| format!("{name}.{own}"))),
            None => rendered.push(name.clone()),
        }
    }
    let mut rows: Vec<&str> = ROWS.iter().map(|row| row.0).collect();
    rendered.sort();
    rows.sort_unstable();
    rows.dedup();
    assert_eq!(rendered, rows);
}

#[test]
fn getters_give_what_the_file_says() {
    let config = read(
        r#"{"master_server_address":"a:1","metadata_server":"b","protocol":"c","device_name":"d",
        "local_hostname":"e","global_segment_size":11,"local_buffer_size":12,"tenant_id":"f",
        "role":"both","namespace":"g","model_key":"h","transfer_batch_size":13,
        "stage_through_host":false,"staging_buffer_bytes":14,"async_load":true,
        "async_load_workers":15,"local_reuse_backoff":"align","soft_pin_ttl_ms":16,
        "group_blocks":true,"stats_interval":1.5,"kvbridge":{"store":"mooncake-tcp","pool":"i",
        "library":"j","key_scheme":"kvb1","page_format":"raw","weights_digest":"k",
        "number_format":"int8","lookup_timeout_ms":17,"load_timeout_ms":18,"save_timeout_ms":19,
        "breaker_cooldown_ms":20,"lookup_chunk_blocks":21,"eviction_ratio":0.5,
        "lease_ttl_ms":22,"replica_num":3}}"#,
    );
    assert_eq!(config.master_server_address(), Some("a:1"));
    assert_eq!(config.metadata_server(), "b");
    assert_eq!(config.protocol(), "c");
    assert_eq!(config.device_name(), "d");
    assert_eq!(config.local_hostname(), Some("e"));
    assert_eq!(config.global_segment_size(), 11);
    assert_eq!(config.local_buffer_size(), 12);
    assert_eq!(config.tenant_id(), Some("f"));
    assert_eq!(config.role(), Role::Both);
    assert_eq!(config.namespace(), "g");
    assert_eq!(config.model_key(), "h");
    assert_eq!(config.transfer_batch_size(), 13);
    assert!(!config.stage_through_host());
    assert_eq!(config.staging_buffer_bytes(), 14);
    assert!(config.async_load());
    assert_eq!(config.async_load_workers(), 15);
    assert_eq!(config.local_reuse_backoff(), LocalReuseBackoff::Align);
    assert_eq!(config.soft_pin_ttl_ms(), Some(16));
    assert!(config.group_blocks());
    assert_eq!(config.stats_interval(), Some(Duration::from_millis(1500)));
    assert_eq!(config.store(), StoreKind::MooncakeTcp);
    assert_eq!(config.pool(), "i");
    assert_eq!(config.library(), "j");
    assert_eq!(config.key_scheme(), Scheme::Kvb1);
    assert_eq!(config.page_format(), PageFormat::Raw);
    assert_eq!(config.weights_digest(), "k");
    assert_eq!(config.number_format(), Some("int8"));
    assert_eq!(config.lookup_timeout(), Duration::from_millis(17));
    assert_eq!(config.load_timeout(), Duration::from_millis(18));
    assert_eq!(config.save_timeout(), Duration::from_millis(19));
    assert_eq!(config.breaker_cooldown(), Duration::from_millis(20));
    assert_eq!(config.lookup_chunk_blocks(), 21);
    assert_eq!(config.eviction_ratio(), 0.5);
    assert_eq!(config.lease_ttl(), Duration::from_millis(22));
    assert_eq!(config.replica_num(), 3);
}
