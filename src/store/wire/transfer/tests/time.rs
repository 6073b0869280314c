//! Owners that are slow or stand still, and what time has to do with it.

use std::cell::Cell;
use std::io::{Read, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::stand_in::{self, StandIn};
use super::{BASE, PATIENCE, held, later, peers, read, read_until, settings, write_until};
use crate::device::memory::{Source, Target};
use crate::store::code;
use crate::store::wire::transfer::frame::{Status, Version};
use crate::store::wire::transfer::visit::Visit;
use crate::store::wire::transfer::{Peers, ReadJob, Settings, WriteJob};

const SHORT: Duration = Duration::from_millis(60);

fn impatient() -> Peers {
    Peers::new(Settings {
        silence: SHORT,
        ..settings()
    })
}

#[test]
fn a_deadline_that_has_passed_sends_nothing() {
    let stand_in = StandIn::honest(Version::Two);
    let peers = peers();
    let past = Instant::now();
    let (outcomes, _) = read_until(&peers, &stand_in.endpoint, &[0], 9, past);
    assert_eq!(outcomes, [Err(code::DEADLINE)]);
    let outcomes = write_until(&peers, &stand_in.endpoint, &[(0, vec![1])], past);
    assert_eq!(outcomes, [(Err(code::DEADLINE), false)]);
    assert_eq!(stand_in.requests(), 0);
    // Nobody is to blame for it.
    assert_eq!(read(&peers, &stand_in, &[0], 9).0, [Ok(())]);
}

/// As a process that is stopped between being told that a socket takes bytes and sending them: by then the master may have
/// given the range to another object.
#[test]
fn a_write_that_wakes_up_past_its_deadline_sends_nothing() {
    let (closed, is_closed) = mpsc::channel();
    let closed = Mutex::new(closed);
    let stand_in = StandIn::new(move |stream, shared, number| {
        let _ = stand_in::serve(stream, shared);
        closed.lock().unwrap().send(number).unwrap();
    });
    // The owner is known, and each connection is a new one: it is polled before anything is sent over it.
    let peers = Peers::new(Settings {
        idle: Duration::ZERO,
        ..settings()
    });
    let endpoint = &stand_in.endpoint;
    let outcomes = write_until(&peers, endpoint, &[(0, vec![1; 9])], later());
    assert_eq!(outcomes, [(Ok(()), false)]);
    peers.sweep();
    assert_eq!(is_closed.recv_timeout(PATIENCE), Ok(0));

    let (began, deadline) = (Instant::now(), later());
    let pieces = [Source::from(&[2; 9][..])];
    let mut job = WriteJob::new(endpoint, BASE, 9, &pieces);
    let mut visits = [Visit::begin(
        &peers.inner,
        vec![&mut job],
        began,
        (deadline, PATIENCE),
    )];
    let times_asked = Cell::new(0);
    let clock = || {
        times_asked.set(times_asked.get() + 1);
        match times_asked.get() {
            1 => began,
            _ => deadline,
        }
    };
    while peers.serve_once(&mut visits, deadline, &clock) {}
    assert!(times_asked.get() > 1, "it did not wait");
    assert!(job.outcome.is_err() && !job.may_still_arrive, "{job:?}");
    assert_eq!(is_closed.recv_timeout(PATIENCE), Ok(1));
    assert_eq!(stand_in.requests(), 1);
    assert_eq!(held(&stand_in, 0, 9), [1; 9]);
}

/// A process that was stopped for long finds what has come meanwhile before it calls anybody silent.
#[test]
fn owners_are_not_blamed_for_the_time_that_this_process_was_stopped() {
    // The jump in time, past the silence; and past the deadline, or not.
    const STOPPED: Duration = Duration::from_secs(1000);
    for (deadline, outcome) in [(2 * STOPPED, Ok(())), (STOPPED, Err(code::DEADLINE))] {
        let good = StandIn::honest(Version::Two);
        let hung = StandIn::new(|mut stream, shared, _| {
            let first = stand_in::request(&mut stream, shared).unwrap();
            stand_in::answer(&mut stream, shared, first).unwrap();
            std::thread::sleep(PATIENCE);
        });
        let peers = peers();
        for stand_in in [&good, &hung] {
            assert_eq!(read(&peers, stand_in, &[0], 9).0, [Ok(())]);
        }
        let (began, deadline) = (Instant::now(), Instant::now() + deadline);
        let mut pages = [[0; 9]; 2];
        let mut pieces = pages.each_mut().map(|page| [Target::from(&mut page[..])]);
        let [first, second] = &mut pieces;
        let mut from_good = ReadJob::new(&good.endpoint, BASE, 9, first);
        let mut from_hung = ReadJob::new(&hung.endpoint, BASE, 9, second);
        // Both are asked at once: their connections stand.
        let mut visits = [&mut from_good, &mut from_hung]
            .map(|job| Visit::begin(&peers.inner, vec![job], began, (deadline, PATIENCE)));
        let mut sockets = Vec::new();
        visits[0].list(&mut sockets);
        let mut answer = [PollFd::from_borrowed_fd(sockets[0].0, PollFlags::IN)];
        assert_eq!(poll(&mut answer, None), Ok(1));
        while peers.serve_once(&mut visits, deadline, &|| Instant::now() + STOPPED) {}
        assert_eq!(from_good.outcome, outcome);
        assert_eq!(from_hung.outcome, Err(code::UNREACHABLE));
        let is_left_alone = |it: &StandIn| peers.inner.known.find(&it.endpoint, began).is_err();
        assert!(!is_left_alone(&good) && is_left_alone(&hung));
        assert_eq!(read(&peers, &good, &[0], 9).0, [Ok(())]);
    }
}

#[test]
fn nothing_lands_after_a_read_has_ended() {
    let (go_on, wait) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    let wait = Mutex::new(wait);
    let stand_in = StandIn::new(move |mut stream, shared, number| {
        if number > 0 {
            return;
        }
        stand_in::request(&mut stream, shared).unwrap();
        stream.write_all(&Status::Fine.encode()).unwrap();
        stream.write_all(&[0xAA; 5]).unwrap();
        wait.lock().unwrap().recv().unwrap();
        let _ = stream.write_all(&[0xAA; 59]);
        // Until the other side is known to be gone.
        let _ = stream.read_to_end(&mut Vec::new());
        done.send(()).unwrap();
    });
    let soon = Instant::now() + Duration::from_secs(2);
    let (outcomes, pages) = read_until(&peers(), &stand_in.endpoint, &[0], 64, soon);
    assert_eq!(outcomes, [Err(code::UNREACHABLE)]);
    let before = pages.clone();
    go_on.send(()).unwrap();
    is_done.recv_timeout(PATIENCE).unwrap();
    assert_eq!(pages, before);
    assert!(pages[0][5..].iter().all(|byte| *byte == 0xEE));
}

#[test]
fn a_write_that_was_given_up_may_still_arrive() {
    let stand_in = StandIn::new(|mut stream, _, _| {
        let _ = stream.read_exact(&mut [0; 30]);
        std::thread::sleep(PATIENCE);
    });
    let soon = Instant::now() + Duration::from_secs(2);
    let pages = [(0, vec![1; 64 << 20]), (70 << 20, vec![2; 9])];
    let peers = Peers::new(Settings {
        connections: 1,
        ..settings()
    });
    let outcomes = write_until(&peers, &stand_in.endpoint, &pages, soon);
    let lost = Err(code::UNREACHABLE);
    assert_eq!(outcomes, [(lost, true), (lost, false)]);
}

#[test]
fn an_owner_that_stands_still_is_given_up_and_left_alone() {
    let gate = Arc::new(Mutex::new(true));
    let is_still = Arc::clone(&gate);
    let stand_in = StandIn::new(move |stream, shared, _| {
        if *is_still.lock().unwrap() {
            std::thread::sleep(PATIENCE);
        }
        let _ = stand_in::serve(stream, shared);
    });
    let patient = Peers::new(Settings {
        silence: SHORT,
        cooldown: SHORT,
        ..settings()
    });
    let shunning = impatient();
    for peers in [&patient, &shunning] {
        assert_eq!(
            read(peers, &stand_in, &[0, 9], 9).0,
            [Err(code::UNREACHABLE); 2]
        );
    }
    *gate.lock().unwrap() = false;
    let before = stand_in.handshakes();
    assert_eq!(
        read(&shunning, &stand_in, &[0], 9).0,
        [Err(code::UNREACHABLE)]
    );
    assert_eq!(stand_in.handshakes(), before, "it is not even asked");
    // After the cooldown it gets its chance.
    let end = later();
    while read(&patient, &stand_in, &[0], 9).0 != [Ok(())] {
        assert!(Instant::now() < end);
    }
}

/// Saying where it is does not end that: so does an owner whose data port hangs, and a metadata server in its place.
#[test]
fn an_owner_that_goes_on_hanging_is_left_alone_for_longer() {
    const LONG: Duration = Duration::from_millis(8);
    let gate = Arc::new(Mutex::new(true));
    let hangs = Arc::clone(&gate);
    let stand_in = StandIn::new(move |stream, shared, _| {
        if *hangs.lock().unwrap() {
            std::thread::sleep(PATIENCE);
        }
        let _ = stand_in::serve(stream, shared);
    });
    let peers = Peers::new(Settings {
        silence: SHORT,
        cooldown: Duration::from_millis(1),
        ..settings()
    });
    let pause = || peers.inner.known.pause(&stand_in.endpoint);
    let end = Instant::now() + PATIENCE / 4;
    while pause() < Some(LONG) {
        assert!(Instant::now() < end, "{:?}", pause());
        let outcomes = read(&peers, &stand_in, &[0], 9).0;
        assert_eq!(outcomes, [Err(code::UNREACHABLE)]);
    }
    assert!(stand_in.handshakes() >= 4);
    *gate.lock().unwrap() = false;
    // Until it is asked again, and served.
    while read(&peers, &stand_in, &[0], 9).0 != [Ok(())] {
        assert!(Instant::now() < end);
    }
    assert_eq!(pause(), None);
}

#[test]
fn a_handshake_that_does_not_come_is_given_up() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = listener.local_addr().unwrap().to_string();
    let peers = impatient();
    let (outcomes, _) = read_until(&peers, &endpoint, &[0], 9, later());
    assert_eq!(outcomes, [Err(code::UNREACHABLE)]);
    // Where the deadline is nearer than the patience, the deadline ends it. The owner is lost all the same, unless there was
    // so little time that nobody can tell.
    let peers = super::peers();
    for (time, outcome) in [(10, code::DEADLINE), (2000, code::UNREACHABLE)] {
        let soon = Instant::now() + Duration::from_millis(time);
        let (outcomes, _) = read_until(&peers, &endpoint, &[0], 9, soon);
        assert_eq!(outcomes, [Err(outcome)]);
        let is_left_alone = peers.inner.known.find(&endpoint, Instant::now()).is_err();
        assert_eq!(is_left_alone, outcome == code::UNREACHABLE);
    }
}

