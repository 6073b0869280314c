//! Which pages are asked of which disk, and how many at once.

use std::collections::{BTreeMap, VecDeque};

use crate::device::memory::Target;
use crate::keys::Keys;
use crate::store::wire::messages::{COMPLETE, Place, Replicas};
use crate::store::wire::pack::Answer;
use crate::store::wire::spots::{MOST_REPLICAS, Owners};
use crate::store::{GetOutcome, Pieces, code};

/// Bytes of one request at most, unless a page has more: an owner takes room for all of them at once, which others want,
/// too, and sends nothing before it has read all.
const MOST_BYTES: u64 = 16 << 20;
/// Below this another request is not worth it.
const LEAST_BYTES: u64 = 1 << 20;
/// Pages of one request at most.
const MOST_PAGES: usize = 256;

/// What a lookup said of disks.
#[derive(Debug, Default)]
pub struct Found {
    pub(super) owners: Owners,
    /// For each key that is on disks: whose, and how many bytes.
    places: BTreeMap<usize, Vec<(usize, u64)>>,
}

impl Found {
    /// Hears what the master says of a key; the last word counts.
    pub fn note(&mut self, key: usize, answer: &Answer<Replicas<'_>>) {
        self.places.remove(&key);
        let Ok(found) = answer else {
            return;
        };
        let complete = found.replicas.iter().filter(|it| it.status == COMPLETE);
        let on_disk = complete.filter_map(|replica| match &replica.place {
            Place::Disk(disk) => Some((disk.endpoint.as_str()?, disk.size)),
            _ => None,
        });
        for (endpoint, size) in on_disk.take(MOST_REPLICAS) {
            let owner = self.owners.number(endpoint);
            self.places.entry(key).or_default().push((owner, size));
        }
    }
}

/// A page that is still to be read.
#[derive(Debug)]
pub(super) struct Page<'p, 'm> {
    place: usize,
    pub key: &'p [u8],
    pub size: u64,
    pub pieces: &'p mut [Target<'m>],
    /// Owners that were not asked yet.
    owners: VecDeque<usize>,
}

/// The pages of a call that are on disks.
#[derive(Debug)]
pub(super) struct Plan<'p, 'm> {
    /// By owner.
    queues: Vec<Queue<'p, 'm>>,
    /// What is known of pages that are not read any more, by their place in the call.
    pub ended: Vec<(usize, GetOutcome)>,
}

#[derive(Debug, Default)]
struct Queue<'p, 'm> {
    pages: VecDeque<Page<'p, 'm>>,
    /// Pages that are asked for together, before the others.
    parts: VecDeque<Vec<Page<'p, 'm>>>,
    /// Bytes of a request.
    share: u64,
}

impl<'p, 'm> Plan<'p, 'm> {
    /// Of the keys whose outcome so far is a failure, those that lie on a disk. `lanes`: requests that an owner is asked at
    /// once.
    pub fn new(
        found: &Found,
        keys: &'p Keys,
        targets: Pieces<'p, Target<'m>>,
        outcomes: &[GetOutcome],
        lanes: usize,
    ) -> Self {
        let mut plan = Self {
            queues: Vec::new(),
            ended: Vec::new(),
        };
        plan.queues.resize_with(found.owners.len(), Queue::default);
        let lists = targets.into_lists(keys.len());
        let all = keys.iter().zip(lists).zip(outcomes).enumerate();
        for (place, ((key, pieces), outcome)) in all {
            let GetOutcome::Failed(reason) = *outcome else {
                continue;
            };
            let Some(places) = found.places.get(&place) else {
                continue;
            };
            let size = pieces.iter().map(Target::size);
            let size = size.fold(0, u64::saturating_add);
            let fitting = places.iter().filter(|it| it.1 == size);
            let page = Page {
                place,
                key,
                size,
                pieces,
                owners: fitting.map(|it| it.0).collect(),
            };
            match places.first() {
                Some(other) if page.owners.is_empty() && reason == code::UNREACHABLE_MEMORY => {
                    plan.ended.push((place, GetOutcome::WrongSize(other.1)));
                }
                _ => plan.next(page, *outcome),
            }
        }
        for queue in &mut plan.queues {
            let bytes = queue.pages.iter().map(|page| page.size);
            let bytes = bytes.fold(0, u64::saturating_add);
            // So many that one is on its way while the next is read from the disk.
            let share = bytes.div_ceil(2 * lanes.max(1) as u64);
            queue.share = share.clamp(LEAST_BYTES, MOST_BYTES);
        }
        plan
    }

