//! Locks, threads and time: the one place that switches between the real primitives and loom's.
//!
//! Locks are parking_lot's: small, and without poisoning. Under `cfg(loom)` the same names are
//! loom's, which runs a test in every order that the threads could take. loom knows no time: a
//! timed wait there lasts until it is notified.

pub use primitives::{AtomicBool, Condvar, JoinHandle, Mutex, MutexGuard, spawn};

pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, Weak};

use std::time::{Duration, Instant};

/// What is never dropped. A list, so that tools that look for lost memory find it here.
static KEPT: std::sync::Mutex<Vec<Box<dyn Send>>> = std::sync::Mutex::new(Vec::new());

/// Keeps a value until the process ends, because somebody who cannot be asked may still use what it owns.
pub fn keep_for_ever(value: impl Send + 'static) {
    let mut kept = KEPT
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    kept.push(Box::new(value));
}

#[cfg(not(loom))]
mod primitives {
    use std::io;
    use std::time::Duration;

    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::atomic::AtomicBool;
    pub use std::thread::JoinHandle;

    /// A condition variable for [`Mutex`].
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// A condition variable that nobody waits for.
        pub fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        /// Wakes all waiting threads.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Wakes one waiting thread.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Gives the lock up until notified.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        /// Gives the lock up until notified, or until `patience` has passed; false then.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, patience: Duration) -> bool {
            !self.0.wait_for(guard, patience).timed_out()
        }
    }

    /// Starts a named thread.
    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
    }
}

#[cfg(loom)]
mod primitives {
    use std::io;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub use loom::sync::atomic::AtomicBool;
    pub use loom::thread::JoinHandle;

    /// loom's mutex with parking_lot's face.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    /// Holds the lock; empty only while a condition variable has it.
    pub struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        /// An unlocked mutex.
        pub fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        /// Waits for the lock. loom's mutex is never poisoned.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(self.0.lock().ok())
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            match &self.0 {
                Some(guard) => guard,
                None => unreachable!("the guard is only empty inside a wait"),
            }
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.0 {
                Some(guard) => guard,
                None => unreachable!("the guard is only empty inside a wait"),
            }
        }
    }

    /// loom's condition variable with parking_lot's face.
    #[derive(Debug, Default)]
    pub struct Condvar(loom::sync::Condvar);

    impl Condvar {
        /// A condition variable that nobody waits for.
        pub fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        /// Wakes all waiting threads.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Wakes one waiting thread.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Gives the lock up until notified.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            if let Some(held) = guard.0.take() {
                guard.0 = self.0.wait(held).ok();
            }
        }

        /// Gives the lock up until notified; time does not pass in a model.
        pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _patience: Duration) -> bool {
            self.wait(guard);
            true
        }
    }

    /// Starts a thread of the model.
    pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
        loom::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)
    }
}

/// Where time comes from, so that tests can drive it.
pub trait Clock: Send + Sync {
    /// Time since an arbitrary start; never goes backwards.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self {
            start: Instant::now(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

/// A clock that only moves when it is told to, for tests.
#[derive(Debug, Default)]
pub struct ManualClock {
    now: Mutex<Duration>,
}

impl ManualClock {
    /// A clock that stands at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let mut now = self.now.lock();
        *now = now.saturating_add(by);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        *self.now.lock()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::new();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_secs(3));
        clock.advance(Duration::from_millis(5));
        assert_eq!(clock.now(), Duration::from_millis(3005));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Duration::MAX);
    }

    #[test]
    fn the_system_clock_never_goes_backwards() {
        let clock = SystemClock::new();
        let first = clock.now();
        assert!(clock.now() >= first);
    }
}
