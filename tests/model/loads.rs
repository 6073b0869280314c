//! Synchronous loads: what they may write, and who has to hear of it when pages do not arrive.

use kvbridge::device::Stream;

use crate::late::GET;
use crate::oracle::shard;
use crate::pool::{Call, Seen};
use crate::random::Rng;
use crate::setup::T;
use crate::world::{Outcome, Pass, Plan, World, broken};

/// Keys that the pool did not deliver.
pub fn failed_keys(log: &[Seen]) -> Vec<Vec<u8>> {
    let failed = log
        .iter()
        .filter(|seen| seen.call == Call::Get && !seen.good);
    failed.map(|seen| seen.key.clone()).collect()
}

impl World<'_> {
    /// The engine counts what was to be restored as computed, and hears that it was not.
    pub fn loads_never_started(&mut self, server: usize, old: &Pass) {
        let many = self.setup.world > 1;
        for plan in old.plans.iter().filter(|plan| !plan.restore.is_empty()) {
            let Some(at) = self.position(server, plan.life) else {
                // It ended meanwhile: perhaps before the worker heard of it.
                let hosts = &mut self.servers[server];
                hosts.perhaps_failed.push(plan.id);
                // Ranks that do not hear of ends may count it.
                hosts
                    .ranks
                    .iter_mut()
                    .for_each(|rank| rank.may_owe_error = many);
                continue;
            };
            let hosts = &mut self.servers[server];
            hosts.reqs[at].lost = true;
            hosts.reqs[at].lost_known |= many;
            hosts.reqs[at].restore = 0..0;
            if many {
                hosts
                    .ranks
                    .iter_mut()
                    .for_each(|rank| rank.owes_error = true);
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
        self.check_log()?;
        let hosts = &mut self.servers[server];
        let Some(pass) = hosts
            .bound
            .as_mut()
            .filter(|pass| !pass.started && !pass.dropped)
        else {
            return Ok(false);
        };
        pass.started = true;
        let number = pass.number;
        let mut errors = Vec::new();
        let mut failed_on = Vec::new();
        let mut handed_back = Vec::new();
        let mut is_kept = false;
        for number in 0..self.servers[server].ranks.len() {
            let rank = &mut self.servers[server].ranks[number];
            let mut error = rank.worker.start_load(Stream::default()).err();
            if std::mem::take(&mut rank.owes_fence) {
                if error.is_none() {
                    broken!("a missing fence is said", "start_load");
                }
                error = rank.worker.start_load(Stream::default()).err();
            }
            errors.push(error);
            let asked = self.take_log(server, number)?;
            is_kept |= asked.late == Some(GET) && self.lend_restored(server, number);
            failed_on.push(failed_keys(&asked.seen));
            handed_back.extend(self.lost_in_words(server, number, &asked.seen));
        }
        self.tell(|| format!("start_load: pass {number}, errors {errors:?}"));
        if self.threads && self.ways.parks {
            // An asynchronous load failed meanwhile.
            self.over = self.setup.world > 1 && errors.iter().any(Option::is_some);
            if self.over {
                return Ok(true);
            }
        }
        // Whatever landed belongs there.
        for (rank, failed) in failed_on.iter().enumerate() {
            if self.threads && self.ways.parks {
                // No pass loads anything, but others may do so now.
                break;
            }
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
                // Without slots in between, what fails may land in parts.
                let mark = self.oracle.block(marks, block);
                let key = self.oracle.key(mark, kind, rank);
                let may_be_torn = self.ways.direct && failed.iter().any(|bad| bad == key);
                if !may_be_torn && now != self.oracle.content(marks, block, kind, shard) {
                    broken!(
                        "a page that lands is what its key says",
                        "server {server} rank {rank}: block {block} of life {life}, kind {kind}"
                    );
                }
            }
        }
        if is_kept {
            self.break_down()?;
            return Ok(true);
        }
        self.settle_start(server, &errors, &failed_on[0], &handed_back)
    }

    /// Which requests have all their pages? The library must say so of the others.
    fn settle_start(
        &mut self,
        server: usize,
        errors: &[Option<kvbridge::error::Error>],
        bad: &[Vec<u8>],
        handed_back: &[(usize, u64)],
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
                        // Without slots in between it may be there, and counts as lost all the same.
                        let failed = handed_back.contains(&(rank, plan.life));
                        if host.cache.read(kind, page) != wanted || failed {
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
        let ended = !self.servers[server].perhaps_failed.is_empty();
        for (rank, error) in errors.iter().enumerate() {
            let host = &mut self.servers[server].ranks[rank];
            let owes = std::mem::take(&mut host.owes_error) || lost_on[rank];
            let may_owe = std::mem::take(&mut host.may_owe_error) || ended;
            match error {
                Some(error) if !many || !(owes || may_owe) => broken!(
                    "a legal call is not refused",
                    "start_load on rank {rank}: {error}"
                ),
                None if many && owes => broken!(
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
}
