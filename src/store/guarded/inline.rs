//! Gets and puts of callers that only lend their memory, around a store whose calls end by themselves: on the caller's
//! thread, without a copy.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Guarded;
use super::call::{Core, End};
use super::owned::{get_failure, put_failure};
use crate::device::memory::{Source, Target};
use crate::keys::Keys;
use crate::lane::{Item, Lane, Step};
use crate::store::{GetOutcome, Pieces, PutOptions, PutOutcome, Store, answer_all, code};

impl Guarded {
    /// A get that lands where its caller wants it.
    pub(super) fn get_inline(
        &self,
        lane: &Lane,
        keys: &Keys,
        targets: Pieces<'_, Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) {
        let made = self.inside(lane, keys, |store| {
            store.get(keys, targets, out);
            get_failure(out, store)
        });
        if let Err(code) = made {
            answer_all(out, keys.len(), GetOutcome::Failed(code));
        }
    }

    /// A put from where its caller has the bytes.
    pub(super) fn put_inline(
        &self,
        lane: &Lane,
        keys: &Keys,
        sources: Pieces<'_, Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        let made = self.inside(lane, keys, |store| {
            store.put(keys, sources, options, out);
            put_failure(out, store)
        });
        if let Err(code) = made {
            answer_all(out, keys.len(), PutOutcome::Failed(code));
        }
    }

    /// Makes a call, which answers with the code of a failure of the pool as a whole. Errors: the code of all keys, where the
    /// pool gave no answers.
    fn inside(
        &self,
        lane: &Lane,
        keys: &Keys,
        call: impl FnOnce(&dyn Store) -> Option<i32>,
    ) -> Result<(), i32> {
        let permit = self.admit_pages(lane, keys)?;
        let core: &Core = &self.core;
        if !core.enter(false) {
            core.ended(Some(permit), End::Unmade);
            return Err(code::CLOSED);
        }
        let made = catch_unwind(AssertUnwindSafe(|| call(&*core.store)));
        core.ended(
            Some(permit),
            match made {
                Ok(None) => End::Answered,
                Ok(Some(code)) => End::Failed(code),
                Err(_) => End::Panicked,
            },
        );
        core.leave();
        if core.state.lock().closed {
            // One that is refused has nobody to tell.
            drop(lane.push(Box::new(Left)));
        }
        made.map(|_| ()).map_err(|_| {
            tracing::error!("a call of the pool panicked");
            code::NO_ANSWER
        })
    }
}

/// Does nothing, so that a close that waits for calls inside the pool looks again.
struct Left;

impl Item for Left {
    fn step(&mut self) -> Step {
        Step::Done
    }

    fn name(&self) -> &'static str {
        "pool left"
    }
}
