//! Batches against stand-ins of owners, honest and not.

mod directories;
mod hostile;
mod lanes;
mod neighbours;
mod stand_in;
mod time;

use std::time::{Duration, Instant};

use self::stand_in::{BASE, StandIn};
use super::frame::Version;
use super::{Directory, Peers, ReadJob, Settings, WriteJob};
use crate::device::memory::{self, Source, Target};
use crate::store::code;

/// Long enough for whatever ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);

fn settings() -> Settings {
    Settings {
        silence: PATIENCE,
        cooldown: PATIENCE,
        idle: PATIENCE,
        ..Settings::new(Directory::Handshake)
    }
}

fn peers() -> Peers {
    Peers::new(settings())
}

fn later() -> Instant {
    Instant::now() + PATIENCE
}

/// Reads a page of `size` bytes from each offset; the outcomes, and the pages, which begin as 0xEE.
fn read_until(
    peers: &Peers,
    endpoint: &str,
    offsets: &[u64],
    size: usize,
    deadline: Instant,
) -> (Vec<Result<(), i32>>, Vec<Vec<u8>>) {
    let mut pages = vec![vec![0xEE; size]; offsets.len()];
    let mut targets: Vec<Vec<Target<'_>>> = pages
        .iter_mut()
        .map(|page| {
            page.chunks_mut(size.div_ceil(3))
                .map(Target::from)
                .collect()
        })
        .collect();
    let mut jobs: Vec<_> = offsets
        .iter()
        .zip(&mut targets)
        .map(|(offset, pieces)| ReadJob::new(endpoint, BASE + offset, size as u64, pieces))
        .collect();
    peers.read(&mut jobs, deadline);
    let outcomes = jobs.iter().map(|job| job.outcome).collect();
    (outcomes, pages)
}

fn read(
    peers: &Peers,
    stand_in: &StandIn,
    offsets: &[u64],
    size: usize,
) -> (Vec<Result<(), i32>>, Vec<Vec<u8>>) {
    read_until(peers, &stand_in.endpoint, offsets, size, later())
}

/// Writes each page to its offset; outcomes, and whether it may still arrive.
fn write_until(
    peers: &Peers,
    endpoint: &str,
    pages: &[(u64, Vec<u8>)],
    deadline: Instant,
) -> Vec<(Result<(), i32>, bool)> {
    let sources: Vec<Vec<Source<'_>>> = pages
        .iter()
        .map(|(_, page)| {
            page.chunks(page.len().div_ceil(3))
                .map(Source::from)
                .collect()
        })
        .collect();
    let mut jobs: Vec<_> = pages
        .iter()
        .zip(&sources)
        .map(|((offset, page), pieces)| {
            WriteJob::new(endpoint, BASE + offset, page.len() as u64, pieces)
        })
        .collect();
    peers.write(&mut jobs, deadline);
    jobs.iter()
        .map(|job| (job.outcome, job.may_still_arrive))
        .collect()
}

fn write(
    peers: &Peers,
    stand_in: &StandIn,
    pages: &[(u64, Vec<u8>)],
) -> Vec<(Result<(), i32>, bool)> {
    write_until(peers, &stand_in.endpoint, pages, later())
}

/// The memory of a stand-in at an offset.
fn held(stand_in: &StandIn, offset: u64, size: usize) -> Vec<u8> {
    stand_in.bytes(offset as usize, size)
}

#[test]
fn pages_are_read_and_written_in_both_versions() {
    for version in [Version::One, Version::Two] {
        let stand_in = StandIn::honest(version);
        let peers = peers();
        let offsets: Vec<u64> = (0..300).map(|page| (page * 7919) % 900_000).collect();
        let (outcomes, pages) = read(&peers, &stand_in, &offsets, 3001);
        assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
        for (offset, page) in offsets.iter().zip(&pages) {
            assert!(
                *page == held(&stand_in, *offset, 3001),
                "{version:?} {offset}"
            );
        }
        let pages: Vec<_> = (0..100)
            .map(|page| (page * 10_000, vec![page as u8 + 1; 9_999]))
            .collect();
        let outcomes = write(&peers, &stand_in, &pages);
        assert!(outcomes.iter().all(|it| *it == (Ok(()), false)));
        for (offset, page) in &pages {
            assert!(held(&stand_in, *offset, page.len()) == *page);
        }
    }
}

#[test]
fn one_job_and_one_byte() {
    for version in [Version::One, Version::Two] {
        let stand_in = StandIn::honest(version);
        let peers = peers();
        assert_eq!(write(&peers, &stand_in, &[(5, vec![7])]), [(Ok(()), false)]);
        let (outcomes, pages) = read(&peers, &stand_in, &[5], 1);
        assert_eq!((outcomes, pages), (vec![Ok(())], vec![vec![7]]));
    }
}

