//! What the documents say is what the code says: quotes, tables, names, links.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test may panic"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use kvbridge::config::Config;
use kvbridge::stats::{Gauges, PoolCounts, Stats};

#[allow(dead_code, reason = "the walk of the boundary needs more of it")]
#[path = "boundary/header.rs"]
mod header;

use header::Header;

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
    let mut defaults = BTreeMap::new();
    for (name, value) in rendered.as_object().unwrap() {
        match value.as_object() {
            Some(own) => {
                defaults.extend(
                    own.iter()
                        .map(|(field, it)| (format!("{name}.{field}"), it)),
                );
            }
            None => {
                defaults.insert(name.clone(), value);
            }
        }
    }
    assert!(defaults.len() > 30);
    let table = rows(&read("docs/config.md"));
    let listed: BTreeSet<_> = table
        .iter()
        .map(|cells| cells[0].trim_matches('`').to_owned())
        .collect();
    assert_eq!(listed, defaults.keys().cloned().collect());
    assert_eq!(table.len(), defaults.len(), "a field is listed twice");
    for cells in &table {
        let name = cells[0].trim_matches('`');
        let stated = cells[1].split_once(", ").unwrap().1;
        if stated.starts_with("required") {
            continue;
        }
        let expected = match defaults[name] {
            serde_json::Value::Null => "none".to_owned(),
            serde_json::Value::Number(bytes) if bytes.as_u64() == Some(1 << 30) => {
                "1 GiB".to_owned()
            }
            serde_json::Value::String(text) => format!("`\"{text}\"`"),
            other => other.to_string(),
        };
        // Behind the default of this configuration may stand what others have.
        let rest = stated.strip_prefix(&expected);
        let whole = rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', ',']));
        assert!(whole, "the default of {name} is {expected}, not {stated}");
    }
}

/// Words that begin with `prefix` and go on with letters, digits and underscores.
fn words<'a>(text: &'a str, prefix: &str) -> Vec<&'a str> {
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    text.split(|character| !is_part(character))
        .filter(|word| word.starts_with(prefix))
        .collect()
}

/// A source of C or C++ without its comments, and the comments.
fn apart(source: &str) -> (String, String) {
    let (mut code, mut comments) = (String::new(), String::new());
    for part in source.split("/*") {
        match part.split_once("*/") {
            Some((comment, after)) => {
                comments = comments + comment + "\n";
                code += after;
            }
            None => code += part,
        }
    }
    (code, comments)
}

#[test]
fn documents_and_comments_name_only_what_the_header_has() {
    let (code, comments) = apart(&read("include/kvbridge/kvbridge.h"));
    let mut known: BTreeSet<_> = words(&code, "kvb_").into_iter().collect();
    known.extend(words(&code, "KVB_"));
    // Variables of scripts and tests.
    known.extend(["KVB_BLESS", "KVB_SLOW", "KVB_TRACE"]);
    let names_something = |word: &str| match word.ends_with('_') {
        // The beginning of several, as in "KVB_LOG_*".
        true => known.iter().any(|name| name.starts_with(word)),
        false => known.contains(word),
    };
    let mut texts = vec![
        ("kvbridge.h".to_owned(), comments),
        (
            "kvbridge.hpp".to_owned(),
            read("include/kvbridge/kvbridge.hpp"),
        ),
        (
            "kvbridge_kvcache.hpp".to_owned(),
            read("include/kvbridge/kvbridge_kvcache.hpp"),
        ),
        (
            "kvbridge_mooncake.hpp".to_owned(),
            read("include/kvbridge/kvbridge_mooncake.hpp"),
        ),
    ];
    for path in documents() {
        texts.push((
            path.display().to_string(),
            fs::read_to_string(&path).unwrap(),
        ));
    }
    let structs = Header::read().structs;
    for (name, text) in texts {
        for word in [words(&text, "kvb_"), words(&text, "KVB_")].concat() {
            assert!(names_something(word), "{name}: {word}");
        }
        // A struct's field, as in "kvb_engine.serving".
        for (start, _) in text.match_indices("kvb_") {
            let mut parts = header::words(&text[start..]);
            let (owner, field) = (parts.next().unwrap(), parts.next().unwrap_or_default());
            if let Some(known) = structs.get(owner)
                && text[start..].starts_with(&format!("{owner}.{field}"))
            {
                let mut fields = known.fields.iter();
                assert!(fields.any(|it| it.name == field), "{name}: {owner}.{field}");
            }
        }
    }
}

/// The names in backquotes.
fn quoted(text: &str) -> BTreeSet<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn every_function_is_in_a_guide() {
    let guides = [
        "faults",
        "integration",
        "lending",
        "ownership",
        "threads",
        "troubleshooting",
    ];
    let text: String = guides
        .iter()
        .map(|guide| read(&format!("docs/{guide}.md")))
        .collect();
    let explained: BTreeSet<_> = words(&text, "kvb_").into_iter().collect();
    let functions = Header::read().functions;
    assert!(functions.len() > 45);
    for function in &functions {
        let name = function.name.as_str();
        assert!(explained.contains(name), "{name} is in no guide");
    }
}

#[test]
fn the_table_of_what_waits_has_the_functions_that_block() {
    let text = read("docs/threads.md");
    let (_, behind) = text.split_once("## What waits").unwrap();
    let rows = rows(behind);
    assert!(rows.len() > 5);
    let listed: BTreeSet<_> = rows.iter().flat_map(|cells| quoted(&cells[0])).collect();
    let blocking: BTreeSet<_> = Header::read()
        .functions
        .into_iter()
        .filter(|function| {
            let waits = function.doc.split_once("Blocks: ").map(|(_, waits)| waits);
            waits.is_some_and(|waits| !waits.starts_with("no."))
        })
        .map(|function| function.name)
        .collect();
    assert_eq!(listed, blocking);
}

