//! Asynchronous loads under way: queued, stepped, broken off, and what the library may write meanwhile.

use std::ops::Range;
use std::sync::Arc;

use crate::door::{Door, Position};
use crate::late::GET;
use crate::loads::failed_keys;
use crate::oracle::shard;
use crate::pool::Call;
use crate::random::Rng;
use crate::world::{Item, Outcome, Req, World, broken};

/// The asynchronous load of a request, as the engine sees it.
#[derive(Clone)]
pub struct Load {
    /// Under which id it is announced and reported.
    pub ticket: u64,
    pub blocks: Range<usize>,
    /// A metadata carries it; it is bound.
    pub emitted: bool,
    pub bound: bool,
    pub announced: bool,
    /// Per rank.
    pub reported: Vec<bool>,
    /// It was broken off before it could be known what arrives.
    pub given_up: bool,
    /// It was reported as failed.
    pub spoilt: bool,
}

/// The load of one request on one rank.
pub struct Job {
    pub id: u64,
    pub life: u64,
    pub blocks: Range<usize>,
    pub door: Option<Arc<Door>>,
    /// Nobody has said on this rank that the request is gone.
    pub wanted: bool,
    /// The first block that did not arrive.
    pub bad: Option<usize>,
    /// Steps since it asked the pool for something.
    idle: u32,
}

impl Load {
    pub fn new(ticket: u64, blocks: Range<usize>, ranks: usize) -> Self {
        Self {
            ticket,
            blocks,
            emitted: false,
            bound: false,
            announced: false,
            reported: vec![false; ranks],
            given_up: false,
            spoilt: false,
        }
    }
}

