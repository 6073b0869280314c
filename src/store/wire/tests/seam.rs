//! The two halves of the data protocol against each other.

use std::net::TcpListener;

use super::{LONG, soon};
use crate::device::memory::{Source, Target};
use crate::store::wire::get;
use crate::store::wire::messages::{Buffer, COMPLETE, InMemory, Place, Replica, Replicas};
use crate::store::wire::pack::{Answer, Text};
use crate::store::wire::segment::{Limits, Segment, Settings};
use crate::store::wire::spots::MOST_REPLICAS;
use crate::store::wire::transfer::{self, Directory, Peers, ReadJob, WriteJob};
use crate::store::{GetOutcome, Pieces, code};

pub(super) fn segment() -> Segment {
    Segment::open(&Settings {
        bind: "127.0.0.1".parse().unwrap(),
        host: "127.0.0.1".to_owned(),
        size: 64 << 20,
        limits: Limits::default(),
    })
    .unwrap()
}

fn peers() -> Peers {
    Peers::new(transfer::Settings {
        silence: LONG,
        ..transfer::Settings::new(Directory::Handshake)
    })
}

/// All requests of a line come at once, and their answers are more than a session's turn: it must go on though
/// nothing more arrives.
#[test]
fn large_batches_are_served_to_their_end() {
    const SIZE: usize = 100_000;
    const COUNT: usize = 40;
    let (segment, peers) = (segment(), peers());
    let at = |index: usize| segment.base() + (index * SIZE) as u64;
    let pages: Vec<Vec<u8>> = (0..COUNT).map(|index| vec![index as u8; SIZE]).collect();
    let sources: Vec<_> = pages.iter().map(|page| [Source::from(&page[..])]).collect();
    let endpoint = segment.endpoint();
    let mut jobs: Vec<_> = (0..COUNT)
        .map(|index| WriteJob::new(endpoint, at(index), SIZE as u64, &sources[index]))
        .collect();
    peers.write(&mut jobs, soon());
    assert!(jobs.iter().all(|job| job.outcome == Ok(())), "{jobs:?}");

    let mut landings = vec![vec![0; SIZE]; COUNT];
    let mut targets: Vec<_> = landings
        .iter_mut()
        .map(|landing| [Target::from(&mut landing[..])])
        .collect();
    let listed = targets.iter_mut().enumerate();
    let mut jobs: Vec<_> = listed
        .map(|(index, targets)| ReadJob::new(endpoint, at(index), SIZE as u64, targets))
        .collect();
    peers.read(&mut jobs, soon());
    assert!(jobs.iter().all(|job| job.outcome == Ok(())));
    drop(jobs);
    assert!(landings == pages);
}

/// A get of one page of eight bytes, of which the master says this. What the page holds afterwards.
fn get_one(peers: &Peers, said: Answer<Replicas<'_>>) -> (GetOutcome, [u8; 8]) {
    let mut page = [0xee; 8];
    let mut targets = [Target::from(&mut page[..])];
    let mut out = Vec::new();
    let pieces = Pieces::one_each(&mut targets);
    get::get(
        |_, found| {
            found(0, said);
            Ok(())
        },
        peers,
        LONG,
        pieces,
        1,
        &mut out,
    );
    assert_eq!(out.len(), 1);
    (out[0], page)
}

fn replica<'a>(protocol: &'a str, endpoint: &'a str, address: u64, size: u64) -> Replica<'a> {
    let buffer = Buffer {
        size,
        address,
        protocol: protocol.into(),
        endpoint: Text(endpoint.as_bytes()),
    };
    Replica {
        id: 1,
        place: Place::Memory(InMemory { buffer }),
        status: COMPLETE,
    }
}

#[test]
fn a_page_comes_from_a_replica_that_can_be_read() {
    let (segment, peers) = (segment(), peers());
    let base = segment.base();
    let here = segment.endpoint();
    let sources = [Source::from(&[7; 8][..])];
    let mut jobs = [WriteJob::new(here, base, 8, &sources)];
    peers.write(&mut jobs, soon());
    assert_eq!(jobs[0].outcome, Ok(()));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = gone.local_addr().unwrap().to_string();
    drop(gone);
    let said = |replicas: &[Replica<'static>], lease_ms| {
        Ok(Replicas {
            replicas: replicas.to_vec(),
            lease_ms,
            checksum: None,
        })
    };
    let (here, nobody): (&'static str, &'static str) = (here.to_owned().leak(), nobody.leak());
    let good = replica("tcp", here, base, 8);
    let dead = replica("tcp", nobody, base, 8);
    let far = replica("rdma", here, base, 8);
    let long = replica("tcp", here, base, 9);
    let mut half = good.clone();
    half.status = 2;
    let landed = (GetOutcome::Landed(8), [7; 8]);
    let untouched = [0xee; 8];
    for replicas in [
        vec![good.clone()],
        vec![far.clone(), half.clone(), good.clone()],
        // The first one cannot be reached, and another one can.
        vec![dead.clone(), good.clone()],
    ] {
        assert_eq!(get_one(&peers, said(&replicas, 60_000)), landed);
    }
    let unreached = get_one(&peers, said(std::slice::from_ref(&dead), 60_000)).0;
    assert_eq!(unreached, GetOutcome::Failed(code::LENDER_LOST));
    let behind = |dead_ones: usize| [vec![dead.clone(); dead_ones], vec![good.clone()]].concat();
    assert_eq!(
        get_one(&peers, said(&behind(MOST_REPLICAS - 1), 60_000)),
        landed
    );
    // Those that nobody would have asked for are not kept.
    let unreached = get_one(&peers, said(&behind(MOST_REPLICAS), 60_000)).0;
    assert_eq!(unreached, GetOutcome::Failed(code::LENDER_LOST));
    for (replicas, outcome) in [
        (vec![far], GetOutcome::Failed(code::UNREACHABLE_MEMORY)),
        (vec![half], GetOutcome::Missing),
        (vec![], GetOutcome::Missing),
        (vec![long], GetOutcome::WrongSize(9)),
    ] {
        let found = get_one(&peers, said(&replicas, 60_000));
        assert_eq!(found, (outcome, untouched), "{replicas:?}");
    }
    for (number, outcome) in [
        (-704, GetOutcome::Missing),
        (-703, GetOutcome::Missing),
        (-1, GetOutcome::Failed(-1)),
        // No errors, and nothing was read.
        (0, GetOutcome::Failed(code::BAD_ANSWER)),
        (8, GetOutcome::Failed(code::BAD_ANSWER)),
    ] {
        assert_eq!(get_one(&peers, Err(number)), (outcome, untouched));
    }
    // Nothing may be read that late.
    let late = get_one(&peers, said(&[good], 0)).0;
    assert_eq!(late, GetOutcome::Failed(code::LEASE_EXPIRED));
}
