use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;

use super::*;
use crate::error::Kind;

const LONG: Duration = Duration::from_secs(60);

/// Sends "name 1", "name 2", … for its steps and "name dropped" at the end.
struct Talker {
    name: &'static str,
    steps: usize,
    done: usize,
    said: Sender<String>,
}

impl Item for Talker {
    fn step(&mut self) -> Step {
        self.done += 1;
        self.said
            .send(format!("{} {}", self.name, self.done))
            .unwrap();
        if self.done < self.steps {
            Step::More
        } else {
            Step::Done
        }
    }

    fn name(&self) -> &'static str {
        self.name
    }
}

impl Drop for Talker {
    fn drop(&mut self) {
        self.said.send(format!("{} dropped", self.name)).unwrap();
    }
}

/// An item made of a closure that is its step.
struct Closure<F>(F);

impl<F: FnMut() -> Step + Send> Item for Closure<F> {
    fn step(&mut self) -> Step {
        (self.0)()
    }

    fn name(&self) -> &'static str {
        "closure"
    }
}

fn closure(step: impl FnMut() -> Step + Send + 'static) -> Box<dyn Item> {
    Box::new(Closure(step))
}

/// Waits inside its step until the sender is dropped or speaks.
fn gated() -> (Sender<()>, Box<dyn Item>) {
    let (open, gate) = channel();
    (
        open,
        closure(move || {
            let _ = gate.recv();
            Step::Done
        }),
    )
}

struct Stage {
    said: Sender<String>,
    heard: Receiver<String>,
}

impl Stage {
    fn new() -> Self {
        let (said, heard) = channel();
        Self { said, heard }
    }

    fn talker(&self, name: &'static str, steps: usize) -> Box<dyn Item> {
        Box::new(Talker {
            name,
            steps,
            done: 0,
            said: self.said.clone(),
        })
    }

    fn heard(&self) -> Vec<String> {
        self.heard.try_iter().collect()
    }
}

fn push(lane: &Lane, item: Box<dyn Item>) {
    assert!(lane.push(item).is_ok());
}

fn stepped(threads: usize) -> (Arc<Stepper>, Lane) {
    let stepper = Stepper::new();
    let lane = Lane::start("lane", threads, &Mode::Stepped(Arc::clone(&stepper))).unwrap();
    (stepper, lane)
}

#[test]
fn a_thread_runs_items_in_order_and_under_the_lanes_name() {
    let stage = Stage::new();
    let lane = Lane::start("kvb-r0-save", 1, &Mode::Threads).unwrap();
    let (name, thread) = channel();
    push(
        &lane,
        closure(move || {
            name.send(std::thread::current().name().map(str::to_owned))
                .unwrap();
            Step::Done
        }),
    );
    push(&lane, stage.talker("a", 2));
    push(&lane, stage.talker("b", 1));
    assert_eq!(lane.close(LONG, Drain::Run), Closed { stuck: 0 });
    assert_eq!(
        stage.heard(),
        ["a 1", "a 2", "a dropped", "b 1", "b dropped"]
    );
    assert_eq!(thread.recv().unwrap().as_deref(), Some("kvb-r0-save"));
}

/// Each of two items waits for the other one, which only two threads can satisfy.
#[test]
fn several_threads_run_items_side_by_side() {
    let lane = Lane::start("pair", 2, &Mode::Threads).unwrap();
    let barrier = Arc::new(std::sync::Barrier::new(2));
    let (met, threads) = channel::<ThreadId>();
    for _ in 0..2 {
        let (barrier, met) = (Arc::clone(&barrier), met.clone());
        push(
            &lane,
            closure(move || {
                barrier.wait();
                met.send(std::thread::current().id()).unwrap();
                Step::Done
            }),
        );
    }
    assert_eq!(lane.close(LONG, Drain::Run).stuck, 0);
    assert_ne!(threads.recv().unwrap(), threads.recv().unwrap());
}