impl World<'_> {
    pub fn parks(&self, server: usize) -> bool {
        self.ways.parks && self.servers[server].reads()
    }

    /// All fences open.
    pub fn open_doors(&mut self, server: usize) {
        for door in self.servers[server].doors.drain(..) {
            door.turn(Position::Open);
        }
    }

    /// The engine's copies into new pages are done, or never will be.
    pub fn do_open(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let doors = &mut self.servers[server].doors;
        if doors.is_empty() {
            return Ok(false);
        }
        let door = doors.swap_remove(rng.below(doors.len()));
        let stuck = rng.chance(1, 40) && !self.threads;
        door.turn(match stuck {
            true => Position::Stuck,
            false => Position::Open,
        });
        self.tell(|| format!("a fence opens; stuck: {stuck}"));
        Ok(true)
    }

    /// The fence of the next bind on each rank; `None` for one that was forgotten.
    pub fn fences(
        &mut self,
        server: usize,
        carries: bool,
        rng: &mut Rng,
    ) -> Vec<Option<Arc<Door>>> {
        let ranks = self.servers[server].ranks.len();
        if !self.ways.fences || carries && rng.chance(1, 60) {
            return vec![None; ranks];
        }
        let fences: Vec<_> = (0..ranks)
            .map(|_| Door::new(self.threads, rng.chance(1, 5)))
            .collect();
        if carries {
            let closed = fences
                .iter()
                .filter(|door| door.position() == Position::Closed);
            self.servers[server].doors.extend(closed.cloned());
        }
        fences.into_iter().map(Some).collect()
    }

    /// What the bound pass has queued on a rank is what it should have.
    pub fn queue_parked(
        &mut self,
        server: usize,
        rank: usize,
        door: &Option<Arc<Door>>,
        queued: usize,
    ) -> Outcome {
        let Some(pass) = &self.servers[server].bound else {
            return Ok(());
        };
        let parks = pass.parks.clone();
        let forgotten = self.ways.fences && door.is_none() && !parks.is_empty();
        let mut expected = 0;
        for life in parks {
            let Some(at) = self.position(server, life) else {
                continue;
            };
            let mark =
                |blocks: &Range<usize>, req: &Req| self.oracle.block(&req.marks, blocks.start);
            let req = &self.servers[server].reqs[at];
            let Some(load) = &req.load else { continue };
            let (id, blocks) = (req.id, load.blocks.clone());
            if forgotten {
                let lost = (!blocks.is_empty()).then(|| mark(&blocks, req));
                if let Some(mark) = lost.filter(|_| self.setup.world == 1) {
                    self.note_failed_block(server, id, blocks.start, mark);
                }
            } else if !self.threads {
                self.items.push(Item {
                    server,
                    rank,
                    load: Some(Job {
                        id,
                        life,
                        blocks,
                        door: door.clone(),
                        wanted: true,
                        bad: None,
                        idle: 0,
                    }),
                    parts: Vec::new(),
                    disturbed: None,
                });
                expected += 1;
            }
            if let Some(load) = &mut self.servers[server].reqs[at].load {
                load.bound = true;
            }
        }
        if !self.threads && queued != expected {
            broken!(
                "each load travels once",
                "bind on rank {rank}: {queued} loads are queued, {expected} are due"
            );
        }
        let host = &mut self.servers[server].ranks[rank];
        host.owes_fence |= forgotten;
        host.is_broken |= forgotten && self.setup.world > 1;
        Ok(())
    }

    /// An offer ends before this block from now on.
    pub fn note_failed_block(&mut self, server: usize, id: u64, block: usize, mark: u64) {
        let failed = &mut self.servers[server].failed;
        let first = failed.entry(id).or_insert((block, mark));
        if block < first.0 {
            *first = (block, mark);
        }
    }

    /// On these ranks nobody waits any more for loads that the check picks.
    pub fn forget_loads(&mut self, server: usize, ranks: Range<usize>, gone: impl Fn(u64) -> bool) {
        for item in &mut self.items {
            if item.server == server
                && ranks.contains(&item.rank)
                && let Some(job) = &mut item.load
                && gone(job.life)
            {
                job.wanted = false;
            }
        }
    }

    /// A step of one load. As many of a rank go on side by side as it has threads.
    pub fn do_load_step(&mut self, mut rng: Rng) -> Outcome<bool> {
        if self.threads {
            std::thread::yield_now();
            return Ok(true);
        }
        let loads = |index: &usize| self.items[*index].load.is_some();
        let all: Vec<usize> = (0..self.items.len()).filter(loads).collect();
        if all.is_empty() {
            return Ok(false);
        }
        let chosen = &self.items[all[rng.below(all.len())]];
        let own = (chosen.server, chosen.rank);
        let running: Vec<usize> = all
            .into_iter()
            .filter(|&index| (self.items[index].server, self.items[index].rank) == own)
            .take(self.ways.workers)
            .collect();
        self.step_load(running[rng.below(running.len())])?;
        Ok(true)
    }

    pub fn step_load(&mut self, index: usize) -> Outcome {
        self.check_log()?;
        let place = self.pending_place(index);
        let item = &self.items[index];
        let (server, rank) = (item.server, item.rank);
        let Some(job) = &item.load else { return Ok(()) };
        let (life, blocks, wanted) = (job.life, job.blocks.clone(), job.wanted);
        let door = job.door.clone();
        let position = door.as_ref().map_or(Position::Open, |door| door.position());
        let step = self.stepper.step(place);
        let done = step == Some(kvbridge::lane::Step::Done);
        let asked = self.take_log(server, rank)?;
        let log = asked.seen;
        self.tell(|| {
            let good = log.iter().filter(|seen| seen.good).count();
            let asked = log.len();
            format!(
                "step: load of life {life} on server {server} rank {rank}: {good} of {asked} pages, {step:?}"
            )
        });
        if let Some(door) = &door
            && *door.answers.lock() > 1
        {
            broken!("a fence is waited for once", "on rank {rank}");
        }
        let failed = failed_keys(&log);
        let is_kept = asked.late == Some(GET);
        let Some(req) = self.owner(server, rank, life) else {
            if !log.is_empty() || is_kept {
                broken!(
                    "a load that nobody waits for ends",
                    "rank {rank} asks the pool for life {life}"
                );
            }
            return self.end_step(index, done, position);
        };
        let marks: Vec<u64> = blocks
            .clone()
            .map(|block| self.oracle.block(&req.marks, block))
            .collect();
        let asks = asked.is_disturbed || !log.is_empty();
        if let Some(job) = self.items[index].load.as_mut().filter(|_| asks) {
            job.idle = 0;
        }
        for seen in &log {
            let known = self.oracle.pages.get(&seen.key);
            let block = known.and_then(|known| marks.iter().position(|mark| *mark == known.block));
            let (Some(known), Some(block)) = (known, block) else {
                broken!(
                    "only what was settled is loaded",
                    "rank {rank}, life {life}"
                );
            };
            let own = self.oracle.key(known.block, known.kind, rank) == seen.key.as_slice();
            // A pool that did not answer is asked whether it does now.
            if own && self.ways.late && seen.call == Call::Exist {
                continue;
            }
            if !own || seen.call != Call::Get {
                broken!(
                    "only what was settled is loaded",
                    "rank {rank}, life {life}: {:?} of block {block}",
                    seen.call
                );
            }
            if !wanted {
                broken!(
                    "a load that nobody waits for ends",
                    "rank {rank} asks the pool for life {life}"
                );
            }
            if !seen.good
                && let Some(job) = &mut self.items[index].load
            {
                let block = blocks.start + block;
                job.bad = Some(job.bad.map_or(block, |bad| bad.min(block)));
            }
        }
        let mut changed = Vec::new();
        let cache = &mut self.servers[server].ranks[rank].cache;
        cache.changes(|kind, page, now| changed.push((kind, page, *now)));
        for (kind, page, now) in changed {
            let list = &req.pages[self.setup.kinds[kind].group];
            let block = blocks.clone().find(|block| list.get(*block) == Some(&page));
            let Some(block) = block.filter(|_| wanted) else {
                broken!(
                    "only pages of running loads are written",
                    "server {server} rank {rank}: page {page} of kind {kind} was written to for life {life}"
                );
            };
            if position != Position::Open {
                broken!(
                    "a load waits for its fence",
                    "server {server} rank {rank}: block {block} of life {life} is written before it"
                );
            }
            let shard = shard(self.setup, kind, rank);
            let key = self
                .oracle
                .key(self.oracle.block(&req.marks, block), kind, rank);
            let may_be_torn = self.ways.direct && failed.iter().any(|bad| bad == key);
            if !may_be_torn && now != self.oracle.content(&req.marks, block, kind, shard) {
                broken!(
                    "a page that lands is what its key says",
                    "server {server} rank {rank}: block {block} of life {life}, kind {kind}"
                );
            }
        }
        if self.ways.direct && !failed.is_empty() {
            self.count_as_lost(server, life);
        }
        if is_kept && self.lend_parked(server, rank, &req) {
            self.items.remove(index);
            return self.break_down();
        }
        if asked.is_disturbed {
            let builds = self.servers[server].builds;
            self.items[index].disturbed.get_or_insert(builds);
        }
        if done && wanted && self.items[index].disturbed.is_some() {
            self.note_disturbed_load(index, &req);
        }
        self.end_step(index, done, position)
    }

    /// Whose pages a load on this rank may write, if anybody's.
    fn owner(&self, server: usize, rank: usize, life: u64) -> Option<Req> {
        let hosts = &self.servers[server];
        let pins = hosts.pins.iter().filter(|pin| !pin.reported[rank]);
        let mut all = hosts.reqs.iter().chain(pins.map(|pin| &pin.req));
        all.find(|req| req.life == life).cloned()
    }

    fn end_step(&mut self, index: usize, done: bool, position: Position) -> Outcome {
        if !done {
            let Some(job) = &mut self.items[index].load else {
                return Ok(());
            };
            if !job.wanted {
                broken!("a load that nobody waits for ends", "at its next step");
            }
            job.idle += u32::from(position == Position::Open);
            if job.idle > 3 {
                broken!("a load goes on", "life {} does nothing", job.life);
            }
            return Ok(());
        }
        let item = self.items.remove(index);
        let (server, rank) = (item.server, item.rank);
        let Some(job) = item.load.filter(|job| job.wanted) else {
            return Ok(());
        };
        let many = self.setup.world > 1;
        let host = &mut self.servers[server].ranks[rank];
        if position == Position::Stuck && !job.blocks.is_empty() {
            host.is_broken = true;
        }
        if let Some(block) = job.bad {
            host.is_broken |= many;
            if !many && let Some(at) = self.position(server, job.life) {
                let req = &self.servers[server].reqs[at];
                let (id, mark) = (req.id, self.oracle.block(&req.marks, block));
                self.note_failed_block(server, id, block, mark);
            }
        }
        match self.servers[server].ranks[rank].is_broken {
            true => self.break_down(),
            false => Ok(()),
        }
    }

    /// An error that stays is said by every later call; nothing else happens then.
    pub fn break_down(&mut self) -> Outcome {
        self.tell(|| "an error that stays".to_owned());
        for server in 0..self.servers.len() {
            for rank in 0..self.servers[server].ranks.len() {
                let host = &mut self.servers[server].ranks[rank];
                let mut errors = Vec::new();
                for _ in 0..2 {
                    errors.push(host.worker.get_finished(&[], &[]).err());
                }
                errors.push(host.worker.start_load(Default::default()).err());
                let owes = std::mem::take(&mut host.owes_fence) && !host.is_broken;
                let errors = &errors[usize::from(owes)..];
                let said = errors.iter().filter(|error| error.is_some()).count();
                // A pass that was never bound is nothing to start.
                let unbound = self.servers[server].bound.is_none();
                let host = &self.servers[server].ranks[rank];
                let wrong = match host.is_broken {
                    true => said < errors.len(),
                    false => errors[..errors.len() - usize::from(unbound)]
                        .iter()
                        .any(Option::is_some),
                };
                if wrong {
                    broken!(
                        "an error of a load thread stays",
                        "server {server} rank {rank}, broken = {}: {errors:?}",
                        host.is_broken
                    );
                }
            }
        }
        self.over = true;
        Ok(())
    }
}

impl Item {
    pub fn is_load(&self, server: usize, rank: usize, life: u64) -> bool {
        self.server == server
            && self.rank == rank
            && self.load.as_ref().is_some_and(|job| job.life == life)
    }
}
