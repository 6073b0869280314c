//! The engine's part before a pass: requests arrive, are looked up, get pages, change pages.

use std::ops::Range;

use kvbridge::scheduler::GroupPages;

use crate::oracle::no_tokens;
use crate::parked::Load;
use crate::random::Rng;
use crate::setup::T;
use crate::world::{LONGEST, Outcome, Req, State, World, broken};

/// Requests that a server has at most.
pub const MOST_REQS: usize = 7;

impl World<'_> {
    /// The pool knows some prompts from before.
    pub fn stock_pool(&mut self, mut rng: Rng) {
        let more = 5 * usize::from(self.ways.parks);
        for _ in 0..rng.below(6) + more {
            let scope = usize::from(rng.chance(1, 8));
            let mut req = Req::new(0, scope);
            write_prompt(&mut req, &mut rng);
            self.oracle.learn(scope, &req.tokens, &req.marks);
            for block in 0..self.oracle.blocks(req.tokens.len()) {
                let mark = self.oracle.block(&req.marks, block);
                for key in self.oracle.keys(mark) {
                    if !rng.chance(1, 30) {
                        self.pool.state().store(key, self.oracle.object(key));
                    }
                }
            }
        }
    }

    /// A request comes, or one that waits is tried again: what has the pool of it?
    pub fn do_match(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let hosts = &self.servers[server];
        let reqs = &hosts.reqs;
        // The end of an earlier life is announced before the next pass is prepared.
        let may = |req: &Req| req.state == State::Waiting && !hosts.announce.contains(&req.id);
        let waiting: Vec<usize> = (0..reqs.len()).filter(|&at| may(&reqs[at])).collect();
        let at = if !waiting.is_empty() && rng.chance(2, 3) {
            waiting[rng.below(waiting.len())]
        } else if reqs.len() < MOST_REQS {
            self.arrive(server, &mut rng)
        } else {
            return Ok(false);
        };
        let most = (self.servers[server].reqs[at].tokens.len() - 1) / T;
        let local = match rng.below(10) {
            0..=6 => 0,
            7..=8 => rng.below(most + 1) * T,
            _ => rng.below(self.servers[server].reqs[at].tokens.len() + 1),
        };
        self.ask_anew(server, at, local, rng.below(12))?;
        Ok(true)
    }

    /// A new life begins, with so many tokens in the engine's own cache.
    pub fn ask_anew(&mut self, server: usize, at: usize, local: usize, more: usize) -> Outcome {
        self.lives += 1;
        let groups = self.setup.groups.len();
        let context = self.servers[server].place.context;
        let req = &mut self.servers[server].reqs[at];
        req.life = self.lives;
        req.prompt = req.tokens.len();
        req.limit = match context {
            true => req.prompt,
            false => LONGEST.min(req.prompt + more).max(req.prompt),
        };
        req.memo = None;
        (req.reservation, req.load) = (None, None);
        (req.restore, req.loaded) = (0..0, 0..0);
        (req.reported, req.computed, req.watermark) = (0, 0, 0);
        req.pages = vec![Vec::new(); groups];
        req.told = vec![0; groups];
        (req.lost, req.lost_known, req.replace) = (false, false, false);
        req.retries.clear();
        req.perhaps.clear();
        req.local = local;
        req.state = State::Matched;
        self.ask(server, at)
    }

    fn arrive(&mut self, server: usize, rng: &mut Rng) -> usize {
        let hosts = &self.servers[server];
        let mut id = 1 + rng.below(12) as u64;
        while hosts.reqs.iter().any(|req| req.id == id) || hosts.announce.contains(&id) {
            id += 1;
        }
        let scope = usize::from(rng.chance(1, 8));
        let mut req = Req::new(id, scope);
        debug_assert_eq!(req.marks[0], no_tokens(scope));
        write_prompt(&mut req, rng);
        self.oracle.learn(scope, &req.tokens, &req.marks);
        let reqs = &mut self.servers[server].reqs;
        reqs.push(req);
        reqs.len() - 1
    }

    pub fn pick(
        &self,
        server: usize,
        rng: &mut Rng,
        wanted: impl Fn(&Req) -> bool,
    ) -> Option<usize> {
        let reqs = &self.servers[server].reqs;
        let found: Vec<usize> = (0..reqs.len()).filter(|&at| wanted(&reqs[at])).collect();
        (!found.is_empty()).then(|| found[rng.below(found.len())])
    }

    pub fn take_pages(&mut self, server: usize, group: usize, count: usize) -> Vec<i32> {
        let free = &mut self.servers[server].free[group];
        free.split_off(free.len() - count)
    }

    /// Free pages in every group.
    pub fn free_pages(&self, server: usize) -> usize {
        let lists = self.servers[server].free.iter();
        lists.map(Vec::len).min().unwrap_or(0)
    }

    /// The offer is settled and pages are allocated, all or as far as the first chunk needs.
    pub fn do_allocate(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let free = self.free_pages(server);
        let Some(at) = self.pick(server, &mut rng, |req| {
            req.state == State::Matched && req.prompt.div_ceil(T) < free
        }) else {
            return Ok(false);
        };
        let req = &self.servers[server].reqs[at];
        let offered = (req.offered.end - req.offered.start) / T;
        let honoured = match rng.below(5) {
            0 => rng.below(offered + 1),
            _ => offered,
        };
        self.allocate(server, at, honoured, &mut rng)?;
        Ok(true)
    }

    /// So many blocks of the offer are honoured.
    pub fn allocate(
        &mut self,
        server: usize,
        at: usize,
        mut honoured: usize,
        rng: &mut Rng,
    ) -> Outcome {
        let mut takes = self.servers[server].reqs[at].made;
        if self.ways.reserves {
            takes &= !rng.chance(1, 8);
            match takes {
                true => self.keep_part(server, at, honoured)?,
                // What it was offered is left where it is.
                false => honoured = 0,
            }
        }
        let req = self.servers[server].reqs[at].clone();
        let first = req.offered.start / T;
        let restore: Range<usize> = if honoured > 0 {
            first..first + honoured
        } else {
            0..0
        };
        let needed = (req.local.max(restore.end * T) / T + 1).min(req.prompt.div_ceil(T));
        let blocks = match rng.chance(1, 2) {
            true => req.prompt.div_ceil(T),
            false => needed,
        };
        // A window that has left the first blocks behind.
        let mut gap = 0;
        if self.setup.windowed && rng.chance(1, 3) {
            let most = if honoured > 0 { first } else { blocks - 1 };
            gap = rng.below(most + 1);
        }
        let mut pages = Vec::new();
        for group in 0..self.setup.groups.len() {
            let own_gap = match group + 1 == self.setup.groups.len() {
                true => gap,
                false => 0,
            };
            let mut list = vec![-1; own_gap];
            list.extend(self.take_pages(server, group, blocks - own_gap));
            pages.push(list);
        }
        if !self.ways.reserves {
            self.check_refusals(server, &req, honoured, &pages, &restore, rng)?;
            self.report_pages(server, req.id, honoured * T, &pages)?;
        }
        let local = if honoured > 0 {
            req.offered.start
        } else {
            req.local
        };
        for token in 0..local {
            let mark = req.mark(token, self.setup.lookahead);
            self.compute(server, &pages, token, mark);
        }
        let id = req.id;
        let parks = takes && self.parks(server);
        let hosts = &mut self.servers[server];
        let ranks = hosts.ranks.len();
        let req = &mut hosts.reqs[at];
        req.told = match self.ways.reserves {
            true => vec![0; pages.len()],
            false => pages.iter().map(Vec::len).collect(),
        };
        req.pages = pages;
        req.computed = local;
        if parks {
            let ticket = req.reservation.unwrap_or(id);
            req.load = Some(Load::new(ticket, restore.clone(), ranks));
        } else {
            req.restore = restore.clone();
        }
        req.state = match (self.ways.reserves && takes, parks) {
            (true, _) => State::Accepting,
            (false, true) => State::Parked,
            (false, false) => State::Allocated,
        };
        let (pages, state) = (req.pages.clone(), req.state);
        self.tell(|| {
            format!("allocate: request {id}, blocks {restore:?} honoured, {local} tokens local, pages {pages:?}: {state:?}")
        });
        Ok(())
    }

    fn report_pages(
        &mut self,
        server: usize,
        id: u64,
        tokens: usize,
        pages: &[Vec<i32>],
    ) -> Outcome {
        match self.try_allocated(server, id, tokens, pages) {
            Ok(()) => Ok(()),
            Err(error) => broken!("a legal call is not refused", "allocated {id}: {error}"),
        }
    }

    fn try_allocated(
        &mut self,
        server: usize,
        id: u64,
        tokens: usize,
        pages: &[Vec<i32>],
    ) -> kvbridge::error::Result<()> {
        let lists: Vec<GroupPages<'_>> = pages
            .iter()
            .zip(self.setup.groups)
            .map(|(indices, &group)| GroupPages {
                group,
                first_block: 0,
                indices,
                replace: false,
            })
            .collect();
        let scheduler = &mut self.servers[server].scheduler;
        scheduler.allocated(id, tokens as u64, &lists)
    }

    /// What must be refused is, and changes nothing.
    fn check_refusals(
        &mut self,
        server: usize,
        req: &Req,
        honoured: usize,
        pages: &[Vec<i32>],
        restore: &Range<usize>,
        rng: &mut Rng,
    ) -> Outcome {
        if !rng.chance(1, 4) {
            return Ok(());
        }
        let offered = req.offered.end - req.offered.start;
        let mut tries = vec![
            (honoured * T + 1, pages.to_vec(), "no whole block"),
            (offered + T, pages.to_vec(), "more than was offered"),
        ];
        if honoured > 0 {
            let mut gap = pages.to_vec();
            let group = rng.below(gap.len());
            gap[group][restore.end - 1] = -1;
            tries.push((honoured * T, gap, "no page to load into"));
        }
        for (tokens, pages, what) in tries {
            if self.try_allocated(server, req.id, tokens, &pages).is_ok() {
                broken!(
                    "an illegal call is refused",
                    "allocated {}: {tokens} tokens of {offered} on {pages:?}: {what}",
                    req.id
                );
            }
        }
        Ok(())
    }

    /// Whether nothing of the library's may be reading or writing its pages.
    pub fn can_change_pages(&self, server: usize, req: &Req) -> bool {
        req.state == State::Running
            && !req.lost
            && req.restore.is_empty()
            && !self.servers[server].is_busy(req.life)
            && !self.is_bound(server, req.life)
            && !self.is_saving(server, req.id, None)
    }

    /// Pages change under a running request: a window slides, a page moves, spare pages are freed.
    pub fn do_repage(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let may = |req: &Req| self.can_change_pages(server, req);
        let Some(at) = self.pick(server, &mut rng, may) else {
            return Ok(false);
        };
        let req = self.servers[server].reqs[at].clone();
        let group = rng.below(req.pages.len());
        let last = self.setup.windowed && group + 1 == req.pages.len();
        let list = &req.pages[group];
        let spare = list.len().saturating_sub(req.tokens.len().div_ceil(T));
        let what;
        if spare > 0 && rng.chance(1, 2) {
            let page = list[list.len() - 1];
            self.servers[server].reqs[at].pages[group].pop();
            self.give_page(server, group, page);
            what = "its last page is freed";
        } else if last && rng.chance(1, 2) {
            let Some(block) = list.iter().position(|page| *page >= 0) else {
                return Ok(false);
            };
            if (block + 1) * T > req.computed || block + 1 >= list.len() {
                return Ok(false);
            }
            let page = list[block];
            self.servers[server].reqs[at].pages[group][block] = -1;
            self.give_page(server, group, page);
            what = "the window leaves a block behind";
        } else {
            if list.is_empty() || self.servers[server].free[group].is_empty() {
                return Ok(false);
            }
            let block = rng.below(list.len());
            let old = list[block];
            if old < 0 {
                return Ok(false);
            }
            let new = self.take_pages(server, group, 1)[0];
            let kinds: Vec<usize> = self.setup.group_kinds(group).collect();
            for rank in &mut self.servers[server].ranks {
                for &kind in &kinds {
                    let bytes = rank.cache.read(kind, old);
                    rank.cache.write(kind, new, 0, &bytes);
                }
            }
            self.servers[server].reqs[at].pages[group][block] = new;
            self.give_page(server, group, old);
            what = "a page moves";
        }
        self.servers[server].reqs[at].replace = true;
        let id = req.id;
        self.tell(|| format!("pages: request {id}, group {group}: {what}"));
        Ok(true)
    }

    /// Whether the bound pass may still queue saves of this life.
    pub fn is_bound(&self, server: usize, life: u64) -> bool {
        let bound = self.servers[server].bound.iter();
        bound
            .filter(|pass| !pass.saved)
            .any(|pass| pass.plans.iter().any(|plan| plan.life == life))
    }
}

/// Most prompts begin alike.
fn write_prompt(req: &mut Req, rng: &mut Rng) {
    let blocks = rng.below(6);
    for _ in 0..blocks {
        let variant = [0, 0, 0, 0, 0, 1, 2][rng.below(7)];
        (0..T as i32).for_each(|token| req.push(variant * 10 + token));
    }
    let tail = match blocks {
        0 => 1 + rng.below(T),
        _ => rng.below(T + 1),
    };
    (0..tail).for_each(|_| req.push(50));
}
