//! The committed header is what the sources say. `KVB_BLESS=1 cargo test --test header` rewrites it.

use std::fs;
use std::path::Path;

/// The order of constants, types and functions in the header.
const SOURCES: &[&str] = &[
    "status",
    "plain",
    "global",
    "log",
    "config",
    "layout",
    "store",
    "worker",
    "scheduler",
    "metadata",
    "keys",
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
    tidy(&String::from_utf8(header).unwrap())
}

/// What cbindgen has no setting for: comments of one line on one line, and types by their plain names, since each is
/// also a typedef.
fn tidy(header: &str) -> String {
    let lines: Vec<&str> = header.lines().collect();
    let mut tidied = String::new();
    let mut rest = lines.as_slice();
    while let [line, later @ ..] = rest {
        let indent = line.len() - line.trim_start().len();
        rest = later;
        match later {
            [text, end, after @ ..] if line.trim() == "/*" && end.trim() == "*/" => {
                tidied += &format!("{}/* {} */", &line[..indent], text.trim());
                rest = after;
            }
            _ if line.trim_start().starts_with("typedef struct") => tidied += line,
            _ => tidied += &line.replace("struct kvb_", "kvb_"),
        }
        tidied.push('\n');
    }
    tidied
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
    let lines = committed.lines().zip(fresh.lines());
    let same = lines
        .take_while(|(committed, fresh)| committed == fresh)
        .count();
    assert!(
        committed == fresh,
        "{} is stale from line {} on; KVB_BLESS=1 rewrites it",
        path.display(),
        same + 1
    );
}
