//! The file as a whole: its text, its unknown fields, rules between fields, where it is found.

use super::{read, refusal, refusal_of};
use crate::config::{
    Config, Environment, LocalReuseBackoff, Role, SHARED_VARIABLE, StoreKind, json,
};
use crate::error::Kind;
use crate::keys::PageFormat;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

fn assert_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text:?}");
    }
}

#[test]
fn sizes_of_a_public_report() {
    // One file for all: each field and value is named in the one answer.
    let text = refusal(
        r#"{"model_key":"m","global_segment_size":"4GB","local_buffer_size":"1.5",
            "staging_buffer_bytes":"18446744073709551616"}"#,
    );
    assert_parts(
        &text,
        &[
            "3 problems",
            r#"global_segment_size: "4GB" is ambiguous"#,
            r#"write "4GiB""#,
            r#"local_buffer_size: "1.5" has a fraction"#,
            r#"staging_buffer_bytes: "18446744073709551616" is more than"#,
        ],
    );
    for (value, reason) in [
        (r#""-5""#, "negative"),
        (r#""50%""#, "share"),
        (r#""1e9""#, "exponent"),
        (r#""""#, "empty"),
        ("true", "boolean"),
        ("1.5", "fraction"),
    ] {
        let text = refusal(&format!(
            r#"{{"model_key":"m","local_buffer_size":{value}}}"#
        ));
        assert_parts(&text, &[&format!("local_buffer_size: {value} "), reason]);
    }
    for value in [r#""4GiB""#, r#"" 4 GiB ""#] {
        let config = read(&format!(
            r#"{{"model_key":"m","local_buffer_size":{value}}}"#
        ));
        assert_eq!(config.local_buffer_size(), 4 << 30);
    }
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = refusal(
        r#"{"stage_through_host":"false","async_load":0,"kvbridge":{"key_shceme":"kvb1",
            "pool":""},"namespace":""}"#,
    );
    assert_parts(
        &text,
        &[
            "6 problems",
            r#"stage_through_host: "false" is a string"#,
            "async_load: 0 is a number",
            r#"kvbridge.key_shceme: "kvb1""#,
            r#"nearest known field is "key_scheme""#,
            r#"kvbridge.pool: "" is empty"#,
            r#"namespace: "" is empty"#,
            "model_key: is missing",
        ],
    );
}

#[test]
fn unknown_fields() {
    let config =
        read(r#"{"model_key":"m","prefill_url":"h:1","decode_url":{"a":[1,1e400]},"pool":"x"}"#);
    assert_eq!(config.warnings().len(), 1);
    assert_parts(
        &config.warnings()[0],
        &["prefill_url, decode_url, pool (a field of the object \"kvbridge\")"],
    );
    assert_eq!(config.pool(), "default");

    let own = |fields: &str| format!(r#"{{"model_key":"m","kvbridge":{{{fields}}}}}"#);
    for (fields, part) in [
        (
            r#""stor":"host""#,
            r#"kvbridge.stor: "host" belongs to an unknown field; the nearest known field is "store""#,
        ),
        (r#""Pool":1"#, r#"nearest known field is "pool""#),
        (
            r#""lookup_timeout":1"#,
            r#"nearest known field is "lookup_timeout_ms""#,
        ),
        (r#""":1"#, "kvbridge.: 1 belongs to an unknown field"),
        (
            r#""role":"both""#,
            "kvbridge.role: \"both\" belongs to an unknown field; it stands at the top level",
        ),
    ] {
        assert_parts(&refusal(&own(fields)), &[part]);
    }
    let long = "x".repeat(100_000);
    let text = refusal(&own(&format!(r#""{long}":"{long}""#)));
    assert!(text.len() < 1000, "a message stays short: {}", text.len());
}

#[test]
fn our_object_must_be_an_object() {
    for value in ["null", "[]", "5", r#""kvb1""#] {
        let text = refusal(&format!(r#"{{"model_key":"m","kvbridge":{value}}}"#));
        assert_eq!(text, format!("kvbridge: {value} is not an object"));
    }
}

#[test]
fn repeated_keys_are_refused_everywhere() {
    for (text, part) in [
        (
            r#"{"model_key":"a","model_key":"b"}"#,
            r#"model_key: stands twice in its object, as "a" and as "b""#,
        ),
        (
            r#"{"model_key":"a","model_\u006bey":"a"}"#,
            "model_key: stands twice",
        ),
        (
            r#"{"model_key":"m","kvbridge":{"pool":"a","pool":"a"}}"#,
            "kvbridge.pool: stands twice",
        ),
        (
            r#"{"model_key":"m","kvbridge":{},"kvbridge":{}}"#,
            "kvbridge: stands twice",
        ),
        (
            r#"{"model_key":"m","theirs":[0,{"a":1,"b":2,"a":3}]}"#,
            "theirs[1].a: stands twice in its object, as 1 and as 3",
        ),
    ] {
        let refusal = refusal(text);
        assert_parts(&refusal, &[part]);
        assert!(!refusal.contains('\n'), "one problem: {refusal}");
    }
    // The same name in two objects is no repetition.
    read(r#"{"model_key":"m","theirs":{"a":{"a":1},"b":{"a":1}},"kvbridge":{"pool":"a"}}"#);
}

#[test]
fn text_that_is_no_object() {
    for (bytes, part) in [
        (&b""[..], "empty"),
        (b" \n\t", "empty"),
        (b"\xff\xfe{}", "not UTF-8: a wrong byte at offset 0"),
        (
            b"{\"model_key\":\"\xc3\"}",
            "not UTF-8: a wrong byte at offset 14",
        ),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b"[]", "expected a JSON object"),
        (b"5", "expected a JSON object"),
        (b"null", "expected a JSON object"),
        (b"\"{}\"", "expected a JSON object"),
        (b"{} {}", "trailing characters at line 1 column 4"),
        (b"{\"model_key\":", "EOF"),
        (b"{\"model_key\":\"m\",}", "trailing comma"),
        (b"{model_key:1}", "at line 1 column 2, at model_key"),
        (
            b"{\"a\":1,\n \"b\": NaN}",
            "b: expected value at line 2 column 7, at NaN",
        ),
        (b"{\"a\":-Infinity}", "a: invalid number at line 1 column 7"),
        (b"{\"a\":0x10}", "line 1 column 7"),
        (b"{\"a\":01}", "line 1 column 7"),
        (b"{\"\\ud800\":1}", "line 1"),
        (b"\0", "line 1"),
    ] {
        let text = refusal_of(bytes);
        assert_parts(&text, &[part]);
    }
}

#[test]
fn depth_and_length_are_bounded() {
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        for depth in [40, 50_000] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            let text = refusal(&format!(r#"{{"model_key":"m","deep":{nested}}}"#));
            assert_parts(&text, &["nested more than 32 levels"]);
            let unclosed = format!(r#"{{"model_key":"m","deep":{}"#, open.repeat(depth));
            assert_parts(&refusal(&unclosed), &["EOF"]);
        }
    }
    let wide = vec![b' '; json::MAX_BYTES + 1];
    assert_parts(&refusal_of(&wide), &["larger than 1048576 bytes"]);
    let mut full = br#"{"model_key":"m"}"#.to_vec();
    full.resize(json::MAX_BYTES, b' ');
    assert!(Config::from_json(&full).is_ok());
}

#[test]
fn rules_between_fields() {
    let accepted = |text: &str| {
        read(text);
    };
    // The model key belongs to roles that transfer.
    accepted(r#"{"role":"capacity"}"#);
    assert_eq!(read(r#"{"role":"capacity"}"#).model_key(), "");
    for role in ["producer", "consumer", "both"] {
        let text = refusal(&format!(r#"{{"role":"{role}"}}"#));
        assert_parts(&text, &["model_key: is missing", role]);
    }
    assert_parts(
        &refusal(r#"{"role":"capacity","model_key":""}"#),
        &["model_key: \"\" is empty"],
    );

    // The Mooncake stores need a master, the others do not mind one.
    for store in ["mooncake", "mooncake-tcp"] {
        let text = refusal(&format!(
            r#"{{"model_key":"m","kvbridge":{{"store":"{store}"}}}}"#
        ));
        assert_parts(&text, &["master_server_address: is missing", store]);
    }
    for store in ["embedded", "host"] {
        accepted(&format!(
            r#"{{"model_key":"m","kvbridge":{{"store":"{store}"}}}}"#
        ));
        accepted(&format!(
            r#"{{"model_key":"m","master_server_address":"h:1","kvbridge":{{"store":"{store}"}}}}"#
        ));
    }
    assert_eq!(read(r#"{"model_key":"m"}"#).store(), StoreKind::Embedded);
    let with_master = read(r#"{"model_key":"m","master_server_address":"h:1"}"#);
    assert_eq!(with_master.store(), StoreKind::Mooncake);

    // Page format, key scheme and direct transfers.
    let own =
        |rest: &str, fields: &str| format!(r#"{{"model_key":"m"{rest},"kvbridge":{{{fields}}}}}"#);
    let direct = r#","stage_through_host":false"#;
    assert_eq!(
        read(&own("", r#""key_scheme":"trtllm""#)).page_format(),
        PageFormat::Raw
    );
    assert_eq!(
        read(&own("", r#""key_scheme":"kvb1""#)).page_format(),
        PageFormat::Sealed
    );
    assert_parts(
        &refusal(&own("", r#""key_scheme":"trtllm","page_format":"sealed""#)),
        &["kvbridge.page_format: \"sealed\" needs the key scheme \"kvb1\""],
    );
    assert_parts(
        &refusal(&own(direct, "")),
        &["stage_through_host: false needs", "raw"],
    );
    assert_parts(
        &refusal(&own(direct, r#""page_format":"sealed""#)),
        &["stage_through_host: false needs"],
    );
    accepted(&own(direct, r#""page_format":"raw""#));
    accepted(&own(direct, r#""key_scheme":"trtllm""#));
}

#[test]
fn a_wrong_field_causes_no_second_message() {
    for text in [
        r#"{"role":"nobody"}"#,
        r#"{"model_key":5}"#,
        r#"{"model_key":"m","kvbridge":{"store":"redis"}}"#,
        r#"{"model_key":"m","master_server_address":"h","kvbridge":{"store":"mooncake"}}"#,
        r#"{"model_key":"m","stage_through_host":false,"kvbridge":{"key_scheme":"vllm"}}"#,
        r#"{"model_key":"m","stage_through_host":false,"kvbridge":{"page_format":"zip"}}"#,
    ] {
        let refusal = refusal(text);
        assert!(!refusal.contains('\n'), "{text}: {refusal}");
    }
}

#[test]
fn roles() {
    for (role, writes, reads, transfers) in [
        (Role::Producer, true, false, true),
        (Role::Consumer, false, true, true),
        (Role::Both, true, true, true),
        (Role::Capacity, false, false, false),
    ] {
        assert_eq!(
            (role.writes(), role.reads(), role.transfers()),
            (writes, reads, transfers)
        );
        // What a role does not use has no effect, and is validated and kept all the same.
        let file = |ttl: &str| {
            format!(
                r#"{{"model_key":"m","role":"{}","soft_pin_ttl_ms":{ttl},"group_blocks":true,
                    "stats_interval":1}}"#,
                role.name()
            )
        };
        let config = read(&file("5"));
        assert_eq!(config.soft_pin_ttl_ms(), writes.then_some(5));
        assert_eq!(config.group_blocks(), writes);
        assert_eq!(config.stats_interval().is_some(), reads);
        assert_eq!(super::rendered(&config, "soft_pin_ttl_ms"), 5);
        assert_eq!(super::rendered(&config, "group_blocks"), true);
        assert_eq!(super::rendered(&config, "stats_interval"), 1.0);
        assert_parts(&refusal(&file("0")), &["soft_pin_ttl_ms: 0 "]);
    }
}

/// Files of one test, removed with it.
struct Files(PathBuf);

impl Files {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("kvbridge-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).expect("a file");
        path
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_file_is_found_by_path_then_own_then_shared_variable() {
    let files = Files::new("found");
    let path = files.write(
        "path",
        r#"{"model_key":"path","local_reuse_backoff":"align"}"#,
    );
    let own = files.write(
        "own",
        r#"{"model_key":"own","local_reuse_backoff":"align"}"#,
    );
    let shared = files.write(
        "shared",
        r#"{"model_key":"shared","local_reuse_backoff":"align"}"#,
    );
    let both = Environment {
        own: Some(own.into()),
        shared: Some(shared.clone().into()),
    };
    let only_shared = Environment {
        own: Some("".into()),
        ..both.clone()
    };

    for (explicit, environment, model) in [
        (Some(path.as_path()), &both, "path"),
        (None, &both, "own"),
        (Some(shared.as_path()), &both, "shared"),
    ] {
        let config = Config::from_file_in(explicit, environment).expect(model);
        assert_eq!(config.model_key(), model);
        assert_eq!(config.local_reuse_backoff(), LocalReuseBackoff::Align);
        assert_eq!(config.warnings(), &[] as &[String]);
    }

    let config = Config::from_file_in(None, &only_shared).expect("shared");
    assert_eq!(config.model_key(), "shared");
    assert_eq!(config.local_reuse_backoff(), LocalReuseBackoff::Off);
    assert_eq!(config.warnings().len(), 1);
    assert_parts(
        &config.warnings()[0],
        &["local_reuse_backoff: \"align\" is ignored", SHARED_VARIABLE],
    );
    // Ignored is ignored: neither judged nor taken for an unknown field.
    files.write(
        "shared",
        r#"{"model_key":"shared","local_reuse_backoff":7,"x":1}"#,
    );
    let config = Config::from_file_in(None, &only_shared).expect("shared");
    assert_eq!(config.local_reuse_backoff(), LocalReuseBackoff::Off);
    assert_eq!(config.warnings().len(), 2);
    assert_parts(&config.warnings()[1], &["ignored: x"]);

    let config = Config::from_file(Some(&path)).expect("path");
    assert_eq!(config.model_key(), "path");
}

#[test]
fn files_that_cannot_be_read() {
    let files = Files::new("unreadable");
    let none = Environment::default();
    let error = Config::from_file_in(None, &none).expect_err("no file is named");
    assert_eq!(error.kind(), Kind::ConfigUnreadable);
    assert_parts(
        error.message(),
        &["KVBRIDGE_CONFIG", "MOONCAKE_CONFIG_PATH"],
    );

    for path in [files.0.join("absent"), files.0.clone()] {
        let error = Config::from_file_in(Some(&path), &none).expect_err("unreadable");
        assert_eq!(error.kind(), Kind::ConfigUnreadable, "{error}");
        assert_parts(error.message(), &[&path.display().to_string()]);
    }
    let named = Environment {
        shared: Some(files.write("wrong", "{}").into()),
        ..none.clone()
    };
    let error = Config::from_file_in(None, &named).expect_err("no model key");
    assert_eq!(error.kind(), Kind::ConfigInvalid);
    assert_parts(
        error.message(),
        &["wrong (from MOONCAKE_CONFIG_PATH)", "model_key"],
    );

    let endless = Config::from_file_in(Some("/dev/zero".as_ref()), &none).expect_err("no text");
    assert_eq!(endless.kind(), Kind::ConfigInvalid);
    assert_parts(endless.message(), &["larger than"]);
}

/// Keeps the text of every event.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Heard {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0 = format!("{}{value:?}", self.0);
            }
        }
        let mut text = Text(format!("{}: ", event.metadata().level()));
        event.record(&mut text);
        self.0.lock().expect("no panic").push(text.0);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn warnings_are_logged_once() {
    let heard = Heard::default();
    tracing::subscriber::with_default(heard.clone(), || {
        read(r#"{"model_key":"m","theirs":1,"others":2}"#);
    });
    let heard = heard.0.lock().expect("no panic");
    assert_eq!(heard.len(), 1, "{heard:?}");
    assert_parts(&heard[0], &["WARN: ", "theirs, others"]);
}
