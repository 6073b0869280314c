//! The lane in every order that its threads could take. Run with
//! `RUSTFLAGS="--cfg loom" cargo test --release --test loom_lane`.
#![cfg(loom)]
#![allow(
    clippy::unwrap_used,
    reason = "a helper of a test fails it by panicking"
)]

use std::time::Duration;

use kvbridge::lane::{Drain, Item, Lane, Mode, Step};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};

/// Counts its steps and its drop.
struct Counted {
    run: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

impl Item for Counted {
    fn step(&mut self) -> Step {
        self.run.fetch_add(1, Ordering::SeqCst);
        Step::Done
    }

    fn name(&self) -> &'static str {
        "counted"
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

/// Time does not pass in a model, so a deadline is one that is never reached.
const NEVER: Duration = Duration::MAX;

fn counters() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)))
}

fn model(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(body);
}

/// Items pushed beside a close are run, dropped or given back, and each is dropped once.
fn pushed_beside_close(threads: usize, drain: Drain) {
    model(move || {
        let (run, dropped) = counters();
        let lane = Arc::new(Lane::start("model", threads, &Mode::Threads).unwrap());
        let pusher = {
            let (lane, run, dropped) = (Arc::clone(&lane), Arc::clone(&run), Arc::clone(&dropped));
            loom::thread::spawn(move || {
                let push = || {
                    let (run, dropped) = (Arc::clone(&run), Arc::clone(&dropped));
                    lane.push(Box::new(Counted { run, dropped })).is_ok()
                };
                usize::from(push()) + usize::from(push())
            })
        };
        assert_eq!(lane.close(NEVER, drain).stuck, 0);
        let run_at_close = run.load(Ordering::SeqCst);
        let accepted = pusher.join().unwrap();
        assert_eq!(dropped.load(Ordering::SeqCst), 2);
        let run = run.load(Ordering::SeqCst);
        assert_eq!(run, run_at_close, "an item ran after the close");
        match drain {
            Drain::Run => assert_eq!(run, accepted),
            Drain::Drop => assert!(run <= accepted),
        }
    });
}

#[test]
fn one_thread_run() {
    pushed_beside_close(1, Drain::Run);
}

#[test]
fn one_thread_drop() {
    pushed_beside_close(1, Drain::Drop);
}

#[test]
fn two_threads_run() {
    pushed_beside_close(2, Drain::Run);
}

/// A wait misses no item's end; loom reports a wait that nobody would end as a deadlock.
#[test]
fn waiting_misses_nothing() {
    model(|| {
        let (run, dropped) = counters();
        let lane = Lane::start("model", 1, &Mode::Threads).unwrap();
        for _ in 0..2 {
            let (run, dropped) = (Arc::clone(&run), Arc::clone(&dropped));
            assert!(lane.push(Box::new(Counted { run, dropped })).is_ok());
        }
        assert!(lane.wait_until(None, || dropped.load(Ordering::SeqCst) == 2));
        assert_eq!(run.load(Ordering::SeqCst), 2);
        assert_eq!(lane.close(NEVER, Drain::Drop).stuck, 0);
    });
}
