//! Pages that are moved in several frames, over several connections that have different fates.

use std::io::{ErrorKind, Read, Write};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::stand_in::{self, MEMORY, StandIn};
use super::{PATIENCE, held, peers, read, settings, write};
use crate::store::code;
use crate::store::wire::transfer::Peers;
use crate::store::wire::transfer::frame::{Operation, REQUEST, Status, Version};
use crate::store::wire::transfer::line::{FRAME, WINDOW};
use crate::store::wire::transfer::visit::SHARE;

const PAGE: usize = 3 * FRAME as usize + 17;
/// As many pages as give each connection some.
const PAGES: u64 = 9 * SHARE / PAGE as u64 * 2;

fn one_connection() -> Peers {
    Peers::new(super::Settings {
        connections: 1,
        ..settings()
    })
}

/// Offsets of pages that overlap, each from elsewhere.
fn offsets() -> Vec<u64> {
    (0..PAGES).map(|page| page * 7919).collect()
}

/// Pages that do not touch each other, of different bytes.
fn different_pages(count: u64) -> Vec<(u64, Vec<u8>)> {
    let page = |at: u64| (0..PAGE).map(|byte| (byte as u64 * 7 + at) as u8).collect();
    (0..count)
        .map(|at| (at * (PAGE as u64 + 1), page(at)))
        .collect()
}

fn assert_landed(stand_in: &StandIn, offsets: &[u64], pages: &[Vec<u8>]) {
    for (offset, page) in offsets.iter().zip(pages) {
        assert!(*page == held(stand_in, *offset, page.len()), "{offset}");
    }
}

#[test]
fn pages_around_the_size_of_frames_arrive_as_they_are() {
    let frame = FRAME as usize;
    for version in [Version::One, Version::Two] {
        let stand_in = StandIn::honest(version);
        let peers = peers();
        for size in [frame - 1, frame, frame + 1, 2 * frame, 5 * frame + 3] {
            let offsets = [3, 70_001, 9, 500_000, 123_456];
            let (outcomes, pages) = read(&peers, &stand_in, &offsets, size);
            assert_eq!(outcomes, [Ok(()); 5]);
            assert_landed(&stand_in, &offsets, &pages);
            let at = |at: u64| at * (size as u64 + 5);
            let written: Vec<_> = (0..3)
                .map(|page| {
                    let byte = |it: usize| (it * 5 + it / 251 + size + page as usize) as u8;
                    (at(page), (0..size).map(byte).collect())
                })
                .collect();
            let before = stand_in.bytes(0, MEMORY as usize);
            let outcomes = write(&peers, &stand_in, &written);
            assert_eq!(outcomes, [(Ok(()), false); 3]);
            let mut expected = before;
            for (offset, page) in &written {
                let offset = *offset as usize;
                expected[offset..offset + size].copy_from_slice(page);
            }
            assert!(
                expected == stand_in.bytes(0, MEMORY as usize),
                "{version:?} {size}"
            );
        }
    }
}

/// What an owner was asked for before it answered anything.
fn asked_ahead(operation: Operation) -> (u64, bool) {
    let seen = Arc::new(Mutex::new((0, false)));
    let found = Arc::clone(&seen);
    let stand_in = StandIn::new(move |mut stream, shared, _| {
        let mut requests = Vec::new();
        let mut asked = 0;
        while asked < WINDOW {
            let request = stand_in::request(&mut stream, shared).unwrap();
            if operation == Operation::Write {
                let mut data = vec![0; request.size as usize];
                stream.read_exact(&mut data).unwrap();
            }
            asked += request.size;
            requests.push(request);
        }
        let patience = Some(Duration::from_millis(200));
        stream.set_read_timeout(patience).unwrap();
        let more = stream.read(&mut [0; REQUEST]);
        let has_more = !more.is_err_and(|it| it.kind() == ErrorKind::WouldBlock);
        *found.lock().unwrap() = (asked, has_more);
        stream.set_read_timeout(None).unwrap();
        for request in requests {
            stream.write_all(&Status::Fine.encode()).unwrap();
            if operation == Operation::Read {
                stream.write_all(&vec![0; request.size as usize]).unwrap();
            }
        }
        let _ = stand_in::serve(stream, shared);
    });
    let peers = one_connection();
    match operation {
        Operation::Read => {
            let (outcomes, _) = read(&peers, &stand_in, &offsets(), PAGE);
            assert!(outcomes.iter().all(Result::is_ok));
        }
        Operation::Write => {
            let outcomes = write(&peers, &stand_in, &different_pages(5));
            assert!(outcomes.iter().all(|it| *it == (Ok(()), false)));
        }
    }
    *seen.lock().unwrap()
}

#[test]
fn no_more_is_under_way_than_the_window() {
    for operation in [Operation::Read, Operation::Write] {
        let (asked, has_more) = asked_ahead(operation);
        assert!((WINDOW..WINDOW + FRAME).contains(&asked), "{asked}");
        assert!(!has_more);
    }
}

#[test]
fn a_connection_that_breaks_costs_its_pages_a_second_try_and_others_nothing() {
    // In the second frame of a page; and between two answers.
    for breaks_in_a_frame in [true, false] {
        let stand_in = StandIn::new(move |mut stream, shared, number| {
            if number == 1 {
                let first = stand_in::request(&mut stream, shared).unwrap();
                stand_in::answer(&mut stream, shared, first).unwrap();
                if breaks_in_a_frame {
                    stand_in::request(&mut stream, shared).unwrap();
                    stream.write_all(&Status::Fine.encode()).unwrap();
                    stream.write_all(&[0xAA; 1000]).unwrap();
                }
                return;
            }
            let _ = stand_in::serve(stream, shared);
        });
        let peers = peers();
        let (outcomes, pages) = read(&peers, &stand_in, &offsets(), PAGE);
        assert_eq!(outcomes, vec![Ok(()); PAGES as usize]);
        assert_landed(&stand_in, &offsets(), &pages);
        assert!(stand_in.connections() > settings().connections);
    }
}