#[test]
fn an_owner_that_sends_until_the_deadline_does_not_hang() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        stand_in::request(&mut stream, shared).unwrap();
        stream.write_all(&Status::Fine.encode()).unwrap();
        while stream.write_all(&[5]).is_ok() {
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    let peers = peers();
    let soon = Instant::now() + Duration::from_secs(2);
    let (outcomes, _) = read_until(&peers, &stand_in.endpoint, &[0], 60_000, soon);
    assert_eq!(outcomes, [Err(code::DEADLINE)]);
    let found = peers.inner.known.find(&stand_in.endpoint, Instant::now());
    assert!(matches!(found, Ok(Some(_))));
}

#[test]
fn one_owner_that_stands_still_keeps_nothing_from_another() {
    let still = StandIn::new(|_, _, _| std::thread::sleep(PATIENCE));
    let good = StandIn::honest(Version::Two);
    let mut pages = vec![vec![0; 64]; 4];
    let mut targets: Vec<_> = pages
        .iter_mut()
        .map(|page| [crate::device::memory::Target::from(&mut page[..])])
        .collect();
    let endpoints = [&still.endpoint, &good.endpoint];
    let mut jobs: Vec<_> = targets
        .iter_mut()
        .enumerate()
        .map(|(at, pieces)| {
            super::ReadJob::new(endpoints[at % 2], super::BASE + 64 * at as u64, 64, pieces)
        })
        .collect();
    let peers = Peers::new(Settings {
        silence: Duration::from_secs(2),
        ..settings()
    });
    peers.read(&mut jobs, later());
    let outcomes: Vec<_> = jobs.iter().map(|job| job.outcome).collect();
    let lost = Err(code::UNREACHABLE);
    assert_eq!(outcomes, [lost, Ok(()), lost, Ok(())]);
    assert!(pages[3] == held(&good, 192, 64));
}

