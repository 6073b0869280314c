//! Rendering and reading back; and no input, however odd, does more than be refused.

use super::read;
use crate::config::{Config, Origin, parse};
use proptest::option::of;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// Text of any kind that a field takes: not empty, no NUL.
fn words() -> impl Strategy<Value = Value> {
    "[^\0]{1,12}".prop_map(Value::from)
}

fn one_of(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::sample::select(names).prop_map(Value::from)
}

fn sizes() -> impl Strategy<Value = Value> {
    prop_oneof![
        (1..=u64::MAX).prop_map(Value::from),
        (1..=u64::MAX).prop_map(|bytes| Value::from(bytes.to_string())),
        (1u32..4096).prop_map(|count| Value::from(format!(" {count}.5 GiB"))),
    ]
}

fn some_u64() -> impl Strategy<Value = Value> {
    (1..=u64::MAX).prop_map(Value::from)
}

fn some_u32() -> impl Strategy<Value = Value> {
    (1..=u32::MAX).prop_map(Value::from)
}

fn seconds() -> impl Strategy<Value = Value> {
    prop_oneof![
        (1e-9..1e19f64).prop_map(Value::from),
        (1u64..1 << 60).prop_map(Value::from),
        (1e-9..10f64).prop_map(Value::from),
    ]
}

