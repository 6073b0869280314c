//! Writes the inputs that fuzzing starts from, one per interesting shape, into `corpus/`. Run it
//! again after a change of the encoded form: it replaces its own files, whose names are words.
//! With `--check` it writes nothing and fails when a file is not what it would write.

use kvbridge::config::Config;
use kvbridge::metadata::{Metadata, Recycler};
use kvbridge::store::wire::transfer::frame::{Operation, Request, Status, Version};
use kvbridge::store::wire::transfer::owner;
use kvbridge_fuzz::server::Server;
use std::fs;
use std::path::Path;
use std::sync::Arc;

const TEXTS: [(&str, &str); 14] = [
    ("empty", ""),
    ("object", "{}"),
    ("minimal", r#"{"model_key": "m"}"#),
    (
        "sizes",
        r#"{"model_key": "m", "global_segment_size": "1.5 GiB", "staging_buffer_bytes": 65536, "local_buffer_size": "8kb"}"#,
    ),
    (
        "roles",
        r#"{"model_key": "m", "role": "capacity", "tenant_id": "t"}"#,
    ),
    (
        "mooncake",
        r#"{"model_key": "m", "master_server_address": "[::1]:50051", "protocol": "tcp", "kvbridge": {"store": "mooncake-tcp"}}"#,
    ),
    (
        "trtllm",
        r#"{"model_key": "m", "kvbridge": {"key_scheme": "trtllm", "page_format": "raw"}}"#,
    ),
    (
        "unknown",
        r#"{"model_key": "m", "other": [1, {"a": null}], "kvbridge": {"poool": 1}}"#,
    ),
    ("twice", r#"{"model_key": "m", "model_key": "n"}"#),
    (
        "escapes",
        r#"{"model_key": "\u00e9\ud83d\ude00\n\"", "namespace": "a%b@c"}"#,
    ),
    (
        "numbers",
        r#"{"model_key": "m", "kvbridge": {"eviction_ratio": 1e-3, "lease_ttl_ms": 18446744073709551616}}"#,
    ),
    ("types", r#"{"model_key": 1, "role": true, "kvbridge": []}"#),
    (
        "deep",
        r#"{"model_key": "m", "other": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}"#,
    ),
    ("cut", r#"{"model_key": "m", "kvbridge": {"pool": "#),
];

/// Metadata that no scheduler of the examples builds.
fn shapes() -> Vec<(&'static str, Vec<u8>)> {
    let mut shapes = Vec::new();
    for (name, groups, hash_bytes, runs) in [
        ("no-groups", 0, 32_u32, 1_u64),
        ("short-hashes", 2, 16, 2),
        ("many-groups", 9, 32, 1),
        ("many-runs", 1, 16, 9),
        ("no-runs", 3, 32, 0),
    ] {
        let recycler = Arc::new(Recycler::new(7));
        let mut metadata = recycler.metadata(3, [1; 16], hash_bytes);
        metadata.set_groups(0..groups);
        let hash = vec![5; hash_bytes as usize];
        for run in 0..runs {
            for is_load in [true, false] {
                let transfers = if is_load {
                    metadata.loads_mut()
                } else {
                    metadata.saves_mut()
                };
                transfers.begin_run(run, 10 + run, u32::MAX - 3, &hash);
                for block in 0..run % 4 {
                    let pages = (0..groups as i32).map(|group| group * block as i32 - 1);
                    transfers.push_block(&hash, pages);
                }
            }
        }
        let mut bytes = Vec::new();
        metadata.encode(&mut bytes);
        shapes.push((name, bytes));
    }
    shapes
}

/// What Mooncake's own processes send.
fn transfers() -> Vec<(&'static str, Vec<u8>)> {
    let owner = r#"{"buffers":[{"addr":140001041567808,"length":1048576,"name":"a:1"},{"addr":139998636539904,"length":268435456,"name":"a:1"}],"name":"a:1","protocol":"tcp","tcp_data_host":"127.0.0.1","tcp_data_port":15619,"tcp_proto_version":2}"#;
    let answer = |text: &str| {
        let length = text.len();
        format!(
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{text}"
        )
    };
    let request = Request {
        size: 16384,
        address: 139_998_636_539_904,
        operation: Operation::Write,
        version: Version::Two,
    };
    let contact = r#"{"ip_or_host_name":"127.0.0.1","rpc_port":16726}"#;
    vec![
        ("request", request.encode().to_vec()),
        ("fine", Status::Fine.encode().to_vec()),
        ("rejected", Status::Rejected.encode().to_vec()),
        ("description", owner.as_bytes().to_vec()),
        ("handshake", owner::handshake(owner::DESCRIBE, owner)),
        ("found", answer(owner).into_bytes()),
        ("contact", answer(contact).into_bytes()),
        (
            "missing",
            b"HTTP/1.1 404 Not Found\r\n\r\nmetadata not found".to_vec(),
        ),
    ]
}

/// What masters of Mooncake answered: the recorded messages of one version.
fn answers() -> Vec<(String, Vec<u8>)> {
    let recorded = include_str!("../../../tests/vectors/wire_messages.txt");
    let mut seeds = Vec::new();
    for line in recorded.lines().filter(|line| line.starts_with("0.3.14 ")) {
        let parts: Vec<&str> = line.split(' ').collect();
        let (name, hex) = (parts[1].to_lowercase(), parts[4]);
        let digits = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        let bytes: Vec<u8> = digits
            .map(|digits| u8::from_str_radix(digits, 16).expect("hex"))
            .collect();
        if !seeds.iter().any(|(other, _)| *other == name) {
            seeds.push((name, bytes));
        }
    }
    seeds
}

fn main() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let is_check = std::env::args().any(|argument| argument == "--check");
    let save = |target: &str, name: &str, bytes: &[u8]| {
        let folder = corpus.join(target);
        // A scheduler's number differs from run to run, so that bytes may differ and be as good.
        let found = fs::read(folder.join(name)).unwrap_or_default();
        let is_read = |bytes: &[u8]| Metadata::decode(bytes).is_ok();
        if found == bytes || found.len() == bytes.len() && is_read(&found) && is_read(bytes) {
            return;
        }
        let advice = "write the seeds anew with scripts/fuzz --seeds";
        assert!(!is_check, "{target}/{name} is out of date: {advice}");
        fs::create_dir_all(&folder).expect("the corpus can be written");
        fs::write(folder.join(name), bytes).expect("the corpus can be written");
    };
    let examples = Server::new().examples();
    for (name, bytes) in examples.iter().chain(&shapes()) {
        save("metadata", name, bytes);
    }
    if let Some((_, longest)) = shapes().last() {
        save("metadata", "cut", &longest[..longest.len() / 2]);
    }
    for (name, bytes) in &examples {
        save("worker", name, bytes);
    }
    for (name, text) in TEXTS {
        save("config", name, text.as_bytes());
    }
    for (name, bytes) in transfers() {
        save("transfer", name, &bytes);
    }
    for (name, bytes) in answers() {
        save("master", &name, &bytes);
    }
    let whole = Config::from_json(br#"{"model_key": "m"}"#).expect("a valid configuration");
    save("config", "whole", whole.render().as_bytes());
}
