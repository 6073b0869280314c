//! What each fault looks like from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use kvbridge::device::memory::{Source, Target};
use kvbridge::keys::Keys;
use kvbridge::lane::{Clock, ManualClock};
use kvbridge::store::faulty::{Action, Call, Count, Faulty, Rule, Which};
use kvbridge::store::{
    GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, embedded,
};

const SIZE: usize = 10;

fn store() -> Arc<Faulty> {
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let pool = embedded::Pool::new(1 << 20, 0.05, Duration::ZERO, clock).unwrap();
    Faulty::new(pool, Vec::new())
}

fn rule(call: Call, at: std::ops::Range<u64>, keys: Which, action: Action) -> Rule {
    Rule {
        call,
        at,
        keys,
        action,
    }
}

fn keys() -> Keys {
    let mut keys = Keys::default();
    for key in ["page/a1", "page/b1", "page/a2", "page/b2"] {
        keys.push(key.as_bytes());
    }
    keys
}

fn put(store: &Faulty) -> Vec<PutOutcome> {
    let values: Vec<Vec<u8>> = (0..4).map(|i| vec![i; SIZE]).collect();
    // Two pieces per key.
    let halves = values.iter().flat_map(|value| [&value[..3], &value[3..]]);
    let mut sources: Vec<Source<'_>> = halves.map(Source::from).collect();
    let mut out = Vec::new();
    let pieces = Pieces::grouped(&mut sources, &[2, 4, 6, 8]);
    store.put(&keys(), pieces, &PutOptions::default(), &mut out);
    out
}

fn get(store: &Faulty) -> (Vec<GetOutcome>, Vec<Vec<u8>>) {
    let mut landings = vec![vec![0xee; SIZE]; 4];
    let halves = landings.iter_mut().flat_map(|landing| {
        let (one, two) = landing.split_at_mut(7);
        [one, two]
    });
    let mut targets: Vec<Target<'_>> = halves.map(Target::from).collect();
    let mut out = Vec::new();
    store.get(
        &keys(),
        Pieces::grouped(&mut targets, &[2, 4, 6, 8]),
        &mut out,
    );
    (out, landings)
}

fn exist(store: &Faulty) -> Vec<Presence> {
    let mut out = Vec::new();
    store.exist(&keys(), &mut out);
    out
}

#[test]
fn rules_choose_calls_and_keys() {
    use Presence::{Absent, Present, Unknown};
    let store = store();
    assert_eq!(put(&store), [PutOutcome::Stored; 4]);
    store.set_script(vec![
        rule(Call::Exist, 1..2, Which::Index(1), Action::Fail(-900)),
        rule(
            Call::Exist,
            1..3,
            Which::Containing(b"/b".to_vec()),
            Action::Lose,
        ),
        rule(
            Call::Any,
            2..3,
            Which::Nth(1, b"/a".to_vec()),
            Action::Fail(-1),
        ),
        rule(Call::Get, 0..9, Which::All, Action::Lose),
    ]);
    assert_eq!(exist(&store), [Present; 4]);
    assert_eq!(exist(&store), [Present, Unknown(-900), Present, Absent]);
    assert_eq!(exist(&store), [Present, Absent, Unknown(-1), Absent]);
    assert_eq!(exist(&store), [Present; 4]);
    assert_eq!(store.count(Call::Exist), Count { calls: 4, keys: 16 });
    assert_eq!(store.count(Call::Put), Count { calls: 1, keys: 4 });
    assert_eq!(store.count(Call::Get), Count::default());
    assert_eq!(store.count(Call::Any), Count { calls: 5, keys: 20 });
}

