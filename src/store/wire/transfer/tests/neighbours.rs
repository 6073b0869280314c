//! Pages that lie behind one another share requests, and not each other's fate.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::stand_in::{self, BASE, MEMORY, StandIn};
use super::{PATIENCE, held, peers, read, write};
use crate::store::code;
use crate::store::wire::transfer::frame::{Status, Version};
use crate::store::wire::transfer::line::FRAME;

const PAGE: u64 = 4 << 10;

/// Pages of different bytes, one behind the other.
fn row(from: u64, count: u64) -> Vec<(u64, Vec<u8>)> {
    let page = |at: u64| (0..PAGE).map(|byte| (byte * 7 + at) as u8).collect();
    (0..count).map(|at| (from + at * PAGE, page(at))).collect()
}

fn offsets(row: &[(u64, Vec<u8>)]) -> Vec<u64> {
    row.iter().map(|page| page.0).collect()
}

fn assert_held(stand_in: &StandIn, row: &[(u64, Vec<u8>)]) {
    for (offset, page) in row {
        assert!(*page == held(stand_in, *offset, page.len()), "{offset}");
    }
}

#[test]
fn a_row_of_pages_is_one_request_in_whatever_order_it_is_named() {
    let stand_in = StandIn::honest(Version::Two);
    let mut pages = row(5, 64);
    pages.reverse();
    pages.swap(3, 40);
    let peers = peers();
    assert_eq!(write(&peers, &stand_in, &pages), [(Ok(()), false); 64]);
    assert_held(&stand_in, &pages);
    let (outcomes, found) = read(&peers, &stand_in, &offsets(&pages), PAGE as usize);
    assert_eq!(outcomes, [Ok(()); 64]);
    assert!(
        pages
            .iter()
            .zip(&found)
            .all(|(page, found)| page.1 == *found)
    );
    assert_eq!(stand_in.requests(), 2);
}

#[test]
fn requests_end_at_gaps_and_where_they_would_be_too_long() {
    let stand_in = StandIn::honest(Version::Two);
    let fits = FRAME / PAGE;
    let mut pages = row(0, fits + 1);
    pages.extend(row((fits + 1) * PAGE + 1, 2));
    assert!(
        write(&peers(), &stand_in, &pages)
            .iter()
            .all(|it| *it == (Ok(()), false))
    );
    assert_held(&stand_in, &pages);
    assert_eq!(stand_in.requests(), 3);
}

#[test]
fn a_page_of_a_row_that_is_not_lent_fails_alone() {
    let stand_in = StandIn::honest(Version::Two);
    let pages = row(MEMORY - 3 * PAGE - 7, 4);
    let (outcomes, found) = read(&peers(), &stand_in, &offsets(&pages), PAGE as usize);
    assert_eq!(
        outcomes,
        [Ok(()), Ok(()), Ok(()), Err(code::ADDRESS_REJECTED)]
    );
    for (page, found) in pages.iter().zip(&found).take(3) {
        assert!(*found == held(&stand_in, page.0, PAGE as usize));
    }
    let outcomes = write(&peers(), &stand_in, &pages);
    assert_eq!(outcomes[..3], [(Ok(()), false); 3]);
    assert_eq!(outcomes[3].0, Err(code::ADDRESS_REJECTED));
    assert_held(&stand_in, &pages[..3]);
}

#[test]
fn what_had_come_of_a_row_when_its_connection_broke_is_not_asked_for_again() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let stand_in = StandIn::new(move |mut stream, shared, number| {
        while let Ok(request) = stand_in::request(&mut stream, shared) {
            seen.lock()
                .unwrap()
                .push((request.address - BASE, request.size));
            if number == 0 {
                let bytes = shared.memory.lock().unwrap()[7..7 + 2 * PAGE as usize].to_vec();
                stream.write_all(&Status::Fine.encode()).unwrap();
                stream.write_all(&bytes[..2 * PAGE as usize - 1]).unwrap();
                return;
            }
            stand_in::answer(&mut stream, shared, request).unwrap();
        }
    });
    let pages = row(7, 5);
    let (outcomes, found) = read(&peers(), &stand_in, &offsets(&pages), PAGE as usize);
    assert_eq!(outcomes, [Ok(()); 5]);
    for (page, found) in pages.iter().zip(&found) {
        assert!(*found == held(&stand_in, page.0, PAGE as usize));
    }
    assert_eq!(
        *asked.lock().unwrap(),
        [(7, 5 * PAGE), (7 + PAGE, 4 * PAGE)]
    );
}

#[test]
fn a_row_whose_write_hangs_may_still_arrive_as_a_whole() {
    let stand_in = StandIn::new(|mut stream, shared, _| {
        let _ = stand_in::request(&mut stream, shared);
        std::thread::sleep(PATIENCE);
    });
    let soon = Instant::now() + Duration::from_secs(3);
    let outcomes = super::write_until(&peers(), &stand_in.endpoint, &row(0, 5), soon);
    assert_eq!(outcomes, [(Err(code::UNREACHABLE), true); 5]);
}