#[test]
fn a_slow_owner_is_waited_for() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        let request = stand_in::request(&mut stream, shared).unwrap();
        let bytes = [
            Status::Fine.encode().to_vec(),
            vec![5; request.size as usize],
        ]
        .concat();
        for byte in bytes {
            std::thread::sleep(Duration::from_millis(2));
            stream.write_all(&[byte]).unwrap();
        }
    });
    let peers = Peers::new(Settings {
        silence: Duration::from_secs(20),
        ..settings()
    });
    let (outcomes, pages) = read(&peers, &stand_in, &[0], 40);
    assert_eq!((outcomes, pages), (vec![Ok(())], vec![vec![5; 40]]));
}

#[test]
fn connections_that_were_not_used_for_long_are_closed() {
    let (closed, is_closed) = mpsc::channel();
    let closed = Mutex::new(closed);
    let stand_in = StandIn::new(move |stream, shared, number| {
        let _ = stand_in::serve(stream, shared);
        let _ = closed.lock().unwrap().send(number);
    });
    let peers = Peers::new(Settings {
        idle: Duration::ZERO,
        ..settings()
    });
    assert_eq!(read(&peers, &stand_in, &[0], 9).0, [Ok(())]);
    peers.sweep();
    assert_eq!(is_closed.recv_timeout(PATIENCE), Ok(0));
    // Not swept, but not used again either.
    for number in 1..3 {
        assert_eq!(read(&peers, &stand_in, &[0], 9).0, [Ok(())]);
        assert_eq!(stand_in.connections(), number + 1);
    }
    assert_eq!(stand_in.handshakes(), 1);
}

