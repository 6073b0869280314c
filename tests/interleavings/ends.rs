//! Layouts that go and workers that shut down, whatever is under way.

use parking_lot::Mutex;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::rig::{Cache, Rig, Setup, T, prompt};
use crate::{LONG, panicking, small, verify};
use kvbridge::device::Stream;
use kvbridge::error::Kind;
use kvbridge::scheduler::FinishReason;
use kvbridge::store::faulty::{Action, Call, Rule, Which};

#[test]
fn a_layout_goes_and_comes_while_saves_run() {
    let mut rig = Rig::new(small());
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    rig.stepper.step(0);
    // A further pass is bound and not run.
    let metadata = rig.build(&[(1, T)]);
    rig.bind(&metadata);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(rig.stored(), 4, "what was queued was saved");
    rig.wait_for_save();
    rig.drain();
    assert_eq!(rig.stored(), 4, "what was not queued is gone");
    assert_eq!(rig.offer(2, &tokens, 0), 0, "no layout, no offers");
    rig.scheduler.reset(1).unwrap();
    rig.scheduler.reset(2).unwrap();
    let setup = rig.setup.clone();
    rig.ranks[0].cache = Cache::new(&setup);
    let memory = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(memory).unwrap();
    assert_eq!(rig.admit(3, &tokens), 4 * T as u64);
    rig.pass(&[(3, 2 * T)]);
    rig.check(3);
    rig.drain();
    assert_eq!(verify(&rig, &tokens), 6);
}

/// A put that waits until it is let go; tells when it has begun.
fn stall() -> (Rule, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let (begun, has_begun) = mpsc::channel();
    let (go, may_go) = mpsc::channel::<()>();
    let waits = Mutex::new((begun, may_go));
    let rule = Rule {
        call: Call::Put,
        at: 0..1,
        keys: Which::All,
        action: Action::Hook(Arc::new(move || {
            let waits = waits.lock();
            let _ = waits.0.send(());
            let _ = waits.1.recv();
        })),
    };
    (rule, has_begun, go)
}

#[test]
fn a_layout_is_not_given_back_while_a_save_is_stuck() {
    let mut rig = Rig::new(Setup {
        stepped: false,
        save_timeout_ms: 20,
        ..small()
    });
    let (rule, has_begun, go) = stall();
    rig.script(vec![rule]);
    let tokens = prompt(1, 4 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    has_begun.recv().unwrap();
    let busy = rig.ranks[0].worker.unregister_layout().unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    assert_eq!(rig.offer(2, &prompt(3, 2 * T), 0), 0);
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty());
    go.send(()).unwrap();
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(rig.stored(), 4);
}

/// Whatever was queued is saved or counted, and reported.
#[test]
fn shutdown_from_every_state() {
    type Prepare = fn(&mut Rig);
    let states: [(&str, Prepare, u64); 7] = [
        ("registered", |_| {}, 0),
        (
            "unregistered",
            |rig| rig.ranks[0].worker.unregister_layout().unwrap(),
            0,
        ),
        (
            "bound",
            |rig| {
                let metadata = rig.build(&[(1, 2 * T)]);
                rig.bind(&metadata);
            },
            0,
        ),
        (
            "loads started",
            |rig| {
                let metadata = rig.build(&[(1, 2 * T)]);
                rig.bind(&metadata);
                rig.start_load().unwrap();
            },
            0,
        ),
        (
            "saves queued",
            |rig| {
                rig.pass(&[(1, 2 * T)]);
                rig.pass(&[(1, 2 * T)]);
            },
            4,
        ),
        (
            "twice",
            |rig| {
                rig.pass(&[(1, 2 * T)]);
                rig.ranks[0].worker.shutdown(LONG).unwrap();
            },
            2,
        ),
        (
            "after a panic",
            |rig| {
                rig.script(vec![panicking(0..1)]);
                rig.pass(&[(1, 2 * T)]);
                rig.drain();
            },
            0,
        ),
    ];
    for stepped in [true, false] {
        for (name, prepare, stored) in &states {
            let mut rig = Rig::new(Setup { stepped, ..small() });
            let tokens = prompt(1, 4 * T);
            rig.admit(1, &tokens);
            prepare(&mut rig);
            let pinned = rig.finish(1, FinishReason::Ended);
            for _ in 0..2 {
                rig.ranks[0].worker.shutdown(LONG).unwrap();
                assert_eq!(rig.stored(), *stored, "{name}");
            }
            let worker = &mut rig.ranks[0].worker;
            // Answered, whatever the answer.
            let _ = worker.start_load(Stream::default());
            let _ = worker.wait_for_save(Stream::default());
            assert_eq!(worker.handle().gauges().saves_in_flight, 0, "{name}");
            assert_eq!(rig.poll(), if pinned { vec![1] } else { vec![] }, "{name}");
            let memory = rig.ranks[0].cache.register();
            let late = rig.ranks[0].worker.register_layout(memory).unwrap_err();
            assert_eq!(late.kind(), Kind::Closed);
        }
    }
}

