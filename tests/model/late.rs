//! Calls of the pool that end after their deadline, when whoever made them has gone: what they were given
//! is theirs until they return, and nobody else's pages may show that they did.

use std::ops::Range;
use std::sync::Arc;

use crate::clock::{Jumping, LONG};
use crate::oracle::shard;
use crate::pool::{Call, Seen};
use crate::random::Rng;
use crate::world::{Item, Outcome, Part, Req, World, broken};

/// A call that reads pages, as the guard names it.
pub const GET: &str = "pool get";

/// A call that has begun, was not made in time, and will be made.
pub struct Late {
    /// The rank that it came from, counted over all servers.
    pub place: usize,
    /// What it saves out of the cache itself, as far as that is known.
    pub parts: Vec<Part>,
}

/// Whether a pending item is ours.
fn is_own(item: &(String, &str)) -> bool {
    ["save", "load"].contains(&item.1)
}

/// Whether it is a call that has begun: one whose caller took it back before that has no name, and does nothing.
fn is_late(item: &(String, &str)) -> bool {
    !is_own(item) && item.1 != "pool call"
}

/// What a rank's pool was like.
#[derive(Default)]
pub struct Weather {
    pub clock: Arc<Jumping>,
    /// Calls without an answer so far.
    pub missed: u64,
    /// Calls are refused, perhaps, until time passes.
    pub is_bad: bool,
}

/// What was asked in some event.
pub struct Asked {
    /// By calls that were made for it.
    pub seen: Vec<Seen>,
    /// One of its calls is late now, of this kind.
    pub late: Option<&'static str>,
    /// Of the rank that was asked for, some call got no answer.
    pub is_disturbed: bool,
}

