//! The circuit breaker of a pool: whether a call may be made now, and what its end says about the
//! next ones. It makes no call and knows no clock; whoever does tells it the time.

use std::time::Duration;

pub use crate::stats::BreakerState as State;

/// The permission for one call; its end is told with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a probe whose end is never told keeps the breaker from closing"]
pub struct Pass {
    /// How often the breaker had opened when the call was admitted: a call speaks only about its own period.
    period: u64,
    probe: bool,
}

impl Pass {
    /// Whether this call alone finds out if the pool answers again.
    pub fn is_probe(&self) -> bool {
        self.probe
    }
}

/// The state machine. Times are those of one clock, since an arbitrary start.
#[derive(Debug)]
pub struct Breaker {
    cooldown: Duration,
    bound: usize,
    held: usize,
    /// What of it are buffers.
    buffers: usize,
    mode: Mode,
    opened: u64,
}

#[derive(Debug, Clone, Copy)]
enum Mode {
    Closed,
    Open { until: Duration },
    Probing,
}

impl Breaker {
    /// A closed breaker. After an opening nothing passes for `cooldown`, or longer where buffers were lost
    /// ([`failed`](Self::failed)). At `bound` holds (0 counts as 1) nothing passes at all.
    pub fn new(cooldown: Duration, bound: usize) -> Self {
        Self {
            cooldown,
            bound: bound.max(1),
            held: 0,
            buffers: 0,
            mode: Mode::Closed,
            opened: 0,
        }
    }

    /// Asks for a call that begins `now`; `None`: it must not be made.
    pub fn admit(&mut self, now: Duration) -> Option<Pass> {
        if self.held >= self.bound {
            return None;
        }
        let probe = match self.mode {
            Mode::Closed => false,
            Mode::Open { until } if now >= until => {
                self.mode = Mode::Probing;
                true
            }
            Mode::Open { .. } | Mode::Probing => return None,
        };
        Some(Pass {
            period: self.opened,
            probe,
        })
    }

    /// The call was answered in time and by the pool. True if that closed the breaker.
    pub fn succeeded(&mut self, pass: Pass) -> bool {
        let is_news = self.is_awaited(pass);
        if is_news {
            self.mode = Mode::Closed;
        }
        is_news
    }

    /// The call missed its deadline, or the pool could not be reached. True if that opened the breaker,
    /// also again after a probe. `keeps`: its buffers are held now; the pause is the cooldown then, doubled for
    /// each other call whose buffers are held. A probe shows only that the pool answers questions, and each call that
    /// finds out about pages may cost more buffers than there are.
    pub fn failed(&mut self, pass: Pass, now: Duration, keeps: bool) -> bool {
        let is_news = match self.mode {
            Mode::Closed => pass.period == self.opened,
            Mode::Probing => self.is_awaited(pass),
            Mode::Open { .. } => false,
        };
        if is_news {
            self.opened += 1;
            let others = match keeps {
                true => self.buffers.saturating_sub(1),
                false => 0,
            };
            let doubled = u32::try_from(others)
                .ok()
                .and_then(|n| 1_u32.checked_shl(n));
            let pause = self.cooldown.saturating_mul(doubled.unwrap_or(u32::MAX));
            self.mode = Mode::Open {
                until: now.saturating_add(pause),
            };
        }
        is_news
    }

    /// The call was not made after all. The next one may probe in its place.
    pub fn withdrawn(&mut self, pass: Pass, now: Duration) {
        if self.is_awaited(pass) {
            self.mode = Mode::Open { until: now };
        }
    }

    /// Something is held from now on: a thread with a call that has not returned, or buffers that the
    /// pool may still use (`buffers`).
    pub fn hold(&mut self, buffers: bool) {
        self.held += 1;
        self.buffers += usize::from(buffers);
    }

    /// What was held is free again.
    pub fn release(&mut self, buffers: bool) {
        self.held = self.held.saturating_sub(1);
        self.buffers = self.buffers.saturating_sub(usize::from(buffers));
    }

    /// At so many holds nothing passes.
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// How much is held now.
    pub fn held(&self) -> usize {
        self.held
    }

    /// What passes now; an open breaker stays open until somebody asks for a probe.
    pub fn state(&self) -> State {
        match self.mode {
            _ if self.held >= self.bound => State::Open,
            Mode::Closed => State::Closed,
            Mode::Open { .. } => State::Open,
            Mode::Probing => State::Probing,
        }
    }

