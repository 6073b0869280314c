//! Makes a failing history short: events are taken out as long as it still fails in the same way.

use crate::history::{Bench, History, Run, replay};

/// Runs that shrinking may take.
const PATIENCE: usize = 4_000;

/// The shortest failing part of a history that was found, with its story.
pub fn shrink(bench: &mut Bench, history: &History, invariant: &str) -> Run {
    let mut best = history.clone();
    let mut runs = 0;
    let mut size = best.events.len() / 2;
    while size > 0 && runs < PATIENCE {
        let mut shorter = false;
        let mut from = 0;
        while from < best.events.len() && runs < PATIENCE {
            let mut next = best.clone();
            let to = (from + size).min(next.events.len());
            next.events.drain(from..to);
            runs += 1;
            let run = replay(bench, &next, false);
            if run
                .failure
                .is_some_and(|failure| failure.invariant == invariant)
            {
                // What came after the failure is gone, too.
                best.events = run.history.events;
                shorter = true;
            } else {
                from += size;
            }
        }
        if size > 1 || !shorter {
            size /= 2;
        }
    }
    replay(bench, &best, true)
}
