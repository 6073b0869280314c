//! A guard over a pool that fails and hangs as it is told, and buffers that tell what became of them.

use super::*;

pub(super) struct Rig {
    pub(super) pool: Arc<Faulty>,
    pub(super) guard: Arc<Guarded>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) stepper: Arc<Stepper>,
}

pub(super) fn rig(settings: Settings, threads: bool) -> Rig {
    rig_of(Faulty::late(pool(), Vec::new()), settings, threads)
}

pub(super) fn rig_of(pool: Arc<Faulty>, settings: Settings, threads: bool) -> Rig {
    let (clock, stepper) = (Arc::new(ManualClock::new()), Stepper::new());
    let mode = match threads {
        true => Mode::Threads,
        false => Mode::Stepped(Arc::clone(&stepper)),
    };
    let inner = Arc::clone(&pool) as Arc<dyn Store>;
    let time = Arc::clone(&clock) as Arc<dyn Clock>;
    let guard = Guarded::start(inner, settings, time, &mode).unwrap();
    Rig {
        pool,
        guard,
        clock,
        stepper,
    }
}

pub(super) fn stepped(bound: usize) -> Rig {
    rig(settings(bound), false)
}

/// Moves the clock in its last step; calls that were pushed behind it take turns with it.
pub(super) struct Meanwhile {
    pub(super) steps: usize,
    pub(super) clock: Arc<ManualClock>,
}

impl Item for Meanwhile {
    fn step(&mut self) -> Step {
        self.steps -= 1;
        if self.steps > 0 {
            return Step::More;
        }
        self.clock.advance(HOUR);
        Step::Done
    }
    fn name(&self) -> &'static str {
        "meanwhile"
    }
}

/// Does nothing, so that whoever waits looks at the clock again.
pub(super) struct Nudge;

impl Item for Nudge {
    fn step(&mut self) -> Step {
        Step::Done
    }
    fn name(&self) -> &'static str {
        "nudge"
    }
}

pub(super) fn key(name: &str) -> Keys {
    let mut keys = Keys::default();
    keys.push(name.as_bytes());
    keys
}

impl Rig {
    pub(super) fn lane(&self) -> &Lane {
        self.guard.lane.as_ref().unwrap()
    }

    /// The next call's deadline passes after so many steps of it: 0, it is still queued; 1, it is inside.
    pub(super) fn deadline_after(&self, steps: usize) {
        let item = Meanwhile {
            steps: steps + 1,
            clock: Arc::clone(&self.clock),
        };
        assert!(self.lane().push(Box::new(item)).is_ok());
    }

    pub(super) fn script(&self, call: Kinds, action: Action) {
        self.pool.set_script(vec![Rule {
            call,
            at: 0..u64::MAX,
            keys: Which::All,
            action,
        }]);
    }

    pub(super) fn exist(&self, name: &str) -> Presence {
        // Whatever stood there must go.
        let mut out = vec![Presence::Present; 3];
        self.guard.exist(&key(name), &mut out);
        assert_eq!(out.len(), 1);
        out[0]
    }

    pub(super) fn calls(&self, kind: Kinds) -> u64 {
        self.pool.count(kind).calls
    }

    pub(super) fn fill(&self, name: &str, value: u8) {
        let bytes = [value; SIZE];
        let (mut sources, mut out) = ([Source::from(&bytes[..])], Vec::new());
        let options = PutOptions::default();
        let pieces = Pieces::one_each(&mut sources);
        self.pool.put(&key(name), pieces, &options, &mut out);
        assert_eq!(out, [PutOutcome::Stored]);
    }

    pub(super) fn state(&self) -> State {
        self.guard.counts().state
    }
}

/// A buffer that tells what became of it.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) bytes: Vec<u8>,
    pub(super) life: Arc<Life>,
}

#[derive(Debug, Default)]
pub(super) struct Life {
    pub(super) home: Mutex<Vec<Vec<u8>>>,
    pub(super) dropped: AtomicUsize,
}

impl Life {
    /// Times that it came home, and that it was freed.
    pub(super) fn seen(&self) -> (usize, usize) {
        (self.home.lock().len(), self.dropped.load(Ordering::SeqCst))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.life.dropped.fetch_add(1, Ordering::SeqCst);
    }
}

impl Buffers for Watched {
    fn targets<'a>(&'a mut self, list: &mut Vec<Target<'a>>) -> Option<&'a [usize]> {
        list.push((&mut self.bytes[..]).into());
        None
    }
    fn sources<'a>(&'a self, list: &mut Vec<Source<'a>>) -> Option<&'a [usize]> {
        list.push((&self.bytes[..]).into());
        None
    }
    fn come_home(mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        self.life.home.lock().push(bytes);
    }
}

pub(super) fn watched(value: u8) -> (Arc<Life>, Watched) {
    let life = Arc::new(Life::default());
    let bytes = vec![value; SIZE];
    let watched = Watched {
        bytes,
        life: Arc::clone(&life),
    };
    (life, watched)
}

pub(super) fn kept<C: std::fmt::Debug>(made: Made<C>) -> i32 {
    match made {
        Made::Kept(code) => code,
        Made::Back(call) => panic!("it is back: {call:?}"),
    }
}

pub(super) fn back<C>(made: Made<C>) -> C {
    match made {
        Made::Back(call) => call,
        Made::Kept(code) => panic!("it was kept: {code}"),
    }
}
