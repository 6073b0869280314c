//! More pages for requests whose asynchronous load is on its way: an engine may allocate ahead of the run.

use std::ops::Range;

use kvbridge::scheduler::GroupPages;

use crate::random::Rng;
use crate::setup::T;
use crate::world::{LONGEST, Outcome, Req, State, World, broken};

impl World<'_> {
    /// Whether more pages of it can be reported: it waits for its load, which has travelled.
    pub fn can_get_more_pages(&self, server: usize, req: &Req) -> bool {
        req.state == State::Parked
            && req.is_landing()
            && self.free_pages(server) > 1
            && req.pages.iter().any(|pages| pages.len() * T < LONGEST)
    }

    /// Pages behind those that are known, in one group or in all.
    pub fn do_more_pages(&mut self, server: usize, mut rng: Rng) -> Outcome<bool> {
        let may = |req: &Req| self.can_get_more_pages(server, req);
        let Some(at) = self.pick(server, &mut rng, may) else {
            return Ok(false);
        };
        self.refuse_other_pages(server, at, &mut rng)?;
        let req = &self.servers[server].reqs[at];
        let (id, mut pages) = (req.id, req.pages.clone());
        let groups = match rng.chance(1, 2) {
            true => 0..pages.len(),
            false => {
                let group = rng.below(pages.len());
                group..group + 1
            }
        };
        let mut from = vec![0; pages.len()];
        for group in groups.clone() {
            let have = pages[group].len();
            let room = (LONGEST / T).saturating_sub(have).min(3);
            let count = (1 + rng.below(room.max(1))).min(room);
            let count = count.min(self.servers[server].free[group].len());
            pages[group].extend(self.take_pages(server, group, count));
            // What is known may be said once more.
            from[group] = have - rng.below(2).min(have);
        }
        if let Err(error) = self.report_more(server, id, 0, &pages, &from, groups) {
            broken!("a legal call is not refused", "more pages of {id}: {error}");
        }
        self.tell(|| format!("more pages: request {id}, which waits for its load, has {pages:?}"));
        let req = &mut self.servers[server].reqs[at];
        req.told = pages.iter().map(Vec::len).collect();
        req.pages = pages;
        Ok(true)
    }

    /// What contradicts earlier pages, or would settle the offer once more, is refused and changes nothing.
    fn refuse_other_pages(&mut self, server: usize, at: usize, rng: &mut Rng) -> Outcome {
        if !rng.chance(1, 2) {
            return Ok(());
        }
        let req = self.servers[server].reqs[at].clone();
        let groups = 0..req.pages.len();
        let group = rng.below(groups.end);
        let whole = vec![0; groups.end];
        let mut other = req.pages.clone();
        let mut behind = whole.clone();
        let mut tries = vec![(T as u64, &req.pages, &whole, "its offer is settled")];
        if let Some(page) = other[group].last_mut() {
            *page = (*page + 1) % crate::world::SLOTS as i32;
            tries.push((0, &other, &whole, "another page at a known place"));
        }
        behind[group] = req.pages[group].len() + 1;
        tries.push((0, &req.pages, &behind, "a gap"));
        for (tokens, pages, from, what) in tries {
            if self
                .report_more(server, req.id, tokens, pages, from, groups.clone())
                .is_ok()
            {
                broken!(
                    "an illegal call is refused",
                    "more pages of {}: {what}",
                    req.id
                );
            }
        }
        Ok(())
    }

    fn report_more(
        &mut self,
        server: usize,
        id: u64,
        tokens: u64,
        pages: &[Vec<i32>],
        from: &[usize],
        groups: Range<usize>,
    ) -> kvbridge::error::Result<()> {
        let lists: Vec<GroupPages<'_>> = groups
            .map(|group| GroupPages {
                group: self.setup.groups[group],
                first_block: from[group] as u32,
                indices: pages[group].get(from[group]..).unwrap_or_default(),
                replace: false,
            })
            .collect();
        let scheduler = &mut self.servers[server].scheduler;
        scheduler.allocated(id, tokens, &lists)
    }
}