    /// Whether pages wait for an owner.
    pub fn has(&self, owner: usize) -> bool {
        let queue = self.queues.get(owner);
        queue.is_some_and(|it| !(it.pages.is_empty() && it.parts.is_empty()))
    }

    /// Owners for whom pages wait.
    pub fn owners(&self) -> impl Iterator<Item = usize> {
        (0..self.queues.len()).filter(|&owner| self.has(owner))
    }

    /// The pages that this owner is asked for next, together; none if none wait.
    pub fn part(&mut self, owner: usize) -> Vec<Page<'p, 'm>> {
        let Some(queue) = self.queues.get_mut(owner) else {
            return Vec::new();
        };
        if let Some(part) = queue.parts.pop_front() {
            return part;
        }
        let (mut part, mut bytes) = (Vec::new(), 0_u64);
        while bytes < queue.share
            && part.len() < MOST_PAGES
            && let Some(size) = queue.pages.front().map(|page| page.size)
            && (part.is_empty() || bytes.saturating_add(size) <= MOST_BYTES)
            && let Some(page) = queue.pages.pop_front()
        {
            bytes = bytes.saturating_add(size);
            part.push(page);
        }
        part
    }

    /// Pages that are to be asked of this owner again, together.
    pub fn again(&mut self, owner: usize, part: Vec<Page<'p, 'm>>) {
        match self.queues.get_mut(owner) {
            Some(queue) if !part.is_empty() => queue.parts.push_front(part),
            _ => {}
        }
    }

    /// An owner gives all of its pages or none: asks for those of a request that failed in halves, behind everything else,
    /// until it is known which it does not give.
    pub fn halve(&mut self, owner: usize, mut part: Vec<Page<'p, 'm>>, outcome: GetOutcome) {
        if part.len() < 2 {
            part.into_iter().for_each(|page| self.next(page, outcome));
            return;
        }
        let rest = part.split_off(part.len() / 2);
        if let Some(queue) = self.queues.get_mut(owner) {
            queue.parts.extend([part, rest]);
        }
    }

    /// A page that could not be read, with the reason: on to its next owner.
    pub fn next(&mut self, mut page: Page<'p, 'm>, outcome: GetOutcome) {
        let owner = page.owners.pop_front();
        match owner.and_then(|owner| self.queues.get_mut(owner)) {
            Some(queue) => queue.pages.push_back(page),
            None => self.ended.push((page.place, outcome)),
        }
    }

    /// A page that landed.
    pub fn landed(&mut self, page: &Page<'_, '_>) {
        self.ended.push((page.place, GetOutcome::Landed(page.size)));
    }

    /// A page that nobody is asked for any more.
    pub fn lost(&mut self, page: &Page<'_, '_>, outcome: GetOutcome) {
        self.ended.push((page.place, outcome));
    }

    /// The same for all that wait; the outcome depends on the owner that they wait for.
    pub fn end(&mut self, outcome: impl Fn(usize) -> GetOutcome) {
        for (owner, queue) in std::mem::take(&mut self.queues).into_iter().enumerate() {
            for page in queue.parts.into_iter().flatten().chain(queue.pages) {
                self.lost(&page, outcome(owner));
            }
        }
    }

    /// All that wait for this owner go on to their next ones.
    pub fn give_up(&mut self, owner: usize, outcome: GetOutcome) {
        let Some(queue) = self.queues.get_mut(owner) else {
            return;
        };
        let parts = std::mem::take(&mut queue.parts);
        let pages = std::mem::take(&mut queue.pages);
        for page in parts.into_iter().flatten().chain(pages) {
            self.next(page, outcome);
        }
    }
}
