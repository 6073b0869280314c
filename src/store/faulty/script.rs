//! A script as text: one JSON object, as strict as the configuration. `docs/faults.md` is its manual.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{Action, Call, Rule, Which};
use crate::config::json::{Members, Value, shown};
use crate::config::nearest;
use crate::error::{Error, Kind, Result, bail};
use crate::store::code;

/// A rule and which of its calls it concerns: every call, every second one …
pub type Timed = (Rule, u64);

/// Texts beyond this are something else.
const MAX_BYTES: usize = 1 << 20;
/// Longest delay or hang.
const MAX_MS: u64 = 60_000;
/// Most by which a list can be made too long.
const MAX_BY: i64 = 1000;
const FIELDS: [&str; 10] = [
    "call",
    "fault",
    "from",
    "count",
    "every",
    "key",
    "containing",
    "code",
    "by",
    "ms",
];
const CALLS: [(&str, Call); 5] = [
    ("exist", Call::Exist),
    ("put", Call::Put),
    ("get", Call::Get),
    ("remove", Call::Remove),
    ("any", Call::Any),
];
const FAULTS: [&str; 11] = [
    "lose",
    "fail",
    "unreachable",
    "no-space",
    "claim-present",
    "truncate",
    "corrupt",
    "wrong-length",
    "delay",
    "hang",
    "panic",
];

/// What calls that hang wait for.
#[derive(Debug, Default)]
pub struct Gate {
    open: Mutex<bool>,
    bell: Condvar,
}

impl Gate {
    /// Lets all calls go that hang, and none hang from now on.
    pub fn release(&self) {
        *self.open.lock() = true;
        self.bell.notify_all();
    }

    fn wait(&self, longest: Duration) {
        let mut open = self.open.lock();
        self.bell.wait_while_for(&mut open, |open| !*open, longest);
    }
}

/// Reads a script; also answers whether its store can be late. `InvalidArgument` names every problem, one a
/// line.
pub fn parse(bytes: &[u8], gate: &Arc<Gate>) -> Result<(Vec<Timed>, bool)> {
    if bytes.len() > MAX_BYTES {
        bail!(
            InvalidArgument,
            "script: it is larger than {MAX_BYTES} bytes"
        );
    }
    let members: Members<'_> = match serde_json::from_slice(bytes) {
        Ok(members) => members,
        Err(error) => bail!(InvalidArgument, "script: it is not a JSON object: {error}"),
    };
    let mut problems = Vec::new();
    let (mut rules, mut can_be_late) = (Vec::new(), false);
    let mut fields = Fields {
        path: "script".to_owned(),
        members: members.0,
        problems: &mut problems,
    };
    match fields.take("faults").map(serde_json::from_str) {
        Some(Ok(list)) => {
            fields.finish(&["faults"]);
            let list: Vec<&serde_json::value::RawValue> = list;
            for (position, item) in list.iter().enumerate() {
                let path = format!("script: faults[{position}]");
                match serde_json::from_str::<Members<'_>>(item.get()) {
                    Ok(members) => {
                        let mut fields = Fields {
                            path,
                            members: members.0,
                            problems: &mut problems,
                        };
                        if let Some((timed, is_late)) = rule(&mut fields, gate) {
                            rules.push(timed);
                            can_be_late |= is_late;
                        }
                        fields.finish(&FIELDS);
                    }
                    Err(_) => problems.push(format!("{path}: it is not a JSON object")),
                }
            }
        }
        Some(Err(_)) => fields.problem("faults", "it is not a list"),
        None => {
            fields.problem("faults", "it is missing");
            fields.finish(&["faults"]);
        }
    }
    match problems.as_slice() {
        [] => Ok((rules, can_be_late)),
        problems => Err(Error::new(Kind::InvalidArgument, problems.join("\n  "))),
    }
}

/// A rule, and whether it makes a store late.
fn rule(fields: &mut Fields<'_, '_>, gate: &Arc<Gate>) -> Option<(Timed, bool)> {
    let names = CALLS.map(|(name, _)| name);
    let call = fields.word("call", &names);
    let call = call.map_or(Call::Any, |word| {
        let found = CALLS.iter().find(|(name, _)| *name == word);
        found.map_or(Call::Any, |(_, call)| *call)
    });
    let from = fields.integer("from", 0..=i64::MAX).unwrap_or(0) as u64;
    let count = fields.integer("count", 1..=i64::MAX);
    let until = count.map_or(u64::MAX, |count| from.saturating_add(count as u64));
    let every = fields.integer("every", 1..=i64::MAX).unwrap_or(1) as u64;
    let key = fields.integer("key", 0..=i64::from(i32::MAX));
    let containing = fields.text("containing");
    let keys = match (key, containing) {
        (None, None) => Which::All,
        (Some(key), None) => Which::Index(key as usize),
        (None, Some(text)) => Which::Containing(text.into_bytes()),
        (Some(key), Some(text)) => Which::Nth(key as usize, text.into_bytes()),
    };
    let (action, is_late) = action(fields, gate)?;
    let rule = Rule {
        call,
        at: from..until,
        keys,
        action,
    };
    Some(((rule, every), is_late))
}

