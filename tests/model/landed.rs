//! Asynchronous loads come to their end: announced, reported, admitted or left; and once more when all is over.

use kvbridge::scheduler::FinishReason;

use crate::oracle::shard;
use crate::random::Rng;
use crate::setup::T;
use crate::world::{Outcome, Req, State, World, broken};

impl World<'_> {
    /// Which loads are announced now.
    pub fn announce_loads(&mut self, server: usize, rng: &mut Rng) -> Vec<u64> {
        let mut tickets = Vec::new();
        for req in &mut self.servers[server].reqs {
            let parked = req.state == State::Parked;
            let Some(load) = req.load.as_mut().filter(|load| parked && load.emitted) else {
                continue;
            };
            let now = match load.bound {
                true => rng.chance(3, 4),
                false => rng.chance(1, 3),
            };
            if !load.announced && now {
                load.announced = true;
                tickets.push(load.ticket);
            }
        }
        tickets
    }

    /// A rank reports these loads, and those of them that failed.
    pub fn take_loaded(
        &mut self,
        server: usize,
        rank: usize,
        loaded: &[u64],
        failed: &[u64],
    ) -> Outcome {
        if let Some(id) = failed.iter().find(|id| !loaded.contains(id)) {
            broken!(
                "a failed load is reported as loaded, too",
                "{id} on rank {rank}"
            );
        }
        if self.setup.world > 1 && !failed.is_empty() {
            broken!("no rank hands back alone", "rank {rank}: {failed:?}");
        }
        for ticket in loaded {
            let mut all = self.servers[server].reqs.iter();
            let at = all.position(|req| {
                let load = req.load.as_ref();
                req.state == State::Parked
                    && load.is_some_and(|load| {
                        load.ticket == *ticket
                            && load.announced
                            && load.bound
                            && !load.reported[rank]
                    })
            });
            let Some(at) = at else {
                broken!(
                    "what is reported was announced, once",
                    "rank {rank} reports the load {ticket}"
                );
            };
            let req = self.servers[server].reqs[at].clone();
            let mut items = self.items.iter();
            if items.any(|item| item.is_load(server, rank, req.life)) {
                broken!(
                    "a load is reported when it has ended",
                    "request {} on rank {rank}",
                    req.id
                );
            }
            self.take_landed(server, rank, at, failed.contains(ticket))?;
        }
        // Nothing is left to wait for: an answer is due.
        for req in &self.servers[server].reqs {
            let Some(load) = req.load.as_ref().filter(|_| req.state == State::Parked) else {
                continue;
            };
            let mut items = self.items.iter();
            let mut running = || items.any(|item| item.is_load(server, rank, req.life));
            if load.announced && load.bound && !load.reported[rank] && !self.threads && !running() {
                broken!(
                    "a load that has ended is reported",
                    "request {} on rank {rank}",
                    req.id
                );
            }
        }
        Ok(())
    }

    /// All pages are there, or the request is handed back.
    fn take_landed(&mut self, server: usize, rank: usize, at: usize, failed: bool) -> Outcome {
        let hosts = &mut self.servers[server];
        let req = &mut hosts.reqs[at];
        let Some(load) = &mut req.load else {
            return Ok(());
        };
        load.reported[rank] = true;
        let mut lost = None;
        for block in load.blocks.clone() {
            for (kind, what) in self.setup.kinds.iter().enumerate() {
                let page = req.pages[what.group][block];
                let cache = &mut hosts.ranks[rank].cache;
                let shard = shard(self.setup, kind, rank);
                if cache.read(kind, page) != self.oracle.content(&req.marks, block, kind, shard) {
                    lost = lost.or(Some(block));
                }
                if self.threads {
                    cache.accept(kind, page);
                }
            }
        }
        self.tally.loaded_pages += (load.blocks.len() * self.setup.kinds.len()) as u64;
        if let Some(block) = lost.filter(|_| !failed) {
            broken!(
                "a load that is reported has landed",
                "request {} on rank {rank}: block {block} is not there",
                req.id
            );
        }
        // With threads nobody sees what came and was not counted.
        let is_seen = !(self.threads && self.ways.direct);
        if failed && lost.is_none() && !load.given_up && is_seen {
            broken!(
                "what arrived is not handed back",
                "request {} has all its pages",
                req.id
            );
        }
        load.spoilt |= failed;
        self.tally.failed_loads += u64::from(failed);
        hosts.may_have_failed |= failed && self.threads;
        Ok(())
    }

    /// Requests that all ranks have reported appear for the first time.
    pub fn admit_loaded(&mut self, server: usize, rng: &mut Rng) {
        for req in &mut self.servers[server].reqs {
            let Some(load) = &req.load else { continue };
            let all = load.reported.iter().all(|reported| *reported);
            let cut_short = load.given_up && self.setup.world > 1;
            if req.state != State::Parked || !all || load.spoilt || cut_short {
                continue;
            }
            req.state = State::Allocated;
            req.loaded = load.blocks.clone();
            req.computed = req.computed.max(load.blocks.end * T);
            if rng.chance(1, 8) {
                // The engine has no use for it.
                req.computed = rng.below(req.computed + 1);
            }
        }
    }

    /// A request that waits for its load leaves.
    pub fn do_leave(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let waits = |req: &Req| {
            req.state == State::Parked && (self.can_end(server, req) || self.is_quiet(server, req))
        };
        let spoilt = self.pick(server, &mut rng, |req| waits(req) && req.is_spoilt());
        let Some(at) = spoilt.or_else(|| self.pick(server, &mut rng, waits)) else {
            return Ok(false);
        };
        if self.is_quiet(server, &self.servers[server].reqs[at]) && rng.chance(1, 2) {
            return self.reset(server, at);
        }
        if !self.can_end(server, &self.servers[server].reqs[at]) {
            return Ok(false);
        }
        let reason = match rng.chance(2, 3) {
            true => FinishReason::Preempted,
            false => FinishReason::Cancelled,
        };
        self.end(server, at, reason, &mut rng)
    }

    /// With threads: pages that loads may have changed since they were looked at last.
    pub fn may_have_landed(&self, server: usize, rank: usize, kind: usize, page: i32) -> bool {
        let hosts = &self.servers[server];
        let group = self.setup.kinds[kind].group;
        let pins = hosts.pins.iter().filter(|pin| !pin.reported[rank]);
        let mut all = hosts.reqs.iter().chain(pins.map(|pin| &pin.req));
        all.any(|req| {
            let load = req.load.as_ref();
            let load = load.filter(|load| load.bound && !load.reported[rank]);
            load.is_some_and(|load| {
                let mut blocks = load.blocks.clone();
                blocks.any(|block| req.pages[group].get(block) == Some(&page))
            })
        })
    }

    /// All slots are back: as many loads as there are threads, and one more, work.
    pub fn still_loads(&mut self, server: usize) -> Outcome {
        if !self.parks(server) {
            return Ok(());
        }
        self.pool.state().armed = [None; 3];
        self.servers[server].failed.clear();
        self.servers[server].may_have_failed = true;
        for number in 0..=self.ways.workers {
            let mut req = Req::new(500 + number as u64, 0);
            (0..2 * T as i32 + 1).for_each(|token| req.push(70 + token));
            self.oracle.learn(0, &req.tokens, &req.marks);
            for block in 0..self.oracle.blocks(req.tokens.len()) {
                let mark = self.oracle.block(&req.marks, block);
                for key in self.oracle.keys(mark).to_vec() {
                    let mut state = self.pool.state();
                    state.remove(&key);
                    state.store(&key, self.oracle.object(&key));
                }
            }
            self.servers[server].reqs.push(req);
            self.ask_anew(server, number, 0, 0)?;
            self.allocate(server, number, 2, &mut Rng::new(3))?;
        }
        self.do_build(server, Rng::new(1))?;
        self.do_bind(server, Rng::new(1))?;
        self.open_doors(server);
        let start = std::time::Instant::now();
        let mut polls = 0;
        while self.servers[server]
            .reqs
            .iter()
            .any(|req| req.state == State::Parked)
        {
            while !self.items.is_empty() {
                self.step_load(0)?;
            }
            self.do_poll(server, Rng::new(polls))?;
            polls += 1;
            let late = match self.threads {
                true => start.elapsed().as_secs() > 20,
                false => polls > 50,
            };
            if late {
                broken!("in the end all is free", "another load does not end");
            }
            std::thread::yield_now();
        }
        if self.servers[server]
            .reqs
            .iter()
            .any(|req| req.loaded.len() != 2)
        {
            broken!("in the end all is free", "another load does not work");
        }
        Ok(())
    }
}