#[test]
fn shutdown_with_a_stuck_put_says_busy_and_keeps_the_memory() {
    let mut rig = Rig::new(Setup {
        stepped: false,
        ..small()
    });
    let (rule, has_begun, go) = stall();
    rig.script(vec![rule]);
    let tokens = prompt(1, 6 * T);
    rig.admit(1, &tokens);
    rig.pass(&[(1, 4 * T)]);
    rig.pass(&[(1, 2 * T)]);
    has_begun.recv().unwrap();
    let busy = rig.ranks[0]
        .worker
        .shutdown(Duration::from_millis(1))
        .unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    // The second pass was dropped and counted; the first one's put still runs.
    assert_eq!(rig.stats().dropped_save_pages, 2);
    assert_eq!(rig.ranks[0].worker.handle().gauges().saves_in_flight, 1);
    assert!(rig.finish(1, FinishReason::Ended));
    assert!(rig.poll().is_empty(), "its pages are still read");
    go.send(()).unwrap();
    rig.drain();
    assert_eq!(rig.poll(), [1]);
    rig.ranks[0].worker.shutdown(LONG).unwrap();
    assert_eq!(rig.stats().dropped_save_pages, 4);
    assert_eq!(
        (rig.stored(), verify(&rig, &tokens)),
        (2, 0),
        "the tail was put first"
    );
}

#[test]
fn a_store_that_panics_costs_that_save_only() {
    for stepped in [true, false] {
        let mut rig = Rig::new(Setup { stepped, ..small() });
        // The second batch of the first pass.
        rig.script(vec![panicking(1..2)]);
        let tokens = prompt(1, 8 * T);
        rig.admit(1, &tokens);
        rig.pass(&[(1, 6 * T)]);
        rig.drain();
        let stats = rig.stats();
        assert_eq!(
            (
                stats.saved_pages,
                stats.failed_save_pages,
                stats.dropped_save_pages
            ),
            (2, 2, 2)
        );
        // The next block brings the lost ones along.
        let metadata = rig.pass(&[(1, T)]);
        assert_eq!(metadata.saves().blocks(), 5);
        assert!(rig.finish(1, FinishReason::Ended));
        rig.drain();
        assert_eq!(rig.poll(), [1]);
        assert_eq!(verify(&rig, &tokens[..7 * T]), 7);
        rig.ranks[0].worker.unregister_layout().unwrap();
        rig.ranks[0].worker.shutdown(LONG).unwrap();
    }
}

#[test]
fn an_idle_worker_shuts_down_whatever_the_deadline() {
    for _ in 0..20 {
        let mut rig = Rig::new(Setup {
            stepped: false,
            ..small()
        });
        rig.publish(1, &prompt(1, 2 * T));
        rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap();
    }
}