fn action(fields: &mut Fields<'_, '_>, gate: &Arc<Gate>) -> Option<(Action, bool)> {
    let Some(fault) = fields.word("fault", &FAULTS) else {
        if fields.is_missing("fault") {
            fields.problem("fault", "it is missing");
        }
        return None;
    };
    let action = match fault {
        "lose" => Action::Lose,
        "fail" => {
            let range = i64::from(i32::MIN)..=-1;
            Action::Fail(fields.integer("code", range).unwrap_or(-1) as i32)
        }
        "unreachable" => Action::Fail(code::UNREACHABLE),
        "no-space" => Action::NoSpace,
        "claim-present" => Action::ClaimPresent,
        "truncate" => Action::Truncate,
        "corrupt" => Action::Corrupt,
        "wrong-length" => match fields.needed("by", -MAX_BY..=MAX_BY)? {
            0 => {
                fields.problem("by", "0 is no wrong length");
                return None;
            }
            by => Action::WrongLength(by as isize),
        },
        "delay" => {
            let time = fields.time()?;
            Action::Hook(Arc::new(move || std::thread::sleep(time)))
        }
        "hang" => {
            let (time, gate) = (fields.time()?, Arc::clone(gate));
            Action::Hook(Arc::new(move || gate.wait(time)))
        }
        _ => Action::Hook(Arc::new(panic_as_asked)),
    };
    Some((action, matches!(fault, "delay" | "hang" | "unreachable")))
}

#[expect(clippy::panic, reason = "that is the fault")]
fn panic_as_asked() {
    panic!("the script of a faulty store asks for a panic")
}

/// One object's members, taken by name.
struct Fields<'a, 'p> {
    path: String,
    members: Vec<(String, &'a str)>,
    problems: &'p mut Vec<String>,
}

impl<'a> Fields<'a, '_> {
    fn problem(&mut self, field: &str, what: &str) {
        let separator = if self.path.contains(':') { "." } else { ": " };
        self.problems
            .push(format!("{}{separator}{field}: {what}", self.path));
    }

    fn is_missing(&self, field: &str) -> bool {
        let prefix = format!("{}.{field}: ", self.path);
        !self.problems.iter().any(|known| known.starts_with(&prefix))
    }

