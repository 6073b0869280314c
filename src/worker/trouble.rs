//! What operators hear of a pool that answers, but not with what was asked for: one warning when that begins. Of a
//! pool that is away the guard tells, once per outage.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::store::{Presence, PutOutcome, Store, code};

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    /// That the pool refuses pages.
    saves: AtomicBool,
    /// That pins may be why it refuses all of them.
    pins: AtomicBool,
    /// That it does not say which keys it has.
    lookups: AtomicBool,
}

/// What became of the pages of one put.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    pages: usize,
    taken: usize,
    refused: usize,
    /// The code of the first page that was refused.
    first: Option<i32>,
}

impl Refusals {
    /// What became of one page.
    pub fn note(&mut self, store: &dyn Store, outcome: PutOutcome) {
        self.pages += 1;
        match outcome {
            PutOutcome::Stored | PutOutcome::AlreadyThere => self.taken += 1,
            PutOutcome::Failed(code) if is_refusal(store, code) => {
                self.refused += 1;
                self.first.get_or_insert(code);
            }
            // No room, or an outage: neither the one nor the other.
            PutOutcome::NoSpace | PutOutcome::Failed(_) => {}
        }
    }
}

/// Whether a failure is the pool's word about what it was asked, and not of an outage.
fn is_refusal(store: &dyn Store, number: i32) -> bool {
    let is_no_answer = matches!(
        number,
        code::BREAKER_OPEN | code::DEADLINE | code::NO_ANSWER | code::CLOSED
    );
    // Another server is first, which is as good as a success.
    !is_no_answer && number != code::BEING_WRITTEN && !store.is_outage(number)
}

impl Trouble {
    /// Says what is new after a put; `pinned`: it asked for a soft pin.
    pub fn hear_of_put(&self, store: &dyn Store, put: &Refusals, pinned: bool) {
        if store.capabilities().logs_failures {
            return;
        }
        let Some(code) = put.first else {
            if put.taken > 0 && self.saves.swap(false, Ordering::Relaxed) {
                tracing::info!("save: the pool takes pages again");
            }
            return;
        };
        let Refusals { pages, refused, .. } = put;
        let explains = pinned && refused == pages && !self.pins.swap(true, Ordering::Relaxed);
        let hint = match explains {
            true => {
                "; with a soft pin beyond its maximum (24 h unless the master was told otherwise) it refuses them all: lower soft_pin_ttl_ms"
            }
            false => "",
        };
        if !self.saves.swap(true, Ordering::Relaxed) || explains {
            tracing::warn!(
                "save: the pool refused {refused} of {pages} pages, the first with code {code}{hint}; they are offered again, and this is said once until it takes them"
            );
        }
    }

    /// Says once that a lookup has keys without an answer.
    pub fn hear_of_lookup(&self, store: &dyn Store, present: &[Presence]) {
        if store.capabilities().logs_failures {
            return;
        }
        let mut refusals = present.iter().filter_map(|one| match one {
            Presence::Unknown(code) if is_refusal(store, *code) => Some(*code),
            _ => None,
        });
        let Some(code) = refusals.next() else {
            return;
        };
        if !self.lookups.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "lookup: the pool does not say of {} of {} keys whether they are there, the first code is {code}: they count as missing, and in failed_lookup_keys (said once)",
                1 + refusals.count(),
                present.len()
            );
        }
    }
}
