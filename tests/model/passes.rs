//! A pass: built, bound, loads started, run, saves queued; and what goes wrong in between.

use std::sync::Arc;

use kvbridge::device::Stream;
use kvbridge::keys::Tokens;
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::{GroupPages, Step};

use crate::door::fence;
use crate::oracle::{add_token, next_token};
use crate::random::{Rng, mix};
use crate::reserve::accepted;
use crate::setup::T;
use crate::world::{Item, Outcome, Part, Pass, Plan, State, World, broken};

/// Passes built ahead of the bound one.
pub const AHEAD: usize = 2;

impl World<'_> {
    /// Which requests can be part of the next pass.
    pub fn is_ready(&self, server: usize, at: usize) -> bool {
        let hosts = &self.servers[server];
        let req = &hosts.reqs[at];
        // What a reservation holds is settled with the step.
        let accepts = req.state == State::Accepting && req.load.is_none();
        (req.is_admitted() || accepts)
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
        let ready: Vec<usize> = plans.iter().map(|plan| plan.0).collect();
        let accepts = self.acceptances(server, &ready, &mut rng);
        let waits = self.servers[server]
            .reqs
            .iter()
            .any(|req| req.state == State::Parked && !req.is_on_its_way());
        if plans.is_empty() && accepts.is_empty() && !waits && !rng.chance(1, 8) {
            return Ok(false);
        }
        self.try_parked_steps(server, &mut rng)?;
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
        let whole: Vec<Vec<GroupPages<'_>>> = accepts
            .iter()
            .map(|(_, at)| whole_lists(groups, &reqs[*at].pages))
            .collect();
        let accepting: Vec<_> = accepts
            .iter()
            .zip(&whole)
            .map(|((id, at), pages)| accepted((*id, reqs[*at].id), pages))
            .collect();
        let metadata = match hosts.scheduler.build_accepting(&steps, &accepting) {
            Ok(metadata) => metadata,
            Err(error) => broken!("a legal call is not refused", "build: {error}"),
        };
        for (id, at) in &accepts {
            let req = &mut hosts.reqs[*at];
            if req.load.is_some() && req.state == State::Accepting && req.reservation == Some(*id) {
                req.state = State::Parked;
            }
        }
        let parks = self.check_parks(server, &metadata)?;
        let hosts = &mut self.servers[server];
        hosts.builds += 1;
        let number = hosts.builds;
        let mut text = String::new();
        for (at, plan) in &plans {
            let req = &mut hosts.reqs[*at];
            req.reported = req.tokens.len();
            req.told = req.pages.iter().map(Vec::len).collect();
            req.replace = false;
            req.state = State::Running;
            req.load = None;
            // The pool itself may write for such a load when it has failed.
            let lends = self.ways.direct && !plan.restore.is_empty();
            req.emitted |= lends || !plan.due.is_empty();
            if plan.frontier > req.watermark {
                req.named_in = number;
            }
            text += &format!(
                " [request {}: {} at {}, blocks {:?} restored, {:?} due]",
                plan.id, plan.scheduled, plan.from, plan.restore, plan.due
            );
        }
        let ended = std::mem::take(&mut hosts.ended);
        text += &format!(" {accepts:?} accepted, lives {parks:?} parked");
        hosts.built.push_back(Pass {
            metadata,
            parks,
            ended,
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

    /// The loads that a metadata carries are those that were settled, each once.
    fn check_parks(&mut self, server: usize, metadata: &Metadata) -> Outcome<Vec<u64>> {
        let mut parks = Vec::new();
        for run in metadata.parked().runs() {
            let (first, count) = (run.first_block as usize, run.blocks as usize);
            let wanted = |req: &&mut crate::world::Req| {
                req.state == State::Parked && req.id == run.request_id
            };
            let req = self.servers[server].reqs.iter_mut().find(wanted);
            let load = req.and_then(|req| Some((req.life, req.load.as_mut()?)));
            let due = load.filter(|(_, load)| {
                let blocks = load.blocks.clone();
                let same = blocks.is_empty() && count == 0 || blocks == (first..first + count);
                !load.emitted && same && load.ticket == run.ticket
            });
            let Some((life, load)) = due else {
                broken!(
                    "each load travels once",
                    "request {}: {run:?}",
                    run.request_id
                );
            };
            load.emitted = true;
            parks.push(life);
        }
        self.tally.parked += parks.len() as u64;
        let mut reqs = self.servers[server].reqs.iter();
        if let Some(left) = reqs.find(|req| req.state == State::Parked && !req.is_on_its_way()) {
            broken!("each load travels once", "request {} is left out", left.id);
        }
        Ok(parks)
    }

    /// A request whose load was not reported must not run.
    fn try_parked_steps(&mut self, server: usize, rng: &mut Rng) -> Outcome {
        let parked = |req: &crate::world::Req| req.state == State::Parked && !req.is_spoilt();
        let at = self.pick(server, rng, |req| parked(req));
        let Some(at) = at.filter(|_| rng.chance(1, 3)) else {
            return Ok(());
        };
        let hosts = &mut self.servers[server];
        let req = &hosts.reqs[at];
        // Under TP another rank may be the one that is not done.
        if req.load.as_ref().is_some_and(|load| load.reported[0]) {
            return Ok(());
        }
        let step = Step {
            request_id: req.id,
            new_tokens: Tokens::I32(&req.tokens[..req.prompt]),
            pages: &[],
            computed_position: req.computed as u64,
            scheduled_tokens: 1,
        };
        if hosts.scheduler.build(&[step]).is_ok() {
            broken!(
                "an illegal call is refused",
                "request {} runs before its load was reported",
                req.id
            );
        }
        Ok(())
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
    pub fn do_bind(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
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
        let carries = !pass.parks.is_empty();
        let doors = self.fences(server, carries, &mut rng);
        let ended = pass.ended.clone();
        let ranks = self.servers[server].ranks.len();
        let old = self.servers[server].bound.replace(pass);
        // Once more, when nothing of it can be cut short.
        let again = self.parks(server) && rng.chance(1, 8);
        for (rank, door) in doors.iter().enumerate() {
            let before = self.pending_loads(carries);
            let hosts = &mut self.servers[server];
            let metadata = match rank {
                0 => hosts.bound.as_ref().map(|pass| Arc::clone(&pass.metadata)),
                _ => Some(Arc::new(Metadata::decode(&bytes).unwrap())),
            };
            let worker = &mut hosts.ranks[rank].worker;
            let metadata = metadata.unwrap();
            if again {
                worker.bind(Arc::clone(&metadata), fence(door));
            }
            worker.bind(metadata, fence(door));
            let queued = self.pending_loads(carries) - before;
            self.queue_parked(server, rank, door, queued)?;
        }
        self.forget_loads(server, 0..ranks, |life| ended.contains(&life));
        self.tell(|| format!("bind: pass {number}"));
        if let Some(old) = old.filter(|old| !old.started) {
            self.loads_never_started(server, &old);
        }
        let broken = |rank: &crate::world::Rank| rank.is_broken;
        if self.servers[server].ranks.iter().any(broken) {
            self.break_down()?;
        }
        Ok(true)
    }

    /// Loads that are pending, where somebody wants to know.
    fn pending_loads(&self, wanted: bool) -> usize {
        match wanted && !self.threads {
            true => {
                let pending = self.stepper.pending();
                pending.iter().filter(|item| item.1 == "load").count()
            }
            false => 0,
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
            let lists = [
                (&plan.due, true),
                (&plan.retries, true),
                (&plan.perhaps, false),
            ];
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
            load: None,
            parts,
            disturbed: None,
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
            // Loads travel once: a pass that carries some is bound in any case.
            _ if hosts.built.back().is_none_or(|pass| !pass.parks.is_empty()) => return Ok(false),
            _ => match hosts.built.pop_back() {
                Some(pass) => format!("drop: built pass {}", pass.number),
                None => return Ok(false),
            },
        };
        self.tell(|| text);
        Ok(true)
    }
}

fn whole_lists<'a>(groups: &[u32], pages: &'a [Vec<i32>]) -> Vec<GroupPages<'a>> {
    let lists = pages.iter().zip(groups);
    let whole = |(indices, group): (&'a Vec<i32>, &u32)| GroupPages {
        group: *group,
        first_block: 0,
        indices,
        replace: false,
    };
    lists.map(whole).collect()
}
