//! What operators hear of a host's functions that fail: one warning when it begins, one line when
//! it ends, however many keys and calls there are in between.

use std::sync::atomic::{AtomicU8, Ordering};

use super::answers::{failure, is_outage};
use crate::store::code;

/// What one batch had to say.
#[derive(Debug)]
pub(super) struct Report {
    function: &'static str,
    keys: usize,
    failed: usize,
    soft_pin: bool,
    /// Some key failed for want of the pool, and not by its answer.
    lost: bool,
    /// The first thing that went wrong.
    text: Option<String>,
}

impl Report {
    pub(super) fn new(function: &'static str, keys: usize, soft_pin: bool) -> Self {
        Self {
            function,
            keys,
            failed: 0,
            soft_pin,
            lost: false,
            text: None,
        }
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.text.is_none() {
            self.text = Some(text());
        }
    }

    /// The function returned this, which is not 0; answers the code of its keys.
    pub(super) fn returned(&mut self, number: i32) -> i32 {
        self.note(|| format!("it returned {number}"));
        failure(number)
    }

    /// The function threw this; answers the code of its keys.
    pub(super) fn threw(&mut self, text: String) -> i32 {
        self.note(|| format!("it threw: {text}"));
        code::NO_ANSWER
    }

    /// The function was not called.
    pub(super) fn unmade(&mut self, code: i32) -> i32 {
        self.note(|| "it is running on this thread already".to_owned());
        code
    }

    /// A key got no answer that counts as a success.
    pub(super) fn no_answer(&mut self, outcome: i32, size: u64, wanted: u64) {
        self.note(|| match outcome {
            code::NO_ANSWER => "it wrote no outcome".to_owned(),
            0 | 2 => {
                format!("it answered {outcome} with {size} bytes, where {wanted} were asked for")
            }
            _ => format!("the first code is {outcome}"),
        });
    }

    /// A key failed with this code.
    pub(super) fn failed(&mut self, code: i32) {
        self.failed += 1;
        self.lost |= is_outage(code);
    }
}

/// Per function, what was told of the trouble that it is in.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    told: [AtomicU8; 4],
}

/// It works, as far as is known.
const NOTHING: u8 = 0;
const FAILURE: u8 = 1;
/// The failure, and that the soft pin may be its reason: what the worker says with other stores.
const SOFT_PIN: u8 = 2;

impl Trouble {
    /// Says what is new in a report of function number `function`.
    pub(super) fn hear(&self, function: usize, report: &Report) {
        let Some(told) = self.told.get(function) else {
            return;
        };
        let Report {
            function,
            keys,
            failed,
            ..
        } = report;
        if report.failed == 0 {
            if *keys > 0 && told.swap(NOTHING, Ordering::Relaxed) != NOTHING {
                tracing::info!("the host's {function} works again");
            }
            return;
        }
        let text = report.text.as_deref().unwrap_or("no reason is known");
        let (news, hint) = match report.soft_pin && !report.lost && failed == keys {
            true => (
                SOFT_PIN,
                "; nothing was stored under the soft pin: a soft_pin_ttl_ms above the maximum of the pool \
                 (24 h in Mooncake unless told) makes it refuse every put",
            ),
            false => (FAILURE, ""),
        };
        if told.fetch_max(news, Ordering::Relaxed) >= news {
            tracing::debug!("the host's {function}: {failed} of {keys} keys failed, {text}{hint}");
        } else {
            tracing::warn!(
                "the host's {function}: {failed} of {keys} keys failed, {text}{hint}; said once until it works again"
            );
        }
    }
}
