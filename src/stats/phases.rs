//! Where loads spend their time. Off, no clock is read.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::Counter;

/// Parts of a load, in the order they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Which pages, under which keys.
    Resolve,
    /// Waiting for the allocation fence.
    Fence,
    /// Where the bytes are to land.
    Describe,
    /// The pool's call.
    Get,
    /// From staging slots into the cache.
    Unstage,
    /// Waiting for the device.
    Sync,
}

/// All phases.
pub const PHASES: [Phase; 6] = [
    Phase::Resolve,
    Phase::Fence,
    Phase::Describe,
    Phase::Get,
    Phase::Unstage,
    Phase::Sync,
];

impl Phase {
    /// As lines and labels name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Fence => "fence",
            Self::Describe => "describe",
            Self::Get => "get",
            Self::Unstage => "unstage",
            Self::Sync => "sync",
        }
    }
}

/// Time by phase so far; all zero while timing is off.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct PhaseTimes {
    wall_ns: [u64; PHASES.len()],
    cpu_ns: [u64; PHASES.len()],
    /// How long asynchronous loads waited for a thread.
    pub queued: Duration,
}

impl PhaseTimes {
    /// On the wall.
    pub fn wall(&self, phase: Phase) -> Duration {
        Duration::from_nanos(self.wall_ns[phase as usize])
    }

    /// On the CPU of the thread that loads.
    pub fn cpu(&self, phase: Phase) -> Duration {
        Duration::from_nanos(self.cpu_ns[phase as usize])
    }

    /// Time in which bytes moved: from the pool, into the cache, on the device.
    pub fn transfer(&self) -> Duration {
        self.wall(Phase::Get) + self.wall(Phase::Unstage) + self.wall(Phase::Sync)
    }

    /// What was added since `earlier`.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let minus = |now: [u64; PHASES.len()], then: [u64; PHASES.len()]| {
            std::array::from_fn(|phase| now[phase].saturating_sub(then[phase]))
        };
        Self {
            wall_ns: minus(self.wall_ns, earlier.wall_ns),
            cpu_ns: minus(self.cpu_ns, earlier.cpu_ns),
            queued: self.queued.saturating_sub(earlier.queued),
        }
    }
}

/// Adds up time by phase, from any thread, if it is on.
#[derive(Debug, Default)]
pub struct Timers {
    on: bool,
    wall_ns: [Counter; PHASES.len()],
    cpu_ns: [Counter; PHASES.len()],
    queued_ns: Counter,
}

/// A point in time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Lap(Instant, Duration);

impl Timers {
    /// Timers that run, or do not.
    pub fn new(on: bool) -> Self {
        Self {
            on,
            ..Self::default()
        }
    }

    /// Now; nothing when off.
    pub fn start(&self) -> Option<Lap> {
        self.on.then(|| Lap(Instant::now(), thread_time()))
    }

    /// Adds the time since `from` to a phase; now, for the next one.
    pub fn lap(&self, phase: Phase, from: Option<Lap>) -> Option<Lap> {
        let from = from?;
        let now = Lap(Instant::now(), thread_time());
        self.wall_ns[phase as usize].add(nanos(now.0.saturating_duration_since(from.0)));
        self.cpu_ns[phase as usize].add(nanos(now.1.saturating_sub(from.1)));
        Some(now)
    }

    /// Adds the time since `from` to what loads waited for a thread.
    pub fn waited(&self, from: Option<Instant>) {
        if let Some(from) = from {
            self.queued_ns.add(nanos(from.elapsed()));
        }
    }

    /// Now on the wall; nothing when off.
    pub fn now(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    /// Reads all times.
    pub fn snapshot(&self) -> PhaseTimes {
        PhaseTimes {
            wall_ns: std::array::from_fn(|phase| self.wall_ns[phase].get()),
            cpu_ns: std::array::from_fn(|phase| self.cpu_ns[phase].get()),
            queued: Duration::from_nanos(self.queued_ns.get()),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// CPU time of the calling thread.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_to_its_phase_and_only_when_on() {
        let timers = Timers::new(true);
        let start = timers.start();
        std::thread::sleep(Duration::from_millis(5));
        let next = timers.lap(Phase::Fence, start);
        assert!(next.is_some());
        timers.waited(timers.now());
        let times = timers.snapshot();
        assert!(times.wall(Phase::Fence) >= Duration::from_millis(5));
        // A thread that sleeps has no CPU.
        assert!(times.cpu(Phase::Fence) < times.wall(Phase::Fence));
        assert_eq!(times.wall(Phase::Get), Duration::ZERO);
        assert_eq!(times.since(&times).wall(Phase::Fence), Duration::ZERO);

        let off = Timers::new(false);
        assert!(off.start().is_none() && off.now().is_none());
        assert!(
            off.lap(
                Phase::Get,
                start.map(|_| Lap(Instant::now(), Duration::ZERO))
            )
            .is_some()
        );
        assert!(off.lap(Phase::Get, None).is_none());
    }
}
