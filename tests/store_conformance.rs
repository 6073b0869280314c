//! The suite that every store passes, for the stores that need nothing outside this process.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use kvbridge::lane::{Clock, ManualClock};
use kvbridge::store::faulty::{Action, Call, Faulty, Rule, Which};
use kvbridge::store::{Store, conformance, embedded};

fn pool() -> Arc<embedded::Pool> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    embedded::Pool::new(8 << 20, 0.05, Duration::from_secs(10), clock).unwrap()
}

#[test]
fn embedded() {
    conformance::check(&|| pool() as Arc<dyn Store>).unwrap();
}

#[test]
fn faulty_without_a_script() {
    conformance::check(&|| Faulty::new(pool(), Vec::new()) as Arc<dyn Store>).unwrap();
}

#[test]
fn the_suite_sees_every_fault() {
    let always: Range<u64> = 0..u64::MAX;
    for (call, action) in [
        (Call::Exist, Action::Lose),
        (Call::Exist, Action::ClaimPresent),
        (Call::Exist, Action::Fail(-1)),
        (Call::Exist, Action::WrongLength(1)),
        (Call::Put, Action::Lose),
        (Call::Put, Action::Fail(-1)),
        (Call::Put, Action::NoSpace),
        (Call::Put, Action::ClaimPresent),
        (Call::Put, Action::Corrupt),
        (Call::Put, Action::Truncate),
        (Call::Put, Action::WrongLength(-1)),
        (Call::Get, Action::Lose),
        (Call::Get, Action::Fail(-1)),
        (Call::Get, Action::Corrupt),
        (Call::Get, Action::Truncate),
        (Call::Get, Action::WrongLength(1)),
        (Call::Remove, Action::Lose),
        (Call::Remove, Action::Fail(-1)),
        (Call::Any, Action::WrongLength(1)),
    ] {
        let rule = Rule {
            call,
            at: always.clone(),
            keys: Which::All,
            action,
        };
        let script = vec![rule];
        let checked = conformance::check(&|| Faulty::new(pool(), script.clone()) as Arc<dyn Store>);
        assert!(checked.is_err(), "{script:?} went unnoticed");
    }
}