    /// Whether this is the probe that decides now.
    fn is_awaited(&self, pass: Pass) -> bool {
        pass.probe && pass.period == self.opened && matches!(self.mode, Mode::Probing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COOLDOWN: Duration = Duration::from_secs(5);

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn breaker() -> Breaker {
        Breaker::new(COOLDOWN, 3)
    }

    #[test]
    fn a_failure_opens_for_the_cooldown_and_one_probe_closes() {
        let mut breaker = breaker();
        let pass = breaker.admit(at(0)).unwrap();
        assert!(!pass.is_probe());
        assert!(breaker.failed(pass, at(1), false));
        assert_eq!(breaker.state(), State::Open);
        assert_eq!(breaker.admit(at(1)), None);
        assert_eq!(breaker.admit(at(6) - Duration::from_nanos(1)), None);
        let probe = breaker.admit(at(6)).unwrap();
        assert!(probe.is_probe());
        assert_eq!(breaker.state(), State::Probing);
        assert_eq!(breaker.admit(at(100)), None);
        breaker.succeeded(probe);
        assert_eq!(breaker.state(), State::Closed);
        assert!(!breaker.admit(at(100)).unwrap().is_probe());
    }

    #[test]
    fn a_probe_that_fails_opens_for_another_cooldown() {
        let mut breaker = breaker();
        let pass = breaker.admit(at(0)).unwrap();
        breaker.failed(pass, at(0), false);
        let probe = breaker.admit(at(5)).unwrap();
        assert!(breaker.failed(probe, at(7), false));
        assert_eq!(breaker.admit(at(11)), None);
        assert!(breaker.admit(at(12)).is_some());
    }

    #[test]
    fn calls_of_one_outage_open_once_and_do_not_prolong() {
        let mut breaker = breaker();
        let passes = [0, 0, 0].map(|second| breaker.admit(at(second)).unwrap());
        assert!(breaker.failed(passes[0], at(1), false));
        assert!(!breaker.failed(passes[1], at(4), false));
        let probe = breaker.admit(at(6)).unwrap();
        assert!(!breaker.failed(passes[2], at(6), false));
        assert_eq!(breaker.state(), State::Probing);
        breaker.succeeded(probe);
        assert!(
            !breaker.failed(passes[2], at(7), false),
            "an old period's failure"
        );
        assert_eq!(breaker.state(), State::Closed);
    }

    #[test]
    fn only_the_probe_closes() {
        let mut breaker = breaker();
        let (bad, slow) = (breaker.admit(at(0)).unwrap(), breaker.admit(at(0)).unwrap());
        breaker.failed(bad, at(0), false);
        breaker.succeeded(slow);
        assert_eq!(breaker.state(), State::Open);
        let old_probe = breaker.admit(at(5)).unwrap();
        breaker.succeeded(slow);
        assert_eq!(breaker.state(), State::Probing);
        breaker.failed(old_probe, at(5), false);
        let _probe = breaker.admit(at(10)).unwrap();
        breaker.succeeded(old_probe);
        assert_eq!(breaker.state(), State::Probing);
    }

    #[test]
    fn a_probe_that_was_never_made_leaves_its_place_to_the_next() {
        let mut breaker = breaker();
        let pass = breaker.admit(at(0)).unwrap();
        breaker.failed(pass, at(0), false);
        let probe = breaker.admit(at(5)).unwrap();
        breaker.withdrawn(probe, at(5));
        assert!(breaker.admit(at(5)).unwrap().is_probe());
        let mut closed = Breaker::new(COOLDOWN, 3);
        let pass = closed.admit(at(0)).unwrap();
        closed.withdrawn(pass, at(0));
        assert_eq!(closed.state(), State::Closed);
    }

    #[test]
    fn at_the_bound_nothing_passes_until_something_is_released() {
        let mut breaker = Breaker::new(Duration::ZERO, 2);
        breaker.hold(false);
        assert!(breaker.admit(at(0)).is_some());
        breaker.hold(false);
        assert_eq!((breaker.admit(at(1)), breaker.state()), (None, State::Open));
        breaker.release(false);
        assert!(breaker.admit(at(1)).is_some());
        let mut none = Breaker::new(COOLDOWN, 0);
        assert!(none.admit(at(0)).is_some(), "a bound of 0 counts as 1");
    }

    #[test]
    fn each_call_that_keeps_buffers_doubles_the_pause() {
        let mut breaker = Breaker::new(COOLDOWN, 100);
        let mut now = at(0);
        for pause in [5, 10, 20, 40] {
            let pass = breaker.admit(now).unwrap();
            breaker.hold(true);
            assert!(breaker.failed(pass, now, true));
            assert_eq!(breaker.admit(now + at(pause - 1)), None);
            now += at(pause);
            let probe = breaker.admit(now).unwrap();
            breaker.succeeded(probe);
        }
        // What costs nothing waits no longer than before, and what came home does not count.
        let pass = breaker.admit(now).unwrap();
        breaker.failed(pass, now, false);
        now += COOLDOWN;
        let probe = breaker.admit(now).unwrap();
        breaker.succeeded(probe);
        for _ in 0..3 {
            breaker.release(true);
        }
        let pass = breaker.admit(now).unwrap();
        breaker.hold(true);
        breaker.failed(pass, now, true);
        assert!(breaker.admit(now + at(10)).is_some());
        // Any number of them has a pause.
        let mut breaker = Breaker::new(COOLDOWN, 100);
        let pass = breaker.admit(now).unwrap();
        (0..90).for_each(|_| breaker.hold(true));
        breaker.failed(pass, now, true);
        assert_eq!(breaker.admit(now + at(1 << 32)), None);
    }

    #[derive(Debug, Clone)]
    enum Event {
        Admit,
        Succeed(prop::sample::Index),
        Fail(prop::sample::Index),
        Withdraw(prop::sample::Index),
        Hold,
        Release,
        Wait(u64),
    }

    fn event() -> impl Strategy<Value = Event> {
        prop_oneof![
            4 => Just(Event::Admit),
            2 => any::<prop::sample::Index>().prop_map(Event::Succeed),
            2 => any::<prop::sample::Index>().prop_map(Event::Fail),
            1 => any::<prop::sample::Index>().prop_map(Event::Withdraw),
            1 => Just(Event::Hold),
            1 => Just(Event::Release),
            2 => (0u64..7).prop_map(Event::Wait),
        ]
    }

    proptest! {
        /// Whatever happens: at most one probe is out and nothing beside it; within a cooldown of an opening
        /// nothing passes, nor at the bound; and once all calls are told, the pool gets its chance.
        #[test]
        fn the_rules_hold_in_any_order(events in prop::collection::vec(event(), 0..80)) {
            let mut breaker = breaker();
            let (mut now, mut out, mut opened_at) = (at(0), Vec::<Pass>::new(), None);
            for event in events {
                let mut pick = |index: prop::sample::Index| {
                    (!out.is_empty()).then(|| out.swap_remove(index.index(out.len())))
                };
                match event {
                    Event::Admit => {
                        let before = breaker.state();
                        if let Some(pass) = breaker.admit(now) {
                            prop_assert!(breaker.held() < 3);
                            prop_assert!(opened_at.is_none_or(|opened| now >= opened + COOLDOWN));
                            prop_assert_eq!(pass.is_probe(), before == State::Open);
                            out.push(pass);
                        }
                    }
                    Event::Succeed(index) => if let Some(pass) = pick(index) {
                        let (before, held) = (breaker.state(), breaker.held());
                        breaker.succeeded(pass);
                        if before != breaker.state() {
                            prop_assert!(pass.is_probe() && held < 3);
                        }
                    },
                    Event::Fail(index) => {
                        let opens = pick(index).is_some_and(|pass| breaker.failed(pass, now, false));
                        if opens {
                            opened_at = Some(now);
                            prop_assert_eq!(breaker.state(), State::Open);
                        }
                    }
                    Event::Withdraw(index) => if let Some(pass) = pick(index) {
                        breaker.withdrawn(pass, now);
                    },
                    Event::Hold => breaker.hold(false),
                    Event::Release => breaker.release(false),
                    Event::Wait(seconds) => now += at(seconds),
                }
            }
            for pass in out {
                breaker.withdrawn(pass, now);
            }
            while breaker.held() > 0 {
                breaker.release(false);
            }
            let last = breaker.admit(now + COOLDOWN);
            prop_assert!(last.is_some());
            if let Some(pass) = last {
                breaker.succeeded(pass);
            }
            prop_assert_eq!(breaker.state(), State::Closed);
        }
    }
}
