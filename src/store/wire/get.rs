//! A get: where the objects are, then their bytes from their owners, then whether they still were the
//! objects' bytes.
//!
//! The master keeps an object where it is for the length of its lease, counted from the lookup. What was read
//! later may be another object's: it counts as lost, whatever the owner said.

use std::time::{Duration, Instant};

use super::client::{after, note};
use super::codes;
use super::messages::{COMPLETE, Replicas};
use super::pack::Answer;
use super::rpc::Failure;
use super::spots::{MOST_REPLICAS, Owners, Spot};
use super::transfer::{Peers, ReadJob};
use crate::device::memory::Target;
use crate::store::mooncake::codes as outcomes;
use crate::store::{GetOutcome, Pieces, code};

/// What is known of one key.
#[derive(Debug, Clone)]
enum Found {
    /// No more than this.
    Ended(GetOutcome),
    /// Its bytes lie in one of these places.
    Here {
        first: Spot,
        others: Vec<Spot>,
        /// Nobody else's bytes are there before.
        until: Instant,
    },
}

/// Reads one object per key. `locate` asks the master. Blocks for `patience` at most.
pub(super) fn get<L>(
    locate: L,
    peers: &Peers,
    patience: Duration,
    targets: Pieces<'_, Target<'_>>,
    keys: usize,
    out: &mut Vec<GetOutcome>,
) where
    L: FnOnce(Instant, &mut dyn FnMut(usize, Answer<Replicas<'_>>)) -> Result<(), Failure>,
{
    // Leases are counted from here: the master gives them while it answers.
    let begun = Instant::now();
    let deadline = after(begun, patience);
    let mut lists = targets.into_lists(keys);
    let mut owners = Owners::default();
    let mut all: Vec<Option<Found>> = vec![None; keys];
    let located = locate(deadline, &mut |index, answer| {
        let size = lists.get(index).map_or(0, |pieces| wanted(pieces));
        if let Some(found) = all.get_mut(index) {
            *found = Some(judge(answer, size, begun, &mut owners));
        }
    });
    let lost = located.map_err(|failure| note("get", &failure)).err();
    let mut all: Vec<Found> = all
        .into_iter()
        .map(|found| {
            let lost = lost.unwrap_or(code::NO_ANSWER);
            found.unwrap_or(Found::Ended(GetOutcome::Failed(lost)))
        })
        .collect();
    // One more round per further replica, for what could not be read from the one before.
    while read(peers, &owners, deadline, &mut all, &mut lists) {}
    out.extend(all.into_iter().map(|found| match found {
        Found::Ended(outcome) => outcome,
        Found::Here { .. } => GetOutcome::Failed(code::NO_ANSWER),
    }));
}

fn wanted(pieces: &[Target<'_>]) -> u64 {
    pieces.iter().map(Target::size).fold(0, u64::saturating_add)
}

/// What the master's answer for a key says.
fn judge(answer: Answer<Replicas<'_>>, wanted: u64, begun: Instant, owners: &mut Owners) -> Found {
    let found = match answer {
        Ok(found) => found,
        Err(number) => return Found::Ended(outcomes::get(codes::said(number).into(), wanted)),
    };
    let complete = || found.replicas.iter().filter(|it| it.status == COMPLETE);
    let is_complete = complete().next().is_some();
    let spots = complete().filter_map(|replica| owners.spot(replica));
    let mut spots = spots.take(MOST_REPLICAS);
    let Some(first) = spots.next() else {
        return Found::Ended(match is_complete {
            // There, but not over TCP.
            true => GetOutcome::Failed(code::UNREACHABLE_MEMORY),
            false => GetOutcome::Missing,
        });
    };
    if first.size != wanted {
        return Found::Ended(GetOutcome::WrongSize(first.size));
    }
    Found::Here {
        first,
        others: spots.filter(|spot| spot.size == wanted).collect(),
        until: after(begun, Duration::from_millis(found.lease_ms)),
    }
}

/// Reads all that is still to be read; whether there is more to try.
fn read(
    peers: &Peers,
    owners: &Owners,
    deadline: Instant,
    all: &mut [Found],
    lists: &mut [&mut [Target<'_>]],
) -> bool {
    let (mut jobs, mut of) = (Vec::new(), Vec::new());
    let mut lease: Option<Instant> = None;
    for (index, (found, pieces)) in all.iter().zip(lists).enumerate() {
        if let Found::Here { first, until, .. } = found {
            let endpoint = owners.endpoint(*first);
            jobs.push(ReadJob::new(endpoint, first.address, first.size, pieces));
            of.push(index);
            lease = Some(lease.map_or(*until, |lease| lease.min(*until)));
        }
    }
    let Some(lease) = lease else {
        return false;
    };
    // Ends a little before the leases do, so that what was in time is known to have been.
    let now = Instant::now();
    let left = lease.saturating_duration_since(now);
    let by_lease = now + (left - left / 16);
    peers.read_leased(&mut jobs, deadline, by_lease);
    let ended = Instant::now();
    let results: Vec<_> = jobs.iter().map(|job| job.outcome).collect();
    let mut has_more = false;
    for (index, result) in of.into_iter().zip(results) {
        let Some(found @ Found::Here { .. }) = all.get_mut(index) else {
            continue;
        };
        let Found::Here {
            first,
            others,
            until,
        } = found
        else {
            continue;
        };
        let outcome = match result {
            _ if ended > *until => GetOutcome::Failed(code::LEASE_EXPIRED),
            Ok(()) => GetOutcome::Landed(first.size),
            Err(code::DEADLINE) if by_lease < deadline => GetOutcome::Failed(code::LEASE_EXPIRED),
            Err(code) => match others.pop() {
                Some(other) if ended < deadline => {
                    *first = other;
                    has_more = true;
                    continue;
                }
                _ => GetOutcome::Failed(codes::of_lender(code)),
            },
        };
        *found = Found::Ended(outcome);
    }
    has_more
}
