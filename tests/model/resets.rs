//! Allocations that are released without the handshake, or beside it: what was queued of them must leave
//! pages alone that others have by now.

use kvbridge::scheduler::FinishReason;

use crate::ends::again;
use crate::random::Rng;
use crate::world::{Outcome, Req, State, World};

impl World<'_> {
    /// Whether pages can be taken back without the handshake: nothing is on its way to ranks that would not
    /// hear of it. On the scheduler's own rank not even queued saves stand against it.
    pub fn is_quiet(&self, server: usize, req: &Req) -> bool {
        let hosts = &self.servers[server];
        let hear = || {
            !req.is_landing()
                && !hosts.is_travelling(req.life)
                && !self.is_saving(server, req.id, Some(req.life))
                && !hosts.is_busy(req.life)
                && !self.is_bound(server, req.life)
        };
        req.state > State::Matched
            && (self.setup.world == 1 || hear())
            // Nobody can take pages back from the pool itself.
            && !self.is_lent(server, None, req.id, Some(req.life))
    }

    /// The allocation was released and the request will run again.
    pub fn do_reset(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let Some(at) = self.pick(server, &mut rng, |req| self.is_quiet(server, req)) else {
            return Ok(false);
        };
        self.reset(server, at)
    }

    pub fn reset(&mut self, server: usize, at: usize) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let req = hosts.reqs[at].clone();
        hosts.scheduler.reset(req.id).unwrap();
        self.tell(|| format!("reset: request {}", req.id));
        self.give_pages(server, &req.pages);
        self.start_over(server, at, &req);
        Ok(true)
    }

    /// Whether it can start over while saves of it are queued, in one of the ways of `do_reset_saving`.
    pub fn can_reset_saving(&self, server: usize, req: &Req) -> bool {
        req.state > State::Matched
            && self.is_saving(server, req.id, Some(req.life))
            && self.can_end(server, req)
    }

    /// Saves of a request are queued as it starts over.
    pub fn do_reset_saving(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let Some(at) = self.pick(server, &mut rng, |req| self.can_reset_saving(server, req)) else {
            return Ok(false);
        };
        let req = &self.servers[server].reqs[at];
        if self.is_quiet(server, req) && rng.chance(3, 4) {
            let tells = !self.can_restart(server, req) || rng.chance(2, 3);
            return match tells {
                true => self.reset(server, at),
                false => self.ask_in_place(server, at, &mut rng),
            };
        }
        // Its pages stay until every rank has reported it. To the scheduler it is nobody any more.
        let id = req.id;
        self.end(server, at, FinishReason::Preempted, &mut rng)?;
        self.servers[server].scheduler.reset(id).unwrap();
        self.tell(|| format!("reset: request {id}, which was preempted"));
        Ok(true)
    }

    pub fn can_restart(&self, server: usize, req: &Req) -> bool {
        // The next question tells that it is another life.
        let ran = req.state == State::Running
            || req.state == State::Allocated && req.is_on_its_way()
            || req.is_spoilt();
        ran && self.is_quiet(server, req)
            && !self.servers[server].is_busy(req.life)
            && !self.is_bound(server, req.life)
    }

    /// Whether the engine can keep to itself that it begins anew: who does not hear of it goes on saving.
    pub fn can_restart_unheard(&self, server: usize, req: &Req) -> bool {
        self.can_restart(server, req) && !self.is_saving(server, req.id, Some(req.life))
    }

    /// The request begins anew, and the engine does not say so.
    pub fn do_restart(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let may = |req: &Req| self.can_restart_unheard(server, req);
        let Some(at) = self.pick(server, &mut rng, may) else {
            return Ok(false);
        };
        let req = self.servers[server].reqs[at].clone();
        self.tell(|| format!("silent restart: request {}", req.id));
        self.give_pages(server, &req.pages);
        self.start_over(server, at, &req);
        self.inherit_pin(server, at, &req);
        Ok(true)
    }

    /// The next life is asked about while the pages are still those of the last one, which go then.
    fn ask_in_place(&mut self, server: usize, at: usize, rng: &mut Rng) -> Outcome<bool> {
        let req = self.servers[server].reqs[at].clone();
        if self.servers[server].announce.contains(&req.id) {
            return Ok(false);
        }
        self.tell(|| {
            format!(
                "another life of request {} while its saves are queued",
                req.id
            )
        });
        self.start_over(server, at, &req);
        self.inherit_pin(server, at, &req);
        self.ask_anew(server, at, 0, rng.below(12))?;
        self.give_pages(server, &req.pages);
        Ok(true)
    }

    /// Whether earlier saves are in flight is not known to the scheduler, where it was not told of the end.
    fn inherit_pin(&mut self, server: usize, at: usize, before: &Req) {
        self.servers[server].reqs[at].emitted = before.emitted || before.is_on_its_way();
    }

    /// What is queued of this life is nobody's, and need not be done any more.
    fn start_over(&mut self, server: usize, at: usize, req: &Req) {
        self.forget_loads(server, 0..1, |life| life == req.life);
        let items = self.items.iter_mut().filter(|item| item.server == server);
        for part in items.flat_map(|item| &mut item.parts) {
            part.must &= part.life != req.life;
        }
        let hosts = &mut self.servers[server];
        if req.lost && !req.lost_known {
            hosts.perhaps_failed.push(req.id);
        }
        hosts.ended.push(req.life);
        hosts.reqs[at] = again(req);
    }
}
