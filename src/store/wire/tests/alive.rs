//! Memory that is lent: kept in the pool, brought back, taken out.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use super::stand_in::StandIn;
use super::{LONG, connect, soon};
use crate::error::Kind;
use crate::store::wire::alive::{Lent, Memory, Server};
use crate::store::wire::family::Family;
use crate::store::wire::messages::{
    FetchTasks, NEEDS_REMOUNT, Ping, Pong, Remount, TASK_FAILED, Task, TaskEnded, Unmount,
};
use crate::store::wire::pack::{Answer, Pack, Request, Uuid};

const NEW: Family = Family::ALL[0];

fn memory() -> Memory {
    Memory {
        name: "127.0.0.1:7".to_owned(),
        endpoint: "127.0.0.1:7".to_owned(),
        base: 1 << 33,
        size: 1 << 24,
    }
}

/// Where the memory begins after it has moved on, the first time and the second: bytes that stand nowhere else.
const NEXT: [u64; 2] = [0x1122_3344_5566_7788, 0x1021_3243_5465_7687];

/// Serves nobody.
#[derive(Default)]
struct Nobody(AtomicUsize);

impl Server for Nobody {
    fn move_on(&self, _: Instant) -> crate::error::Result<u64> {
        Ok(NEXT[self.0.fetch_add(1, Ordering::SeqCst)])
    }
}

fn lend(master: &Arc<super::Master>) -> crate::error::Result<Lent> {
    Lent::begin(
        Arc::clone(master),
        Uuid(3, 4),
        memory(),
        Box::<Nobody>::default(),
        soon(),
    )
}

fn code_of(value: &impl Pack) -> Vec<u8> {
    let mut bytes = Vec::new();
    crate::store::wire::pack::pack(value, NEW, &mut bytes);
    bytes
}

/// The master forgets it once, and has a task.
#[test]
fn it_is_lent_again_when_the_master_asks_and_taken_back_at_the_end() {
    let (heard, calls) = mpsc::channel();
    let stand_in = StandIn::new(move |mut line, _| {
        line.introduce(NEW);
        let mut pings = 0;
        while let Some(request) = line.request() {
            let (number, done) = (request.number, Answer::Ok(()));
            if request.function == Ping::function_id() {
                pings += 1;
                let status = if pings == 2 { NEEDS_REMOUNT } else { 1 };
                line.say(number, NEW, &Answer::Ok(Pong { view: 0, status }));
                heard.send("ping").unwrap();
            } else if request.function == Remount::function_id() {
                line.say(number, NEW, &done);
                heard.send("remount").unwrap();
            } else if request.function == FetchTasks::function_id() {
                let id = Uuid(5, 6);
                let tasks = match pings {
                    1 => vec![Task {
                        id,
                        ..Task::default()
                    }],
                    _ => vec![],
                };
                line.say(number, NEW, &Answer::Ok(tasks));
            } else if request.function == TaskEnded::function_id() {
                // Its name and status stand behind ours.
                let id = [
                    code_of(&Uuid(5, 6))[4..].to_vec(),
                    TASK_FAILED.to_le_bytes().to_vec(),
                ];
                assert_eq!(request.body[20..40], id.concat());
                line.say(number, NEW, &done);
                heard.send("task").unwrap();
            } else if request.function == Unmount::function_id() {
                // Before the answer, behind which the test looks at what was heard.
                heard.send("unmount").unwrap();
                line.say(number, NEW, &done);
            }
        }
    });
    let master = Arc::new(connect(&stand_in).unwrap());
    let lent = lend(&master).unwrap();
    for expected in ["remount", "ping", "task", "ping", "remount", "ping"] {
        assert_eq!(calls.recv_timeout(LONG).unwrap(), expected);
    }
    lent.end();
    // It is answered before it is told here.
    while calls.recv_timeout(LONG).unwrap() != "unmount" {}
    assert_eq!(calls.try_iter().next(), None);
}

/// Its objects of before must not be looked for where others are; and a mount that the master may have heard of is no other.
#[test]
fn it_is_lent_at_another_address_each_time_but_not_each_try() {
    let (heard, bases) = mpsc::channel();
    let stand_in = StandIn::new(move |mut line, _| {
        line.introduce(NEW);
        let mut mounts = 0;
        while let Some(request) = line.request() {
            let number = request.number;
            if request.function == Ping::function_id() {
                let status = NEEDS_REMOUNT;
                line.say(number, NEW, &Answer::Ok(Pong { view: 0, status }));
            } else if request.function == Remount::function_id() {
                mounts += 1;
                let is_named = |base: &&u64| {
                    let bytes = base.to_le_bytes();
                    request.body.windows(8).any(|it| *it == bytes)
                };
                let named: Vec<u64> = NEXT.iter().filter(is_named).copied().collect();
                heard.send(named).unwrap();
                // The second is not taken at once.
                let answer = match mounts {
                    2 => Answer::Err(-1),
                    _ => Answer::Ok(()),
                };
                line.say(number, NEW, &answer);
            } else if request.function == FetchTasks::function_id() {
                line.say(number, NEW, &Answer::Ok(Vec::<Task>::new()));
            } else {
                line.say(number, NEW, &Answer::Ok(()));
            }
        }
    });
    let master = Arc::new(connect(&stand_in).unwrap());
    let lent = lend(&master).unwrap();
    let [first, second] = NEXT.map(|base| vec![base]);
    for expected in [vec![], first.clone(), first, second] {
        assert_eq!(bases.recv_timeout(LONG).unwrap(), expected);
    }
    lent.end();
}

#[test]
fn what_the_master_does_not_take_is_refused() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            line.say(request.number, NEW, &Answer::<()>::Err(-600));
        }
    });
    let master = Arc::new(connect(&stand_in).unwrap());
    let error = lend(&master).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolFailed);
    assert!(error.message().contains("it answered -600"), "{error}");
}
