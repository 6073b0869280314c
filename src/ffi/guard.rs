//! The one way in: every exported function runs its body here, so that nothing unwinds into the
//! host, every failure leaves its text, and what happens inside can be logged.

use super::status::{self, KVB_BUSY, KVB_OK, KVB_PANIC, kvb_status};
use super::{log, message};
use crate::error::Result;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe, PanicHookInfo};
use std::sync::Once;

thread_local! {
    /// How many guards this thread is inside of (a host's callback may call us again).
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Where the panic on its way up started; the payload alone does not tell.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `body` and turns its end into a status; a failure's text is kept for `kvb_last_error`.
///
/// Handles that `body` holds when it panics are poisoned by their own guards (`handle`).
pub(super) fn guard(function: &'static str, body: impl FnOnce() -> Result<()>) -> kvb_status {
    if log::is_speaking() {
        message::set(format_args!(
            "{function}: called from inside the log callback"
        ));
        return KVB_BUSY;
    }
    match caught(|| log::scope(body)) {
        Ok(Ok(())) => KVB_OK,
        Ok(Err(error)) => {
            message::set(format_args!("{function}: {error}"));
            status::of(error.kind())
        }
        Err(text) => {
            message::set(format_args!("{function}: panicked: {text}"));
            KVB_PANIC
        }
    }
}

/// As [`guard`], for functions that have no status to answer with.
pub(super) fn guard_or<R>(
    function: &'static str,
    otherwise: R,
    body: impl FnOnce() -> Result<R>,
) -> R {
    let mut answer = None;
    guard(function, || {
        answer = Some(body()?);
        Ok(())
    });
    answer.unwrap_or(otherwise)
}

/// Runs `body`; a panic becomes its text and place.
fn caught<R>(body: impl FnOnce() -> R) -> std::result::Result<R, String> {
    keep_quiet();
    let depth = |change: fn(u32) -> u32| {
        let _ = DEPTH.try_with(|depth| depth.set(change(depth.get())));
    };
    depth(|depth| depth.saturating_add(1));
    let end = panic::catch_unwind(AssertUnwindSafe(body));
    depth(|depth| depth.saturating_sub(1));
    end.map_err(|payload| {
        let text = text(&*payload).to_owned();
        // A payload may itself panic when it is dropped; that one is then kept for good.
        if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(second);
        }
        match PLACE.try_with(|place| place.take()) {
            Ok(Some(place)) => format!("{text} ({place})"),
            _ => text,
        }
    })
}

fn text(payload: &(dyn Any + Send)) -> &str {
    if let Some(text) = payload.downcast_ref::<&str>() {
        text
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text
    } else {
        "a payload that is no text"
    }
}

/// Keeps panics that are ours off the host's standard error: inside a guard the text is returned,
/// in our threads it is logged. All others go where they went before.
fn keep_quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if DEPTH.try_with(Cell::get).unwrap_or(0) > 0 {
                remember(info);
            } else if log::is_ours() {
                tracing::error!("a thread of the library panicked: {info}");
            } else {
                before(info);
            }
        }));
    });
}

fn remember(info: &PanicHookInfo<'_>) {
    let _ = PLACE.try_with(|place| place.replace(info.location().map(ToString::to_string)));
}

#[cfg(test)]
mod tests {
    use super::super::status::KVB_CONTRADICTION;
    use super::*;
    use crate::error::{Error, Kind};

    #[test]
    fn errors_become_their_status_and_keep_their_text() {
        let status = guard("kvb_try", || {
            Err(Error::new(Kind::Contradiction, "block 3 is not block 4"))
        });
        assert_eq!(status, KVB_CONTRADICTION);
        message::with(|text| assert_eq!(text, "kvb_try: block 3 is not block 4"));
        assert_eq!(guard("kvb_try", || Ok(())), KVB_OK);
    }

    #[test]
    fn panics_of_every_kind_are_caught_and_their_text_is_kept() {
        assert_eq!(guard("kvb_try", || panic!("seven")), KVB_PANIC);
        message::with(|text| {
            assert!(text.starts_with("kvb_try: panicked: seven ("), "{text}");
            assert!(text.contains("guard.rs:"), "{text}");
        });
        assert_eq!(guard("kvb_try", || panic!("block {}", 7)), KVB_PANIC);
        message::with(|text| assert!(text.contains("block 7"), "{text}"));
        assert_eq!(guard("kvb_try", || panic::panic_any(Explosive)), KVB_PANIC);
    }

    #[test]
    fn a_call_from_inside_the_log_callback_is_refused_before_it_begins() {
        let status = log::while_speaking(|| guard("kvb_try", || panic!("it began")));
        assert_eq!(status, KVB_BUSY);
        message::with(|text| assert!(text.contains("log callback"), "{text}"));
        assert_eq!(guard("kvb_try", || Ok(())), KVB_OK);
    }

    #[test]
    fn functions_without_a_status_answer_otherwise() {
        assert_eq!(guard_or("kvb_try", 1, || Ok(2)), 2);
        assert_eq!(guard_or("kvb_try", 1, || panic!("three")), 1);
    }

    struct Explosive;
    impl Drop for Explosive {
        fn drop(&mut self) {
            panic!("again");
        }
    }
}
