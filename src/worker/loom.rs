//! What the load threads share with the engine's thread, in every order that they could take. Run
//! with `RUSTFLAGS="--cfg loom" cargo test --release --lib worker::loom`.

use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use loom::thread;
use std::time::Duration;

use super::fence::{Fence, SharedFence, Wait};
use super::finished::Finished;
use super::parked::{Ending, Gate, Parked};
use super::sets::Sets;
use crate::config::Config;
use crate::device::{Device, HostDevice};
use crate::error::Result;
use crate::lane::Mode;
use crate::staging;
use crate::store::guarded::{Buffers, Guarded, Settings};
use crate::store::{Store, embedded};
use crate::sync::{Arc, Mutex, SystemClock};

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Once a closed gate was passed, the pages are the engine's: nothing is written into them.
#[test]
fn nothing_is_written_behind_a_gate_that_was_passed() {
    model(|| {
        let gate = Arc::new(Gate::new());
        let given_back = Arc::new(AtomicBool::new(false));
        let load = {
            let (gate, given_back) = (Arc::clone(&gate), Arc::clone(&given_back));
            thread::spawn(move || {
                for _ in 0..2 {
                    if gate.is_closed() {
                        return;
                    }
                    if let Some(_held) = gate.enter() {
                        assert!(!given_back.load(Ordering::Acquire));
                        thread::yield_now();
                        assert!(!given_back.load(Ordering::Acquire));
                    }
                }
            })
        };
        gate.close();
        gate.pass();
        given_back.store(true, Ordering::Release);
        load.join().unwrap();
    });
}

/// A load ends while the engine announces and polls: it is reported once.
#[test]
fn a_load_is_reported_once_however_end_and_announcement_meet() {
    model(|| {
        let parked = Arc::new(Mutex::new(Parked::default()));
        parked.lock().begin((1, 5), 1);
        let load = {
            let parked = Arc::clone(&parked);
            thread::spawn(move || parked.lock().end((1, 5), Ending::Landed))
        };
        let mut reported = 0;
        parked.lock().announce(1);
        parked.lock().report(|_| reported += 1);
        load.join().unwrap();
        parked.lock().report(|_| reported += 1);
        parked.lock().report(|_| reported += 1);
        assert_eq!(reported, 1);
        assert_eq!(parked.lock().running(), 0);
    });
}

/// The request ends while its load does: no result is reported, and the pages come back only when
/// the load has ended.
#[test]
fn a_finish_beside_the_end_of_a_load_gives_the_pages_back_behind_it() {
    model(|| {
        let parked = Arc::new(Mutex::new(Parked::default()));
        let finished = Arc::new(Mutex::new(Finished::default()));
        let written = Arc::new(AtomicBool::new(false));
        finished.lock().begin((1, 5));
        let gate = parked.lock().begin((1, 5), 1);
        let load = {
            let (parked, finished) = (Arc::clone(&parked), Arc::clone(&finished));
            let written = Arc::clone(&written);
            thread::spawn(move || {
                if let Some(_held) = gate.enter() {
                    written.store(true, Ordering::Release);
                }
                parked.lock().end((1, 5), Ending::Landed);
                written.store(false, Ordering::Release);
                finished.lock().end((1, 5));
            })
        };
        parked.lock().announce(1);
        finished.lock().announce(1, 5);
        parked.lock().withdraw(1, u64::MAX);
        let mut back = false;
        finished.lock().report(|_, _| back = true);
        // While it may be written the pages are not back.
        assert!(!back || !written.load(Ordering::Acquire));
        load.join().unwrap();
        finished.lock().report(|_, _| back = true);
        assert!(back);
        parked.lock().report(|_| panic!("nobody waits for it"));
    });
}

struct Counted(AtomicUsize);

impl Wait for Counted {
    fn wait(&self) -> Result<bool> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(true)
    }
}

