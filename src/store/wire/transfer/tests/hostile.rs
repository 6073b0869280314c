//! Owners that die, lie, or are not where they were.

use std::io::Write;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::stand_in::{self, BASE, StandIn};
use super::{held, peers, read, write};
use crate::device::memory::Target;
use crate::store::code;
use crate::store::wire::transfer::frame::{Status, Version};
use crate::store::wire::transfer::{Peers, ReadJob, Settings, owner};

#[test]
fn an_owner_that_dies_in_the_middle_of_a_page_is_tried_again() {
    let stand_in = StandIn::new(|mut stream, shared, number| {
        if number > 0 {
            let _ = stand_in::serve(stream, shared);
            return;
        }
        let first = stand_in::request(&mut stream, shared).unwrap();
        stand_in::answer(&mut stream, shared, first).unwrap();
        stand_in::request(&mut stream, shared).unwrap();
        stream.write_all(&Status::Fine.encode()).unwrap();
        stream.write_all(&[0xAA; 10]).unwrap();
    });
    let (outcomes, pages) = read(&peers(), &stand_in, &[0, 100, 200], 64);
    assert_eq!(outcomes, [Ok(()); 3]);
    for (page, offset) in pages.iter().zip([0, 100, 200]) {
        assert!(*page == held(&stand_in, offset, 64));
    }
    // It was asked anew where its port is.
    assert_eq!((stand_in.handshakes(), stand_in.connections()), (2, 2));
}

#[test]
fn an_owner_that_always_dies_is_given_up() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        stand_in::request(&mut stream, shared).unwrap();
        stream.write_all(&Status::Fine.encode()).unwrap();
        stream.write_all(&[0xAA; 10]).unwrap();
    });
    let (outcomes, _) = read(&peers(), &stand_in, &[0, 100], 64);
    assert_eq!(outcomes, [Err(code::UNREACHABLE); 2]);
    assert_eq!(
        stand_in.connections(),
        1,
        "a new connection that answers nothing"
    );
    // One that answers a page each time gets some more chances, but not one per page.
    let stand_in = StandIn::new(|mut stream, shared, _| {
        let first = stand_in::request(&mut stream, shared).unwrap();
        stand_in::answer(&mut stream, shared, first).unwrap();
    });
    let (outcomes, _) = read(&peers(), &stand_in, &[0; 100], 64);
    let landed = outcomes.iter().take_while(|it| it.is_ok()).count();
    assert!((2..20).contains(&landed), "{landed}");
    assert!(
        outcomes[landed..]
            .iter()
            .all(|it| *it == Err(code::UNREACHABLE))
    );
}

#[test]
fn a_rejected_address_fails_alone() {
    let stand_in = StandIn::honest(Version::Two);
    let away = 1 << 30;
    let (outcomes, pages) = read(&peers(), &stand_in, &[0, away, 64], 64);
    assert_eq!(outcomes, [Ok(()), Err(code::ADDRESS_REJECTED), Ok(())]);
    assert!(pages[2] == held(&stand_in, 64, 64));
    let pages = [(0, vec![1; 9]), (away, vec![2; 1 << 19]), (20, vec![3; 9])];
    let outcomes = write(&peers(), &stand_in, &pages);
    assert_eq!(outcomes[0], (Ok(()), false));
    assert_eq!(outcomes[1].0, Err(code::ADDRESS_REJECTED));
    assert_eq!(outcomes[2], (Ok(()), false));
    assert_eq!(held(&stand_in, 20, 9), [3; 9]);
}

#[test]
fn what_an_owner_does_not_lend_is_not_asked_for() {
    let stand_in = StandIn::honest(Version::Two);
    stand_in.lend(100);
    let peers = peers();
    let (outcomes, _) = read(&peers, &stand_in, &[0, 90], 20);
    assert_eq!(outcomes, [Ok(()), Err(code::ADDRESS_REJECTED)]);
    assert_eq!((stand_in.requests(), stand_in.handshakes()), (1, 1));
    // It lends more by now, which a new handshake tells.
    stand_in.serve_data(|stream, shared, _| {
        let _ = stand_in::serve(stream, shared);
    });
    stand_in.lend(200);
    let (outcomes, _) = read(&peers, &stand_in, &[0, 90], 20);
    assert_eq!(outcomes, [Ok(()); 2]);
    assert_eq!(stand_in.handshakes(), 2);
}

