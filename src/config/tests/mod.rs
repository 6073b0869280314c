//! Tests of the configuration as a whole; sizes and addresses have theirs beside them.

mod fields;
mod file;
mod round_trip;

use super::Config;
use crate::error::Kind;
use serde_json::Value;

fn read(text: &str) -> Config {
    Config::from_json(text.as_bytes()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    refusal_of(text.as_bytes())
}

fn refusal_of(bytes: &[u8]) -> String {
    let error = Config::from_json(bytes).expect_err("a refusal");
    assert_eq!(error.kind(), Kind::ConfigInvalid, "{error}");
    error.message().to_owned()
}

/// A field as the effective configuration shows it.
fn rendered(config: &Config, name: &str) -> Value {
    let all: Value = serde_json::from_str(&config.render()).expect("rendering is JSON");
    let found = match name.strip_prefix("kvbridge.") {
        Some(own) => &all["kvbridge"][own],
        None => &all[name],
    };
    found.clone()
}
