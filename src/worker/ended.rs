//! Which lives of requests were bound, and which have ended: their pages are the engine's again, and a
//! metadata that was built before may still name them.

use hashbrown::HashMap;

use crate::link::OPEN_PASSES;
use crate::metadata::Life;

/// Lives that ended lately, by request: a pass asks for each of its runs.
#[derive(Debug, Default)]
pub(super) struct EndedLives {
    requests: HashMap<u64, Ended>,
    /// Per request the newest of its lives that was bound and is not known to have ended.
    bound: HashMap<u64, u64>,
    /// Calls of `bind` so far: the clock by which lives are forgotten.
    binds: u64,
}

#[derive(Debug, Clone, Copy)]
struct Ended {
    /// The newest life that ended; those before it did so too.
    generation: u64,
    /// Number of `bind` calls before its end.
    at: u64,
}

impl EndedLives {
    /// This life, and all of the request that came before it, ended.
    pub fn add(&mut self, (id, generation): Life) {
        let at = self.binds;
        let fresh = Ended { generation, at };
        let ended = self.requests.entry(id).or_insert(fresh);
        // The clock starts anew also for a life that was heard of before; that errs on the safe side.
        ended.generation = ended.generation.max(generation);
        ended.at = at;
        if self
            .bound
            .get(&id)
            .is_some_and(|newest| *newest <= generation)
        {
            self.bound.remove(&id);
        }
    }

    /// A metadata names this life.
    pub fn bound(&mut self, (id, generation): Life) {
        if !self.has((id, generation)) {
            let newest = self.bound.entry(id).or_insert(0);
            *newest = generation.max(*newest);
        }
    }

    /// The newest life of the request that was bound, unless it is known to have ended. Lives are
    /// numbered in the order they were matched, which says nothing of those of other requests.
    pub fn newest_bound(&self, id: u64) -> Option<u64> {
        self.bound.get(&id).copied()
    }

    /// Whether any life of the request is known to have ended.
    pub fn knows(&self, id: u64) -> bool {
        self.requests.contains_key(&id)
    }

    /// Whether this life is known to have ended.
    pub fn has(&self, (id, generation): Life) -> bool {
        let ended = self.requests.get(&id);
        ended.is_some_and(|ended| generation <= ended.generation)
    }

    /// A metadata is bound. Lives that none of those built before their end can be left to name
    /// are forgotten.
    pub fn next_pass(&mut self) {
        self.binds += 1;
        let binds = self.binds;
        self.requests
            .retain(|_, ended| ended.at + OPEN_PASSES as u64 >= binds);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_life_is_remembered_while_a_metadata_built_before_its_end_may_come() {
        let mut ended = EndedLives::default();
        ended.next_pass();
        ended.add((1, 7));
        for _ in 0..OPEN_PASSES {
            ended.next_pass();
            assert!(ended.has((1, 7)));
        }
        ended.next_pass();
        assert!(!ended.has((1, 7)));
    }

    #[test]
    fn an_end_covers_earlier_lives_of_the_id_and_no_other() {
        let mut ended = EndedLives::default();
        ended.add((1, 7));
        ended.add((1, 5));
        ended.add((2, 3));
        assert!(ended.has((1, 7)) && ended.has((1, 6)) && ended.has((2, 3)));
        assert!(!ended.has((1, 8)) && !ended.has((2, 4)) && !ended.has((3, 0)));
    }
}
