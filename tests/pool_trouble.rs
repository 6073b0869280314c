//! What the log says of a pool that answers, but not with what was asked for: each cause once, with its number.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;

use kvbridge::layout::Range;
use kvbridge::store::faulty::{Action, Call, Which};
use kvbridge::store::host::{self, Functions, Returned, Table, Verb};
use kvbridge::store::{Store, code};
use rig::{Lines, Rig, Setup, T, prompt, rule, two_groups};

/// Pages of a request of three blocks.
const PAGES: u64 = 9;

fn setup(more: &'static str) -> Setup {
    Setup {
        more,
        groups: two_groups(),
        pins: true,
        ..Setup::default()
    }
}

const PINNED: &str = r#""soft_pin_ttl_ms": 90000000, "#;

/// Publishes prompts nobody has had, the first of this number, with such puts; what was warned of.
fn publish(rig: &mut Rig, lines: &Lines, first: i32, action: Option<Action>) -> Vec<String> {
    lines.take_warnings();
    let script = action.map(|action| rule(Call::Put, Which::All, action));
    rig.script(script.into_iter().collect());
    for id in first..first + 3 {
        rig.publish(id as u64, &prompt(id, 3 * T));
    }
    lines.take_warnings()
}

fn logged(test: impl FnOnce(&Lines)) {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || test(&lines));
}

#[test]
fn a_pin_explains_a_refusal_and_no_outage() {
    logged(|lines| {
        let mut rig = Rig::new(setup(PINNED));
        let outages = [
            code::BREAKER_OPEN,
            code::DEADLINE,
            code::NO_ANSWER,
            code::UNREACHABLE,
            // No outage, and no refusal either.
            code::BEING_WRITTEN,
        ];
        for (number, outage) in outages.into_iter().enumerate() {
            let first = 10 * number as i32 + 1;
            let warned = publish(&mut rig, lines, first, Some(Action::Fail(outage)));
            assert_eq!(warned, [""; 0], "{outage}");
        }
        let warned = publish(&mut rig, lines, 100, Some(Action::Fail(-600)));
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].contains("the first with code -600; with a soft pin"));
        assert!(warned[0].contains("lower soft_pin_ttl_ms"));
        assert_eq!(rig.stats().failed_save_pages, 6 * 3 * PAGES);
    });
}

#[test]
fn a_refusal_is_said_with_its_code_until_pages_are_taken_again() {
    logged(|lines| {
        let mut rig = Rig::new(setup(""));
        let says = |warned: Vec<String>, code: i32| {
            assert_eq!(warned.len(), 1, "{warned:?}");
            // A batch has four pages here.
            let start =
                format!("save: the pool refused 4 of 4 pages, the first with code {code}; they");
            assert!(warned[0].starts_with(&start), "{warned:?}");
        };
        says(
            publish(&mut rig, lines, 1, Some(Action::Fail(-1701))),
            -1701,
        );
        // Still the same trouble, whatever the code; and a full pool is none.
        let outage = Action::Fail(code::BREAKER_OPEN);
        for action in [Action::Fail(-1), outage, Action::NoSpace, Action::Fail(-1)] {
            let warned = publish(&mut rig, lines, 11, Some(action));
            assert_eq!(warned, [""; 0]);
        }
        assert_eq!(publish(&mut rig, lines, 21, None), [""; 0]);
        assert_eq!(publish(&mut rig, lines, 31, Some(Action::NoSpace)), [""; 0]);
        says(publish(&mut rig, lines, 41, Some(Action::Fail(-1))), -1);
        let short = Some(Action::WrongLength(-1));
        assert_eq!(publish(&mut rig, lines, 51, None), [""; 0]);
        says(publish(&mut rig, lines, 61, short), code::BAD_ANSWER);
    });
}

#[test]
fn what_a_lookup_is_not_told_is_said_once_with_its_code() {
    logged(|lines| {
        let mut rig = Rig::new(setup(""));
        let mut look = |id: u64, code: i32| {
            rig.script(vec![rule(Call::Exist, Which::Index(1), Action::Fail(code))]);
            assert_eq!(rig.offer(id, &prompt(1, 3 * T + 1), 0), 0);
            lines.take_warnings()
        };
        for (id, outage) in [(1, code::BREAKER_OPEN), (2, code::UNREACHABLE)] {
            assert_eq!(look(id, outage), [""; 0]);
        }
        let warned = look(3, -1701);
        assert_eq!(warned.len(), 1, "{warned:?}");
        let start = format!(
            "lookup: the pool does not say of 1 of {PAGES} keys whether they are there, the first code is -1701"
        );
        assert!(warned[0].starts_with(&start), "{warned:?}");
        assert_eq!(look(4, -1701), [""; 0]);
        assert_eq!(rig.stats().failed_lookup_keys, 4);
    });
}

/// A pool that has nothing and takes nothing.
struct Refusing;

impl Functions for Refusing {
    fn batch(&self, verb: Verb, call: &mut host::Call<'_>) -> Returned {
        call.outcomes.fill(match verb {
            Verb::Exist => 0,
            _ => -600,
        });
        Ok(0)
    }
    fn register(&self, _: Range, _: bool) -> Returned {
        Ok(0)
    }
    fn health(&self) -> Returned {
        Ok(0)
    }
}

#[test]
fn what_a_host_refuses_is_said_once() {
    logged(|lines| {
        let store: Arc<dyn Store> = host::open(Table {
            functions: Box::new(Refusing),
            pieces_per_key: 1,
            keys_per_call: 0,
            soft_pin_ttl: true,
            groups: true,
            tenant: false,
            device_memory: false,
            removes: true,
            serial: false,
        });
        let mut rig = Rig::owning(setup(PINNED), vec![store]);
        let warned = publish(&mut rig, lines, 1, None);
        assert_eq!(warned.len(), 1, "{warned:?}");
        assert!(warned[0].starts_with("the host's put: "), "{warned:?}");
        assert!(warned[0].contains("soft_pin_ttl_ms"), "{warned:?}");
        assert_eq!(rig.stats().failed_save_pages, 3 * PAGES);
    });
}
