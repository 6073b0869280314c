//! A clock that jumps in the middle of a call.

use std::time::Duration;

use kvbridge::lane::{Clock, ManualClock};
use parking_lot::Mutex;

/// Longer than any timeout of a test.
pub const LONG: Duration = Duration::from_secs(3600);

/// Stands still, but for jumps that were asked for.
#[derive(Debug, Default)]
pub struct Jumping {
    clock: ManualClock,
    /// The questions that are still answered before it jumps.
    left: Mutex<Option<u32>>,
}

impl Jumping {
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Jumps when it is asked once more than `questions` times. A call of a pool asks when it is admitted, when it begins to
    /// wait, and after each step of whoever makes the call; so after 3 questions a stepped call of the pool is late: begun
    /// and not made.
    pub fn jump_after(&self, questions: u32) {
        *self.left.lock() = Some(questions);
    }

    /// No jump that was asked for happens any more.
    pub fn calm(&self) {
        *self.left.lock() = None;
    }
}

impl Clock for Jumping {
    fn now(&self) -> Duration {
        let mut left = self.left.lock();
        match &mut *left {
            Some(0) => {
                *left = None;
                self.clock.advance(LONG);
            }
            Some(left) => *left -= 1,
            None => {}
        }
        self.clock.now()
    }
}