#[test]
fn connections_and_handshakes_are_used_again() {
    let stand_in = StandIn::honest(Version::Two);
    let peers = peers();
    for _ in 0..5 {
        let (outcomes, _) = read(&peers, &stand_in, &[0, 10], 4);
        assert_eq!(outcomes, [Ok(()); 2]);
    }
    assert_eq!((stand_in.handshakes(), stand_in.connections()), (1, 1));
    // Large batches have several connections, but no more than was said.
    for _ in 0..2 {
        let (outcomes, _) = read(&peers, &stand_in, &[0; 16], 1 << 20);
        assert_eq!(outcomes, [Ok(()); 16]);
    }
    let most = settings().connections;
    assert_eq!((stand_in.handshakes(), stand_in.connections()), (1, most));
    peers.close();
    assert_eq!(read(&peers, &stand_in, &[0], 4).0, [Ok(())]);
    assert_eq!(
        (stand_in.handshakes(), stand_in.connections()),
        (2, most + 1)
    );
}

#[test]
fn more_is_asked_and_answered_than_all_buffers_hold() {
    let stand_in = StandIn::honest(Version::Two);
    let peers = Peers::new(Settings {
        connections: 1,
        ..settings()
    });
    let offsets = vec![8; 60_000];
    let (outcomes, pages) = read(&peers, &stand_in, &offsets, 300);
    assert!(outcomes.iter().all(Result::is_ok));
    let expected = held(&stand_in, 8, 300);
    assert!(pages.iter().all(|page| *page == expected));
    let pages: Vec<_> = (0..60_000).map(|page| (page, vec![3; 300])).collect();
    let outcomes = write(&peers, &stand_in, &pages);
    assert!(outcomes.iter().all(|it| it.0.is_ok()));
    assert_eq!(stand_in.connections(), 1);
}

#[test]
fn owners_of_one_batch_are_apart() {
    let here = StandIn::honest(Version::Two);
    let there = StandIn::honest(Version::One);
    let gone = StandIn::new(|_, _, _| {});
    let mut pages = vec![vec![0; 64]; 30];
    let mut targets: Vec<[Target<'_>; 1]> = pages
        .iter_mut()
        .map(|page| [Target::from(&mut page[..])])
        .collect();
    let endpoints = [&here.endpoint, &gone.endpoint, &there.endpoint];
    let mut jobs: Vec<_> = targets
        .iter_mut()
        .enumerate()
        .map(|(at, pieces)| ReadJob::new(endpoints[at % 3], BASE + at as u64, 64, pieces))
        .collect();
    peers().read(&mut jobs, later());
    let outcomes: Vec<_> = jobs.iter().map(|job| job.outcome).collect();
    for (at, (page, outcome)) in pages.iter().zip(outcomes).enumerate() {
        if at % 3 == 1 {
            assert_eq!(outcome, Err(code::UNREACHABLE));
        } else {
            assert_eq!(outcome, Ok(()));
            assert!(*page == held(&here, at as u64, 64), "both hold the same");
        }
    }
}

#[test]
fn impossible_jobs_are_answered_without_a_connection() {
    let stand_in = StandIn::honest(Version::Two);
    let (device_source, mut device_target) = memory::nowhere();
    let (mut short, mut empty, mut wide) = ([0; 4], [0; 0], [0; 8]);
    let mut lists = [
        [Target::from(&mut short[..])],
        [Target::from(&mut empty[..])],
        [Target::from(&mut wide[..])],
        [device_target.reborrow()],
    ];
    let mut jobs: Vec<_> = lists
        .iter_mut()
        .zip([(0, 5), (0, 0), (u64::MAX - 4, 8), (0, 8)])
        .map(|(pieces, (address, size))| ReadJob::new(&stand_in.endpoint, address, size, pieces))
        .collect();
    peers().read(&mut jobs, later());
    let outcomes: Vec<_> = jobs.iter().map(|job| job.outcome).collect();
    let malformed = Err(code::MALFORMED_CALL);
    assert_eq!(
        outcomes,
        [
            malformed,
            malformed,
            malformed,
            Err(code::UNREACHABLE_MEMORY)
        ]
    );
    let pieces = [device_source];
    let mut jobs = [WriteJob::new(&stand_in.endpoint, 0, 8, &pieces)];
    peers().write(&mut jobs, later());
    assert_eq!(jobs[0].outcome, Err(code::UNREACHABLE_MEMORY));
    assert!(!jobs[0].may_still_arrive);
    peers().read(&mut [], later());
    assert_eq!(stand_in.handshakes(), 0);
}
