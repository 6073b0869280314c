//! What is counted about a pool whose calls can be late.

/// What the breaker in front of a pool lets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BreakerState {
    /// Every call.
    #[default]
    Closed,
    /// None: the pool did not answer, or too much is held by calls that went wrong.
    Open,
    /// One call is on its way to find out whether the pool answers again; no other.
    Probing,
}

/// The numbers of one guard. All stay 0 around a pool whose calls cannot be late.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// What the breaker lets through now.
    pub state: BreakerState,
    /// Calls whose caller went at the deadline, also those that no thread had taken by then.
    pub deadlines: u64,
    /// Calls that ended in time with a transport error or without an answer.
    pub failures: u64,
    /// How often the breaker opened, also after a probe.
    pub opened: u64,
    /// Calls that were not made because the breaker was open.
    pub refused: u64,
    /// Late calls that have returned.
    pub returned: u64,
    /// Calls that are late now, each with a thread.
    pub late: u64,
    /// Calls whose buffers stay unused for good, since the pool failed and may still use them.
    pub quarantined: u64,
}

impl PoolCounts {
    /// Name, meaning and value of each number that only grows.
    pub fn counters(&self) -> [(&'static str, &'static str, u64); 5] {
        [
            (
                "pool_deadlines",
                "Calls of the pool that had no answer at their deadline.",
                self.deadlines,
            ),
            (
                "pool_failures",
                "Calls of the pool that ended with a transport error or without an answer.",
                self.failures,
            ),
            (
                "breaker_openings",
                "How often calls began to be kept from the pool.",
                self.opened,
            ),
            (
                "breaker_refusals",
                "Calls of the pool that were not made because it did not answer lately.",
                self.refused,
            ),
            (
                "late_calls_returned",
                "Calls of the pool that returned after their deadline.",
                self.returned,
            ),
        ]
    }

    /// Name, meaning and value of each number that goes up and down.
    pub fn gauges(&self) -> [(&'static str, &'static str, u64); 3] {
        [
            (
                "breaker_state",
                "0: calls reach the pool; 1: they are kept from it; 2: one finds out.",
                self.state as u64,
            ),
            (
                "late_calls",
                "Calls of the pool past their deadline that have not returned.",
                self.late,
            ),
            (
                "quarantined_calls",
                "Calls of the pool whose memory is not used again, since the pool may use it.",
                self.quarantined,
            ),
        ]
    }
}