/// An owner that is gone is asked for nothing again, and its connections would stay for ever.
#[test]
fn connections_to_owners_that_nobody_asks_again_are_closed() {
    let (closed, is_closed) = mpsc::channel();
    let closed = Mutex::new(closed);
    let gone = StandIn::new(move |stream, shared, number| {
        let _ = stand_in::serve(stream, shared);
        let _ = closed.lock().unwrap().send(number);
    });
    let other = StandIn::honest(Version::Two);
    let peers = Peers::new(Settings {
        idle: Duration::ZERO,
        ..settings()
    });
    assert_eq!(read(&peers, &gone, &[0], 9).0, [Ok(())]);
    assert_eq!(read(&peers, &other, &[0], 9).0, [Ok(())]);
    assert_eq!(is_closed.recv_timeout(PATIENCE), Ok(0));
}

/// A master may give very short leases: that an owner was slower says nothing about it.
#[test]
fn an_owner_that_is_slower_than_a_lease_is_asked_again() {
    let is_slow = Arc::new(AtomicBool::new(true));
    let slow = Arc::clone(&is_slow);
    let stand_in = StandIn::new(move |mut stream, shared, _| {
        while slow.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        while let Ok(request) = stand_in::request(&mut stream, shared) {
            let _ = stand_in::answer(&mut stream, shared, request);
        }
    });
    let peers = peers();
    let mut page = [0; 8];
    let mut pieces = [Target::from(&mut page[..])];
    let mut job = [ReadJob::new(&stand_in.endpoint, BASE, 8, &mut pieces)];
    let lease = Instant::now() + Duration::from_millis(300);
    peers.read_leased(&mut job, later(), lease);
    assert_eq!(job[0].outcome, Err(code::DEADLINE));
    is_slow.store(false, Ordering::SeqCst);
    peers.read_leased(&mut job, later(), later());
    assert_eq!(job[0].outcome, Ok(()));
}
