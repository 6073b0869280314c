//! A pass: built, bound, loads started, run, saves queued; and what goes wrong in between.

use std::sync::Arc;

use kvbridge::device::Stream;
use kvbridge::keys::Tokens;
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::{GroupPages, Step};

use crate::oracle::{add_token, next_token, shard};
use crate::pool::{Call, Seen};
use crate::random::{Rng, mix};
use crate::setup::T;
use crate::world::{Item, Outcome, Part, Pass, Plan, State, World, broken};

/// Passes built ahead of the bound one.
pub const AHEAD: usize = 2;

impl World<'_> {
    /// Which requests can be part of the next pass.
    pub fn is_ready(&self, server: usize, at: usize) -> bool {
        let hosts = &self.servers[server];
        let req = &hosts.reqs[at];
        req.is_admitted()
            // The engine takes failures before it builds.
            && !req.lost
            && !hosts.is_busy(req.life)
            && (req.computed < req.prompt || req.tokens.len() < req.limit)
            && !(req.state == State::Running
                && req.computed >= req.prompt
                && hosts.place.context)
    }

    pub fn do_build(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        if self.servers[server].built.len() >= AHEAD {
            return Ok(false);
        }
        let mut plans = Vec::new();
        for at in 0..self.servers[server].reqs.len() {
            if self.is_ready(server, at)
                && rng.chance(7, 8)
                && let Some(plan) = self.plan(server, at, &mut rng)
            {
                plans.push((at, plan));
            }
        }
        if plans.is_empty() && !rng.chance(1, 8) {
            return Ok(false);
        }
        let hosts = &mut self.servers[server];
        let reqs = &hosts.reqs;
        let groups = self.setup.groups;
        let lists: Vec<Vec<GroupPages<'_>>> = plans
            .iter()
            .map(|(at, _)| {
                let req = &reqs[*at];
                let mut lists = Vec::new();
                for (group, pages) in req.pages.iter().enumerate() {
                    let first = if req.replace { 0 } else { req.told[group] };
                    if req.replace || first < pages.len() {
                        lists.push(GroupPages {
                            group: groups[group],
                            first_block: first as u32,
                            indices: &pages[first..],
                            replace: req.replace,
                        });
                    }
                }
                lists
            })
            .collect();
        let steps: Vec<Step<'_>> = plans
            .iter()
            .zip(&lists)
            .map(|((at, plan), pages)| Step {
                request_id: plan.id,
                new_tokens: Tokens::I32(&reqs[*at].tokens[reqs[*at].reported..]),
                pages,
                computed_position: plan.from as u64,
                scheduled_tokens: plan.scheduled as u64,
            })
            .collect();
        let metadata = match hosts.scheduler.build(&steps) {
            Ok(metadata) => metadata,
            Err(error) => broken!("a legal call is not refused", "build: {error}"),
        };
        hosts.builds += 1;
        let number = hosts.builds;
        let mut text = String::new();
        for (at, plan) in &plans {
            let req = &mut hosts.reqs[*at];
            req.reported = req.tokens.len();
            req.told = req.pages.iter().map(Vec::len).collect();
            req.replace = false;
            req.state = State::Running;
            req.emitted |= !plan.due.is_empty();
            text += &format!(
                " [request {}: {} at {}, blocks {:?} restored, {:?} due]",
                plan.id, plan.scheduled, plan.from, plan.restore, plan.due
            );
        }
        hosts.built.push_back(Pass {
            metadata,
            number,
            plans: plans.into_iter().map(|(_, plan)| plan).collect(),
            started: false,
            forwarded: false,
            saved: false,
            dropped: false,
        });
        self.tell(|| format!("build: pass {number}{text}"));
        Ok(true)
    }

    /// What a request does in the next pass; its pages are allocated here.
    fn plan(&mut self, server: usize, at: usize, rng: &mut Rng) -> Option<Plan> {
        let req = &self.servers[server].reqs[at];
        let restored = req.restore.len() * T;
        let from = match restored {
            0 => req.computed,
            _ => req.restore.start * T,
        };
        let begin = from + restored;
        let (scheduled, accepted) = if begin < req.prompt {
            let rest = req.prompt - begin;
            let chunk = match rng.chance(1, 2) {
                true => rest,
                false => 1 + rng.below(rest),
            };
            (chunk, None)
        } else {
            let drafts = [0, 0, 1, 2, 3][rng.below(5)];
            let most = drafts.min(req.limit - req.tokens.len());
            (1 + drafts, Some(rng.below(most + 1)))
        };
        let blocks = (begin + scheduled).div_ceil(T) + usize::from(rng.chance(1, 6));
        for group in 0..self.setup.groups.len() {
            let have = self.servers[server].reqs[at].pages[group].len();
            if blocks > have && blocks - have > self.servers[server].free[group].len() {
                return None;
            }
        }
        for group in 0..self.setup.groups.len() {
            while self.servers[server].reqs[at].pages[group].len() < blocks {
                let page = self.servers[server].free[group].pop()?;
                self.servers[server].reqs[at].pages[group].push(page);
            }
        }
        let hosts = &self.servers[server];
        let req = &hosts.reqs[at];
        let mut plan = Plan {
            id: req.id,
            life: req.life,
            from,
            restore: req.restore.clone(),
            scheduled,
            accepted,
            frontier: req.watermark,
            due: Vec::new(),
            retries: Vec::new(),
            perhaps: Vec::new(),
        };
        if hosts.writes() && !req.lost {
            let named = match self.setup.lookahead {
                0 => req.tokens.len(),
                _ => req.prompt,
            };
            let listed = req.pages.iter().map(Vec::len).min().unwrap_or(0);
            let blocks = ((begin + scheduled) / T).min(self.oracle.blocks(named));
            let frontier = blocks.min(listed);
            if frontier > req.watermark {
                plan.frontier = frontier;
                let loaded = match restored {
                    0 => req.loaded.clone(),
                    _ => req.restore.clone(),
                };
                let due = |block: &usize| !loaded.contains(block) && req.has_pages(*block);
                plan.due = (req.watermark..frontier).filter(due).collect();
                let known = |block: &&usize| req.has_pages(**block);
                plan.retries = req.retries.keys().filter(known).copied().collect();
                plan.perhaps = req.perhaps.iter().filter(known).copied().collect();
            }
        }
        Some(plan)
    }

    /// The next pass takes the place of the bound one, which may not have run.
    pub fn do_bind(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        let Some(pass) = self.servers[server].built.pop_front() else {
            return Ok(false);
        };
        let number = pass.number;
        let is_lost = |plan: &Plan| {
            let mut reqs = self.servers[server].reqs.iter();
            reqs.any(|req| req.life == plan.life && req.lost_known)
        };
        if self.setup.world > 1 && pass.plans.iter().any(is_lost) {
            self.tell(|| format!("pass {number} is thrown away: it has a request that failed"));
            return Ok(true);
        }
        let mut bytes = Vec::new();
        pass.metadata.encode(&mut bytes);
        let old = self.servers[server].bound.replace(pass);
        let hosts = &mut self.servers[server];
        for (rank, host) in hosts.ranks.iter_mut().enumerate() {
            let metadata = match rank {
                0 => hosts.bound.as_ref().map(|pass| Arc::clone(&pass.metadata)),
                _ => Some(Arc::new(Metadata::decode(&bytes).unwrap())),
            };
            host.worker.bind(metadata.unwrap());
        }
        self.tell(|| format!("bind: pass {number}"));
        if let Some(old) = old.filter(|old| !old.started) {
            self.loads_never_started(server, &old);
        }
        Ok(true)
    }

    /// The engine counts what was to be restored as computed, and hears that it was not.
    fn loads_never_started(&mut self, server: usize, old: &Pass) {
        let many = self.setup.world > 1;
        for plan in old.plans.iter().filter(|plan| !plan.restore.is_empty()) {
            let Some(at) = self.position(server, plan.life) else {
                // It ended meanwhile: perhaps before the worker heard of it.
                let hosts = &mut self.servers[server];
                hosts.perhaps_failed.push(plan.id);
                if many {
                    // Ranks that do not hear of ends may count it.
                    hosts.ranks.iter_mut().for_each(|rank| rank.owes_error = true);
                }
                continue;
            };
            let hosts = &mut self.servers[server];
            hosts.reqs[at].lost = true;
            hosts.reqs[at].lost_known |= many;
            hosts.reqs[at].restore = 0..0;
            if many {
                hosts.ranks.iter_mut().for_each(|rank| rank.owes_error = true);
            }
        }
    }

    /// Pages of all requests of the bound pass that may change now: server-wide, by kind.
    fn may_land(&self, server: usize, rank: usize, kind: usize, page: i32) -> Option<(u64, usize)> {
        let hosts = &self.servers[server];
        let pass = hosts.bound.as_ref()?;
        let group = self.setup.kinds[kind].group;
        for plan in &pass.plans {
            let own = hosts.reqs.iter().find(|req| req.life == plan.life);
            let pinned = || {
                let pins = hosts.pins.iter();
                pins.filter(|pin| !pin.reported[rank])
                    .map(|pin| &pin.req)
                    .find(|req| req.life == plan.life)
            };
            let Some(req) = own.or_else(pinned) else {
                continue;
            };
            for block in plan.restore.clone() {
                if req.pages[group].get(block) == Some(&page) {
                    return Some((req.life, block));
                }
            }
        }
        None
    }

    pub fn do_start(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let Some(pass) = hosts.bound.as_mut().filter(|pass| !pass.started && !pass.dropped) else {
            return Ok(false);
        };
        pass.started = true;
        let number = pass.number;
        self.pool.state().log.clear();
        let mut errors = Vec::new();
        let mut bad = Vec::new();
        for rank in &mut hosts.ranks {
            errors.push(rank.worker.start_load(Stream::default()).err());
            let log = std::mem::take(&mut self.pool.state().log);
            // The scheduler hears of what the first rank does not get.
            if errors.len() == 1 {
                let failed = |seen: &&Seen| seen.call == Call::Get && !seen.good;
                bad.extend(log.into_iter().filter(|seen| failed(&seen)).map(|seen| seen.key));
            }
        }
        self.tell(|| format!("start_load: pass {number}, errors {errors:?}"));
        // Whatever landed belongs there.
        for rank in 0..self.servers[server].ranks.len() {
            let mut changed = Vec::new();
            let cache = &mut self.servers[server].ranks[rank].cache;
            cache.changes(|kind, page, now| changed.push((kind, page, *now)));
            for (kind, page, now) in changed {
                let Some((life, block)) = self.may_land(server, rank, kind, page) else {
                    broken!(
                        "only pages of running loads are written",
                        "server {server} rank {rank}: page {page} of kind {kind} was written to"
                    );
                };
                let hosts = &self.servers[server];
                let pins = hosts.pins.iter().map(|pin| &pin.req);
                let req = hosts.reqs.iter().chain(pins).find(|req| req.life == life);
                let marks = &req.unwrap().marks;
                let shard = shard(self.setup, kind, rank);
                if now != self.oracle.content(marks, block, kind, shard) {
                    broken!(
                        "a page that lands is what its key says",
                        "server {server} rank {rank}: block {block} of life {life}, kind {kind}"
                    );
                }
            }
        }
        self.settle_start(server, &errors, &bad)
    }

    /// Which requests have all their pages? The library must say so of the others.
    fn settle_start(
        &mut self,
        server: usize,
        errors: &[Option<kvbridge::error::Error>],
        bad: &[Vec<u8>],
    ) -> Outcome<bool> {
        let many = self.setup.world > 1;
        let plans: Vec<Plan> = match &self.servers[server].bound {
            Some(pass) => pass.plans.clone(),
            None => return Ok(true),
        };
        let mut lost_on = vec![false; errors.len()];
        let mut lives_lost = Vec::new();
        for plan in plans.iter().filter(|plan| !plan.restore.is_empty()) {
            let Some(at) = self.position(server, plan.life) else {
                if many {
                    lost_on.iter_mut().for_each(|lost| *lost |= false);
                }
                self.servers[server].perhaps_failed.push(plan.id);
                continue;
            };
            let req = &self.servers[server].reqs[at];
            let mut lost = req.lost;
            for (rank, host) in self.servers[server].ranks.iter().enumerate() {
                for block in plan.restore.clone() {
                    for (kind, what) in self.setup.kinds.iter().enumerate() {
                        let page = req.pages[what.group][block];
                        let shard = shard(self.setup, kind, rank);
                        let wanted = self.oracle.content(&req.marks, block, kind, shard);
                        if host.cache.read(kind, page) != wanted {
                            lost = true;
                            lost_on[rank] = true;
                        }
                    }
                }
            }
            if lost {
                lives_lost.push(plan.life);
            }
            self.tally.loaded_pages += (plan.restore.len() * self.setup.kinds.len()) as u64;
        }
        self.tally.failed_loads += lives_lost.len() as u64;
        for (rank, error) in errors.iter().enumerate() {
            let owes = std::mem::take(&mut self.servers[server].ranks[rank].owes_error);
            let ended = !self.servers[server].perhaps_failed.is_empty();
            match error {
                Some(error) if !many || !(lost_on[rank] || owes || ended) => broken!(
                    "a legal call is not refused",
                    "start_load on rank {rank}: {error}"
                ),
                None if many && lost_on[rank] => broken!(
                    "a lost page is reported",
                    "start_load on rank {rank}: lives {lives_lost:?} lack pages, no error"
                ),
                _ => {}
            }
        }
        let refused = errors.iter().any(Option::is_some);
        self.note_failed_blocks(server, &plans, &lives_lost, bad);
        for plan in &plans {
            let Some(at) = self.position(server, plan.life) else {
                continue;
            };
            let req = &mut self.servers[server].reqs[at];
            if plan.restore.is_empty() {
                continue;
            }
            let all = plan.restore.clone();
            if lives_lost.contains(&plan.life) || refused {
                req.lost = true;
                req.lost_known |= many;
            }
            req.restore = 0..0;
            req.loaded = all.clone();
            req.computed = all.end * T;
        }
        if refused && let Some(pass) = &mut self.servers[server].bound {
            pass.dropped = true;
        }
        Ok(true)
    }

    /// The first block of each request that the pool did not deliver to the first rank.
    fn note_failed_blocks(
        &mut self,
        server: usize,
        plans: &[Plan],
        lives_lost: &[u64],
        keys: &[Vec<u8>],
    ) {
        let blocks = keys.iter().filter_map(|key| self.oracle.pages.get(key));
        let bad: Vec<u64> = blocks.map(|known| known.block).collect();
        let mut wanted: Vec<u64> = Vec::new();
        let mut twice: Vec<u64> = Vec::new();
        for plan in plans {
            let Some(at) = self.position(server, plan.life) else {
                continue;
            };
            let marks = &self.servers[server].reqs[at].marks;
            for block in plan.restore.clone() {
                let mark = self.oracle.block(marks, block);
                match wanted.contains(&mark) {
                    true => twice.push(mark),
                    false => wanted.push(mark),
                }
            }
        }
        for plan in plans {
            let Some(at) = self.position(server, plan.life) else {
                continue;
            };
            let hosts = &self.servers[server];
            let marks = &hosts.reqs[at].marks;
            let id = hosts.reqs[at].id;
            for block in plan.restore.clone() {
                let mark = self.oracle.block(marks, block);
                if !bad.contains(&mark) {
                    continue;
                }
                let sure = lives_lost.contains(&plan.life) && !twice.contains(&mark);
                let hosts = &mut self.servers[server];
                if sure && !self.threads {
                    let first = hosts.failed.entry(id).or_insert((block, mark));
                    if block < first.0 {
                        *first = (block, mark);
                    }
                } else {
                    hosts.may_have_failed = true;
                }
                break;
            }
        }
    }

    pub fn do_forward(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let Some(pass) = hosts
            .bound
            .as_mut()
            .filter(|pass| pass.started && pass.is_open())
        else {
            return Ok(false);
        };
        pass.forwarded = true;
        let number = pass.number;
        let plans = pass.plans.clone();
        self.tell(|| format!("forward: pass {number}"));
        for plan in &plans {
            self.run_plan(server, plan);
        }
        Ok(true)
    }

    fn run_plan(&mut self, server: usize, plan: &Plan) {
        let live = self.position(server, plan.life);
        let hosts = &self.servers[server];
        // One that ended and whose pages must stay may still be part of the pass that runs.
        let pinned = || hosts.pins.iter().position(|pin| pin.req.life == plan.life);
        let mut req = match (live, pinned()) {
            (Some(at), _) => hosts.reqs[at].clone(),
            (None, Some(at)) if !hosts.pins[at].reported.contains(&true) => {
                hosts.pins[at].req.clone()
            }
            _ => return,
        };
        let begin = plan.from + plan.restore.len() * T;
        let right = match plan.accepted {
            None => plan.scheduled,
            Some(accepted) => 1 + accepted,
        };
        // The tokens that are accepted, and the one that the pass samples.
        let known = req.tokens.len();
        if let Some(accepted) = plan.accepted {
            for _ in 0..=accepted {
                req.push(next_token(req.marks[req.tokens.len()]));
            }
        }
        let mut wrong = req.marks[begin + right];
        for token in begin..begin + plan.scheduled {
            let mut mark = req.mark(token, self.setup.lookahead);
            if token >= begin + right {
                wrong = add_token(wrong, 9_999);
                mark = wrong;
            }
            if req.lost {
                mark = mix(mark, 0x1057);
            }
            self.compute(server, &req.pages, token, mark);
        }
        let Some(at) = live else {
            return;
        };
        req.computed = begin + right;
        let hosts = &mut self.servers[server];
        let ends_prompt = plan.accepted.is_none() && req.computed == req.prompt;
        if ends_prompt && !hosts.place.context && req.tokens.len() < req.limit {
            req.push(next_token(req.marks[req.tokens.len()]));
        }
        debug_assert!(known <= req.tokens.len());
        if self.setup.lookahead == 0 {
            self.oracle.learn(req.scope, &req.tokens, &req.marks);
        }
        hosts.reqs[at] = req;
    }

    pub fn do_save(&mut self, server: usize, _rng: Rng) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let Some(pass) = hosts
            .bound
            .as_mut()
            .filter(|pass| pass.forwarded && !pass.saved)
        else {
            return Ok(false);
        };
        pass.saved = true;
        let (number, plans) = (pass.number, pass.plans.clone());
        self.tell(|| format!("wait_for_save: pass {number}"));
        for rank in 0..self.servers[server].ranks.len() {
            let before = self.stepper.pending().len();
            let host = &mut self.servers[server].ranks[rank];
            if let Err(error) = host.worker.wait_for_save(Stream::default()) {
                broken!("a legal call is not refused", "wait_for_save: {error}");
            }
            if self.threads {
                continue;
            }
            let queued = self.stepper.pending().len() > before;
            let item = self.expect_item(server, rank, &plans);
            match queued {
                true => self.items.push(item),
                false if item.parts.iter().any(|part| part.must) => broken!(
                    "what was computed is published",
                    "pass {number}: nothing was queued on rank {rank}"
                ),
                false => {}
            }
        }
        let builds = self.servers[server].builds;
        for plan in &plans {
            let Some(at) = self.position(server, plan.life) else {
                continue;
            };
            let req = &mut self.servers[server].reqs[at];
            req.watermark = req.watermark.max(plan.frontier);
            for block in &plan.retries {
                if req.retries.get(block).is_some_and(|built| *built < number) {
                    req.retries.remove(block);
                    if number < builds {
                        // A later pass was built with it before: that one may not run.
                        req.perhaps.push(*block);
                    }
                }
            }
        }
        Ok(true)
    }

    fn expect_item(&self, server: usize, rank: usize, plans: &[Plan]) -> Item {
        let hosts = &self.servers[server];
        let mut parts = Vec::new();
        for plan in plans {
            let live = hosts.reqs.iter().find(|req| req.life == plan.life);
            let pinned = || {
                let pins = hosts.pins.iter();
                pins.filter(|pin| !pin.reported[rank])
                    .map(|pin| &pin.req)
                    .find(|req| req.life == plan.life)
            };
            let Some(req) = live.or_else(pinned) else {
                continue;
            };
            let sure = live.is_some_and(|req| !req.lost);
            let lists = [(&plan.due, true), (&plan.retries, true), (&plan.perhaps, false)];
            for (blocks, must) in lists {
                for &block in blocks {
                    parts.push(Part {
                        id: plan.id,
                        life: plan.life,
                        block,
                        mark: self.oracle.block(&req.marks, block),
                        must: must && sure,
                        done: 0,
                    });
                }
            }
        }
        Item {
            server,
            rank,
            parts,
        }
    }

    /// A pass that was built is thrown away, or the bound one will not run.
    pub fn do_drop(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let hosts = &mut self.servers[server];
        let bound = hosts.bound.as_mut().filter(|pass| pass.is_open());
        let text = match bound {
            Some(pass) if hosts.built.is_empty() || rng.chance(1, 2) => {
                pass.dropped = true;
                format!("drop: bound pass {}", pass.number)
            }
            // A later one rests on an earlier one only where that has run.
            _ => match hosts.built.pop_back() {
                Some(pass) => format!("drop: built pass {}", pass.number),
                None => return Ok(false),
            },
        };
        self.tell(|| text);
        Ok(true)
    }
}
