//! Hosts that answer what no host should, and what is heard of it.

use super::*;
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What a function does with its batch.
type Doing = dyn Fn(Verb, &mut Call<'_>) -> Returned + Send + Sync;

struct Scripted(Box<Doing>);

impl Functions for Scripted {
    fn batch(&self, verb: Verb, call: &mut Call<'_>) -> Returned {
        (self.0)(verb, call)
    }

    fn register(&self, _: Range, _: bool) -> Returned {
        Err("no hands".to_owned())
    }

    fn health(&self) -> Returned {
        Err("ill".to_owned())
    }
}

fn host(doing: impl Fn(Verb, &mut Call<'_>) -> Returned + Send + Sync + 'static) -> Arc<Handle> {
    open(Table {
        functions: Box::new(Scripted(Box::new(doing))),
        pieces_per_key: 1,
        keys_per_call: 2,
        soft_pin_ttl: true,
        groups: true,
        tenant: false,
        device_memory: false,
        removes: true,
        serial: false,
    })
}

fn three() -> Keys {
    let mut keys = Keys::new();
    [b"a", b"b", b"c"].iter().for_each(|key| keys.push(*key));
    keys
}

/// All outcomes of the four calls about three keys of eight bytes.
fn all(
    store: &Handle,
) -> (
    Vec<Presence>,
    Vec<PutOutcome>,
    Vec<GetOutcome>,
    Vec<RemoveOutcome>,
) {
    let (mut there, mut stored, mut got, mut removed) = Default::default();
    let keys = three();
    store.exist(&keys, &mut there);
    let bytes = [1_u8; 24];
    let mut sources: Vec<_> = bytes.chunks(8).map(Source::from).collect();
    let pieces = Pieces::one_each(&mut sources);
    store.put(&keys, pieces, &PutOptions::default(), &mut stored);
    let mut landing = [0_u8; 24];
    let mut targets: Vec<_> = landing.chunks_mut(8).map(Target::from).collect();
    store.get(&keys, Pieces::one_each(&mut targets), &mut got);
    store.remove(&keys, false, &mut removed);
    (there, stored, got, removed)
}

fn all_failed(store: &Handle, code: i32) {
    let (there, stored, got, removed) = all(store);
    assert_eq!(there, [Presence::Unknown(code); 3]);
    assert_eq!(stored, [PutOutcome::Failed(code); 3]);
    assert_eq!(got, [GetOutcome::Failed(code); 3]);
    assert_eq!(removed, [RemoveOutcome::Failed(code); 3]);
}

#[test]
fn what_is_returned_stands_for_every_key() {
    // Whatever was written before.
    let returns = |number| {
        host(move |_, call| {
            call.outcomes.fill(0);
            call.sizes.fill(8);
            Ok(number)
        })
    };
    for (number, code) in [
        (-600, -600),
        (code::UNREACHABLE, code::UNREACHABLE),
        (1, code::HOST_FAILED),
        (i32::MIN, code::HOST_FAILED),
        (code::CLOSED, code::HOST_FAILED),
    ] {
        all_failed(&returns(number), code);
    }
    let (there, stored, got, removed) = all(&returns(0));
    assert_eq!(there, [Presence::Absent; 3]);
    assert_eq!(stored, [PutOutcome::Stored; 3]);
    assert_eq!(got, [GetOutcome::Landed(8); 3]);
    assert_eq!(removed, [RemoveOutcome::Removed; 3]);
}

#[test]
fn a_function_that_writes_nothing_or_throws_gave_no_answer() {
    all_failed(&host(|_, _| Ok(0)), code::NO_ANSWER);
    let throws = host(|_, call| {
        call.outcomes.fill(0);
        call.sizes.fill(8);
        Err("no pool".to_owned())
    });
    all_failed(&throws, code::NO_ANSWER);
    assert_eq!(throws.health(), Health::Down(code::NO_ANSWER));
    let range = Range {
        start: 4096,
        size: 8,
    };
    let error = throws.register(range).unwrap_err();
    assert_eq!(
        error.message(),
        "the host's register_memory threw: no hands, for 8 bytes at 0x1000"
    );
}

#[test]
fn each_key_has_its_own_outcome_also_across_calls() {
    let store = host(|verb, call| {
        // The second call has the third key alone.
        for (index, key) in call
            .keys()
            .map(<[u8]>::to_vec)
            .collect::<Vec<_>>()
            .iter()
            .enumerate()
        {
            call.outcomes[index] = match (verb, &key[..]) {
                (_, b"a\0") => 1,
                (_, b"b\0") => -9,
                (Verb::Get, _) => {
                    call.sizes[index] = 7;
                    2
                }
                _ => 17,
            };
        }
        Ok(0)
    });
    let (there, stored, got, removed) = all(&store);
    let bad = code::BAD_ANSWER;
    assert_eq!(
        there,
        [
            Presence::Present,
            Presence::Unknown(-9),
            Presence::Unknown(bad)
        ]
    );
    assert_eq!(
        stored,
        [
            PutOutcome::AlreadyThere,
            PutOutcome::Failed(-9),
            PutOutcome::Failed(bad)
        ]
    );
    assert_eq!(
        got,
        [
            GetOutcome::Missing,
            GetOutcome::Failed(-9),
            GetOutcome::WrongSize(7)
        ]
    );
    assert_eq!(
        removed,
        [
            RemoveOutcome::Missing,
            RemoveOutcome::Failed(-9),
            RemoveOutcome::Failed(bad)
        ]
    );
}

#[test]
fn a_call_that_fails_takes_no_other_with_it() {
    let calls = AtomicUsize::new(0);
    let store = host(move |_, call| {
        call.outcomes.fill(1);
        match calls.fetch_add(1, Ordering::Relaxed) {
            0 => Err("first".to_owned()),
            _ => Ok(0),
        }
    });
    let mut there = Vec::new();
    store.exist(&three(), &mut there);
    let none = Presence::Unknown(code::NO_ANSWER);
    assert_eq!(there, [none, none, Presence::Present]);
}

#[test]
fn groups_that_do_not_fit_are_refused() {
    let store = host(|_, call| {
        call.outcomes.fill(0);
        Ok(0)
    });
    let two = {
        let mut keys = Keys::new();
        keys.push(b"g");
        keys.push(b"g");
        keys
    };
    let bytes = [0_u8; 3];
    let mut out = Vec::new();
    for (groups, outcome) in [
        (two, PutOutcome::Failed(code::MALFORMED_CALL)),
        (three(), PutOutcome::Stored),
    ] {
        let options = PutOptions {
            groups: Some(&groups),
            ..PutOptions::default()
        };
        let mut sources: Vec<_> = bytes.chunks(1).map(Source::from).collect();
        store.put(&three(), Pieces::one_each(&mut sources), &options, &mut out);
        assert_eq!(out, [outcome; 3]);
    }
}

#[test]
fn times_are_rounded_up() {
    for (time, whole) in [
        (Duration::ZERO, 1),
        (Duration::from_nanos(1), 1),
        (Duration::from_millis(7), 7),
        (Duration::from_micros(7001), 8),
        (Duration::MAX, u64::MAX),
    ] {
        assert_eq!(milliseconds(time), whole);
    }
}

/// Collects lines of warnings and of what is less.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Visit for Lines {
    fn record_debug(&mut self, _: &Field, value: &dyn std::fmt::Debug) {
        let mut line = String::new();
        let _ = write!(line, "{value:?}");
        self.0.lock().push(line);
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn trouble_is_told_once_until_it_ends() {
    let mode = Arc::new(AtomicUsize::new(0));
    let now = Arc::clone(&mode);
    let store = host(move |_, call| {
        call.outcomes.fill(0);
        match now.load(Ordering::Relaxed) {
            0 => return Err("no disk".to_owned()),
            1 => call.outcomes.fill(-600),
            2 => return Ok(-77),
            3 => call.outcomes.fill(code::NO_ANSWER),
            _ => {}
        }
        Ok(0)
    });
    let lines = Lines::default();
    let heard = lines.clone();
    tracing::subscriber::with_default(lines, || {
        let bytes = [0_u8; 3];
        let mut out = Vec::new();
        for step in [0, 0, 1, 1, 0, 9, 9, 1, 1, 9, 2, 9, 3] {
            mode.store(step, Ordering::Relaxed);
            let options = PutOptions {
                soft_pin_ttl: (step < 2).then_some(Duration::from_secs(1)),
                ..PutOptions::default()
            };
            let mut sources: Vec<_> = bytes.chunks(1).map(Source::from).collect();
            store.put(&three(), Pieces::one_each(&mut sources), &options, &mut out);
        }
    });
    let again = "the host's put works again";
    let warning = |text: &str| {
        format!("the host's put: 3 of 3 keys failed, {text}; said once until it works again")
    };
    let pinned = "the first code is -600; nothing was stored under the soft pin: a soft_pin_ttl_ms above the maximum of the pool \
                 (24 h in Mooncake unless told) makes it refuse every put";
    let expected = [
        warning("it threw: no disk"),
        // That the pin may be the reason is new.
        warning(pinned),
        again.to_owned(),
        warning(pinned),
        again.to_owned(),
        warning("it returned -77"),
        again.to_owned(),
        warning("it wrote no outcome"),
    ];
    assert_eq!(heard.0.lock()[..], expected);
}
