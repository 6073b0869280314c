//! A put: memory from the master, bytes to its owners, and the master's word that the objects are there.
//!
//! Nobody sees an object before its end is confirmed, and nothing counts as stored before. What failed is revoked, so
//! that the key can be put again at once; but not where bytes may still arrive, since the master gives the memory to
//! somebody else then. Such a put it forgets by itself, after its own timeout.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::client::{Client, after, names, note, settled};
use super::codes;
use super::messages::{PIN, ReplicateConfig};
use super::pack::Text;
use super::spots::{MOST_REPLICAS, Owners, Spot};
use super::transfer::WriteJob;
use crate::device::memory::{Memory, Source};
use crate::keys::Keys;
use crate::store::mooncake::codes as outcomes;
use crate::store::{Pieces, PutOptions, PutOutcome, code};

/// How long writing may take, whatever the deadline: a master forgets a put after 30 s unless told otherwise
/// (`put_start_discard_timeout_sec`), and may give its memory to another one.
const MOST_WRITING: Duration = Duration::from_secs(25);

/// What is known of one key.
#[derive(Debug, Clone)]
enum Started {
    /// No more than this.
    Ended(PutOutcome),
    /// The master has memory for it.
    Here {
        spots: Vec<Spot>,
        /// The first failure of a write.
        failure: Option<i32>,
        /// Bytes of it may arrive later.
        is_loose: bool,
    },
}

/// See [`Store::put`](crate::store::Store::put). The error is that of all keys.
pub(super) fn put(
    client: &Client,
    keys: &Keys,
    sources: Pieces<'_, Source<'_>>,
    options: &PutOptions<'_>,
    out: &mut Vec<PutOutcome>,
) -> Result<(), i32> {
    let begun = Instant::now();
    let deadline = after(begun, client.times.save);
    // The rest is for the end, or for taking back.
    let written_by = after(begun, (client.times.save / 4 * 3).min(MOST_WRITING));
    let config = config(client, keys, options)?;
    let names = names(keys);
    let lists = sources.into_lists(keys.len());
    let mut sizes = Vec::with_capacity(lists.len());
    for pieces in &lists {
        if pieces.iter().any(|piece| piece.memory() != Memory::Host) {
            return Err(code::UNREACHABLE_MEMORY);
        }
        let sum = pieces
            .iter()
            .try_fold(0_u64, |sum, piece| sum.checked_add(piece.size()));
        sizes.push(sum.ok_or(code::MALFORMED_CALL)?);
    }

    let mut owners = Owners::default();
    let mut all = start(client, &names, &sizes, &config, written_by, &mut owners);
    tell_of_few(client, &all);
    write(client, &owners, written_by, &mut all, &lists);
    end(client, &names, deadline, &mut all);
    revoke(client, &names, deadline, &mut all);
    confirm(client, &names, deadline, &mut all);
    out.extend(all.into_iter().map(|started| match started {
        Started::Ended(outcome) => outcome,
        Started::Here { failure, .. } => PutOutcome::Failed(failure.unwrap_or(code::NO_ANSWER)),
    }));
    Ok(())
}

/// What the options are in the protocol.
fn config<'a>(
    client: &Client,
    keys: &Keys,
    options: &PutOptions<'a>,
) -> Result<ReplicateConfig<'a>, i32> {
    let mut config = ReplicateConfig {
        replicas: client.replicas,
        ..ReplicateConfig::default()
    };
    if options.places.is_some() {
        return Err(code::UNSUPPORTED_OPTION);
    }
    if let Some(ttl) = options.soft_pin_ttl {
        if !client.capabilities.soft_pin_ttl {
            return Err(code::UNSUPPORTED_OPTION);
        }
        config.soft_pin_action = PIN;
        config.soft_pin_ttl_ms = Some(u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX));
    }
    if let Some(groups) = options.groups {
        if groups.len() != keys.len() {
            return Err(code::MALFORMED_CALL);
        }
        config.groups = Some(groups.iter().map(Text).collect());
    }
    Ok(config)
}