/// One field, present or not.
type Field = (&'static str, BoxedStrategy<Value>);

fn object_of(fields: Vec<Field>) -> impl Strategy<Value = Map<String, Value>> {
    let (names, values): (Vec<_>, Vec<_>) = fields
        .into_iter()
        .map(|(name, value)| (name, of(value)))
        .unzip();
    values.prop_map(move |values| {
        names
            .iter()
            .zip(values)
            .filter_map(|(name, value)| Some(((*name).to_owned(), value?)))
            .collect()
    })
}

/// Files that are accepted: each field absent or any good value, the rules between fields kept.
fn good_files() -> impl Strategy<Value = Value> {
    let top = object_of(vec![
        ("metadata_server", words().boxed()),
        ("protocol", words().boxed()),
        (
            "device_name",
            any::<String>()
                .prop_map(|s| Value::from(s.replace('\0', "")))
                .boxed(),
        ),
        (
            "local_hostname",
            one_of(&["", "node", "10.0.0.1", "::1"]).boxed(),
        ),
        ("global_segment_size", sizes().boxed()),
        ("local_buffer_size", sizes().boxed()),
        (
            "tenant_id",
            prop_oneof![Just(Value::Null), Just(json!("")), words()].boxed(),
        ),
        (
            "role",
            one_of(&["producer", "consumer", "both", "capacity"]).boxed(),
        ),
        ("namespace", words().boxed()),
        ("transfer_batch_size", some_u32().boxed()),
        ("staging_buffer_bytes", sizes().boxed()),
        ("async_load", any::<bool>().prop_map(Value::from).boxed()),
        (
            "async_load_workers",
            (1u32..=64).prop_map(Value::from).boxed(),
        ),
        ("local_reuse_backoff", one_of(&["off", "align"]).boxed()),
        ("soft_pin_ttl_ms", some_u64().boxed()),
        ("group_blocks", any::<bool>().prop_map(Value::from).boxed()),
        ("stats_interval", seconds().boxed()),
        ("someone_elses", words().boxed()),
    ]);
    let own = object_of(vec![
        ("pool", words().boxed()),
        ("library", words().boxed()),
        ("weights_digest", words().boxed()),
        ("number_format", one_of(&["float16", "custom:é"]).boxed()),
        ("lookup_timeout_ms", some_u64().boxed()),
        ("load_timeout_ms", some_u64().boxed()),
        ("save_timeout_ms", some_u64().boxed()),
        ("breaker_cooldown_ms", some_u64().boxed()),
        ("lookup_chunk_blocks", some_u32().boxed()),
        (
            "eviction_ratio",
            (1e-9..=1f64).prop_map(Value::from).boxed(),
        ),
        ("lease_ttl_ms", any::<u64>().prop_map(Value::from).boxed()),
        ("replica_num", (1u32..=16).prop_map(Value::from).boxed()),
    ]);
    // Combinations that the rules between fields allow.
    let pages = proptest::sample::select(vec![
        (true, None, None),
        (true, Some("kvb1"), None),
        (true, Some("kvb1"), Some("sealed")),
        (true, None, Some("raw")),
        (false, None, Some("raw")),
        (false, Some("trtllm"), None),
        (true, Some("trtllm"), Some("raw")),
    ]);
    let pool = proptest::sample::select(vec![
        (None, None),
        (None, Some("host")),
        (None, Some("embedded")),
        (Some("m:1"), None),
        (Some("[::1]:65535"), Some("mooncake-tcp")),
        (Some("10.0.0.1:1"), Some("host")),
    ]);
    let model = words();
    (top, own, pages, pool, model).prop_map(|(mut top, mut own, pages, pool, model)| {
        let put = |object: &mut Map<String, Value>, name: &str, value: Option<&str>| {
            value.map(|value| object.insert(name.to_owned(), Value::from(value)))
        };
        top.insert("model_key".to_owned(), model);
        if !pages.0 {
            top.insert("stage_through_host".to_owned(), Value::from(false));
        }
        put(&mut own, "key_scheme", pages.1);
        put(&mut own, "page_format", pages.2);
        put(&mut top, "master_server_address", pool.0);
        put(&mut own, "store", pool.1);
        if !own.is_empty() {
            top.insert("kvbridge".to_owned(), Value::from(own));
        }
        Value::from(top)
    })
}

/// JSON of every shape.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        "[0-9.]{1,5} ?[kmgtKMGT]?i?[bB]?".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::hash_map(".*", inner, 0..4)
                .prop_map(|map| Value::from(map.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// The names of all fields, so that odd values land on each.
fn names(own: bool) -> Vec<String> {
    let all: Value = serde_json::from_str(&read(r#"{"model_key":"m"}"#).render()).expect("JSON");
    let object = if own { &all["kvbridge"] } else { &all };
    object
        .as_object()
        .expect("an object")
        .keys()
        .cloned()
        .collect()
}

#[test]
fn the_default_configuration_as_text() {
    let text = read(r#"{"model_key":"m"}"#).render();
    let head = "{\n  \"master_server_address\": null,\n  \"metadata_server\": \"P2PHANDSHAKE\",\n";
    assert!(text.starts_with(head), "{text}");
    let tail = "    \"eviction_ratio\": 0.05,\n    \"lease_ttl_ms\": 10000,\n    \"replica_num\": 1\n  }\n}";
    assert!(text.ends_with(tail), "{text}");
}

#[test]
fn what_was_ignored_renders_as_off() {
    let file = br#"{"model_key":"m","local_reuse_backoff":"align"}"#;
    let config = parse::parse(file, Origin::Shared).expect("accepted");
    let again = read(&config.render());
    assert_eq!(again, config);
    assert_ne!(again, Config::from_json(file).expect("accepted"));
}

proptest! {
    #[test]
    fn rendering_reads_back(file in good_files()) {
        let config = read(&file.to_string());
        let text = config.render();
        let again = read(&text);
        prop_assert_eq!(&again, &config);
        prop_assert_eq!(again.warnings(), &[] as &[String]);
        prop_assert_eq!(again.render(), text);
        // What the file names is what is rendered, where both spell it alike.
        if let Some(name) = file.get("namespace").and_then(Value::as_str) {
            prop_assert_eq!(config.namespace(), name);
        }
    }

    #[test]
    fn any_bytes_have_an_answer(bytes: Vec<u8>, text in r#"[\{\}\[\]",:0-9a-z\\ ]{0,40}"#) {
        let _ = Config::from_json(&bytes);
        let _ = Config::from_json(text.as_bytes());
    }

    #[test]
    fn any_json_has_an_answer(
        whole in any_json(),
        top in proptest::collection::hash_map(proptest::sample::select(names(false)), any_json(), 0..5),
        own in proptest::collection::hash_map(proptest::sample::select(names(true)), any_json(), 0..5),
    ) {
        let _ = Config::from_json(whole.to_string().as_bytes());
        let mut file = Map::from_iter(top);
        file.entry("kvbridge").or_insert(Value::from(Map::from_iter(own)));
        if let Ok(config) = Config::from_json(Value::from(file).to_string().as_bytes()) {
            prop_assert_eq!(read(&config.render()), config);
        }
    }
}