    fn take(&mut self, field: &str) -> Option<&'a str> {
        let mut found = self.members.extract_if(.., |(name, _)| name == field);
        let (first, second) = (found.next(), found.next());
        drop(found);
        if second.is_some() {
            self.problem(field, "it stands twice");
        }
        first.map(|(_, raw)| raw)
    }

    fn value(&mut self, field: &str) -> Option<(&'a str, Value<'a>)> {
        let raw = self.take(field)?;
        match Value::read(raw) {
            Ok(value) => Some((raw, value)),
            Err(what) => {
                self.problem(field, &what);
                None
            }
        }
    }

    fn integer(&mut self, field: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let (raw, _) = self.value(field)?;
        match raw.parse() {
            Ok(number) if range.contains(&number) => Some(number),
            _ => {
                let (first, last) = range.into_inner();
                let text = format!("{} is no integer from {first} to {last}", shown(raw));
                self.problem(field, &text);
                None
            }
        }
    }

    fn needed(&mut self, field: &str, range: RangeInclusive<i64>) -> Option<i64> {
        if self.members.iter().all(|(name, _)| name != field) {
            self.problem(field, "it is missing, and this fault needs it");
        }
        self.integer(field, range)
    }

    fn time(&mut self) -> Option<Duration> {
        let time = self.needed("ms", 0..=MAX_MS as i64)?;
        Some(Duration::from_millis(time as u64))
    }

    fn text(&mut self, field: &str) -> Option<String> {
        match self.value(field)? {
            (_, Value::String(text)) if !text.is_empty() => Some(text),
            (_, Value::String(_)) => {
                self.problem(field, "it is empty");
                None
            }
            (_, other) => {
                let text = format!("it is {}, not text", other.kind());
                self.problem(field, &text);
                None
            }
        }
    }

    fn word(&mut self, field: &str, known: &[&'static str]) -> Option<&'static str> {
        let given = self.text(field)?;
        let found = known.iter().find(|word| **word == given);
        if found.is_none() {
            let near = nearest(&given, known.iter().copied());
            let given = shown(&given);
            let text = format!("\"{given}\" is not known; the nearest is \"{near}\"");
            self.problem(field, &text);
        }
        found.copied()
    }

    /// What nothing took is unknown, or belongs to another fault.
    fn finish(mut self, known: &[&str]) {
        for (name, _) in std::mem::take(&mut self.members) {
            if known.contains(&name.as_str()) {
                self.problem(&name, "this fault does not have it");
            } else {
                let near = nearest(&name, known.iter().copied());
                let text = format!("the field is unknown; the nearest is \"{near}\"");
                self.problem(&shown(&name), &text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        let error = parse(text.as_bytes(), &Arc::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        error.message().to_owned()
    }

    #[test]
    fn a_whole_script_is_read() {
        let text = r#"{"faults": [
            {"fault": "lose"},
            {"call": "put", "fault": "fail", "code": -600, "from": 2, "count": 3, "every": 2},
            {"call": "get", "fault": "corrupt", "key": 1, "containing": "a"},
            {"fault": "wrong-length", "by": -1}, {"fault": "delay", "ms": 0}
        ]}"#;
        let (rules, _) = parse(text.as_bytes(), &Arc::default()).unwrap();
        let shown: Vec<_> = rules
            .iter()
            .map(|(rule, every)| {
                (
                    rule.call,
                    rule.at.clone(),
                    format!("{:?} {every}", rule.action),
                )
            })
            .collect();
        assert_eq!(shown[0], (Call::Any, 0..u64::MAX, "Lose 1".to_owned()));
        assert_eq!(shown[1], (Call::Put, 2..5, "Fail(-600) 2".to_owned()));
        assert_eq!(rules[2].0.keys, Which::Nth(1, b"a".to_vec()));
        assert_eq!(shown[3].2, "WrongLength(-1) 1");
        assert_eq!(shown[4].2, "Hook 1");
    }

    #[test]
    fn everything_else_is_refused_with_its_place() {
        for (text, said) in [
            ("", "script: it is not a JSON object"),
            ("[]", "script: it is not a JSON object"),
            ("{}", "script: faults: it is missing"),
            (r#"{"fault": []}"#, r#"the nearest is "faults""#),
            (r#"{"faults": 1}"#, "script: faults: it is not a list"),
            (
                r#"{"faults": [1]}"#,
                "script: faults[0]: it is not a JSON object",
            ),
            (
                r#"{"faults": [{}]}"#,
                "script: faults[0].fault: it is missing",
            ),
            (
                r#"{"faults": [{"fault": "lose"}, {"fault": "loose"}]}"#,
                r#"script: faults[1].fault: "loose" is not known; the nearest is "lose""#,
            ),
            (
                r#"{"faults": [{"fault": "lose", "cal": "put"}]}"#,
                r#"faults[0].cal: the field is unknown; the nearest is "call""#,
            ),
            (
                r#"{"faults": [{"fault": "lose", "ms": 1}]}"#,
                "faults[0].ms: this fault does not have it",
            ),
            (
                r#"{"faults": [{"fault": "lose", "fault": "fail"}]}"#,
                "faults[0].fault: it stands twice",
            ),
            (
                r#"{"faults": [{"fault": "hang"}]}"#,
                "faults[0].ms: it is missing, and this fault needs it",
            ),
            (
                r#"{"faults": [{"fault": "hang", "ms": 60001}]}"#,
                "60001 is no integer from 0 to 60000",
            ),
            (
                r#"{"faults": [{"fault": "lose", "every": 0, "from": -1, "count": 1.5}]}"#,
                "faults[0].every: 0 is no integer from 1",
            ),
            (
                r#"{"faults": [{"fault": "wrong-length", "by": 0}]}"#,
                "0 is no wrong length",
            ),
            (
                r#"{"faults": [{"fault": "fail", "code": 0}]}"#,
                "faults[0].code: 0 is no integer",
            ),
            (
                r#"{"faults": [{"fault": "lose", "call": 7, "containing": ""}]}"#,
                "faults[0].call: it is a number, not text",
            ),
        ] {
            let message = refused(text);
            assert!(message.contains(said), "{text}: {message}");
        }
        let several = refused(r#"{"faults": [{"fault": "x", "a": 1}, 7], "more": 1}"#);
        assert_eq!(several.lines().count(), 4, "{several}");
    }
}
