//! A call that ends beside its caller's deadline, in every order that the two could take. Run with
//! `RUSTFLAGS="--cfg loom" cargo test --release --lib store::guarded::loom`.

use std::time::Duration;

use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::call::{Call, Carrier, Core, Made, Stage, State, Tally, conclude};
use crate::lane::{Item, ManualClock, Step};
use crate::store::breaker::{self, Breaker};
use crate::store::{Store, embedded};
use crate::sync::{Arc, Mutex, SystemClock};

/// A call that counts who has it in the end.
struct Counted {
    home: Arc<AtomicUsize>,
    fails: bool,
}

impl Call for Counted {
    const LENDS: bool = true;

    fn name(&self) -> &'static str {
        "counted"
    }

    fn run(&mut self, _: &dyn Store) {
        thread::yield_now();
    }

    fn failure(&self, _: &dyn Store) -> Option<i32> {
        self.fails.then_some(-1)
    }

    fn keeps(&self, _: &dyn Store) -> bool {
        true
    }

    fn come_home(self) {
        self.home.fetch_add(1, Ordering::SeqCst);
    }
}

/// Whoever is first: the buffers are the caller's, come home, or are quarantined, and what is held at the
/// end is what is quarantined.
fn handed_over_once(fails: bool) {
    let clock = Arc::new(SystemClock::new());
    let pool = embedded::Pool::new(1 << 16, 0.05, Duration::ZERO, clock).unwrap();
    loom::model(move || {
        let core = Arc::new(Core {
            store: Arc::clone(&pool) as Arc<dyn Store>,
            clock: Arc::new(ManualClock::new()),
            state: Mutex::new(State {
                breaker: Breaker::new(Duration::ZERO, 2),
                tally: Tally::default(),
                inside: 0,
                closed: false,
                close_on_leave: false,
                close_begun: false,
            }),
        });
        let home = Arc::new(AtomicUsize::new(0));
        let call = Counted {
            home: Arc::clone(&home),
            fails,
        };
        let ticket = Arc::new(Mutex::new(Stage::Queued(call)));
        let permit = core.state.lock().breaker.admit(Duration::ZERO);
        let mut item = Carrier::new(Arc::clone(&core), Arc::clone(&ticket));
        let carrier = thread::spawn(move || while item.step() == Step::More {});
        let (made, _) = conclude(&core, &ticket, permit);
        let is_back = matches!(made, Made::Back(_));
        carrier.join().unwrap();
        let state = core.state.lock();
        let home = home.load(Ordering::SeqCst);
        let quarantined = state.tally.quarantined;
        assert_eq!(usize::from(is_back) + home + quarantined, 1);
        assert_eq!(state.breaker.held(), quarantined);
        assert_eq!((state.inside, state.tally.late), (0, 0));
        // Only a call that was answered in time leaves the breaker closed.
        let opened = state.breaker.state() != breaker::State::Closed;
        assert!(opened || (is_back && !fails));
    });
}

#[test]
fn a_call_is_handed_over_once() {
    handed_over_once(false);
}

#[test]
fn a_call_that_fails_beside_its_deadline_is_quarantined_once() {
    handed_over_once(true);
}