#[test]
fn an_owner_that_came_back_elsewhere_is_found() {
    let stand_in = StandIn::honest(Version::Two);
    let second = stand_in.shared.description.lock().unwrap().clone();
    let first = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = first.local_addr().unwrap().port();
    let text = format!("{{\"tcp_data_port\":{port},\"tcp_proto_version\":2}}");
    *stand_in.shared.description.lock().unwrap() = text.into_bytes();
    let shared = Arc::clone(&stand_in.shared);
    let life = std::thread::spawn(move || {
        let (mut stream, _) = first.accept().unwrap();
        let request = stand_in::request(&mut stream, &shared).unwrap();
        stand_in::answer(&mut stream, &shared, request).unwrap();
        // Nobody listens on this port any more.
    });
    let peers = peers();
    assert_eq!(read(&peers, &stand_in, &[0], 64).0, [Ok(())]);
    life.join().unwrap();
    // Its new port is not known before it is asked.
    let (outcomes, _) = read(&peers, &stand_in, &[0], 64);
    assert_eq!(outcomes, [Err(code::UNREACHABLE)]);
    *stand_in.shared.description.lock().unwrap() = second;
    assert_eq!(read(&peers, &stand_in, &[0], 64).0, [Ok(())]);
    assert_eq!((stand_in.handshakes(), stand_in.connections()), (3, 1));
}

#[test]
fn an_owner_whose_data_host_is_out_of_reach_is_met_where_it_answered() {
    let stand_in = StandIn::honest(Version::Two);
    let mut description = stand_in.shared.description.lock().unwrap();
    let text = String::from_utf8(description.clone()).unwrap();
    *description = text
        .replace('}', ",\"tcp_data_host\":\"127.0.0.9\"}")
        .into_bytes();
    drop(description);
    assert_eq!(read(&peers(), &stand_in, &[0], 64).0, [Ok(())]);
}

#[test]
fn an_owner_that_moved_between_batches_costs_no_page() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        let request = stand_in::request(&mut stream, shared).unwrap();
        stand_in::answer(&mut stream, shared, request).unwrap();
    });
    let peers = peers();
    assert_eq!(read(&peers, &stand_in, &[0], 64).0, [Ok(())]);
    stand_in.serve_data(|stream, shared, _| {
        let _ = stand_in::serve(stream, shared);
    });
    for _ in 0..2 {
        assert_eq!(read(&peers, &stand_in, &[0, 1, 2], 64).0, [Ok(()); 3]);
    }
}

#[test]
fn connections_that_the_owner_closed_or_wrote_to_are_not_used_again() {
    let stand_in = StandIn::new(|mut stream, shared, number| {
        let request = stand_in::request(&mut stream, shared).unwrap();
        if number > 0 {
            stand_in::answer(&mut stream, shared, request).unwrap();
            return;
        }
        let from = (request.address - super::BASE) as usize;
        let page = shared.memory.lock().unwrap()[from..from + 64].to_vec();
        let fine = Status::Fine.encode();
        // What comes behind the page would be taken for the answer to the next request.
        let bytes = [&fine[..], &page, &fine, &[0xAA; 64]].concat();
        stream.write_all(&bytes).unwrap();
        let _ = stand_in::serve(stream, shared);
    });
    let peers = peers();
    for round in 0..4 {
        let (outcomes, pages) = read(&peers, &stand_in, &[round], 64);
        assert_eq!(outcomes, [Ok(())], "{round}");
        assert!(pages[0] == held(&stand_in, round, 64), "{round}");
    }
    assert_eq!(stand_in.connections(), 4);
}

#[test]
fn answers_that_are_none_end_the_connection() {
    for (lie, expected) in [
        (vec![0xAA; 8], code::BAD_ANSWER),
        (vec![0; 80], code::BAD_ANSWER),
        (Status::Other(77).encode().to_vec(), 77),
        (Status::Other(u32::MAX).encode().to_vec(), code::BAD_ANSWER),
    ] {
        let stand_in = StandIn::new(move |mut stream, shared, _| {
            stand_in::request(&mut stream, shared).unwrap();
            stream.write_all(&lie).unwrap();
            let _ = stand_in::serve(stream, shared);
        });
        let peers = peers();
        let (outcomes, _) = read(&peers, &stand_in, &[0, 64], 64);
        assert_eq!(outcomes, [Err(expected); 2]);
        let (outcomes, _) = read(&peers, &stand_in, &[0], 64);
        assert_eq!(outcomes, [Err(expected)]);
        assert_eq!((stand_in.connections(), stand_in.handshakes()), (2, 2));
    }
}

#[test]
fn a_write_that_is_confirmed_before_it_was_sent_is_a_lie() {
    let stand_in = StandIn::new(|mut stream, _, _| {
        // For more than goes out ahead of answers.
        stream
            .write_all(&Status::Fine.encode().repeat(100))
            .unwrap();
        std::thread::sleep(super::PATIENCE);
    });
    let pages = [(0, vec![1; 64 << 20])];
    let outcomes = write(&peers(), &stand_in, &pages);
    assert_eq!(outcomes, [(Err(code::BAD_ANSWER), true)]);
}

