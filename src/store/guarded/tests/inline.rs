//! A store whose calls end by themselves: gets and puts of lent memory are their caller's own.

use super::*;

fn prompt(threads: bool) -> Rig {
    rig_of(Faulty::prompt(pool(), Vec::new()), settings(2), threads)
}

impl Rig {
    fn put(&self, name: &str, bytes: &[u8]) -> PutOutcome {
        let (mut sources, mut out) = ([Source::from(bytes)], vec![PutOutcome::NoSpace; 3]);
        let (pieces, options) = (Pieces::one_each(&mut sources), PutOptions::default());
        self.guard.put(&key(name), pieces, &options, &mut out);
        assert_eq!(out.len(), 1);
        out[0]
    }

    fn get(&self, name: &str, bytes: &mut [u8]) -> GetOutcome {
        let (mut targets, mut out) = ([Target::from(bytes)], vec![GetOutcome::Missing; 3]);
        self.guard
            .get(&key(name), Pieces::one_each(&mut targets), &mut out);
        assert_eq!(out.len(), 1);
        out[0]
    }
}

#[test]
fn is_a_store() {
    conformance::check(&|| {
        let clock = Arc::new(SystemClock::new());
        let pool = Faulty::prompt(pool(), Vec::new());
        Guarded::start(pool, settings(4), clock, &Mode::Threads).unwrap()
    })
    .unwrap();
}

#[test]
fn pages_land_where_the_caller_has_them_on_its_thread() {
    let rig = prompt(true);
    let (said, heard) = channel();
    rig.script(
        Kinds::Any,
        Action::Hook(Arc::new(move || {
            said.send(std::thread::current().id()).unwrap();
        })),
    );
    let caller = std::thread::current().id();
    assert_eq!(rig.put("a", &[5; SIZE]), PutOutcome::Stored);
    let mut landing = [0; SIZE];
    assert_eq!(rig.get("a", &mut landing), GetOutcome::Landed(SIZE as u64));
    assert_eq!(landing, [5; SIZE]);
    assert_eq!([heard.recv().unwrap(), heard.recv().unwrap()], [caller; 2]);
    // What owns its memory, and lookups, are the guard's.
    let (_, buffer) = watched(0);
    let call = back(rig.guard.get_owned(Get::new(key("a"), buffer)));
    assert_eq!(call.buffers.bytes, [5; SIZE]);
    assert_eq!(rig.exist("a"), Presence::Present);
    assert_ne!(heard.recv().unwrap(), caller);
    assert_ne!(heard.recv().unwrap(), caller);
    assert_eq!(rig.guard.counts(), PoolCounts::default());
    rig.guard.close().unwrap();
    assert_eq!(rig.get("a", &mut landing), GetOutcome::Failed(code::CLOSED));
    assert_eq!(rig.put("b", &[5; SIZE]), PutOutcome::Failed(code::CLOSED));
}

#[test]
fn an_outage_opens_the_breaker_and_a_lookup_probes() {
    let rig = prompt(false);
    rig.fill("a", 3);
    for kind in [Kinds::Put, Kinds::Get] {
        let mut landing = [0; SIZE];
        let calls = rig.calls(Kinds::Any);
        rig.script(kind, Action::Fail(TRANSPORT));
        match kind {
            Kinds::Put => {
                assert_eq!(rig.put("b", &[5; SIZE]), PutOutcome::Failed(TRANSPORT));
            }
            _ => assert_eq!(rig.get("a", &mut landing), GetOutcome::Failed(TRANSPORT)),
        }
        assert_eq!(rig.state(), State::Open);
        let refused = code::BREAKER_OPEN;
        assert_eq!(rig.put("b", &[5; SIZE]), PutOutcome::Failed(refused));
        assert_eq!(rig.get("a", &mut landing), GetOutcome::Failed(refused));
        assert_eq!(rig.calls(Kinds::Any), calls + 1);
        rig.pool.set_script(Vec::new());
        rig.clock.advance(COOLDOWN);
        assert_eq!(rig.get("a", &mut landing), GetOutcome::Landed(SIZE as u64));
        assert_eq!(landing, [3; SIZE]);
        // The probe, and the call.
        assert_eq!(rig.calls(Kinds::Any), calls + 3);
        assert_eq!(rig.state(), State::Closed);
    }
    let counts = rig.guard.counts();
    assert_eq!((counts.failures, counts.opened, counts.refused), (2, 2, 4));
    assert_eq!((counts.late, counts.quarantined), (0, 0));
}

#[test]
fn a_panic_is_no_answer_and_nobody_stays_inside() {
    let rig = prompt(false);
    rig.script(Kinds::Any, Action::Hook(Arc::new(|| panic!("as asked"))));
    let silent = code::NO_ANSWER;
    assert_eq!(rig.put("b", &[5; SIZE]), PutOutcome::Failed(silent));
    assert_eq!(rig.state(), State::Open);
    assert_eq!(rig.guard.core.state.lock().inside, 0);
    rig.guard.close().unwrap();
}

#[test]
fn a_close_waits_for_a_caller_inside() {
    let rig = prompt(true);
    let (said, is_inside) = channel();
    let (let_go, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let hang = move || {
        said.send(()).unwrap();
        let _ = gate.lock().recv();
    };
    rig.script(Kinds::Put, Action::Hook(Arc::new(hang)));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| rig.put("a", &[5; SIZE]));
        is_inside.recv().unwrap();
        let closer = scope.spawn(|| rig.guard.close());
        while !rig.guard.core.state.lock().closed {
            std::thread::yield_now();
        }
        assert_eq!(rig.pool.health(), Health::Up, "not closed under a call");
        drop(let_go);
        assert_eq!(caller.join().unwrap(), PutOutcome::Stored);
        closer.join().unwrap().unwrap();
    });
    assert_eq!(rig.pool.health(), Health::Down(code::CLOSED));
}