impl World<'_> {
    pub fn place(&self, server: usize, rank: usize) -> usize {
        server * self.setup.world as usize + rank
    }

    fn at(&self, place: usize) -> (usize, usize) {
        let world = self.setup.world as usize;
        (place / world, place % world)
    }

    /// Where an item of ours lies among all that are pending: late calls do so, too.
    pub fn pending_place(&self, index: usize) -> usize {
        match self.ways.late {
            true => self.nth_pending(index, is_own),
            false => index,
        }
    }

    fn nth_pending(&self, number: usize, wanted: fn(&(String, &str)) -> bool) -> usize {
        let pending = self.stepper.pending();
        let mut places = (0..pending.len()).filter(|&place| wanted(&pending[place]));
        places.nth(number).unwrap_or(usize::MAX)
    }

    /// Takes what the pool was asked. Late calls are made before those that come after them, and looked at here.
    pub fn take_log(&mut self, server: usize, rank: usize) -> Outcome<Asked> {
        let (calls, mut seen) = self.pool.state().take_log();
        let mut asked = Asked {
            seen: Vec::new(),
            late: None,
            is_disturbed: false,
        };
        if self.ways.late {
            for (number, &place) in calls.iter().enumerate() {
                let Some(at) = self.lates.iter().position(|late| late.place == place) else {
                    continue;
                };
                let late = self.lates.remove(at);
                self.check_returned(&late, &seen, number)?;
                seen.retain(|one| one.number != number);
            }
            asked.late = self.find_late(server, rank);
            asked.is_disturbed = self.look_at_weather(server, rank);
        }
        asked.seen = seen;
        Ok(asked)
    }

    /// What a scheduler's question asked the pool, perhaps too late.
    pub fn check_lookup(&mut self, server: usize) -> Outcome {
        if self.threads {
            return Ok(());
        }
        let asked = self.take_log(server, 0)?;
        asked.seen.iter().try_for_each(|seen| self.check_page(seen))
    }

    /// A call that is late stays among what is pending.
    fn find_late(&mut self, server: usize, rank: usize) -> Option<&'static str> {
        let pending = self.stepper.pending();
        let calls = pending.iter().filter(|item| is_late(item));
        let names: Vec<&str> = calls.map(|item| item.1).skip(self.lates.len()).collect();
        for _ in &names {
            self.tally.late += 1;
            self.lates.push(Late {
                place: self.place(server, rank),
                parts: Vec::new(),
            });
        }
        names.last().copied()
    }

    /// Whether calls of this rank got no answer since this was asked last.
    fn look_at_weather(&mut self, server: usize, rank: usize) -> bool {
        let hosts = &mut self.servers[server];
        let host = &mut hosts.ranks[rank];
        let counts = host.worker.handle().pool_counts();
        let missed = counts.deadlines + counts.failures + counts.refused;
        let is_news = missed > host.weather.missed;
        host.weather.missed = missed;
        host.weather.is_bad |= is_news;
        hosts.may_have_failed |= is_news;
        is_news
    }

    /// A late call was made. What it stores is right, and what it reads of the cache is nobody else's.
    fn check_returned(&mut self, late: &Late, seen: &[Seen], number: usize) -> Outcome {
        let (server, rank) = self.at(late.place);
        let own: Vec<&Seen> = seen.iter().filter(|one| one.number == number).collect();
        self.tell(|| {
            let calls: Vec<Call> = own.iter().map(|one| one.call).collect();
            format!("a late call of server {server} rank {rank} returns: {calls:?}")
        });
        for one in own {
            self.check_page(one)?;
            if one.call != Call::Put {
                continue;
            }
            self.tally.saved_pages += 1;
            let known = &self.oracle.pages[&one.key];
            let lives = late.parts.iter().filter(|part| part.mark == known.block);
            let mut lives = lives.map(|part| part.life).peekable();
            if self.ways.direct
                && lives.peek().is_some()
                && !lives.any(|life| self.owns(server, rank, life))
            {
                broken!(
                    "pages that were given back are not read",
                    "rank {rank} puts a block late"
                );
            }
        }
        Ok(())
    }

    /// Some save of an item got no answer: which, is not known here.
    pub fn saves_were_disturbed(&mut self, index: usize) {
        let (server, rank) = (self.items[index].server, self.items[index].rank);
        let builds = self.servers[server].builds;
        self.items[index].disturbed.get_or_insert(builds);
        // The scheduler hears of what its own worker could not save.
        for part in self.items[index].parts.iter().filter(|_| rank == 0) {
            let hosts = &mut self.servers[server];
            if let Some(req) = hosts.reqs.iter_mut().find(|req| req.life == part.life) {
                req.perhaps.push(part.block);
            }
        }
    }

    /// A block was not saved since the pool did not answer, and travels once more, if it did not already.
    pub fn save_again(&mut self, item: &Item, part: &Part) {
        let hosts = &mut self.servers[item.server];
        let builds = hosts.builds;
        let owners = item.parts.iter().filter(|one| one.mark == part.mark);
        let sure = item.rank == 0 && owners.count() == 1;
        let req = hosts.reqs.iter_mut().find(|req| req.life == part.life);
        let unnamed = |req: &&mut Req| item.disturbed.is_some_and(|since| req.named_in <= since);
        if let Some(req) = req.filter(unnamed).filter(|_| sure) {
            req.retries.insert(part.block, builds);
        }
    }

    /// A load ended since the pool did not answer. What the other ranks have then is no use under TP.
    pub fn note_disturbed_load(&mut self, index: usize, req: &Req) {
        let (server, rank) = (self.items[index].server, self.items[index].rank);
        let blocks = req.load.as_ref().map_or(0..0, |load| load.blocks.clone());
        let is_short = self.lacks(server, rank, req, blocks);
        let host = &mut self.servers[server].ranks[rank];
        host.is_broken |= is_short && self.setup.world > 1;
    }

    /// Whether some page of these blocks is not there.
    fn lacks(&self, server: usize, rank: usize, req: &Req, mut blocks: Range<usize>) -> bool {
        let cache = &self.servers[server].ranks[rank].cache;
        blocks.any(|block| {
            let mut kinds = self.setup.kinds.iter().enumerate();
            kinds.any(|(kind, what)| {
                let shard = shard(self.setup, kind, rank);
                let page = req.pages[what.group][block];
                cache.read(kind, page) != self.oracle.content(&req.marks, block, kind, shard)
            })
        })
    }

    /// Whether this life still has its pages, as far as the rank is concerned.
    pub fn owns(&self, server: usize, rank: usize, life: u64) -> bool {
        let hosts = &self.servers[server];
        let mut pins = hosts.pins.iter();
        hosts.reqs.iter().any(|req| req.life == life)
            || pins.any(|pin| pin.req.life == life && !pin.reported[rank])
    }

    /// A deadline passes during one of the next calls of some rank; mostly of one that has something to do, and does it.
    pub fn do_jump(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let answers = |item: &Item| !self.servers[item.server].ranks[item.rank].weather.is_bad;
        let all: Vec<usize> = (0..self.items.len())
            .filter(|&index| answers(&self.items[index]))
            .collect();
        let chosen = match all.len() {
            1.. if rng.chance(5, 6) => Some(all[rng.below(all.len())]),
            _ => None,
        };
        let rank = rng.below(self.servers[server].ranks.len());
        let item = chosen.map(|index| &self.items[index]);
        let (server, rank) = item.map_or((server, rank), |item| (item.server, item.rank));
        let saves = item.is_some_and(|item| item.load.is_none());
        let questions = match rng.below(4) {
            0 => rng.below(24) as u32,
            // What asks for what is there already is late, or in time.
            1 if saves => 5,
            _ if saves => 10,
            _ => 3,
        };
        let host = &self.servers[server].ranks[rank];
        host.weather.clock.jump_after(questions);
        self.tell(|| {
            format!(
                "the clock of server {server} rank {rank} will jump after {questions} questions"
            )
        });
        if chosen.is_some() {
            let next = |item: &Item| {
                (item.server, item.rank, item.load.is_none()) == (server, rank, saves)
            };
            let first = self.items.iter().position(next);
            self.step(first.unwrap_or(0))?;
        }
        Ok(true)
    }

    /// One of the late calls returns.
    pub fn do_return(&mut self, mut rng: Rng) -> Outcome<bool> {
        if self.lates.is_empty() {
            return Ok(false);
        }
        let index = rng.below(self.lates.len());
        self.return_late(index)?;
        Ok(true)
    }

    fn return_late(&mut self, index: usize) -> Outcome {
        let (server, rank) = self.at(self.lates[index].place);
        self.take_log(server, rank)?;
        let place = self.nth_pending(index, is_late);
        let late = self.lates.remove(index);
        self.stepper.step(place);
        let (_, seen) = self.pool.state().take_log();
        self.check_returned(&late, &seen, 0)
    }

    /// Pools that did not answer are asked again.
    pub fn do_cool(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        let mut bad = false;
        for rank in &mut self.servers[server].ranks {
            bad |= std::mem::take(&mut rank.weather.is_bad);
            rank.weather.clock.advance(LONG);
        }
        self.tell(|| format!("time passes on server {server}"));
        Ok(bad)
    }

    /// No deadline passes from now on, and pools are asked again.
    pub fn calm(&mut self, server: usize) {
        for rank in &mut self.servers[server].ranks {
            rank.weather.clock.calm();
            rank.weather.clock.advance(LONG);
        }
    }

    /// All that is late returns.
    pub fn return_all(&mut self) -> Outcome {
        while !self.lates.is_empty() {
            self.return_late(0)?;
        }
        Ok(())
    }
}