#[test]
fn a_panic_ends_the_item_and_not_the_thread() {
    for mode in [Mode::Threads, Mode::Stepped(Stepper::new())] {
        let stage = Stage::new();
        let lane = Lane::start("lane", 1, &mode).unwrap();
        let mut inner = stage.talker("a", 9);
        push(
            &lane,
            closure(move || {
                inner.step();
                panic!("page {}", 7)
            }),
        );
        push(&lane, closure(|| std::panic::panic_any(7)));
        push(&lane, stage.talker("b", 1));
        assert_eq!(lane.close(LONG, Drain::Run).stuck, 0);
        assert_eq!(stage.heard(), ["a 1", "a dropped", "b 1", "b dropped"]);
        let text = "item closure of lane lane panicked: page 7";
        assert_eq!(lane.take_panic().as_deref(), Some(text));
        assert_eq!(lane.take_panic(), None);
    }
}

#[test]
fn a_panic_while_an_item_is_dropped_is_kept_too() {
    struct Bomb;
    impl Item for Bomb {
        fn step(&mut self) -> Step {
            Step::Done
        }
        fn name(&self) -> &'static str {
            "bomb"
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    for mode in [Mode::Threads, Mode::Stepped(Stepper::new())] {
        for drain in [Drain::Run, Drain::Drop] {
            let stage = Stage::new();
            let lane = Lane::start("lane", 1, &mode).unwrap();
            push(&lane, Box::new(Bomb));
            push(&lane, stage.talker("b", 1));
            assert_eq!(lane.close(LONG, drain).stuck, 0);
            assert_eq!(stage.heard().last().map(String::as_str), Some("b dropped"));
            let text = "item bomb of lane lane panicked: in drop";
            assert_eq!(lane.take_panic().as_deref(), Some(text));
        }
    }
}

#[test]
fn close_drops_what_no_thread_has_taken() {
    let stage = Stage::new();
    let lane = Lane::start("lane", 1, &Mode::Threads).unwrap();
    let (running, started) = channel();
    let (open, gate) = channel::<()>();
    push(
        &lane,
        closure(move || {
            running.send(()).unwrap();
            let _ = gate.recv();
            Step::Done
        }),
    );
    started.recv().unwrap();
    push(&lane, stage.talker("a", 1));
    assert_eq!(lane.queued(), 1);

    assert_eq!(lane.close(Duration::ZERO, Drain::Drop), Closed { stuck: 1 });
    assert_eq!(stage.heard(), ["a dropped"]);
    let refused = lane.push(stage.talker("b", 1)).expect_err("closed");
    assert_eq!(refused.name(), "b");
    drop(open);
    assert_eq!(lane.close(LONG, Drain::Drop), Closed { stuck: 0 });
    assert_eq!(lane.close(LONG, Drain::Run), Closed { stuck: 0 });
}

#[test]
fn a_deadline_ends_draining_and_abandons_running_items_between_steps() {
    let stage = Stage::new();
    let lane = Lane::start("lane", 1, &Mode::Threads).unwrap();
    let (started, has_started) = channel();
    let (open, gate) = channel::<()>();
    let mut inner = stage.talker("endless", usize::MAX);
    push(
        &lane,
        closure(move || {
            started.send(()).unwrap();
            let _ = gate.recv();
            inner.step()
        }),
    );
    push(&lane, stage.talker("a", 1));
    has_started.recv().unwrap();
    assert_eq!(
        lane.close(Duration::from_millis(1), Drain::Run),
        Closed { stuck: 1 }
    );
    assert_eq!(stage.heard(), ["a dropped"]);
    drop(open);
    // Endless, but the thread is free after the one step that was running.
    assert_eq!(lane.close(LONG, Drain::Run), Closed { stuck: 0 });
    assert_eq!(stage.heard(), ["endless 1", "endless dropped"]);
}

#[test]
fn dropping_a_lane_never_waits_for_a_stuck_item() {
    let lane = Lane::start("lane", 1, &Mode::Threads).unwrap();
    let (open, item) = gated();
    push(&lane, item);
    drop(lane);
    drop(open);
}

/// The last owner of a lane may be one of its items.
#[test]
fn a_lane_may_be_dropped_by_its_own_item() {
    let lane = Arc::new(Lane::start("lane", 1, &Mode::Threads).unwrap());
    let (done, is_done) = channel();
    let (open, gate) = channel::<()>();
    let mut own = Some(Arc::clone(&lane));
    push(
        &lane,
        closure(move || {
            let _ = gate.recv();
            drop(own.take());
            done.send(()).unwrap();
            Step::Done
        }),
    );
    drop(lane);
    drop(open);
    is_done.recv().unwrap();
}

#[test]
fn waiting_sees_what_an_item_said_last() {
    for mode in [Mode::Threads, Mode::Stepped(Stepper::new())] {
        let stage = Stage::new();
        let lane = Lane::start("lane", 1, &mode).unwrap();
        push(&lane, stage.talker("a", 3));
        let mut heard = Vec::new();
        assert!(lane.wait_until(Some(LONG), || {
            heard.extend(stage.heard());
            heard.last().is_some_and(|last| last == "a dropped")
        }));
        assert_eq!(heard, ["a 1", "a 2", "a 3", "a dropped"]);
    }
}

#[test]
fn waiting_ends_at_its_deadline_or_with_the_threads() {
    let lane = Lane::start("lane", 1, &Mode::Threads).unwrap();
    assert!(lane.wait_until(Some(Duration::ZERO), || true));
    assert!(!lane.wait_until(Some(Duration::ZERO), || false));
    assert!(!lane.wait_until(Some(Duration::from_millis(1)), || false));
    let _ = lane.close(LONG, Drain::Drop);
    assert!(!lane.wait_until(None, || false));
}

/// The predicate may use the lane, so it must be asked without the lane's lock.
#[test]
fn the_predicate_may_use_the_lane() {
    let lane = Lane::start("lane", 1, &Mode::Threads).unwrap();
    push(&lane, closure(|| panic!("seen")));
    assert!(lane.wait_until(Some(LONG), || lane.take_panic().is_some()));
}

#[test]
fn threads_that_cannot_start_fail_the_start() {
    for count in [0, 1] {
        let error = Lane::start("load", 2, &Mode::FailAfter(count)).unwrap_err();
        assert_eq!(error.kind(), Kind::NoThread);
        assert!(error.message().contains(&format!("load{count}")), "{error}");
    }
    assert!(Lane::start("load", 2, &Mode::FailAfter(2)).is_ok());
    for (name, threads) in [("load", 0), ("lo\0ad", 1)] {
        let error = Lane::start(name, threads, &Mode::Threads).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }
}

#[test]
fn a_test_steps_items_in_any_order() {
    let stage = Stage::new();
    let stepper = Stepper::new();
    let mode = Mode::Stepped(Arc::clone(&stepper));
    let save = Lane::start("save", 1, &mode).unwrap();
    let load = Lane::start("load", 2, &mode).unwrap();
    push(&save, stage.talker("a", 2));
    push(&load, stage.talker("b", 1));
    push(&save, stage.talker("c", 1));
    let names = |stepper: &Stepper| -> Vec<String> {
        stepper
            .pending()
            .iter()
            .map(|(lane, item)| format!("{lane}/{item}"))
            .collect()
    };
    assert_eq!(names(&stepper), ["save/a", "load/b", "save/c"]);
    assert_eq!((save.queued(), load.queued()), (2, 1));
    assert!(stage.heard().is_empty());

    assert_eq!(stepper.step(2), Some(Step::Done));
    assert_eq!(stepper.step(0), Some(Step::More));
    assert_eq!(stepper.step(5), None);
    assert_eq!(names(&stepper), ["save/a", "load/b"]);
    assert_eq!(stage.heard(), ["c 1", "c dropped", "a 1"]);
    assert_eq!(stepper.run_all(), 2);
    assert_eq!(stage.heard(), ["a 2", "a dropped", "b 1", "b dropped"]);
    assert!(names(&stepper).is_empty());
}

#[test]
fn run_all_gives_items_turns_and_runs_what_they_add() {
    let stage = Stage::new();
    let (stepper, lane) = stepped(1);
    let lane = Arc::new(lane);
    let mut child = Some(stage.talker("child", 1));
    let parent = Arc::clone(&lane);
    push(&lane, stage.talker("a", 2));
    push(
        &lane,
        closure(move || {
            let _ = child.take().map(|child| parent.push(child));
            Step::Done
        }),
    );
    assert_eq!(stepper.run_all(), 4);
    assert_eq!(
        stage.heard(),
        ["a 1", "child 1", "child dropped", "a 2", "a dropped"]
    );
}

#[test]
fn waiting_on_a_stepped_lane_runs_only_that_lane_and_only_as_far_as_needed() {
    let stage = Stage::new();
    let (stepper, lane) = stepped(1);
    let other = Lane::start("other", 1, &Mode::Stepped(Arc::clone(&stepper))).unwrap();
    push(&other, stage.talker("other", 1));
    push(&lane, stage.talker("a", 1));
    push(&lane, stage.talker("b", 1));
    push(&lane, stage.talker("c", 1));
    let mut heard = Vec::new();
    assert!(lane.wait_until(None, || {
        heard.extend(stage.heard());
        heard.iter().any(|line| line == "b 1")
    }));
    assert_eq!(heard, ["a 1", "a dropped", "b 1", "b dropped"]);
    assert!(!lane.wait_until(None, || false));
    assert_eq!(stage.heard(), ["c 1", "c dropped"]);
    assert_eq!(stepper.pending().len(), 1);
}

/// The first item ends only when the second has run: fine with two threads, a hang with one.
#[test]
fn a_stepped_wait_gives_turns_to_as_many_items_as_there_are_threads() {
    for (threads, ends) in [(2, true), (1, false)] {
        let (_stepper, lane) = stepped(threads);
        let (signal, signalled) = channel();
        push(
            &lane,
            closure(move || {
                if signalled.try_recv().is_ok() {
                    Step::Done
                } else {
                    Step::More
                }
            }),
        );
        push(
            &lane,
            closure(move || {
                signal.send(()).unwrap();
                Step::Done
            }),
        );
        lane.wait_until(None, || false);
        assert_eq!(lane.queued() == 0, ends, "{threads} threads");
    }
}

#[test]
fn an_item_may_wait_on_another_lane_while_it_is_stepped() {
    let stage = Stage::new();
    let (stepper, outer) = stepped(1);
    let inner = Lane::start("inner", 1, &Mode::Stepped(Arc::clone(&stepper))).unwrap();
    let (answer, answered) = channel();
    let own = Arc::clone(&stepper);
    let mut inside = stage.talker("inside", 1);
    push(
        &outer,
        closure(move || {
            let answer = answer.clone();
            push(
                &inner,
                closure(move || {
                    answer.send(1).unwrap();
                    Step::Done
                }),
            );
            assert_eq!(own.pending().len(), 1, "the outer item is not pending");
            assert!(inner.wait_until(None, || answered.try_recv().is_ok()));
            inside.step()
        }),
    );
    assert_eq!(stepper.run_all(), 1);
    assert_eq!(stage.heard(), ["inside 1", "inside dropped"]);
    assert_eq!(outer.take_panic(), None);
}

#[test]
fn closing_a_stepped_lane_drops_or_runs_its_items_alone() {
    for (drain, expected) in [
        (Drain::Drop, vec!["a dropped", "b dropped"]),
        (
            Drain::Run,
            vec!["a 1", "a 2", "a dropped", "b 1", "b dropped"],
        ),
    ] {
        let stage = Stage::new();
        let (stepper, lane) = stepped(1);
        let other = Lane::start("other", 1, &Mode::Stepped(Arc::clone(&stepper))).unwrap();
        push(&other, stage.talker("other", 1));
        push(&lane, stage.talker("a", 2));
        push(&lane, stage.talker("b", 1));
        assert_eq!(lane.close(Duration::ZERO, drain), Closed { stuck: 0 });
        assert_eq!(stage.heard(), expected);
        assert!(lane.push(stage.talker("c", 1)).is_err());
        assert_eq!(stepper.pending().len(), 1);
    }
}

#[test]
fn closing_a_stepped_lane_from_its_own_item_reports_and_abandons_it() {
    let stage = Stage::new();
    let (stepper, lane) = stepped(1);
    let lane = Arc::new(lane);
    let own = Arc::clone(&lane);
    let mut inner = stage.talker("a", 9);
    push(
        &lane,
        closure(move || {
            assert_eq!(own.close(LONG, Drain::Run), Closed { stuck: 1 });
            inner.step()
        }),
    );
    assert_eq!(stepper.step(0), Some(Step::Done));
    assert_eq!(stage.heard(), ["a 1", "a dropped"]);
    assert_eq!(lane.close(LONG, Drain::Run), Closed { stuck: 0 });
    assert_eq!(lane.take_panic(), None);
}