#[test]
fn the_structs_that_grow_are_listed() {
    let (mut grow, mut frozen) = (BTreeSet::new(), BTreeSet::new());
    for line in read("docs/abi.md")
        .lines()
        .filter(|line| line.starts_with('|'))
    {
        let mut cells = line.trim_matches('|').split('|');
        let (left, right) = (quoted(cells.next().unwrap()), quoted(cells.next().unwrap()));
        let are_structs = |names: &BTreeSet<String>| names.iter().all(|it| it.starts_with("kvb_"));
        if are_structs(&left) && are_structs(&right) {
            grow.extend(left);
            frozen.extend(right);
        }
    }
    for (name, shape) in Header::read().structs {
        let (listed, other) = match shape.grows() {
            true => (&mut grow, &frozen),
            false => (&mut frozen, &grow),
        };
        assert!(listed.remove(&name) && !other.contains(&name), "{name}");
    }
    assert!(grow.is_empty() && frozen.is_empty(), "{grow:?} {frozen:?}");
}

/// All sources of the library, with texts as they come out: on one line, without escapes.
fn sources(folder: &Path, into: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, into);
        } else {
            let mut lines = fs::read_to_string(path).unwrap();
            lines = lines.replace("\\\"", "\"");
            for line in lines.lines() {
                match line.trim().strip_suffix('\\') {
                    Some(begun) => *into += begun,
                    None => *into = std::mem::take(into) + line.trim() + "\n",
                }
            }
        }
    }
}

/// Whether some line has all parts of a message, one behind the other.
fn is_said(message: &str, lines: &str) -> bool {
    lines.lines().any(|line| {
        let mut rest = line;
        message.split('…').map(str::trim).all(|part| {
            let found = rest.find(part);
            rest = found.map_or("", |at| &rest[at + part.len()..]);
            found.is_some()
        })
    })
}

#[test]
fn the_messages_quoted_are_those_of_the_code() {
    let mut lines = String::new();
    sources(&root().join("src"), &mut lines);
    let text = read("docs/troubleshooting.md")
        .replace("\n  ", " ")
        .replace('\n', " ");
    // Names and code have no spaces.
    let messages: Vec<_> = quoted(&text)
        .into_iter()
        .filter(|it| it.contains(' ') && !it.starts_with("ulimit") && !it.starts_with("readelf"))
        .collect();
    assert!(messages.len() > 40, "{messages:#?}");
    for message in messages {
        assert!(is_said(&message, &lines), "nothing says \"{message}\"");
    }
}

#[test]
fn every_counter_is_explained() {
    let text = read("docs/troubleshooting.md");
    let (_, table) = text.split_once("## What the counters say").unwrap();
    let listed: Vec<_> = rows(table)
        .into_iter()
        .map(|cells| cells[0].trim_matches('`').to_owned())
        .collect();
    let mut counters: Vec<_> = Stats::default()
        .entries()
        .map(|(name, _, _)| name.to_owned())
        .collect();
    let gauges = Gauges::default().entries();
    counters.extend(gauges.map(|(name, _, _)| name.to_owned()));
    let fields = &Header::read().structs["kvb_stats"].fields;
    let names: Vec<_> = fields.iter().skip(1).map(|field| &field.name).collect();
    // The struct grows at its end, so that its order is another.
    let (counts, times) = names.split_at(counters.len());
    let sorted = |list: &[&String]| {
        list.iter()
            .map(|name| (*name).clone())
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(sorted(counts), counters.iter().cloned().collect());
    let pool = PoolCounts::default();
    let (times, guard) = times.split_at(times.len() - pool.counters().len() - pool.gauges().len());
    // The times are explained by their prefix, in one row.
    assert!(
        times
            .iter()
            .all(|name| name.starts_with("load_") && name.ends_with("_ns"))
    );
    counters.push("load_…_ns".to_owned());
    let numbers = pool.counters().into_iter().chain(pool.gauges());
    let numbered = numbers.map(|(name, _, _)| name.to_owned()).collect();
    assert_eq!(sorted(guard), numbered);
    counters.extend(guard.iter().map(|name| (*name).clone()));
    assert_eq!(listed, counters);
}

/// A heading as a link names it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|letter| match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter => letter
            .is_alphanumeric()
            .then(|| letter.to_ascii_lowercase()),
    });
    kept.collect()
}

#[test]
fn links_lead_somewhere() {
    let mut documents = documents();
    documents.push(root().join("docs/design/house.md"));
    let mut links = 0;
    let mut linked = BTreeSet::new();
    for path in &documents {
        let text = fs::read_to_string(path).unwrap();
        for rest in text.split("](").skip(1) {
            let link = rest.split(')').next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            assert!(target.exists(), "{}: {link}", path.display());
            if !heading.is_empty() {
                let text = fs::read_to_string(&target).unwrap();
                let mut headings = text.lines().filter(|line| line.starts_with('#'));
                let found =
                    headings.any(|line| anchor(line.trim_start_matches(['#', ' '])) == heading);
                assert!(found, "{}: {link}", path.display());
            }
            if path.ends_with("README.md") {
                linked.insert(target.canonicalize().unwrap());
            }
        }
    }
    assert!(links > 10);
    for document in documents
        .iter()
        .filter(|path| path.starts_with(root().join("docs")))
    {
        let found = linked.contains(&document.canonicalize().unwrap());
        assert!(found, "the README does not lead to {}", document.display());
    }
}