#[test]
fn faults_of_reads_touch_only_their_keys() {
    let store = store();
    put(&store);
    store.set_script(vec![
        rule(Call::Get, 0..1, Which::Index(0), Action::Lose),
        rule(Call::Get, 0..1, Which::Index(1), Action::Corrupt),
        rule(Call::Get, 0..1, Which::Index(2), Action::Truncate),
        rule(Call::Get, 1..2, Which::Index(3), Action::Fail(-800)),
    ]);
    let landed = GetOutcome::Landed(SIZE as u64);
    let (outcomes, landings) = get(&store);
    let short = GetOutcome::WrongSize(5);
    assert_eq!(outcomes, [GetOutcome::Missing, landed, short, landed]);
    assert_eq!(landings[0], [0xee; SIZE]);
    let wrong = landings[1].iter().filter(|&&byte| byte != 1);
    assert_eq!(wrong.count(), 1);
    assert_eq!(landings[2], [2, 2, 2, 2, 2, 0xee, 0xee, 0xee, 0xee, 0xee]);
    assert_eq!(landings[3], [3; SIZE]);

    let (outcomes, landings) = get(&store);
    assert_eq!(outcomes, [landed, landed, landed, GetOutcome::Failed(-800)]);
    assert_eq!(landings[1], [1; SIZE]);
    assert_eq!(landings[3], [0xee; SIZE]);
}

#[test]
fn faults_of_puts_touch_only_their_keys() {
    let store = store();
    store.set_script(vec![
        rule(Call::Put, 0..1, Which::Index(0), Action::NoSpace),
        rule(Call::Put, 0..1, Which::Index(1), Action::Corrupt),
        rule(Call::Put, 0..1, Which::Index(2), Action::Truncate),
    ]);
    let stored = PutOutcome::Stored;
    assert_eq!(put(&store), [PutOutcome::NoSpace, stored, stored, stored]);
    let landed = GetOutcome::Landed(SIZE as u64);
    let (outcomes, landings) = get(&store);
    let short = GetOutcome::WrongSize(5);
    assert_eq!(outcomes, [GetOutcome::Missing, landed, short, landed]);
    let wrong = landings[1].iter().filter(|&&byte| byte != 1);
    assert_eq!(wrong.count(), 1);
    assert_eq!(landings[3], [3; SIZE]);
    // Space appears.
    let there = PutOutcome::AlreadyThere;
    assert_eq!(put(&store), [stored, there, there, there]);

    store.set_script(vec![
        rule(Call::Remove, 0..1, Which::Index(0), Action::Fail(-7)),
        rule(Call::Put, 2..3, Which::Index(1), Action::Lose),
        rule(Call::Put, 2..3, Which::Index(2), Action::ClaimPresent),
    ]);
    let (mut removed, done) = (Vec::new(), RemoveOutcome::Removed);
    store.remove(&keys(), true, &mut removed);
    assert_eq!(removed, [RemoveOutcome::Failed(-7), done, done, done]);
    assert_eq!(put(&store), [there, stored, there, stored]);
    use Presence::{Absent, Present};
    assert_eq!(exist(&store), [Present, Absent, Absent, Present]);
}

#[test]
fn outcome_lists_of_the_wrong_length() {
    let store = store();
    put(&store);
    let wrong = |by| rule(Call::Exist, 0..9, Which::All, Action::WrongLength(by));
    for (by, length) in [(1, 5), (-1, 3), (-9, 0)] {
        store.set_script(vec![wrong(by)]);
        assert_eq!(exist(&store).len(), length);
    }
}

#[test]
fn a_hook_holds_the_call_until_the_test_lets_it_go() {
    let store = store();
    let (entered, at_the_hook) = mpsc::channel();
    let (go, gate) = mpsc::channel::<()>();
    let gate = parking_lot::Mutex::new(gate);
    let hook = Action::Hook(Arc::new(move || {
        entered.send(()).unwrap();
        gate.lock().recv().unwrap();
    }));
    store.set_script(vec![rule(Call::Put, 0..1, Which::All, hook)]);
    std::thread::scope(|scope| {
        let putting = scope.spawn(|| put(&store));
        at_the_hook.recv().unwrap();
        assert_eq!(exist(&store), [Presence::Absent; 4]);
        go.send(()).unwrap();
        assert_eq!(putting.join().unwrap(), [PutOutcome::Stored; 4]);
    });
    assert_eq!(exist(&store), [Presence::Present; 4]);
}
