//! What the scheduler offers: held against the pool, asked for again, given back in parts.

use kvbridge::keys::Tokens;
use kvbridge::scheduler::Request;

use crate::oracle::scope;
use crate::random::Rng;
use crate::setup::T;
use crate::world::{Memo, Outcome, Req, State, World, broken};

impl World<'_> {
    /// The same question again before anything was allocated.
    pub fn do_requery(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let Some(at) = self.pick(server, &mut rng, |req| req.state == State::Matched) else {
            return Ok(false);
        };
        if self.ways.reserves && rng.chance(1, 3) {
            return self.reserve_again(server, at, &mut rng);
        }
        let req = &mut self.servers[server].reqs[at];
        let most = (req.prompt - 1) / T;
        // The local match grew, mostly.
        req.local = match rng.below(4) {
            0 => req.local,
            1 => rng.below(most + 1) * T,
            _ => (req.local / T + rng.below(3)).min(most) * T,
        };
        self.ask(server, at)?;
        Ok(true)
    }

    /// Blocks stored in all groups and shards from `from` on, up to block `most`.
    pub fn stored_end(&self, req: &Req, from: usize, most: usize) -> usize {
        let state = self.pool.state();
        let mut block = from;
        while block < most {
            let keys = self.oracle.keys(self.oracle.block(&req.marks, block));
            if keys.is_empty() || !keys.iter().all(|key| state.holds(key)) {
                break;
            }
            block += 1;
        }
        block
    }

    /// Asks the scheduler, and holds its answer against what the pool has.
    pub fn ask(&mut self, server: usize, at: usize) -> Outcome {
        let req = self.servers[server].reqs[at].clone();
        let reservation = self.new_reservation(server);
        let hosts = &mut self.servers[server];
        let request = request(&req, hosts.place.context);
        let faults = self.pool.state().failed[0];
        let answer = match reservation {
            None => hosts.scheduler.match_request(&request, req.local as u64),
            Some(id) => hosts.scheduler.reserve(&request, req.local as u64, id),
        };
        let disturbed = self.pool.state().failed[0] > faults;
        self.check_lookup(server)?;
        let (id, local) = (req.id, req.local);
        let offer = match answer {
            Ok(offer) => offer,
            Err(error) => broken!("a legal call is not refused", "match {id}: {error}"),
        };
        let tokens = offer.tokens as usize;
        self.tell(|| {
            let (prompt, state) = (req.prompt, req.state);
            format!("match: request {id}, {prompt} tokens, {local} local ({state:?}): {tokens} are offered")
        });
        let hosts = &self.servers[server];
        let end = local + tokens;
        if offer.is_async != (tokens > 0 && self.ways.parks)
            || !tokens.is_multiple_of(T)
            || (tokens > 0 && end >= req.prompt)
        {
            broken!(
                "an offer is whole blocks and leaves a token",
                "request {id}: {offer:?} behind {local} of {} tokens",
                req.prompt
            );
        }
        let mut most = ((req.prompt - 1) / T).min(self.oracle.blocks(req.prompt));
        let failed = hosts.failed.get(&id).copied();
        if let Some((block, mark)) = failed
            && req.prompt > block * T
            && self.oracle.blocks(req.prompt) > block
            && self.oracle.block(&req.marks, block) == mark
        {
            most = most.min(block);
            if tokens > 0 && end > block * T {
                broken!(
                    "a block that failed is not offered again",
                    "request {id}: {tokens} tokens behind {local}, but block {block} failed"
                );
            }
        }
        let mut expected = local;
        let aligned = local.is_multiple_of(T);
        let memo = req.memo.filter(|memo| memo.builds == hosts.builds);
        let mut exact = !disturbed && !hosts.may_have_failed && !self.threads;
        let mut memo_now = req.memo;
        if hosts.reads() && aligned {
            let fresh = self.stored_end(&req, local / T, most.max(local / T)) * T;
            expected = match memo {
                None => fresh,
                // Asked before: the end stays, wherever the local match ends now.
                Some(memo) if local >= memo.from => memo.end.max(local),
                Some(memo) => {
                    exact = false;
                    memo.end.max(local)
                }
            };
            expected = expected.min((most * T).max(local));
            if memo.is_none() {
                memo_now = Some(Memo {
                    from: local,
                    end,
                    builds: hosts.builds,
                });
            }
        }
        if end > expected {
            let known = memo.map_or("the pool", |_| "the answer before");
            broken!(
                "an offer is stored, or as said before",
                "request {id}: tokens {local} … {end} are offered, {known} has them to {expected}"
            );
        }
        if exact && end < expected {
            broken!(
                "everything stored is offered",
                "request {id}: tokens {local} … {end} are offered, stored to {expected}"
            );
        }
        let req = &mut self.servers[server].reqs[at];
        req.offered = local..end;
        req.made = tokens > 0;
        req.memo = memo_now;
        req.reservation = reservation;
        Ok(())
    }

    /// Part of the offer is given back.
    pub fn do_cancel(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        if self.ways.reserves {
            return Ok(false);
        }
        let may = |req: &Req| self.can_cancel(req);
        let Some(at) = self.pick(server, &mut rng, may) else {
            return Ok(false);
        };
        let hosts = &mut self.servers[server];
        let req = &mut hosts.reqs[at];
        let open = match &req.load {
            Some(load) => load.blocks.start * T..load.blocks.end * T,
            None => req.offered.clone(),
        };
        let blocks = 1 + rng.below((open.end - open.start) / T);
        let (given, left) = match rng.chance(1, 2) {
            true => {
                let to = open.start + blocks * T;
                (open.start..to, to..open.end)
            }
            false => {
                let from = open.end - blocks * T;
                (from..open.end, open.start..from)
            }
        };
        let (from, to) = (given.start as u64, given.end as u64);
        if open.end - open.start > 2 * T {
            // A hole must not be cut.
            let hole =
                hosts
                    .scheduler
                    .cancel_load(req.id, (open.start + T) as u64, (open.end - T) as u64);
            if hole.is_ok() {
                broken!("an illegal call is refused", "a hole in {open:?}");
            }
        }
        if let Err(error) = hosts.scheduler.cancel_load(req.id, from, to) {
            broken!("a legal call is not refused", "cancel: {error}");
        }
        let id = req.id;
        if req.load.is_some() {
            self.cancel_parked(server, at, given, left);
            self.tell(|| format!("cancel: parked request {id}, tokens {from} … {to}"));
            return Ok(true);
        }
        if left.is_empty() || left.start > open.start {
            // The local match grew so far.
            req.local = given.end;
        }
        req.offered = if left.is_empty() {
            given.end..given.end
        } else {
            left
        };
        // What is asked now, and answered from memory, is not followed any further.
        req.memo = req.memo.map(|memo| Memo {
            from: usize::MAX,
            ..memo
        });
        self.tell(|| format!("cancel: request {id}, tokens {from} … {to}"));
        Ok(true)
    }

    /// Whether part of its offer can still be given back.
    pub fn can_cancel(&self, req: &Req) -> bool {
        match (&req.load, req.state) {
            (Some(load), State::Parked) => !load.emitted && !load.blocks.is_empty(),
            (_, State::Matched) => !req.offered.is_empty(),
            _ => false,
        }
    }

    /// The load of a request that is parked already becomes smaller.
    fn cancel_parked(
        &mut self,
        server: usize,
        at: usize,
        given: std::ops::Range<usize>,
        left: std::ops::Range<usize>,
    ) {
        let req = self.servers[server].reqs[at].clone();
        let mut computed = req.computed;
        if left.is_empty() || left.start >= given.end {
            // The local match grew so far.
            for token in given.clone() {
                let mark = req.mark(token, self.setup.lookahead);
                self.compute(server, &req.pages, token, mark);
            }
            computed = given.end;
        }
        let req = &mut self.servers[server].reqs[at];
        req.computed = computed;
        if let Some(load) = &mut req.load {
            load.blocks = match left.is_empty() {
                true => given.end / T..given.end / T,
                false => left.start / T..left.end / T,
            };
        }
    }
}

/// The question about a request.
pub fn request(req: &Req, context: bool) -> Request<'_> {
    Request {
        id: req.id,
        prompt: Tokens::I32(&req.tokens[..req.prompt]),
        scope: scope(req.scope),
        has_media: false,
        context_only: context,
    }
}
