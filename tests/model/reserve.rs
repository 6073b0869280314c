//! Reservations, the other protocol for what match, allocated and cancel do.

use std::ops::Range;

use kvbridge::scheduler::{Accepted, GroupPages};

use crate::offers::request;
use crate::random::Rng;
use crate::setup::T;
use crate::world::{Memo, Outcome, Req, State, World, broken};

impl World<'_> {
    /// A fresh id, where offers are held by reservations.
    pub fn new_reservation(&mut self, server: usize) -> Option<u64> {
        let hosts = &mut self.servers[server];
        hosts.reservations += u64::from(self.ways.reserves);
        self.ways.reserves.then_some(hosts.reservations)
    }

    /// Asks with the same id again: what is still held behind a local match that has moved?
    pub fn reserve_again(&mut self, server: usize, at: usize, rng: &mut Rng) -> Outcome<bool> {
        let req = self.servers[server].reqs[at].clone();
        let Some(reservation) = req.reservation else {
            return Ok(false);
        };
        let held = req.offered.clone();
        let most = (req.prompt - 1) / T;
        let local = match rng.below(4) {
            0 => rng.below(req.prompt + 1),
            1 => held.start,
            _ => (held.start / T + rng.below(3)).min(most) * T,
        };
        let hosts = &mut self.servers[server];
        let question = request(&req, hosts.place.context);
        let answer = hosts
            .scheduler
            .reserve(&question, local as u64, reservation);
        self.check_lookup(server)?;
        let offer = match answer {
            Ok(offer) => offer,
            Err(error) => broken!("a legal call is not refused", "reserve {}: {error}", req.id),
        };
        let inside = local.is_multiple_of(T) && (held.start..=held.end).contains(&local);
        let expected = if inside { held.end - local } else { 0 };
        let is_async = expected > 0 && self.ways.parks;
        self.tell(|| {
            format!(
                "reserve again: request {}, {local} local: {offer:?}",
                req.id
            )
        });
        if (offer.tokens as usize, offer.is_async) != (expected, is_async) {
            broken!(
                "a reservation holds what it holds",
                "request {}, {local} tokens local: {offer:?}, {held:?} is held",
                req.id
            );
        }
        // What the pool was asked meanwhile answers the next question.
        let known = self.stored_end(&req, local / T, most.max(local / T)) * T;
        let hosts = &mut self.servers[server];
        let builds = hosts.builds;
        let req = &mut hosts.reqs[at];
        if local.is_multiple_of(T) {
            let before = req.memo.filter(|memo| memo.builds == builds);
            req.memo = Some(Memo {
                from: usize::MAX,
                end: before.map_or(known, |memo| memo.end),
                builds,
            });
        }
        req.made = expected > 0;
        req.local = local;
        // What the local match has grown over is given back; without an offer, all.
        req.offered = match expected {
            0 => held.end..held.end,
            _ => local..held.end,
        };
        let given = held.start..req.offered.start;
        if !given.is_empty() {
            self.release(server, reservation, given)?;
        }
        Ok(true)
    }

    fn release(&mut self, server: usize, reservation: u64, given: Range<usize>) -> Outcome {
        let scheduler = &mut self.servers[server].scheduler;
        let (from, to) = (given.start as u64, given.end as u64);
        match scheduler.release_reservation(reservation, from, to) {
            Ok(()) => Ok(()),
            Err(error) => broken!(
                "a legal call is not refused",
                "release {given:?} of {reservation}: {error}"
            ),
        }
    }

    /// All but the first blocks of what is held are given back.
    pub fn keep_part(&mut self, server: usize, at: usize, blocks: usize) -> Outcome {
        let req = &mut self.servers[server].reqs[at];
        let (Some(reservation), held) = (req.reservation, req.offered.clone()) else {
            return Ok(());
        };
        let left = held.start + blocks * T;
        req.offered = held.start..left;
        if left < held.end {
            self.release(server, reservation, left..held.end)?;
        }
        Ok(())
    }

    /// Parts of a reservation are given back, once and again.
    pub fn do_release(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let may = |req: &Req| {
            req.state == State::Matched && req.reservation.is_some() && !req.offered.is_empty()
        };
        let Some(at) = self.pick(server, &mut rng, may) else {
            return Ok(false);
        };
        let req = &self.servers[server].reqs[at];
        let (held, Some(reservation)) = (req.offered.clone(), req.reservation) else {
            return Ok(false);
        };
        let blocks = (held.end - held.start) / T;
        if blocks > 2 {
            let hole = ((held.start + T) as u64, (held.end - T) as u64);
            let scheduler = &mut self.servers[server].scheduler;
            if scheduler
                .release_reservation(reservation, hole.0, hole.1)
                .is_ok()
            {
                broken!("an illegal call is refused", "a hole in {held:?}");
            }
        }
        let part = (1 + rng.below(blocks)) * T;
        let head = rng.chance(1, 2);
        let (given, left) = match head {
            true => (held.start..held.start + part, held.start + part..held.end),
            false => (held.end - part..held.end, held.start..held.end - part),
        };
        for _ in 0..1 + rng.below(2) {
            self.release(server, reservation, given.clone())?;
        }
        let req = &mut self.servers[server].reqs[at];
        req.local = left.start;
        req.offered = left;
        req.memo = req.memo.map(|memo| Memo {
            from: usize::MAX,
            ..memo
        });
        let id = req.id;
        self.tell(|| format!("release: request {id}, tokens {given:?} of {reservation}"));
        Ok(true)
    }

    /// Ids that hold nothing are ignored, and an id that another request holds is refused.
    pub fn do_stale(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let reservation = self.some_id(server, &mut rng);
        let held = |req: &&Req| {
            let spent = req.state == State::Running || req.is_on_its_way();
            req.reservation == Some(reservation) && !spent
        };
        let holder = self.servers[server].reqs.iter().find(held);
        let holder = holder.map(|req| req.id);
        if holder.is_none() {
            let from = rng.below(3) * T;
            self.release(server, reservation, from..from + T)?;
        }
        self.tell(|| format!("stale: reservation {reservation}, held by {holder:?}"));
        let Some(holder) = holder else {
            return Ok(true);
        };
        let hosts = &mut self.servers[server];
        let other = hosts
            .reqs
            .iter()
            .find(|req| req.id != holder && req.prompt > 0);
        if let Some(other) = other {
            let question = request(other, hosts.place.context);
            if hosts.scheduler.reserve(&question, 0, reservation).is_ok() {
                broken!(
                    "an illegal call is refused",
                    "reservation {reservation} of {holder} is given to {}",
                    other.id
                );
            }
        }
        Ok(true)
    }

    fn some_id(&self, server: usize, rng: &mut Rng) -> u64 {
        let last = self.servers[server].reservations;
        match rng.below(4) {
            0 => 5_000_000,
            _ => last.saturating_sub(rng.below(12) as u64),
        }
    }

    /// Which requests accept their reservation with the next pass, besides ids that hold nothing:
    /// reservation and request.
    pub fn acceptances(&self, server: usize, ready: &[usize], rng: &mut Rng) -> Vec<(u64, usize)> {
        let reqs = &self.servers[server].reqs;
        let mut all = Vec::new();
        for (at, req) in reqs.iter().enumerate() {
            let Some(reservation) = req.reservation else {
                continue;
            };
            // A synchronous one belongs to the request's step.
            let now = match req.load {
                Some(_) => rng.chance(3, 4),
                None => ready.contains(&at),
            };
            if req.state == State::Accepting && now {
                all.push((reservation, at));
                if rng.chance(1, 8) {
                    all.push((reservation, at));
                }
            }
        }
        if self.ways.reserves && !reqs.is_empty() && rng.chance(1, 4) {
            let (id, at) = (self.some_id(server, rng), rng.below(reqs.len()));
            let spent = reqs[at].state == State::Running || reqs[at].is_on_its_way();
            let holds = reqs[at].reservation == Some(id) && !spent;
            if !holds {
                all.insert(rng.below(all.len() + 1), (id, at));
            }
        }
        all
    }
}

/// An acceptance, with the request's whole page lists.
pub fn accepted<'a>(
    (reservation_id, request_id): (u64, u64),
    pages: &'a [GroupPages<'a>],
) -> Accepted<'a> {
    Accepted {
        reservation_id,
        request_id,
        pages,
    }
}
