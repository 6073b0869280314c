//! The pool uses the cache itself: which pages it may still use after a call that missed its deadline.

use std::ops::Range;

use crate::pool::{Call, Seen};
use crate::world::{Req, World};

impl World<'_> {
    /// Whether a late call may read pages of this life (of any, for `None`) of the id.
    pub fn is_lent(&self, server: usize, rank: Option<usize>, id: u64, life: Option<u64>) -> bool {
        let here = |place: usize| match rank {
            Some(rank) => place == self.place(server, rank),
            None => place / self.setup.world as usize == server,
        };
        self.ways.direct
            && self.lates.iter().any(|late| {
                let mut parts = late.parts.iter();
                here(late.place)
                    && parts.any(|part| part.id == id && life.is_none_or(|life| life == part.life))
            })
    }

    /// What the pool says did not come may be there all the same, and the request is handed back.
    pub fn count_as_lost(&mut self, server: usize, life: u64) {
        let mut reqs = self.servers[server].reqs.iter_mut();
        let req = reqs.find(|req| req.life == life);
        if let Some(load) = req.and_then(|req| req.load.as_mut()) {
            load.given_up = true;
        }
    }

    /// Lives of the bound pass of which the pool says on this rank that a page did not come. Pages are asked for in
    /// the order of the pass, those of a request up to the call that lost one.
    pub fn lost_in_words(&self, server: usize, rank: usize, log: &[Seen]) -> Vec<(usize, u64)> {
        let hosts = &self.servers[server];
        let mut expected = Vec::new();
        for plan in hosts.bound.iter().flat_map(|pass| &pass.plans) {
            // A single rank has heard of every end and of whom it handed back, and asks for nothing of theirs: a key
            // that it asks for is that of another request with the same prompt.
            let single = self.setup.world == 1;
            let own = hosts.reqs.iter().filter(|req| !(single && req.lost));
            let pins = hosts.pins.iter().filter(|_| !single);
            let mut all = own.chain(pins.map(|pin| &pin.req));
            let Some(req) = all.find(|req| req.life == plan.life) else {
                continue;
            };
            for block in plan.restore.clone().filter(|_| self.ways.direct) {
                let mark = self.oracle.block(&req.marks, block);
                let kinds = 0..self.setup.kinds.len();
                expected.extend(kinds.map(|kind| (plan.life, self.oracle.key(mark, kind, rank))));
            }
        }
        let mut expected = expected.into_iter();
        let mut lost: Vec<(usize, u64)> = Vec::new();
        let (mut before, mut call) = (0, usize::MAX);
        for seen in log.iter().filter(|seen| seen.call == Call::Get) {
            if seen.number != call {
                (before, call) = (lost.len(), seen.number);
            }
            let over = |life: u64| lost[..before].contains(&(rank, life));
            let own = expected.find(|(life, key)| *key == seen.key.as_slice() && !over(*life));
            if let Some((life, _)) = own.filter(|_| !seen.good) {
                lost.push((rank, life));
            }
        }
        lost
    }

    /// The load of the bound pass is late on this rank. True: the pool may write into the cache until it
    /// returns, and the rank is broken.
    pub fn lend_restored(&mut self, server: usize, rank: usize) -> bool {
        let hosts = &self.servers[server];
        let plans = hosts.bound.iter().flat_map(|pass| &pass.plans);
        let mut loads = Vec::new();
        for plan in plans {
            let pins = hosts.pins.iter().map(|pin| &pin.req);
            let mut all = hosts.reqs.iter().chain(pins);
            if let Some(req) = all.find(|req| req.life == plan.life) {
                loads.push((req.clone(), plan.restore.clone()));
            }
        }
        for (req, blocks) in loads {
            self.lend(server, rank, &req, blocks);
        }
        self.servers[server].ranks[rank].is_broken |= self.ways.direct;
        self.ways.direct
    }

    /// The same for the load of one request that waits for it.
    pub fn lend_parked(&mut self, server: usize, rank: usize, req: &Req) -> bool {
        let blocks = req.load.as_ref().map_or(0..0, |load| load.blocks.clone());
        self.lend(server, rank, req, blocks);
        self.servers[server].ranks[rank].is_broken |= self.ways.direct;
        self.ways.direct
    }

    fn lend(&mut self, server: usize, rank: usize, req: &Req, blocks: Range<usize>) {
        for block in blocks.filter(|_| self.ways.direct) {
            for (kind, what) in self.setup.kinds.iter().enumerate() {
                self.lent
                    .push((server, rank, kind, req.pages[what.group][block]));
            }
        }
    }
}
