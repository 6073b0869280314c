//! The committed header is what the sources say. `KVB_BLESS=1 cargo test --test header` rewrites it.

use std::fs;
use std::path::Path;

/// The order of constants, types and functions in the header.
const SOURCES: &[&str] = &[
    "status", "plain", "global", "log", "config", "layout", "store", "worker", "scheduler", "metadata", "keys",
    "plugin",
];

fn generated(root: &Path) -> String {
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let mut builder = cbindgen::Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(format!("src/ffi/{source}.rs")));
    }
    let mut header = Vec::new();
    builder.generate().unwrap().write(&mut header);
    String::from_utf8(header).unwrap()
}

#[test]
fn the_header_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = root.join("include/kvbridge/kvbridge.h");
    let fresh = generated(root);
    if std::env::var_os("KVB_BLESS").is_some_and(|value| value == "1") {
        fs::write(&path, fresh).unwrap();
        return;
    }
    let committed = fs::read_to_string(&path).unwrap();
    let differs = committed
        .lines()
        .zip(fresh.lines())
        .position(|(committed, fresh)| committed != fresh);
    assert!(
        committed == fresh,
        "{} is stale (first difference behind line {}); KVB_BLESS=1 rewrites it",
        path.display(),
        differs.unwrap_or_else(|| committed.lines().count().min(fresh.lines().count())),
    );
}
