//! How requests end: finished, cancelled, preempted, lost, reported.

use kvbridge::scheduler::FinishReason;

use crate::random::Rng;
use crate::world::{Outcome, Pin, Plan, Req, State, World, broken};

impl World<'_> {
    /// Whether an engine can end the request now. Ranks beside the scheduler's own do not hear of it
    /// at once: there it does so between passes, with none built that is not bound, and no load of it
    /// on its way.
    pub fn can_end(&self, server: usize, req: &Req) -> bool {
        let hosts = &self.servers[server];
        let takes = |plan: &Plan| plan.life == req.life;
        let loads = |plan: &Plan| takes(plan) && !plan.restore.is_empty();
        let mut built = hosts.built.iter();
        let mut bound = hosts.bound.iter().filter(|pass| !pass.started);
        self.setup.world == 1
            || !hosts.is_travelling(req.life)
                && !built.any(|pass| pass.plans.iter().any(takes))
                && !bound.any(|pass| pass.plans.iter().any(loads))
    }

    pub fn is_complete(&self, server: usize, req: &Req) -> bool {
        let context = self.servers[server].place.context;
        let end = if context { req.prompt } else { req.limit };
        req.state == State::Running
            && req.tokens.len() >= end
            && req.computed >= req.prompt
            && !self.servers[server].is_busy(req.life)
    }

    pub fn do_finish(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let Some(at) = self.pick(server, &mut rng, |req| {
            !req.lost_known && self.is_complete(server, req) && self.can_end(server, req)
        }) else {
            return Ok(false);
        };
        self.end(server, at, FinishReason::Ended, &mut rng)
    }

    pub fn do_abort(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let Some(at) = self.pick(server, &mut rng, |req| self.can_end(server, req)) else {
            return Ok(false);
        };
        self.end(server, at, FinishReason::Cancelled, &mut rng)
    }

    pub fn do_preempt(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let lost = self.pick(server, &mut rng, |req| {
            req.lost_known && self.can_end(server, req)
        });
        let any = self.pick(server, &mut rng, |req| {
            !req.pages.is_empty() && req.state > State::Matched && self.can_end(server, req)
        });
        let Some(at) = lost.or(any) else {
            return Ok(false);
        };
        self.end(server, at, FinishReason::Preempted, &mut rng)
    }

    pub fn end(
        &mut self,
        server: usize,
        at: usize,
        reason: FinishReason,
        rng: &mut Rng,
    ) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let req = hosts.reqs.remove(at);
        let id = req.id;
        let pinned = hosts.scheduler.finished(id, reason);
        self.tell(|| format!("finished: request {id}, {reason:?}: pinned = {pinned}"));
        let hosts = &mut self.servers[server];
        if reason != FinishReason::Preempted {
            hosts.failed.remove(&id);
        }
        let needed = req.emitted || req.is_on_its_way() || hosts.pinned.contains(&id);
        if pinned != needed {
            broken!(
                "pages stay exactly while transfers may need them",
                "finished {id}: {pinned}, but a transfer was emitted: {needed}"
            );
        }
        if reason == FinishReason::Preempted {
            hosts.reqs.push(again(&req));
        }
        if req.lost && !req.lost_known {
            hosts.perhaps_failed.push(id);
        }
        hosts.ended.push(req.life);
        let ranks = hosts.ranks.len();
        // Here it is known at once.
        self.forget_loads(server, 0..1, |life| life == req.life);
        let hosts = &mut self.servers[server];
        if pinned {
            if !hosts.pinned.contains(&id) {
                hosts.pinned.push(id);
            }
            hosts.announce.push(id);
            hosts.pins.push(Pin {
                req,
                announced: vec![false; ranks],
                reported: vec![false; ranks],
            });
        } else {
            if rng.chance(1, 4) {
                // Nobody has to, but it is reported all the same.
                hosts.announce.push(id);
            }
            self.give_pages(server, &req.pages);
        }
        Ok(true)
    }

    pub fn do_poll(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let loading = self.announce_loads(server, &mut rng);
        let announced = std::mem::take(&mut self.servers[server].announce);
        for pin in &mut self.servers[server].pins {
            pin.announced.fill(true);
        }
        let mut all = Vec::new();
        let ranks = self.servers[server].ranks.len();
        let over: Vec<u64> = self.servers[server]
            .pins
            .iter()
            .filter(|pin| announced.contains(&pin.req.id))
            .map(|pin| pin.req.life)
            .collect();
        self.forget_loads(server, 0..ranks, |life| over.contains(&life));
        for rank in 0..ranks {
            let host = &mut self.servers[server].ranks[rank];
            for id in &announced {
                if !host.awaited.contains(id) {
                    host.awaited.push(*id);
                }
            }
            let mut answer = host.worker.get_finished(&announced, &loading);
            if std::mem::take(&mut host.owes_fence) {
                if answer.is_ok() {
                    broken!("a missing fence is said", "rank {rank}");
                }
                // What was announced is known all the same.
                answer = host.worker.get_finished(&[], &[]);
            }
            let (saved, loaded) = match answer {
                Ok(reported) => (reported.saved.to_vec(), reported.loaded.to_vec()),
                Err(_) if self.threads && self.setup.world > 1 && self.ways.parks => {
                    self.over = true;
                    return Ok(true);
                }
                Err(error) => broken!("a legal call is not refused", "get_finished: {error}"),
            };
            let failed = host.worker.take_failed_async_loads().to_vec();
            self.take_loaded(server, rank, &loaded, &failed)?;
            for &id in &saved {
                self.take_report(server, rank, id)?;
            }
            // Nothing is left to wait for: an answer is due.
            let awaited = self.servers[server].ranks[rank].awaited.clone();
            for id in awaited {
                let mut items = self.items.iter();
                let in_flight = self.threads
                    || self.is_lent(server, Some(rank), id, None)
                    || items.any(|item| {
                        item.server == server
                            && item.rank == rank
                            && (item.load.as_ref().is_some_and(|job| job.id == id)
                                || item.parts.iter().any(|part| part.id == id))
                    });
                if !in_flight {
                    broken!(
                        "what has ended is reported",
                        "request {id} was announced on rank {rank}, saves nothing, and is not reported"
                    );
                }
            }
            all.push((saved, loaded, failed));
        }
        self.tell(|| format!("get_finished: {announced:?} and loads {loading:?} announced; saved, loaded, failed: {all:?}"));
        self.admit_loaded(server, &mut rng);
        let pins = std::mem::take(&mut self.servers[server].pins);
        for pin in pins {
            if pin.reported.iter().all(|reported| *reported) {
                self.give_pages(server, &pin.req.pages);
            } else {
                self.servers[server].pins.push(pin);
            }
        }
        Ok(true)
    }

    fn take_report(&mut self, server: usize, rank: usize, id: u64) -> Outcome {
        let host = &mut self.servers[server].ranks[rank];
        let Some(place) = host.awaited.iter().position(|awaited| *awaited == id) else {
            broken!(
                "what is reported was announced, once",
                "rank {rank} reports request {id}"
            );
        };
        host.awaited.swap_remove(place);
        let hosts = &mut self.servers[server];
        if rank == 0 {
            hosts.pinned.retain(|pinned| *pinned != id);
        }
        for pin in &mut hosts.pins {
            if pin.req.id != id || !pin.announced[rank] || pin.reported[rank] {
                continue;
            }
            let mut items = self.items.iter();
            let in_flight = items.any(|item| {
                item.server == server
                    && item.rank == rank
                    && item
                        .parts
                        .iter()
                        .any(|part| part.life == pin.req.life && part.must)
                    || item.is_load(server, rank, pin.req.life)
            });
            if in_flight {
                broken!(
                    "pages in flight are not given back",
                    "rank {rank} reports request {id} while a transfer of it is queued"
                );
            }
            pin.reported[rank] = true;
            let load = pin.req.load.as_ref().filter(|_| self.threads);
            for block in load.map_or(0..0, |load| load.blocks.clone()) {
                // What landed meanwhile was not looked at.
                for (kind, what) in self.setup.kinds.iter().enumerate() {
                    let page = pin.req.pages[what.group][block];
                    hosts.ranks[rank].cache.accept(kind, page);
                }
            }
        }
        Ok(())
    }

    /// Which requests lost pages? The engine runs them again.
    pub fn do_take_failed(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        for rank in 0..self.servers[server].ranks.len() {
            let host = &mut self.servers[server].ranks[rank];
            let failed = host.worker.take_failed_loads().to_vec();
            self.tell(|| format!("take_failed_loads on rank {rank}: {failed:?}"));
            if self.setup.world > 1 {
                if !failed.is_empty() {
                    broken!("no rank hands back alone", "rank {rank}: {failed:?}");
                }
                continue;
            }
            let hosts = &mut self.servers[server];
            let perhaps = std::mem::take(&mut hosts.perhaps_failed);
            for req in &mut hosts.reqs {
                let told = failed.contains(&req.id);
                if req.lost && !req.lost_known && !told {
                    broken!(
                        "a lost page is reported",
                        "request {} lacks pages and is not handed back",
                        req.id
                    );
                }
                if told && !req.lost && !perhaps.contains(&req.id) {
                    broken!(
                        "what arrived is not handed back",
                        "request {} has all its pages",
                        req.id
                    );
                }
                req.lost_known |= req.lost;
            }
            for id in &failed {
                let known = hosts.reqs.iter().any(|req| req.id == *id);
                if !known && !perhaps.contains(id) {
                    broken!("what arrived is not handed back", "request {id} is unknown");
                }
            }
        }
        self.servers[server].perhaps_failed.clear();
        Ok(true)
    }
}

/// The same request before its next life; what it generated is part of its prompt now.
pub fn again(req: &Req) -> Req {
    let mut next = Req::new(req.id, req.scope);
    next.tokens = req.tokens.clone();
    next.marks = req.marks.clone();
    next
}
