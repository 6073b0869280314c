//! The text behind a status: what the calling thread's latest failed call had to say.

use std::cell::RefCell;
use std::fmt::{self, Write};

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Replaces the calling thread's text. A thread that is ending keeps none.
pub(super) fn set(text: fmt::Arguments<'_>) {
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            last.clear();
            // Writing to a string cannot fail; a broken Display only cuts the text short.
            let _ = last.write_fmt(text);
        }
    });
}

/// Shows the calling thread's text to `look`; empty when no call of this thread failed yet.
pub(super) fn with<R>(look: impl FnOnce(&str) -> R) -> R {
    let text = LAST.try_with(|last| last.try_borrow().map(|last| last.clone()));
    match text {
        Ok(Ok(text)) => look(&text),
        _ => look(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_belong_to_threads_and_the_latest_one_counts() {
        set(format_args!("first {}", 1));
        set(format_args!("second"));
        with(|text| assert_eq!(text, "second"));
        std::thread::spawn(|| with(|text| assert_eq!(text, "")))
            .join()
            .unwrap();
    }
}