/// The loads of one bind wait for its fence once, all of them.
#[test]
fn a_fence_is_waited_for_once() {
    model(|| {
        let door = Arc::new(Counted(AtomicUsize::new(0)));
        let fence = Fence::Given(Arc::clone(&door) as Arc<dyn Wait>);
        let fence = Arc::new(SharedFence::new(fence));
        let other = {
            let fence = Arc::clone(&fence);
            thread::spawn(move || fence.wait(&HostDevice).unwrap())
        };
        assert!(fence.wait(&HostDevice).unwrap());
        assert_eq!(door.0.load(Ordering::SeqCst), 1);
        assert!(other.join().unwrap());
        assert_eq!(door.0.load(Ordering::SeqCst), 1);
    });
}

/// So many sets of one slot, known to a pool that answers at once.
fn sets(pool: &Arc<embedded::Pool>, count: u32) -> Arc<Sets> {
    let config = Config::from_json(br#"{"model_key": "m"}"#).unwrap();
    let settings = Settings::new(&config, 1, 1);
    let store = Arc::clone(pool) as Arc<dyn Store>;
    let clock = Arc::new(SystemClock::new());
    let store = Guarded::start(store, settings, clock, &Mode::Threads).unwrap();
    let device = Arc::new(HostDevice) as Arc<dyn Device>;
    Sets::open(&device, &store, staging::plan(128, 1, 16, 1), count).unwrap()
}

fn pool() -> Arc<embedded::Pool> {
    let clock = Arc::new(SystemClock::new());
    embedded::Pool::new(1 << 16, 0.05, Duration::ZERO, clock).unwrap()
}

/// Threads that want one set between them: whoever has it has it alone, and gives it back whole.
#[test]
fn a_set_of_slots_has_one_owner() {
    let pool = pool();
    model(move || {
        let sets = sets(&pool, 1);
        let owners = Arc::new(AtomicUsize::new(0));
        let use_one = |sets: &Arc<Sets>, owners: &AtomicUsize| {
            let Some(set) = sets.take().unwrap() else {
                return;
            };
            assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0);
            thread::yield_now();
            owners.fetch_sub(1, Ordering::SeqCst);
            drop(set);
        };
        let other = {
            let (sets, owners) = (Arc::clone(&sets), Arc::clone(&owners));
            thread::spawn(move || use_one(&sets, &owners))
        };
        use_one(&sets, &owners);
        other.join().unwrap();
        let set = sets.take().unwrap();
        assert!(set.is_some(), "it is home again");
        assert!(sets.take().unwrap().is_none(), "and there is no other");
    });
}

/// A late call brings its set home while its caller goes on without it: in every order the caller finds another,
/// and never the memory that the call still has.
#[test]
fn who_lost_a_set_finds_another_however_late_it_comes_home() {
    let pool = pool();
    model(move || {
        let sets = sets(&pool, 1);
        let mut late = sets.take().unwrap().unwrap();
        let address = late.slots().unwrap().range().start;
        let is_home = Arc::new(AtomicBool::new(false));
        let call = {
            let is_home = Arc::clone(&is_home);
            thread::spawn(move || {
                is_home.store(true, Ordering::SeqCst);
                late.come_home();
            })
        };
        sets.lost_one();
        let mut set = sets.take().unwrap().expect("one for each thread");
        let own = set.slots().unwrap().range().start;
        assert!(own != address || is_home.load(Ordering::SeqCst));
        call.join().unwrap();
        drop(set);
        assert!(sets.take().unwrap().is_some());
    });
}

/// A set that comes back beside the end is not lent again: whoever closed may have gone without it.
#[test]
fn nothing_is_lent_after_a_close() {
    let pool = pool();
    model(move || {
        let sets = sets(&pool, 2);
        let mut set = sets.take().unwrap().unwrap();
        let user = thread::spawn(move || {
            set.slots().unwrap();
            drop(set);
        });
        sets.close(Duration::from_secs(1));
        assert!(sets.take().unwrap().is_none());
        user.join().unwrap();
        assert!(sets.take().unwrap().is_none());
    });
}
