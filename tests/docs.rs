//! What the documents say is what the code says: quotes, tables, names, links.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use kvbridge::config::Config;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The documents for users: those of the root and of docs/.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in [".", "docs"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    assert!(found.len() >= 8, "{found:?}");
    found
}

/// The parts of a source between `// [[name]]` and `// [[end]]`, without common indentation.
fn marked(source: &str) -> Vec<(String, String)> {
    let mut parts = Vec::new();
    let mut open: Option<(String, Vec<&str>)> = None;
    for line in source.lines() {
        let mark = line
            .trim()
            .strip_prefix("// [[")
            .and_then(|rest| rest.strip_suffix("]]"));
        match (mark, &mut open) {
            (Some("end"), part) => {
                let (name, lines) = part.take().expect("an end without a beginning");
                let indent = lines
                    .iter()
                    .filter(|line| !line.is_empty())
                    .map(|line| line.len() - line.trim_start().len())
                    .min()
                    .unwrap_or(0);
                let text = lines
                    .iter()
                    .map(|line| format!("{}\n", line.get(indent..).unwrap_or_default()))
                    .collect();
                parts.push((name, text));
            }
            (Some(name), part) => {
                assert!(part.is_none(), "{name} begins inside another part");
                *part = Some((name.to_owned(), Vec::new()));
            }
            (None, Some((_, lines))) => lines.push(line),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a part does not end");
    parts
}

#[test]
fn the_readme_quotes_the_walkthrough() {
    let parts = marked(&read("examples/walkthrough/walkthrough.cc"));
    assert!(parts.len() >= 5);
    let committed = read("README.md");
    let mut fresh = committed.clone();
    for (name, text) in &parts {
        let opening = format!("<!-- walkthrough: {name} -->\n```cpp\n");
        let start = fresh
            .find(&opening)
            .unwrap_or_else(|| panic!("README.md does not quote \"{name}\""))
            + opening.len();
        let length = fresh[start..]
            .find("```\n")
            .expect("the quote does not end");
        fresh.replace_range(start..start + length, text);
    }
    let quotes = committed.matches("<!-- walkthrough: ").count();
    assert_eq!(quotes, parts.len(), "README.md quotes what is not marked");
    if std::env::var_os("KVB_BLESS").is_some_and(|value| value == "1") {
        fs::write(root().join("README.md"), fresh).unwrap();
        return;
    }
    let same = committed
        .lines()
        .zip(fresh.lines())
        .take_while(|(committed, fresh)| committed == fresh)
        .count();
    assert!(
        committed == fresh,
        "README.md, line {}: a quote differs from walkthrough.cc; KVB_BLESS=1 copies it over",
        same + 1
    );
}

/// The statuses of the header; which of its constants are statuses, the source's types tell.
fn statuses() -> BTreeSet<(String, i32)> {
    let header = read("include/kvbridge/kvbridge.h");
    let source = read("src/ffi/status.rs");
    let constants = source.lines().filter_map(|line| {
        let (name, value) = line
            .trim()
            .strip_prefix("pub const ")?
            .strip_suffix(';')?
            .split_once(": kvb_status = ")?;
        Some((name.to_owned(), value.parse::<i32>().unwrap()))
    });
    constants
        .inspect(|(name, value)| {
            let line = format!("#define {name} {value}");
            assert!(header.lines().any(|it| it == line), "{line}");
        })
        .collect()
}

/// The cells of a table's rows whose first one is a name in backquotes.
fn rows(document: &str) -> Vec<Vec<String>> {
    document
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().to_owned())
                .collect()
        })
        .collect()
}

#[test]
fn the_error_table_has_every_status() {
    let listed: BTreeSet<_> = rows(&read("docs/errors.md"))
        .into_iter()
        .map(|cells| {
            let name = cells[0].trim_matches('`').to_owned();
            let number = cells[1].parse().unwrap();
            assert!(!cells[2].is_empty(), "{name} has no meaning");
            (name, number)
        })
        .collect();
    let statuses = statuses();
    assert!(statuses.len() > 20 && statuses.contains(&("KVB_PANIC".to_owned(), 90)));
    assert_eq!(listed, statuses);
}

#[test]
fn the_configuration_is_documented_field_by_field() {
    let config = Config::from_json(br#"{"model_key": "m"}"#).unwrap();
    let rendered: serde_json::Value = serde_json::from_str(&config.render()).unwrap();
    let mut fields = BTreeSet::new();
    for (name, value) in rendered.as_object().unwrap() {
        match value.as_object() {
            Some(own) => fields.extend(own.keys().map(|field| format!("{name}.{field}"))),
            None => {
                fields.insert(name.clone());
            }
        }
    }
    assert!(fields.len() > 30);
    let table = rows(&read("docs/config.md"));
    let listed: BTreeSet<_> = table
        .iter()
        .map(|cells| cells[0].trim_matches('`').to_owned())
        .collect();
    assert_eq!(listed, fields);
    assert_eq!(table.len(), fields.len(), "a field is listed twice");
}

/// Words that begin with `prefix` and go on with letters, digits and underscores.
fn words<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(|character| !is_part(character))
        .filter(|word| word.starts_with(prefix))
        .collect()
}

#[test]
fn the_documents_name_only_what_the_header_has() {
    let header = read("include/kvbridge/kvbridge.h");
    let mut known: BTreeSet<_> = words(&header, "kvb_").into_iter().collect();
    known.extend(words(&header, "KVB_"));
    // Variables of scripts and tests.
    known.extend(["KVB_BLESS", "KVB_TRACE"]);
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for word in [words(&text, "kvb_"), words(&text, "KVB_")].concat() {
            assert!(known.contains(word), "{}: {word}", path.display());
        }
    }
}

#[test]
fn the_documents_link_to_files_that_exist() {
    let mut links = 0;
    for path in documents() {
        let text = fs::read_to_string(&path).unwrap();
        for rest in text.split("](").skip(1) {
            let target = rest.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            links += 1;
            assert!(
                path.parent().unwrap().join(target).exists(),
                "{}: {target}",
                path.display()
            );
        }
    }
    assert!(links > 10);
}
