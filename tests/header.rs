//! The committed header is what the sources say. `KVB_BLESS=1 cargo test --test header` rewrites it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;

/// The parts in their order, each a file of `src/ffi` and what it is about. A type is used after it was declared.
const PARTS: &[(&str, &str)] = &[
    ("status", "what functions answer"),
    ("log", "the log"),
    ("global", "the library as a whole"),
    ("plain", "plain data that several nouns share"),
    ("config", "configuration"),
    ("layout", "cache layout"),
    ("host", "a pool behind functions of the host"),
    (
        "store",
        "a pool by itself: for tools and tests, engines need only the worker",
    ),
    ("metadata", "one pass's transfers"),
    ("fence", "what asynchronous loads wait for"),
    ("worker", "one rank's mover"),
    ("stats", "what a worker has counted"),
    ("explain", "why a prompt gets the offer that it gets"),
    ("scheduler", "one leader's or owner's decisions"),
    (
        "keys",
        "keys: so that tools and other languages can name pages",
    ),
    ("plugin", "for hosts that load the library at run time"),
];

const BEFORE: &str = "
#ifndef KVBRIDGE_KVBRIDGE_H
#define KVBRIDGE_KVBRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern \"C\" {
#endif
";

const AFTER: &str = "
#ifdef __cplusplus
} /* extern \"C\" */
#endif

#endif /* KVBRIDGE_KVBRIDGE_H */
";

fn generated(root: &Path) -> String {
    let mut config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let conventions = config.header.take().unwrap();
    let mut header = conventions.trim_start().to_owned() + BEFORE;
    for (part, about) in PARTS {
        let source = root.join(format!("src/ffi/{part}.rs"));
        let mut config = config.clone();
        // Also what only other parts use.
        config.export.include = names(&fs::read_to_string(&source).unwrap());
        let mut text = Vec::new();
        let builder = cbindgen::Builder::new().with_config(config);
        let bindings = builder.with_src(source).generate().unwrap();
        bindings.write(&mut text);
        let text = tidy(&String::from_utf8(text).unwrap());
        header += &format!("\n/* ==== {about} ==== */\n\n{}\n", text.trim());
    }
    header + AFTER
}

/// The types that a source declares.
fn names(source: &str) -> Vec<String> {
    let declared = |line: &str| {
        let rest = line
            .strip_prefix("pub struct ")
            .or(line.strip_prefix("pub type "))?;
        rest.split([' ', ';']).next().map(str::to_owned)
    };
    source.lines().filter_map(declared).collect()
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
            [text, end, after @ ..] if line.trim() == "/**" && end.trim() == "*/" => {
                let text = text.trim().trim_start_matches("* ");
                tidied += &format!("{}/** {text} */", &line[..indent]);
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
