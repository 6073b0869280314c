//! The file as JSON: its members in order, each value as it was written.
//!
//! Values stay text until their field is known, so that an error can name `1e9` and not
//! `1000000000.0`, and so that two equal keys are seen (a map would keep the last one silently).

use crate::error::{Result, bail};
use serde_core::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::fmt;

/// A configuration is a page of text; what is larger is some other file.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Reading costs length times depth, and no engine's file nests more than a few levels.
const MAX_DEPTH: usize = 32;
/// How much of a value a message repeats, in characters.
const SHOWN: usize = 80;

/// One value, as far as a field has to know it.
pub(crate) enum Value<'a> {
    Null,
    Bool(bool),
    /// As written.
    Number(&'a str),
    /// Decoded.
    String(String),
    Array,
    Object,
}

impl<'a> Value<'a> {
    /// Reads a value's text, which is JSON already.
    pub(crate) fn read(raw: &'a str) -> std::result::Result<Self, String> {
        Ok(match raw.as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            Some(b'[') => Self::Array,
            Some(b'{') => Self::Object,
            Some(b'"') => Self::String(
                serde_json::from_str(raw).map_err(|error| format!("is not text: {error}"))?,
            ),
            _ => Self::Number(raw),
        })
    }

    /// What kind of value it is, for a message.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::String(_) => "a string",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

/// The members of one object, in order, each with the text of its value.
pub(crate) struct Members<'a>(pub(crate) Vec<(String, &'a str)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    let raw = map.next_value::<&RawValue>().map_err(|error| {
                        A::Error::custom(format_args!("{}: {error}", shown(&name)))
                    })?;
                    members.push((name, raw.get()));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// Reads the whole file: an object. Faults of the text itself end here, since nothing behind them
/// can be trusted; repeated keys and needless depth go to `problems` with the rest.
pub(super) fn read<'a>(bytes: &'a [u8], problems: &mut Vec<String>) -> Result<Members<'a>> {
    if bytes.len() > MAX_BYTES {
        bail!(
            ConfigInvalid,
            "the configuration is larger than {MAX_BYTES} bytes"
        );
    }
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => bail!(
            ConfigInvalid,
            "the configuration is not UTF-8: a wrong byte at offset {}",
            error.valid_up_to()
        ),
    };
    if text.starts_with('\u{feff}') {
        bail!(
            ConfigInvalid,
            "the configuration starts with a byte order mark, which JSON does not have"
        );
    }
    if text.trim().is_empty() {
        bail!(
            ConfigInvalid,
            "the configuration is empty: it must be a JSON object"
        );
    }
    let members: Members<'a> = match serde_json::from_str(text) {
        Ok(members) => members,
        Err(error) => bail!(
            ConfigInvalid,
            "the configuration is not a JSON object: {error}{}",
            found_at(text, error.line(), error.column())
        ),
    };
    check_object("", &members, 1, problems);
    Ok(members)
}

/// Looks for keys that stand twice in one object, at any depth: also in fields that are not ours,
/// since the engines that share the file disagree about which of the two counts.
fn check_object(path: &str, members: &Members<'_>, depth: usize, problems: &mut Vec<String>) {
    let mut seen = hashbrown::HashMap::new();
    for (name, raw) in &members.0 {
        let path = format!("{path}{}", shown(name));
        if let Some(first) = seen.insert(name.as_str(), *raw) {
            problems.push(format!(
                "{path}: stands twice in its object, as {} and as {}",
                shown(first),
                shown(raw)
            ));
        }
        check(&path, raw, depth, problems);
    }
}

fn check(path: &str, raw: &str, depth: usize, problems: &mut Vec<String>) {
    if !raw.starts_with(['{', '[']) {
        return;
    }
    if depth >= MAX_DEPTH {
        problems.push(format!("{path}: is nested more than {MAX_DEPTH} levels"));
        return;
    }
    let outcome = if raw.starts_with('{') {
        serde_json::from_str(raw)
            .map(|members| check_object(&format!("{path}."), &members, depth + 1, problems))
    } else {
        serde_json::from_str::<Vec<&RawValue>>(raw).map(|items| {
            for (position, item) in items.iter().enumerate() {
                check(
                    &format!("{path}[{position}]"),
                    item.get(),
                    depth + 1,
                    problems,
                );
            }
        })
    };
    // The text was read once already; what is left are escapes in keys that are no character.
    if let Err(error) = outcome {
        problems.push(format!("{path}: {error}"));
    }
}

/// A value as a message repeats it: on one line and not too long.
pub(crate) fn shown(raw: &str) -> String {
    let mut line: String = raw
        .chars()
        .take(SHOWN)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if raw.chars().nth(SHOWN).is_some() {
        line.push('…');
    }
    line
}

/// The word at a place where the text stopped being JSON (`NaN`, say), for the message.
fn found_at(text: &str, line: usize, column: usize) -> String {
    let line = text.split('\n').nth(line.saturating_sub(1)).unwrap_or("");
    let is_end = |byte: &u8| byte.is_ascii_whitespace() || b",:{}[]".contains(byte);
    let bytes = line.as_bytes();
    let at = column.saturating_sub(1).min(bytes.len());
    let (before, behind) = bytes.split_at(at);
    let start = before.iter().rposition(is_end).map_or(0, |end| end + 1);
    let end = behind
        .iter()
        .position(is_end)
        .map_or(bytes.len(), |n| at + n);
    match line.get(start..end) {
        Some(word) if !word.is_empty() => format!(", at {}", shown(word)),
        _ => String::new(),
    }
}
