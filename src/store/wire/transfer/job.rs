//! What is to be moved: one range of an owner's memory from or to pieces of ours.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use super::frame::Operation;
use crate::device::memory::{Memory, Source, Target};
use crate::store::code;
use crate::store::wire::segment::Segment;

/// Reads one range into pieces.
#[derive(Debug)]
pub struct ReadJob<'a, 'm> {
    /// The owner: `host:port` of its handshake, or its name at the metadata server.
    pub endpoint: &'a str,
    /// The first byte, as the owner counts.
    pub address: u64,
    /// Bytes to read.
    pub size: u64,
    /// Where they land, in this order; together as long as `size`. Host memory.
    pub pieces: &'a mut [Target<'m>],
    /// What became of it. After a failure the pieces may hold anything.
    pub outcome: Result<(), i32>,
}

/// Writes pieces over one range.
#[derive(Debug)]
pub struct WriteJob<'a> {
    /// The owner, as in [`ReadJob`].
    pub endpoint: &'a str,
    /// The first byte, as the owner counts.
    pub address: u64,
    /// Bytes to write.
    pub size: u64,
    /// What is written, in this order; together as long as `size`. Host memory.
    pub pieces: &'a [Source<'a>],
    /// What became of it. `Ok` only when the owner has confirmed that the bytes are in place.
    pub outcome: Result<(), i32>,
    /// After a failure: the owner may have been sent some of the bytes and may still put them in place, for example a
    /// process that was stopped and goes on. What frees the range for others before the owner is gone risks that.
    pub may_still_arrive: bool,
}

impl<'a, 'm> ReadJob<'a, 'm> {
    /// A job that nobody has begun.
    pub fn new(endpoint: &'a str, address: u64, size: u64, pieces: &'a mut [Target<'m>]) -> Self {
        Self {
            endpoint,
            address,
            size,
            pieces,
            outcome: Err(code::NO_ANSWER),
        }
    }
}

impl<'a> WriteJob<'a> {
    /// A job that nobody has begun.
    pub fn new(endpoint: &'a str, address: u64, size: u64, pieces: &'a [Source<'a>]) -> Self {
        Self {
            endpoint,
            address,
            size,
            pieces,
            outcome: Err(code::NO_ANSWER),
            may_still_arrive: false,
        }
    }
}

/// Both kinds of jobs, as a connection sees them.
pub(in crate::store::wire) trait Job {
    const OPERATION: Operation;

    fn endpoint(&self) -> &str;
    fn address(&self) -> u64;
    fn size(&self) -> u64;

    /// Whether the job can be done at all: a code of the store if not.
    fn check(&mut self) -> Result<(), i32>;

    /// Adds where these bytes of the range are sent from, until `most` slices are in the list.
    fn sending<'s>(&'s self, bytes: Range<u64>, most: usize, slices: &mut Vec<IoSlice<'s>>);

    /// Adds where these bytes of the range land, until `most` slices are in the list.
    fn landing<'s>(&'s mut self, bytes: Range<u64>, most: usize, slices: &mut Vec<IoSliceMut<'s>>);

    /// Does it within the memory that this process lends itself.
    fn copy(&mut self, own: &Segment) -> Result<(), i32>;

    /// The end of it.
    fn settle(&mut self, outcome: Result<(), i32>);

    /// Some of it was sent and nothing answered.
    fn was_sent(&mut self) {}
}

impl Job for ReadJob<'_, '_> {
    const OPERATION: Operation = Operation::Read;

    fn endpoint(&self) -> &str {
        self.endpoint
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn check(&mut self) -> Result<(), i32> {
        if !self.pieces.iter_mut().all(|it| it.bytes_mut().is_some()) {
            return Err(code::UNREACHABLE_MEMORY);
        }
        check(
            self.address,
            self.size,
            self.pieces.iter().map(Target::size),
        )
    }

    fn sending<'s>(&'s self, _: Range<u64>, _: usize, _: &mut Vec<IoSlice<'s>>) {}

    fn landing<'s>(
        &'s mut self,
        mut bytes: Range<u64>,
        most: usize,
        slices: &mut Vec<IoSliceMut<'s>>,
    ) {
        for piece in self.pieces.iter_mut() {
            if slices.len() >= most || bytes.is_empty() {
                return;
            }
            let Some(part) = next_part(&mut bytes, piece.size()) else {
                continue;
            };
            let Some(memory) = piece.bytes_mut() else {
                return;
            };
            slices.extend(memory.get_mut(part).map(IoSliceMut::new));
        }
    }

    fn copy(&mut self, own: &Segment) -> Result<(), i32> {
        own.read(self)
    }

    fn settle(&mut self, outcome: Result<(), i32>) {
        self.outcome = outcome;
    }
}

impl Job for WriteJob<'_> {
    const OPERATION: Operation = Operation::Write;

    fn endpoint(&self) -> &str {
        self.endpoint
    }

    fn address(&self) -> u64 {
        self.address
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn check(&mut self) -> Result<(), i32> {
        if !self.pieces.iter().all(|it| it.memory() == Memory::Host) {
            return Err(code::UNREACHABLE_MEMORY);
        }
        check(
            self.address,
            self.size,
            self.pieces.iter().map(Source::size),
        )
    }

    fn sending<'s>(&'s self, mut bytes: Range<u64>, most: usize, slices: &mut Vec<IoSlice<'s>>) {
        for piece in self.pieces {
            if slices.len() >= most || bytes.is_empty() {
                return;
            }
            let Some(part) = next_part(&mut bytes, piece.size()) else {
                continue;
            };
            let Some(memory) = piece.bytes() else {
                return;
            };
            slices.extend(memory.get(part).map(IoSlice::new));
        }
    }

    fn landing<'s>(&'s mut self, _: Range<u64>, _: usize, _: &mut Vec<IoSliceMut<'s>>) {}

    fn copy(&mut self, own: &Segment) -> Result<(), i32> {
        own.write(self)
    }

    fn settle(&mut self, outcome: Result<(), i32>) {
        self.outcome = outcome;
        self.may_still_arrive &= outcome.is_err();
    }

    fn was_sent(&mut self) {
        self.may_still_arrive = true;
    }
}

/// What of these bytes is in a piece of this size; `None` when they begin behind it. Left are those in the pieces after it,
/// as they count from its end.
fn next_part(bytes: &mut Range<u64>, size: u64) -> Option<Range<usize>> {
    let Range { start, end } = *bytes;
    *bytes = start.saturating_sub(size)..end.saturating_sub(size);
    if start >= size {
        return None;
    }
    Some(usize::try_from(start).ok()?..usize::try_from(end.min(size)).ok()?)
}

fn check(address: u64, size: u64, mut pieces: impl Iterator<Item = u64>) -> Result<(), i32> {
    let total = pieces.try_fold(0_u64, u64::checked_add);
    if size == 0 || total != Some(size) || address.checked_add(size).is_none() {
        return Err(code::MALFORMED_CALL);
    }
    Ok(())
}
