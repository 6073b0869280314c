//! Dependencies point one way, as the table in `src/lib.rs` says, and `unsafe` stands only where
//! memory or foreign code is met.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Layers from the bottom up.
const LAYERS: [&[&str]; 5] = [
    &["catch", "error", "fork", "plant", "recycle", "sync"],
    &[
        "config", "engine", "keys", "layout", "link", "metadata", "page", "stats",
    ],
    &["device", "lane", "node", "staging", "store"],
    &["scheduler", "worker"],
    &["ffi"],
];

/// Modules of one layer may use each other, but not in these layers.
const APART: [usize; 2] = [0, 3];

const MAY_BE_UNSAFE: [&str; 7] = [
    "catch.rs",
    "fork.rs",
    "ffi/",
    "device/",
    "store/embedded/arena.rs",
    "store/mooncake/",
    // Lent memory that several processes write, which only system calls may touch.
    "store/wire/segment/memory.rs",
];

/// What several threads run through by hand, and loom in every order: a lock, thread or atomic of another kind
/// would be one that loom does not see.
const ONLY_FROM_SYNC: [&str; 9] = [
    "lane/mod.rs",
    "lane/shared.rs",
    "store/breaker.rs",
    "store/guarded/",
    "worker/fence.rs",
    "worker/finished.rs",
    "worker/parked.rs",
    "worker/sets.rs",
    "worker/shutdown.rs",
];

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path
                .strip_prefix(&root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            if path.is_dir() {
                folders.push(path);
            } else if name.ends_with(".rs") {
                found.push((name, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}

/// A file without tests and comments; nothing if the whole file is tests.
fn code(name: &str, text: &str) -> String {
    if name.ends_with("tests.rs") || name.contains("/tests/") {
        return String::new();
    }
    let end = text.find("#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end]
        .lines()
        .map(|line| line.find("//").map_or(line, |at| &line[..at]))
        .collect::<Vec<_>>()
        .join("\n")
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn word(text: &str) -> &str {
    &text[..text.find(|c| !is_word(c)).unwrap_or(text.len())]
}

/// First segments of all paths that begin with `crate::`, also in braces.
fn used(code: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        if code[..at].ends_with(is_word) {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            found.insert(word(rest).to_owned());
            continue;
        };
        let (mut depth, mut expects) = (1, true);
        for (at, c) in list.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => expects = true,
                c if depth == 1 && expects && is_word(c) => {
                    found.insert(word(&list[at..]).to_owned());
                    expects = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

fn module(name: &str) -> &str {
    name.split('/').next().unwrap().trim_end_matches(".rs")
}

/// What is wrong with `module` using `other`.
fn verdict(layers: &BTreeMap<&str, usize>, module: &str, other: &str) -> Option<String> {
    let (Some(own), Some(theirs)) = (layers.get(module), layers.get(other)) else {
        return Some(format!("{module} uses {other}: one of them is in no layer"));
    };
    if module == other || theirs < own || (theirs == own && !APART.contains(own)) {
        return None;
    }
    Some(format!(
        "{module} (layer {own}) uses {other} (layer {theirs})"
    ))
}

fn layers() -> BTreeMap<&'static str, usize> {
    let all = LAYERS.iter().enumerate();
    all.flat_map(|(number, names)| names.iter().map(move |name| (*name, number)))
        .collect()
}

#[test]
fn modules_use_only_what_lies_below_them() {
    let layers = layers();
    let mut wrong = Vec::new();
    let mut edges = 0;
    for (name, text) in sources() {
        if name == "lib.rs" {
            for line in text.lines() {
                if let Some(module) = line.strip_prefix("pub mod ") {
                    let module = module.trim_end_matches(';');
                    let row = format!("`{module}`");
                    if !layers.contains_key(module) || !text.contains(&row) {
                        wrong.push(format!("{module} is not in the table"));
                    }
                }
            }
            continue;
        }
        let code = code(&name, &text);
        let own = module(&name);
        // The files of a module may not leave it any other way.
        if (name.ends_with("mod.rs") && name.matches('/').count() == 1 || !name.contains('/'))
            // Its inner modules, one per build, refer to each other.
            && name != "sync.rs"
            && code.contains("super::")
        {
            wrong.push(format!("{name}: super:: leads out of {own}"));
        }
        for other in used(&code) {
            edges += 1;
            wrong.extend(verdict(&layers, own, &other).map(|what| format!("{name}: {what}")));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(edges > 50, "the search finds nothing: {edges}");
}

#[test]
fn unsafe_stands_only_where_memory_is_met() {
    let mut wrong = Vec::new();
    let mut seen = 0;
    for (name, text) in sources() {
        for (number, line) in code(&name, &text).lines().enumerate() {
            let here = line.match_indices("unsafe").any(|(at, _)| {
                !line[..at].ends_with(is_word) && !line[at + "unsafe".len()..].starts_with(is_word)
            });
            if here {
                seen += 1;
                if !MAY_BE_UNSAFE
                    .iter()
                    .any(|allowed| name.starts_with(allowed))
                {
                    wrong.push(format!("{name}:{}: {line}", number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(seen > 10, "the search finds nothing: {seen}");
}

#[test]
fn what_loom_runs_takes_its_primitives_from_sync() {
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, text) in sources() {
        let starts = |listed: &&&str| name.starts_with(**listed);
        // loom's own tests count what they see with its atomics.
        let Some(listed) = ONLY_FROM_SYNC.iter().find(starts) else {
            continue;
        };
        if name.ends_with("loom.rs") {
            continue;
        }
        seen.insert(listed);
        for (number, line) in code(&name, &text).lines().enumerate() {
            if ["parking_lot", "std::sync", "std::thread", "loom::"]
                .iter()
                .any(|other| line.contains(other))
            {
                wrong.push(format!("{name}:{}: {line}", number + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(seen.len(), ONLY_FROM_SYNC.len(), "some are gone: {seen:?}");
}

#[test]
fn the_search_sees_paths_and_the_rules_bite() {
    let text = "use crate::{a, b::{c, d}, e};\nfn f() { crate::g::h(); mycrate::i(); pub(crate) }";
    let found: Vec<String> = used(text).into_iter().collect();
    assert_eq!(found, ["a", "b", "e", "g"]);
    let layers = layers();
    for (module, other, fine) in [
        ("worker", "store", true),
        ("store", "device", true),
        ("keys", "error", true),
        ("worker", "scheduler", false),
        ("scheduler", "worker", false),
        ("keys", "store", false),
        ("store", "worker", false),
        ("worker", "ffi", false),
        ("error", "sync", false),
        ("worker", "unheard_of", false),
    ] {
        assert_eq!(
            verdict(&layers, module, other).is_none(),
            fine,
            "{module} {other}"
        );
    }
    let code = code("x.rs", "a // unsafe\n#[cfg(test)]\nmod tests {\nunsafe\n");
    assert_eq!(code.trim(), "a");
}