fn start(
    client: &Client,
    names: &[Text<'_>],
    sizes: &[u64],
    config: &ReplicateConfig<'_>,
    deadline: Instant,
    owners: &mut Owners,
) -> Vec<Started> {
    let mut all: Vec<Option<Started>> = vec![None; names.len()];
    let done = client
        .master
        .put_start(names, sizes, config, deadline, |index, answer| {
            let started = match answer {
                Ok(replicas) => {
                    let spots: Option<Vec<Spot>> = match replicas.len() {
                        1..=MOST_REPLICAS => replicas.iter().map(|it| owners.spot(it)).collect(),
                        // Nowhere, or in more places than anybody asked for.
                        _ => None,
                    };
                    let size = sizes.get(index);
                    // An object without bytes, or of another size, is one that nobody could have asked for.
                    let spots = spots.filter(|spots| spots.iter().all(|it| Some(&it.size) == size));
                    Started::Here {
                        failure: spots.is_none().then_some(code::UNREACHABLE_MEMORY),
                        spots: spots.unwrap_or_default(),
                        is_loose: false,
                    }
                }
                Err(number) => Started::Ended(outcomes::put(codes::said(number))),
            };
            if let Some(slot) = all.get_mut(index) {
                *slot = Some(started);
            }
        });
    let lost = done.map_err(|failure| note("put", &failure)).err();
    let lost = PutOutcome::Failed(lost.unwrap_or(code::NO_ANSWER));
    all.into_iter()
        .map(|started| started.unwrap_or(Started::Ended(lost)))
        .collect()
}

/// A master gives as many places as there are owners with room for one, and says nothing about the rest.
fn tell_of_few(client: &Client, all: &[Started]) {
    let asked = client.replicas;
    let places = all.iter().filter_map(|started| match started {
        Started::Here {
            spots,
            failure: None,
            ..
        } => Some(spots.len() as u64),
        _ => None,
    });
    if let Some(fewest) = places.min()
        && fewest < asked
        && !client.told_of_few.swap(true, Ordering::Relaxed)
    {
        tracing::warn!(
            "kvbridge.replica_num = {asked}, but the pool keeps pages in {fewest} places: each is on a server of its own that lends memory and has room"
        );
    }
}

/// Writes all replicas of all keys that were started.
fn write(
    client: &Client,
    owners: &Owners,
    deadline: Instant,
    all: &mut [Started],
    lists: &[&mut [Source<'_>]],
) {
    let (mut jobs, mut of) = (Vec::new(), Vec::new());
    for (index, (started, pieces)) in all.iter().zip(lists).enumerate() {
        let Started::Here { spots, .. } = started else {
            continue;
        };
        for &spot in spots {
            let endpoint = owners.endpoint(spot);
            jobs.push(WriteJob::new(endpoint, spot.address, spot.size, pieces));
            of.push(index);
        }
    }
    client.peers.write(&mut jobs, deadline);
    for (index, job) in of.into_iter().zip(jobs) {
        if let (
            Some(Started::Here {
                failure, is_loose, ..
            }),
            Err(code),
        ) = (all.get_mut(index), job.outcome)
        {
            failure.get_or_insert(codes::of_lender(code));
            *is_loose |= job.may_still_arrive;
        }
    }
}

/// Makes those visible whose bytes are all in place.
fn end(client: &Client, names: &[Text<'_>], deadline: Instant, all: &mut [Started]) {
    let is_written = |started: &Started| matches!(started, Started::Here { failure: None, .. });
    let (of, written) = select(names, all, is_written);
    let answers = client.master.put_end(&written, deadline);
    for (index, answer) in of.into_iter().zip(settled("put", answers)) {
        if let Some(started) = all.get_mut(index) {
            *started = Started::Ended(match answer {
                Ok(()) => PutOutcome::Stored,
                // Somebody else's object has the key, which is not what "there already" would say here.
                Err(number) => PutOutcome::Failed(number),
            });
        }
    }
}

/// Takes back what was started and not written.
fn revoke(client: &Client, names: &[Text<'_>], deadline: Instant, all: &mut [Started]) {
    let is_over = |started: &Started| {
        matches!(
            started,
            Started::Here {
                is_loose: false,
                ..
            }
        )
    };
    let (_, failed) = select(names, all, is_over);
    if let Some(failure) = client.master.put_revoke(&failed, deadline).failure() {
        note("put", failure);
    }
}

/// Asks for what is there already by the master's word, which it also gives while somebody is writing the key, and for
/// as long as it has not noticed that this one died.
fn confirm(client: &Client, names: &[Text<'_>], deadline: Instant, all: &mut [Started]) {
    let is_unsure = |started: &Started| matches!(started, Started::Ended(PutOutcome::AlreadyThere));
    let (of, unsure) = select(names, all, is_unsure);
    let presences = client.presences("put", &unsure, deadline);
    for (index, presence) in of.into_iter().zip(presences) {
        if let Some(started) = all.get_mut(index) {
            let outcome = outcomes::confirmed(PutOutcome::AlreadyThere, presence);
            *started = Started::Ended(outcome);
        }
    }
}

fn select<'n>(
    names: &[Text<'n>],
    all: &[Started],
    is_meant: impl Fn(&Started) -> bool,
) -> (Vec<usize>, Vec<Text<'n>>) {
    let named = all.iter().zip(names).enumerate();
    named
        .filter(|(_, (started, _))| is_meant(started))
        .map(|(index, (_, name))| (index, *name))
        .unzip()
}
