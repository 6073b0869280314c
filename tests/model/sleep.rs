//! The engine sleeps: its layout goes, and another one with the same pages comes later.

use kvbridge::scheduler::FinishReason;

use crate::memory::Cache;
use crate::offers::request;
use crate::random::Rng;
use crate::world::{Outcome, Req, SLOTS, State, World, broken};

impl World<'_> {
    /// Between passes the layout is unregistered and registered again; all requests start over.
    pub fn do_sleep(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        if self.servers[server].reqs.is_empty() {
            return Ok(false);
        }
        // No thread may be in a fence that this one would have to open.
        if self.threads || rng.chance(1, 2) {
            self.open_doors(server);
        }
        // A deadline that passes while memory is registered is not the engine's to mend.
        self.calm(server);
        self.tell(|| "the engine goes to sleep".to_owned());
        // Nothing that was built before is bound any more.
        self.servers[server].built.clear();
        if rng.chance(1, 3) {
            self.start_all_over(server, &mut rng, false)?;
        }
        for rank in 0..self.servers[server].ranks.len() {
            self.unregister(server, rank)?;
        }
        if let Some(old) = self.servers[server].bound.take().filter(|old| !old.started) {
            self.loads_never_started(server, &old);
        }
        self.match_asleep(server, &mut rng)?;
        for _ in 0..rng.below(3) {
            self.do_poll(server, rng.clone())?;
        }
        if rng.chance(1, 2) {
            self.start_all_over(server, &mut rng, true)?;
        }
        for rank in 0..self.servers[server].ranks.len() {
            let cache = Cache::new(self.setup, SLOTS);
            let host = &mut self.servers[server].ranks[rank];
            let gone = std::mem::replace(&mut host.cache, cache);
            host.gone.push(gone);
            if let Err(error) = host.worker.register_layout(host.cache.register()) {
                broken!("a legal call is not refused", "register_layout: {error}");
            }
        }
        for group in 0..self.setup.groups.len() {
            (0..SLOTS as i32).for_each(|page| self.spoil(server, group, page));
        }
        self.start_all_over(server, &mut rng, true)?;
        self.tell(|| "the engine is awake".to_owned());
        Ok(true)
    }

    /// Requests that have pages give them back, as far as they can. Where ranks would not hear of it,
    /// those that wait for loads leave by the handshake.
    fn start_all_over(&mut self, server: usize, rng: &mut Rng, asleep: bool) -> Outcome {
        let many = self.setup.world > 1;
        let lives: Vec<u64> = self.servers[server]
            .reqs
            .iter()
            .filter(|req| req.state != State::Waiting)
            .map(|req| req.life)
            .collect();
        for life in lives {
            let Some(at) = self.position(server, life) else {
                continue;
            };
            let req = &self.servers[server].reqs[at];
            let travelled = req.is_on_its_way();
            let (quiet, ends) = match asleep {
                true => (!(many && travelled), true),
                false => (self.is_quiet(server, req), self.can_end(server, req)),
            };
            let has_pages = req.state > State::Matched;
            if quiet && !(has_pages && ends && rng.chance(1, 4)) {
                self.reset(server, at)?;
            } else if has_pages && ends {
                self.end(server, at, FinishReason::Preempted, rng)?;
            }
        }
        Ok(())
    }

    fn unregister(&mut self, server: usize, rank: usize) -> Outcome {
        let result = self.servers[server].ranks[rank].worker.unregister_layout();
        if let Err(error) = result {
            broken!("a legal call is not refused", "unregister_layout: {error}");
        }
        let (own, others) = std::mem::take(&mut self.items)
            .into_iter()
            .partition(|item| (item.server, item.rank) == (server, rank));
        self.items = others;
        let reqs = &mut self.servers[server].reqs;
        for load in reqs.iter_mut().filter_map(|req| req.load.as_mut()) {
            // What had not ended is not known.
            load.given_up |= self.threads;
        }
        for job in own
            .into_iter()
            .filter_map(|item: crate::world::Item| item.load)
        {
            let Some(at) = self.position(server, job.life).filter(|_| job.wanted) else {
                continue;
            };
            let req = &mut self.servers[server].reqs[at];
            let Some(load) = &mut req.load else { continue };
            load.given_up = !job.blocks.is_empty();
            if self.setup.world > 1 {
                // This rank will not report it any more.
                load.given_up = true;
                load.reported[rank] = true;
                continue;
            }
            if !job.blocks.is_empty() {
                let first = job.bad.unwrap_or(job.blocks.start);
                let (id, mark) = (req.id, self.oracle.block(&req.marks, first));
                self.note_failed_block(server, id, first, mark);
            }
        }
        self.check()
    }

    /// Asleep nothing is offered.
    fn match_asleep(&mut self, server: usize, rng: &mut Rng) -> Outcome {
        let may = |req: &Req| req.state == State::Waiting;
        let Some(at) = self.pick(server, rng, may) else {
            return Ok(());
        };
        let hosts = &mut self.servers[server];
        let mut req = hosts.reqs[at].clone();
        if hosts.announce.contains(&req.id) {
            return Ok(());
        }
        req.prompt = req.tokens.len();
        let question = request(&req, hosts.place.context);
        match hosts.scheduler.match_request(&question, 0) {
            Ok(offer) if offer.tokens == 0 => {}
            other => broken!("asleep nothing is offered", "request {}: {other:?}", req.id),
        }
        hosts.scheduler.reset(req.id).unwrap();
        hosts.reqs[at].emitted = false;
        Ok(())
    }
}