#[test]
fn a_write_that_breaks_between_frames_is_made_again_as_a_whole() {
    let stand_in = StandIn::new(|mut stream, shared, number| {
        if number == 0 {
            let first = stand_in::request(&mut stream, shared).unwrap();
            stand_in::answer(&mut stream, shared, first).unwrap();
            stand_in::request(&mut stream, shared).unwrap();
            let _ = stream.read_exact(&mut [0; 100]);
            return;
        }
        let _ = stand_in::serve(stream, shared);
    });
    let pages = different_pages(5);
    let outcomes = write(&peers(), &stand_in, &pages);
    assert_eq!(outcomes, [(Ok(()), false); 5]);
    for (offset, page) in &pages {
        assert!(*page == held(&stand_in, *offset, PAGE), "{offset}");
    }
}

#[test]
fn a_connection_that_hangs_costs_only_its_own_pages() {
    let stand_in = StandIn::new(|mut stream, shared, number| {
        if number == 2 {
            let first = stand_in::request(&mut stream, shared).unwrap();
            stand_in::answer(&mut stream, shared, first).unwrap();
            std::thread::sleep(PATIENCE);
        }
        let _ = stand_in::serve(stream, shared);
    });
    let soon = Instant::now() + Duration::from_secs(3);
    let endpoint = &stand_in.endpoint;
    let (outcomes, pages) = super::read_until(&peers(), endpoint, &offsets(), PAGE, soon);
    let late = outcomes.iter().filter(|it| it.is_err()).count();
    // One connection's share, and all that share: its first page was answered in part.
    assert!((1..=offsets().len() / 2).contains(&late), "{outcomes:?}");
    let places = outcomes.iter().zip(offsets()).zip(&pages);
    for ((outcome, offset), page) in places {
        match outcome {
            Ok(()) => assert!(*page == held(&stand_in, offset, PAGE), "{offset}"),
            Err(code) => assert_eq!(*code, code::UNREACHABLE),
        }
    }
}

#[test]
fn a_write_that_hangs_after_a_frame_may_still_arrive_and_those_behind_it_not() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        let first = stand_in::request(&mut stream, shared).unwrap();
        stand_in::answer(&mut stream, shared, first).unwrap();
        std::thread::sleep(PATIENCE);
    });
    let soon = || Instant::now() + Duration::from_secs(3);
    let endpoint = &stand_in.endpoint;
    let late = |may_still_arrive| (Err(code::UNREACHABLE), may_still_arrive);
    let outcomes = super::write_until(&one_connection(), endpoint, &different_pages(5), soon());
    // The window holds the next frame of the first page.
    assert_eq!(outcomes, [true, false, false, false, false].map(late));
    let pages: Vec<_> = different_pages(5)
        .into_iter()
        .map(|(offset, page)| (offset, page[..FRAME as usize / 2 + 9].to_vec()))
        .collect();
    let outcomes = super::write_until(&one_connection(), endpoint, &pages, soon());
    // The window holds two pages, the first of which was answered.
    assert_eq!(outcomes[0], (Ok(()), false));
    assert_eq!(outcomes[1..], [true, true, false, false].map(late));
}

#[test]
fn connections_end_in_any_order() {
    let answered = Arc::new((Mutex::new(0), Condvar::new()));
    let stand_in = StandIn::new(move |mut stream, shared, number| {
        let (count, changed) = &*answered;
        loop {
            let Ok(request) = stand_in::request(&mut stream, shared) else {
                return;
            };
            if number == 0 {
                // The first connection's answers come when all others have theirs.
                let others = PAGES * 4 / 2;
                let guard = count.lock().unwrap();
                let few = |count: &mut u64| *count < others;
                drop(changed.wait_timeout_while(guard, PATIENCE, few).unwrap());
            }
            stand_in::answer(&mut stream, shared, request).unwrap();
            if number > 0 {
                *count.lock().unwrap() += 1;
                changed.notify_all();
            }
        }
    });
    let (outcomes, pages) = read(&peers(), &stand_in, &offsets(), PAGE);
    assert_eq!(outcomes, vec![Ok(()); PAGES as usize]);
    assert_landed(&stand_in, &offsets(), &pages);
}

#[test]
fn a_page_whose_second_frame_is_rejected_fails_alone() {
    let stand_in = StandIn::honest(Version::Two);
    // Its first frame is lent, and nothing behind it.
    let edge = MEMORY - FRAME;
    let (outcomes, pages) = read(&one_connection(), &stand_in, &[5, edge, 77], PAGE);
    assert_eq!(outcomes, [Ok(()), Err(code::ADDRESS_REJECTED), Ok(())]);
    assert_landed(&stand_in, &[5], &pages[..1]);
    assert_landed(&stand_in, &[77], &pages[2..]);
    let written = [
        (5, vec![1; PAGE]),
        (edge, vec![2; PAGE]),
        (PAGE as u64 + 5, vec![3; PAGE]),
    ];
    let outcomes = write(&one_connection(), &stand_in, &written);
    assert_eq!(outcomes[0], (Ok(()), false));
    assert_eq!(outcomes[1].0, Err(code::ADDRESS_REJECTED));
    assert_eq!(outcomes[2], (Ok(()), false));
    assert!(held(&stand_in, 5, PAGE) == [1; PAGE]);
    assert!(held(&stand_in, PAGE as u64 + 5, PAGE) == [3; PAGE]);
}
