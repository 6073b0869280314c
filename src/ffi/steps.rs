//! The steps of a pass, read where the engine has them: a list of them would cost more than all that becomes of most.

use std::cell::{Cell, OnceCell};

use super::plain::{self, PageNames};
use super::scheduler::kvb_step;
use crate::error::{Error, Result};
use crate::scheduler::{Decoding, GroupPages, Step, Told};

/// Where page lists stand in the arguments of `kvb_scheduler_build`.
const NAMES: PageNames = PageNames {
    list: "pass->steps->pages",
    indices: "pass->steps->pages->indices",
    replace: "pass->steps->pages->replace",
};

/// The page lists of all steps of a pass, which are translated when the first of them is asked for: in most passes none is.
pub(super) struct PageLists<'g> {
    steps: &'g [kvb_step],
    /// The memory of earlier passes' lists, until they are translated.
    spare: Cell<Vec<GroupPages<'g>>>,
    translated: OnceCell<Vec<GroupPages<'g>>>,
}

impl<'g> PageLists<'g> {
    /// `memory` is an empty list. All that the steps point to stays as it is as long as this lives.
    ///
    /// # Safety
    /// As for [`plain::group_pages`], of each step.
    pub unsafe fn new(steps: &'g [kvb_step], memory: Vec<GroupPages<'g>>) -> Self {
        Self {
            steps,
            spare: Cell::new(memory),
            translated: OnceCell::new(),
        }
    }

    /// The lists of all steps, one behind the other.
    fn all(&self) -> Result<&[GroupPages<'g>]> {
        if let Some(lists) = self.translated.get() {
            return Ok(lists);
        }
        let mut lists = self.spare.take();
        for (index, step) in self.steps.iter().enumerate() {
            // SAFETY: promised to `new`.
            unsafe { plain::group_pages(step.pages, step.page_lists, &NAMES, &mut lists) }
                .map_err(|error| within_step(error, index))?;
        }
        Ok(self.translated.get_or_init(|| lists))
    }

    /// The memory it was made with, or more; none if a list could not be read.
    pub fn into_memory(self) -> Vec<GroupPages<'g>> {
        let spare = self.spare.into_inner();
        self.translated.into_inner().unwrap_or(spare)
    }
}

/// The steps that are left.
#[derive(Clone)]
pub(super) struct Steps<'a, 'g> {
    left: std::slice::Iter<'a, kvb_step>,
    lists: &'a PageLists<'g>,
    /// How many page lists the steps have that were given.
    passed: usize,
}

impl<'a, 'g> Steps<'a, 'g> {
    pub fn new(lists: &'a PageLists<'g>) -> Self {
        Self {
            left: lists.steps.iter(),
            lists,
            passed: 0,
        }
    }
}

/// One step.
pub(super) struct ToldStep<'a, 'g> {
    given: &'a kvb_step,
    index: usize,
    lists: &'a PageLists<'g>,
    first_list: usize,
}

impl<'a> Told<'a> for ToldStep<'a, '_> {
    fn request_id(&self) -> u64 {
        self.given.request_id
    }

    #[inline(always)] // as Steps::next
    fn decoding(&self) -> Option<Decoding> {
        let step = self.given;
        // SAFETY: the pass's caller lends its tokens for the call, see the header's conventions.
        let token = unsafe { step.new_tokens.only() }?;
        (step.page_lists == 0).then_some(Decoding {
            token,
            computed_position: step.computed_position,
            scheduled_tokens: step.scheduled_tokens,
        })
    }

    fn read(&self) -> Result<Step<'a>> {
        let step = self.given;
        // SAFETY: as above.
        let new_tokens = unsafe { step.new_tokens.read("pass->steps->new_tokens.data") }
            .map_err(|error| within_step(error, self.index))?;
        let pages = match step.page_lists {
            0 => None,
            count => {
                let from = self.lists.all()?.get(self.first_list..);
                from.and_then(|lists| lists.get(..count))
            }
        };
        Ok(Step {
            request_id: step.request_id,
            new_tokens,
            // All are there: the same steps were counted.
            pages: pages.unwrap_or_default(),
            computed_position: step.computed_position,
            scheduled_tokens: step.scheduled_tokens,
        })
    }
}

impl<'a, 'g> Iterator for Steps<'a, 'g> {
    type Item = ToldStep<'a, 'g>;

    // Into the loop over them, since a step that comes back through memory costs as much as the rest.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let given = self.left.next()?;
        let first_list = self.passed;
        // A sum that overflows is of counts that `all` refuses.
        self.passed = first_list.wrapping_add(given.page_lists);
        Some(ToldStep {
            given,
            index: self.lists.steps.len() - self.left.len() - 1,
            lists: self.lists,
            first_list,
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for Steps<'_, '_> {}

#[cold]
fn within_step(error: Error, index: usize) -> Error {
    error.within(format_args!("steps[{index}]"))
}
