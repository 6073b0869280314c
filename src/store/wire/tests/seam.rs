//! The two halves of the data protocol against each other.

use super::{LONG, soon};
use crate::device::memory::{Source, Target};
use crate::store::wire::segment::{Limits, Segment, Settings};
use crate::store::wire::transfer::{self, Directory, Peers, ReadJob, WriteJob};

/// All requests of a line come at once, and their answers are more than a session's turn: it must go on though
/// nothing more arrives.
#[test]
fn large_batches_are_served_to_their_end() {
    const SIZE: usize = 100_000;
    const COUNT: usize = 40;
    let segment = Segment::open(&Settings {
        bind: "127.0.0.1".parse().unwrap(),
        host: "127.0.0.1".to_owned(),
        size: 64 << 20,
        limits: Limits::default(),
    })
    .unwrap();
    let patient = transfer::Settings {
        silence: LONG,
        ..transfer::Settings::new(Directory::Handshake)
    };
    let peers = Peers::new(patient);
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
