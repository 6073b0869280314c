//! Which tables' functions run on this thread, so that a call which comes back to one of them is
//! refused and does not wait for itself.

use std::cell::RefCell;

thread_local! {
    static RUNNING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A function of a table runs on this thread, for as long as this lives.
pub(super) struct Inside(());

impl Inside {
    /// None when one of this table runs here already.
    pub(super) fn enter(table: usize) -> Option<Self> {
        // Without the list, at the very end of a thread, nothing can be told; nobody calls there.
        let entered = RUNNING.try_with(|running| {
            let mut running = running.borrow_mut();
            let free = !running.contains(&table);
            if free {
                running.push(table);
            }
            free
        });
        // Made only then: what is dropped leaves the table.
        entered.unwrap_or(false).then(|| Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_entered_once_and_others_beside_it() {
        let first = Inside::enter(1);
        assert!(first.is_some() && Inside::enter(1).is_none());
        let second = Inside::enter(2);
        assert!(second.is_some() && Inside::enter(1).is_none());
        drop(second);
        assert!(Inside::enter(1).is_none() && Inside::enter(2).is_some());
        drop(first);
        assert!(Inside::enter(1).is_some());
        std::thread::scope(|scope| {
            let _here = Inside::enter(1);
            scope.spawn(|| assert!(Inside::enter(1).is_some()));
        });
    }
}
