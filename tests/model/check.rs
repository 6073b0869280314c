//! What must hold after every event, and at the end.

use kvbridge::scheduler::FinishReason;
use kvbridge::stats::Gauges;

use crate::oracle::shard;
use crate::pool::{Call, Seen};
use crate::random::Rng;
use crate::setup::{PAGE, T};
use crate::world::{Outcome, SLOTS, State, World, broken};

impl World<'_> {
    /// After every event.
    pub fn check(&mut self) -> Outcome {
        self.check_log()?;
        for server in 0..self.servers.len() {
            for rank in 0..self.servers[server].ranks.len() {
                let host = &self.servers[server].ranks[rank];
                // With threads the pages of loads are looked at when none is on its way.
                let busy = self.threads
                    && self.ways.parks
                    && host.worker.handle().gauges().loads_in_flight > 0;
                if busy {
                    continue;
                }
                let mut changed = Vec::new();
                let host = &mut self.servers[server].ranks[rank];
                host.cache
                    .changes(|kind, page, _| changed.push((kind, page)));
                let mut late = false;
                for gone in &mut host.gone {
                    gone.changes(|_, _, _| late = true);
                }
                if late {
                    broken!(
                        "memory that was given back is not touched",
                        "server {server} rank {rank}"
                    );
                }
                for (kind, page) in changed {
                    if self.lent.contains(&(server, rank, kind, page)) {
                        continue;
                    }
                    if self.threads && self.may_have_landed(server, rank, kind, page) {
                        continue;
                    }
                    broken!(
                        "only pages of running loads are written",
                        "server {server} rank {rank}: page {page} of kind {kind} was written to"
                    );
                }
            }
        }
        let live = self.live();
        self.tally.most_live = self.tally.most_live.max(live);
        self.tally.events += 1;
        if self.tally.events.is_multiple_of(16) {
            self.check_computed()?;
        }
        Ok(())
    }

    /// Calls of the pool in events that are no step of an item.
    pub fn check_log(&mut self) -> Outcome {
        let asked = self.take_log(0, 0)?;
        if asked.late.is_some() {
            broken!("a call is late when it was made", "whose is it?");
        }
        for seen in &asked.seen {
            self.check_page(seen)?;
            self.tally.saved_pages += u64::from(seen.call == Call::Put);
        }
        Ok(())
    }

    /// What a put left in the pool is what its key says.
    pub fn check_page(&self, seen: &Seen) -> Outcome {
        let Some(known) = self.oracle.pages.get(&seen.key) else {
            let key = String::from_utf8_lossy(&seen.key).into_owned();
            broken!("every key names a known block", "{:?} of {key}", seen.call);
        };
        if seen.call != Call::Put {
            return Ok(());
        }
        let state = self.pool.state();
        if let Some(object) = state.find(&seen.key)
            && !object.damaged
            && object.bytes[..PAGE] != known.bytes
        {
            broken!(
                "a page in the pool is what its key says",
                "kind {} of block {:x}",
                known.kind,
                known.block
            );
        }
        Ok(())
    }

    /// A step of one pending item.
    pub fn do_step(&mut self, mut rng: Rng) -> Outcome<bool> {
        if self.threads {
            std::thread::yield_now();
            return Ok(true);
        }
        let saves = |index: &usize| self.items[*index].load.is_none();
        let saves: Vec<usize> = (0..self.items.len()).filter(saves).collect();
        if saves.is_empty() {
            return Ok(false);
        }
        // One thread works on one item after the other of its rank.
        let index = saves[rng.below(saves.len())];
        let own = (self.items[index].server, self.items[index].rank);
        let first = saves
            .into_iter()
            .find(|&index| (self.items[index].server, self.items[index].rank) == own);
        self.step(first.unwrap_or(index))?;
        Ok(true)
    }

    pub fn step(&mut self, index: usize) -> Outcome {
        if self.items[index].load.is_some() {
            return self.step_load(index);
        }
        self.check_log()?;
        let (server, rank) = (self.items[index].server, self.items[index].rank);
        let step = self.stepper.step(self.pending_place(index));
        let asked = self.take_log(server, rank)?;
        let log = asked.seen;
        if asked.is_disturbed {
            self.saves_were_disturbed(index);
        }
        if asked.late.is_some()
            && let Some(late) = self.lates.last_mut()
        {
            late.parts = self.items[index].parts.clone();
        }
        self.tell(|| {
            let calls: Vec<String> = log
                .iter()
                .map(|seen| format!("{:?}{}", seen.call, if seen.good { "" } else { "!" }))
                .collect();
            format!(
                "step: save on server {server} rank {rank}: {}, {step:?}",
                calls.join(" ")
            )
        });
        for seen in &log {
            self.check_page(seen)?;
            let known = &self.oracle.pages[&seen.key];
            let mine = self.oracle.key(known.block, known.kind, rank) == seen.key.as_slice();
            let item = &mut self.items[index];
            let mut owners = Vec::new();
            for part in &mut item.parts {
                if part.mark == known.block {
                    if seen.call == Call::Put || seen.good {
                        part.done |= 1 << known.kind;
                    }
                    owners.push((part.id, part.life, part.block));
                }
            }
            if owners.is_empty() || !mine {
                broken!(
                    "only what was computed is published",
                    "rank {rank} asks the pool about kind {} of a block that is not due",
                    known.kind
                );
            }
            if seen.call == Call::Put {
                self.tally.saved_pages += 1;
                if !owners.iter().any(|owner| self.owns(server, rank, owner.1)) {
                    broken!(
                        "pages that were given back are not read",
                        "rank {rank} puts a block of {owners:?}"
                    );
                }
                // The scheduler hears of what its own worker could not save.
                if !seen.good && rank == 0 {
                    let sure = owners.len() == 1;
                    let hosts = &mut self.servers[server];
                    for (_, life, block) in owners {
                        if let Some(req) = hosts.reqs.iter_mut().find(|req| req.life == life) {
                            match sure {
                                true => {
                                    req.retries.insert(block, hosts.builds);
                                }
                                false => req.perhaps.push(block),
                            }
                        }
                    }
                }
            }
        }
        if step == Some(kvbridge::lane::Step::Done) {
            let item = self.items.remove(index);
            let mut wanted = 0u32;
            for (number, kind) in self.setup.kinds.iter().enumerate() {
                if kind.part == kvbridge::layout::Part::Sharded || rank == 0 {
                    wanted |= 1 << number;
                }
            }
            for part in item.parts.iter().filter(|part| part.must) {
                if part.done & wanted != wanted {
                    if item.disturbed.is_some() {
                        self.save_again(&item, part);
                        continue;
                    }
                    broken!(
                        "what was computed is published",
                        "rank {rank}: block {} of request {} (life {})",
                        part.block,
                        part.id,
                        part.life
                    );
                }
            }
        }
        Ok(())
    }

    /// Every token that counts as computed has its KV on every rank.
    pub fn check_computed(&self) -> Outcome {
        for (server, hosts) in self.servers.iter().enumerate() {
            for req in hosts
                .reqs
                .iter()
                .filter(|req| !req.lost && req.state > State::Matched)
            {
                for (rank, host) in hosts.ranks.iter().enumerate() {
                    for (kind, what) in self.setup.kinds.iter().enumerate() {
                        for block in 0..req.computed.div_ceil(T) {
                            let page = req.pages[what.group][block];
                            if page < 0 {
                                continue;
                            }
                            let found = host.cache.read(kind, page);
                            let shard = shard(self.setup, kind, rank);
                            for token in block * T..req.computed.min((block + 1) * T) {
                                let mark = req.mark(token, self.setup.lookahead);
                                let kv = crate::oracle::kv(mark, kind, shard).to_le_bytes();
                                let place = token % T * 8;
                                if found[place..place + 8] != kv {
                                    broken!(
                                        "no computed token lacks its KV",
                                        "server {server} rank {rank} request {} token {token} kind {kind}",
                                        req.id
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The history is over: everything ends, and everything is free.
    pub fn finish(&mut self) -> Outcome {
        self.tell(|| "the end: everything is finished".to_owned());
        (0..self.servers.len()).for_each(|server| self.open_doors(server));
        if self.ways.late {
            (0..self.servers.len()).for_each(|server| self.calm(server));
            self.return_all()?;
        }
        if !self.over {
            self.end_all()?;
        }
        self.shut_down()
    }

    fn end_all(&mut self) -> Outcome {
        self.check_computed()?;
        while !self.items.is_empty() && !self.over {
            self.step(0)?;
        }
        for server in 0..self.servers.len() {
            if !self.over {
                self.do_poll(server, Rng::new(self.tally.events as u64))?;
            }
            if !self.over {
                self.end_requests(server)?;
            }
            if !self.over && self.tally.events.is_multiple_of(4) {
                self.servers[server].built.clear();
                self.still_loads(server)?;
                self.end_requests(server)?;
            }
        }
        Ok(())
    }

    fn end_requests(&mut self, server: usize) -> Outcome {
        let rng = Rng::new(7);
        self.do_take_failed(server, rng.clone())?;
        while !self.servers[server].reqs.is_empty() {
            // What is not computed yet never will be: all passes are thrown away.
            self.servers[server].built.clear();
            self.end(server, 0, FinishReason::Ended, &mut Rng::new(1))?;
        }
        self.do_poll(server, rng.clone())?;
        let start = std::time::Instant::now();
        while self.threads && !self.servers[server].pins.is_empty() && !self.over {
            if start.elapsed().as_secs() > 20 {
                broken!("what has ended is reported", "still waiting after 20 s");
            }
            std::thread::yield_now();
            self.do_poll(server, rng.clone())?;
        }
        if self.over {
            return Ok(());
        }
        self.check()?;
        let hosts = &self.servers[server];
        if !hosts.pins.is_empty() {
            broken!(
                "in the end all is free",
                "{} requests are pinned",
                hosts.pins.len()
            );
        }
        if hosts.free.iter().any(|free| free.len() != SLOTS) {
            broken!("in the end all is free", "pages are missing");
        }
        if hosts.scheduler.live_requests() != 0 {
            broken!("in the end all is free", "the scheduler keeps records");
        }
        Ok(())
    }

    fn shut_down(&mut self) -> Outcome {
        for hosts in &mut self.servers {
            for rank in &mut hosts.ranks {
                let handle = rank.worker.handle();
                let start = std::time::Instant::now();
                // Nobody waits for what was queued of requests that were reset.
                let flying = |gauges: Gauges| gauges.loads_in_flight + gauges.saves_in_flight > 0;
                while self.threads && flying(handle.gauges()) {
                    if start.elapsed().as_secs() > 20 {
                        break;
                    }
                    std::thread::yield_now();
                }
                let before = handle.gauges();
                if let Err(error) = rank.worker.shutdown(std::time::Duration::from_secs(10)) {
                    broken!("a legal call is not refused", "shutdown: {error}");
                }
                let after = handle.gauges();
                for (gauges, free) in [(before, !self.over), (after, true)] {
                    if free && (flying(gauges) || gauges.loads_queued > 0) {
                        broken!("in the end all is free", "in flight: {gauges:?}");
                    }
                }
            }
        }
        self.check()?;
        let state = self.pool.state();
        for object in state.objects.iter().filter(|object| !object.damaged) {
            let known = self.oracle.pages.get(&object.key);
            if known.is_none_or(|known| known.bytes != object.bytes[..PAGE]) {
                broken!(
                    "a page in the pool is what its key says",
                    "found at the end"
                );
            }
        }
        Ok(())
    }
}