#[test]
fn a_write_of_version_1_without_a_fence_is_not_confirmed() {
    let stand_in = StandIn::honest(Version::One);
    let description = stand_in.shared.description.lock().unwrap().clone();
    let lying = StandIn::new(|mut stream, shared, _| {
        let request = stand_in::request(&mut stream, shared).unwrap();
        stand_in::answer(&mut stream, shared, request).unwrap();
    });
    let own = lying.shared.description.lock().unwrap().clone();
    let own = String::from_utf8(own).unwrap();
    assert_ne!(own.as_bytes(), description);
    let one = own.replace("_version\":2", "_version\":1");
    *lying.shared.description.lock().unwrap() = one.into_bytes();
    let outcomes = write(&peers(), &lying, &[(0, vec![1; 9]), (9, vec![2; 9])]);
    assert_eq!(outcomes, [(Err(code::UNREACHABLE), true); 2]);
}

#[test]
fn handshakes_that_are_none() {
    let huge = u64::MAX.to_le_bytes().to_vec();
    let large = (owner::MOST as u64 + 1).to_le_bytes().to_vec();
    let endless = [
        &(owner::MOST as u64).to_le_bytes()[..],
        &vec![b' '; 2 * owner::MOST],
    ]
    .concat();
    let other_kind = owner::handshake(0, "{\"tcp_data_port\":1}");
    let cut = owner::handshake(1, "{\"tcp_data_port\":1}")[..12].to_vec();
    let bad = code::BAD_ANSWER;
    for (answer, expected) in [
        (vec![], code::UNREACHABLE),
        (cut, code::UNREACHABLE),
        (vec![0; 8], bad),
        (huge, bad),
        (large, bad),
        (endless, bad),
        (other_kind, bad),
        (owner::handshake(1, "nonsense"), bad),
        (owner::handshake(1, &"[".repeat(100_000)), bad),
        (owner::handshake(1, "{\"tcp_data_port\":70000}"), bad),
    ] {
        let stand_in = StandIn::new(|_, _, _| {});
        *stand_in.shared.description.lock().unwrap() = [b"raw:", &answer[..]].concat();
        let (outcomes, pages) = read(&peers(), &stand_in, &[0], 64);
        assert_eq!(outcomes, [Err(expected)], "{:?}", answer.get(..16));
        assert_eq!(pages, [[0xEE; 64]]);
    }
}

#[test]
fn endpoints_that_are_none() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = closed.local_addr().unwrap().to_string();
    drop(closed);
    for endpoint in ["", "nonsense", "127.0.0.1", "127.0.0.1:99999", &gone] {
        let (outcomes, _) = super::read_until(&peers(), endpoint, &[0], 64, super::later());
        assert_eq!(outcomes, [Err(code::UNREACHABLE)], "{endpoint}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn any_answer_costs_a_connection_and_no_more(
        answer: Vec<u8>, fine in 0..4_usize, two: bool, is_read: bool,
    ) {
        let stand_in = StandIn::new(move |mut stream, _, _| {
            for _ in 0..fine {
                let _ = stream.write_all(&Status::Fine.encode());
            }
            let _ = stream.write_all(&answer);
        });
        if !two {
            let mut description = stand_in.shared.description.lock().unwrap();
            let text = String::from_utf8(description.clone()).unwrap();
            *description = text.replace("_version\":2", "_version\":1").into_bytes();
        }
        let peers = Peers::new(Settings { connections: 1, ..super::settings() });
        // It ends, whatever comes of it.
        if is_read {
            let (outcomes, _) = read(&peers, &stand_in, &[0, 5, 9], 7);
            prop_assert!(outcomes.iter().all(|it| *it != Err(code::NO_ANSWER)));
        } else {
            let outcomes = write(&peers, &stand_in, &[(0, vec![1; 7]), (9, vec![1; 7])]);
            prop_assert!(outcomes.iter().all(|it| it.0 != Err(code::NO_ANSWER)));
        }
    }
}

/// A master may name any number of owners, and the process has only so many handles.
#[test]
fn not_all_of_many_owners_are_met_at_once() {
    let listener = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (comes, come) = mpsc::channel();
    thread::spawn(move || {
        // Kept, and never answered.
        while let Ok((stream, _)) = listener.accept() {
            let _ = comes.send(stream);
        }
    });
    let peers = peers();
    let names: Vec<String> = (1..=200)
        .map(|number| format!("127.0.0.{number}:{port}"))
        .collect();
    let mut pages = vec![[0xEE; 4]; names.len()];
    let mut targets: Vec<_> = pages
        .iter_mut()
        .map(|page| [Target::from(&mut page[..])])
        .collect();
    let mut jobs: Vec<_> = names
        .iter()
        .zip(&mut targets)
        .map(|(name, pieces)| ReadJob::new(name, BASE, 4, pieces))
        .collect();
    peers.read(&mut jobs, Instant::now() + Duration::from_millis(500));
    assert!(jobs.iter().all(|job| job.outcome.is_err()));
    // Who was not met is not to blame.
    let late = jobs.iter().filter(|job| job.outcome == Err(code::DEADLINE));
    assert!(late.count() >= 200 - 128);
    let met = come.try_iter().count();
    assert!((1..=128).contains(&met), "{met}");
}
