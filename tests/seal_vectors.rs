//! The seal against golden vectors, made by an implementation that shares no code with ours.
//! `KVB_KVB1_VECTORS` names another vector file than the one in the repository.
#![allow(clippy::panic, reason = "a helper of a test fails it by panicking")]

use kvbridge::page::{FOOTER_BYTES, Verdict, crc64, seal, verify};
use serde_json::Value;

fn vectors() -> Value {
    let path = std::env::var("KVB_KVB1_VECTORS").unwrap_or_else(|_| {
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/kvb1_keys.json").to_owned()
    });
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn vectors_crc64_check_value() {
    let expected = vectors()["crc64_nvme_check"].as_str().unwrap().to_owned();
    assert_eq!(format!("{:016x}", crc64(b"123456789")), expected);
}

#[test]
fn vectors_seals() {
    let vectors = vectors();
    let seals = vectors["seals"].as_array().unwrap();
    assert!(!seals.is_empty());
    for vector in seals {
        let key = vector["key"].as_str().unwrap().as_bytes();
        let size = usize::try_from(vector["size"].as_u64().unwrap()).unwrap();
        assert_eq!(vector["payload_rule"], "byte i = (7*i + size) mod 256");
        let mut object: Vec<u8> = (0..size).map(|i| ((7 * i + size) % 256) as u8).collect();
        let footer = seal(key, &object);
        assert_eq!(
            hex(&footer),
            vector["footer"].as_str().unwrap(),
            "size {size}"
        );
        object.extend_from_slice(&footer);
        assert_eq!(object.len(), size + FOOTER_BYTES);
        assert_eq!(verify(key, &object, size), Verdict::Intact);
    }
}
