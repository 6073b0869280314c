//! Histories: events, chosen by what the model's state allows, run one after the other.

use crate::oracle::Oracle;
use crate::passes::AHEAD;
use crate::random::{Rng, mix};
use crate::requests::MOST_REQS;
use crate::setup::{SETUPS, Setup, Ways};
use crate::world::{Failure, Outcome, State, Tally, World};

macro_rules! kinds {
    ($($kind:ident $name:literal,)*) => {
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Kind { $($kind,)* }

        impl Kind {
            pub const ALL: &'static [Kind] = &[$(Kind::$kind,)*];

            pub fn name(self) -> &'static str {
                match self { $(Kind::$kind => $name,)* }
            }

            /// Whether it belongs to histories that go this way.
            pub fn is_of(self, ways: &Ways) -> bool {
                match self {
                    Kind::LoadStep | Kind::Leave => ways.parks,
                    Kind::MorePages => ways.parks && !ways.reserves,
                    Kind::Open => ways.fences,
                    Kind::Release | Kind::Stale => ways.reserves,
                    Kind::Cancel => !ways.reserves,
                    Kind::Sleep => ways.sleeps,
                    Kind::Jump | Kind::Return | Kind::Cool => ways.late,
                    _ => true,
                }
            }
        }
    };
}

kinds! {
    Match "match",
    Requery "match again",
    Cancel "cancel load",
    Allocate "allocate",
    Build "build",
    Bind "bind",
    Start "start load",
    Forward "forward",
    Save "wait for save",
    Drop "drop pass",
    Step "step of a save",
    LoadStep "step of a load",
    Open "a fence opens",
    Leave "parked one leaves",
    MorePages "more pages of parked",
    Release "release reserved",
    Stale "stale reservation",
    Sleep "sleep",
    Jump "a deadline passes",
    Return "a late call returns",
    Cool "pools are asked again",
    TakeFailed "take failed loads",
    Finish "finish",
    Abort "cancel request",
    Preempt "preempt",
    Poll "get finished",
    Reset "reset",
    ResetSaving "reset under saves",
    Restart "silent restart",
    Repage "change pages",
    Evict "evict",
    Damage "damage",
    FailExist "fail exist",
    FailGet "fail get",
    FailPut "fail put",
}

/// A number per kind of event.
#[derive(Clone, Copy)]
pub struct PerKind(pub [u64; Kind::ALL.len()]);

impl Default for PerKind {
    fn default() -> Self {
        Self([0; Kind::ALL.len()])
    }
}

/// One event. What it applies to follows from the number and what there is when it runs, so that an
/// event still means something when earlier ones are taken out.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    pub kind: Kind,
    pub server: usize,
    pub number: u64,
}

/// A history that can be run again.
#[derive(Clone)]
pub struct History {
    pub setup: usize,
    pub seed: u64,
    pub threads: bool,
    pub events: Vec<Event>,
}

/// What the runs of one thread share.
pub struct Bench {
    oracles: Vec<Oracle>,
}

impl Bench {
    pub fn new() -> Self {
        Self {
            oracles: SETUPS.iter().map(Oracle::new).collect(),
        }
    }
}

/// The result of a run: what was found, and what it came to.
pub struct Run {
    pub history: History,
    pub failure: Option<Failure>,
    pub tally: Tally,
    pub story: Vec<String>,
}

impl World<'_> {
    /// Runs one event; false when there was nothing for it to apply to.
    fn apply(&mut self, event: Event) -> Outcome<bool> {
        let server = event.server % self.servers.len();
        let rng = Rng::new(event.number);
        match event.kind {
            Kind::Match => self.do_match(server, rng),
            Kind::Requery => self.do_requery(server, rng),
            Kind::Cancel => self.do_cancel(server, rng),
            Kind::Allocate => self.do_allocate(server, rng),
            Kind::Build => self.do_build(server, rng),
            Kind::Bind => self.do_bind(server, rng),
            Kind::Start => self.do_start(server, rng),
            Kind::Forward => self.do_forward(server, rng),
            Kind::Save => self.do_save(server, rng),
            Kind::Drop => self.do_drop(server, rng),
            Kind::Step => self.do_step(rng),
            Kind::LoadStep => self.do_load_step(rng),
            Kind::Open => self.do_open(server, rng),
            Kind::Leave => self.do_leave(server, rng),
            Kind::MorePages => self.do_more_pages(server, rng),
            Kind::Release => self.do_release(server, rng),
            Kind::Stale => self.do_stale(server, rng),
            Kind::Sleep => self.do_sleep(server, rng),
            Kind::Jump => self.do_jump(server, rng),
            Kind::Return => self.do_return(rng),
            Kind::Cool => self.do_cool(server, rng),
            Kind::TakeFailed => self.do_take_failed(server, rng),
            Kind::Finish => self.do_finish(server, rng),
            Kind::Abort => self.do_abort(server, rng),
            Kind::Preempt => self.do_preempt(server, rng),
            Kind::Poll => self.do_poll(server, rng),
            Kind::Reset => self.do_reset(server, rng),
            Kind::ResetSaving => self.do_reset_saving(server, rng),
            Kind::Restart => self.do_restart(server, rng),
            Kind::Repage => self.do_repage(server, rng),
            Kind::Evict => Ok(self.evict(rng)),
            Kind::Damage => Ok(self.damage(rng)),
            Kind::FailExist => Ok(self.arm(0, rng)),
            Kind::FailGet => Ok(self.arm(1, rng)),
            Kind::FailPut => Ok(self.arm(2, rng)),
        }
    }

    fn evict(&mut self, mut rng: Rng) -> bool {
        let mut state = self.pool.state();
        if state.objects.is_empty() {
            return false;
        }
        let place = rng.below(state.objects.len());
        let block = self.oracle.pages.get(&state.objects[place].key);
        let block = block.map(|known| known.block);
        if let Some(block) = block.filter(|_| rng.chance(1, 2)) {
            for key in self.oracle.keys(block) {
                state.remove(key);
            }
        } else {
            state.remove_at(place);
        }
        drop(state);
        self.tell(|| "the pool loses a page or a block".to_owned());
        true
    }

    fn damage(&mut self, mut rng: Rng) -> bool {
        if self.setup.raw {
            return false;
        }
        let mut state = self.pool.state();
        if state.objects.is_empty() {
            return false;
        }
        let place = rng.below(state.objects.len());
        let object = &mut state.objects[place];
        let byte = rng.below(object.bytes.len());
        object.bytes[byte] ^= 1 << rng.below(8);
        object.damaged = true;
        drop(state);
        self.tell(|| "a page in the pool is damaged".to_owned());
        true
    }

    fn arm(&mut self, call: usize, mut rng: Rng) -> bool {
        self.pool.state().armed[call] = Some(rng.next());
        self.tell(|| format!("the next {} fails", ["exist", "get", "put"][call]));
        true
    }

    /// How likely each kind of event is now.
    fn weights(&self, server: usize) -> Vec<(Kind, usize)> {
        let hosts = &self.servers[server];
        let reqs = &hosts.reqs;
        let count =
            |wanted: &dyn Fn(usize) -> bool| (0..reqs.len()).filter(|&at| wanted(at)).count();
        let matched = count(&|at| reqs[at].state == State::Matched);
        let ready = count(&|at| self.is_ready(server, at));
        let complete = count(&|at| self.is_complete(server, &reqs[at]));
        let offered = count(&|at| self.can_cancel(&reqs[at]));
        let resets = count(&|at| self.is_quiet(server, &reqs[at]));
        let resets_saving = count(&|at| self.can_reset_saving(server, &reqs[at]));
        let restarts = count(&|at| self.can_restart_unheard(server, &reqs[at]));
        let repages = count(&|at| self.can_change_pages(server, &reqs[at]));
        let lost = count(&|at| reqs[at].lost_known);
        let parked = count(&|at| reqs[at].state == State::Parked);
        let growing = count(&|at| self.can_get_more_pages(server, &reqs[at]));
        let spoilt = count(&|at| reqs[at].is_spoilt());
        let to_build = count(&|at| match reqs[at].state {
            State::Parked => !reqs[at].is_on_its_way(),
            State::Accepting => true,
            _ => false,
        });
        let loads = self.items.iter().filter(|item| item.load.is_some()).count();
        let saves = self.items.len() - loads;
        let ways = self.ways;
        // While the pool itself has pages, others are to get them if they can.
        let lent = 50 * usize::from(ways.direct && !self.lates.is_empty());
        let bad = hosts.ranks.iter().filter(|rank| rank.weather.is_bad);
        let bad = bad.count();
        let waiting = count(&|at| reqs[at].state == State::Waiting);
        let few = reqs.len() < MOST_REQS * 3 / 4;
        let if_any = |count: usize, weight: usize| if count > 0 { weight } else { 0 };
        let bound = hosts.bound.as_ref();
        let at_rest = bound.is_none_or(|pass| pass.saved || pass.dropped);
        let (start, forward, save) = match bound {
            Some(pass) if pass.dropped => (0, 0, 0),
            Some(pass) => (
                if_any(usize::from(!pass.started), 40),
                if_any(usize::from(pass.started && !pass.forwarded), 40),
                if_any(usize::from(pass.forwarded && !pass.saved), 40),
            ),
            None => (0, 0, 0),
        };
        let untaken = reqs.iter().any(|req| req.lost && !req.lost_known);
        vec![
            (Kind::Match, if_any(waiting, 10) + if few { 12 } else { 1 }),
            (Kind::Requery, if_any(matched, 6)),
            (
                Kind::Cancel,
                if_any(usize::from(!ways.reserves) * offered, 11),
            ),
            (Kind::Allocate, if_any(matched, 20)),
            (
                Kind::Build,
                match (hosts.built.len(), ready + to_build) {
                    (AHEAD.., _) => 0,
                    (0, 1..) if at_rest => 30,
                    (_, 0) => 1,
                    _ => 8,
                },
            ),
            (
                Kind::Bind,
                if_any(hosts.built.len(), if at_rest { 40 } else { 2 }),
            ),
            (Kind::Start, start),
            (Kind::Forward, forward),
            (Kind::Save, save),
            (
                Kind::Drop,
                if_any(usize::from(!at_rest) + hosts.built.len(), 4),
            ),
            (Kind::Step, if_any(saves, 14 + lent + 6 * saves.min(4))),
            (Kind::LoadStep, if_any(loads, 20 + 8 * loads.min(4))),
            (Kind::Open, if_any(hosts.doors.len(), 14)),
            (Kind::Leave, if_any(parked, 8) + if_any(spoilt, 30)),
            (
                Kind::MorePages,
                if_any(usize::from(!ways.reserves) * growing, 8),
            ),
            (
                Kind::Release,
                if_any(usize::from(ways.reserves) * offered, 11),
            ),
            (Kind::Stale, 3 * usize::from(ways.reserves)),
            (
                Kind::Sleep,
                2 * usize::from(ways.sleeps && !reqs.is_empty()),
            ),
            (
                Kind::Jump,
                usize::from(ways.late) * (1 + if_any(self.items.len(), 20)),
            ),
            (Kind::Return, if_any(self.lates.len(), 80 - lent)),
            (Kind::Cool, if_any(bad, 36)),
            (Kind::TakeFailed, if untaken { 60 } else { 2 }),
            (Kind::Finish, if_any(complete, 200)),
            (Kind::Abort, if_any(reqs.len(), 2)),
            (Kind::Preempt, if_any(reqs.len(), 3) + if_any(lost, 30)),
            (
                Kind::Poll,
                2 + if_any(hosts.announce.len(), 6 + lent) + if_any(parked, 8),
            ),
            (Kind::Reset, if_any(resets, 2)),
            (Kind::ResetSaving, if_any(resets_saving, 16)),
            (Kind::Restart, if_any(restarts, 44)),
            (Kind::Repage, if_any(repages, 58)),
            (Kind::Evict, 2),
            (Kind::Damage, 2),
            (Kind::FailExist, 2),
            (Kind::FailGet, 2),
            (Kind::FailPut, 2),
        ]
    }

    fn choose(&self, rng: &mut Rng) -> Event {
        let server = rng.below(self.servers.len());
        let weights = self.weights(server);
        let total: usize = weights.iter().map(|one| one.1).sum();
        let mut left = rng.below(total);
        let mut kind = Kind::Poll;
        for (candidate, weight) in weights {
            if left < weight {
                kind = candidate;
                break;
            }
            left -= weight;
        }
        Event {
            kind,
            server,
            number: rng.next(),
        }
    }

    fn run(&mut self, event: Event) -> Outcome<bool> {
        let ran = self.apply(event)?;
        if ran {
            self.tally.kinds.0[event.kind as usize] += 1;
            self.check()?;
        }
        Ok(ran)
    }
}

/// A new history from a seed.
pub fn generate(bench: &mut Bench, setup: usize, seed: u64, threads: bool) -> Run {
    let mut rng = Rng::new(mix(seed, 0x6865));
    let wanted = 50 + rng.below(60);
    let mut history = History {
        setup,
        seed,
        threads,
        events: Vec::new(),
    };
    let mut run = with_world(bench, &history, false, |world, events| {
        // An event that has nothing to apply to is not part of the history.
        for _ in 0..4 * wanted {
            if events.len() == wanted || world.over {
                break;
            }
            let event = world.choose(&mut rng);
            events.push(event);
            if !world.run(event)? {
                events.pop();
            }
        }
        world.finish()
    });
    std::mem::swap(&mut history.events, &mut run.history.events);
    run.history = history;
    run
}

/// The same history again, perhaps with events taken out.
pub fn replay(bench: &mut Bench, history: &History, story: bool) -> Run {
    let given = history.events.clone();
    with_world(bench, history, story, |world, events| {
        for &event in &given {
            if world.over {
                break;
            }
            events.push(event);
            world.run(event)?;
        }
        world.finish()
    })
}

fn with_world(
    bench: &mut Bench,
    history: &History,
    story: bool,
    body: impl FnOnce(&mut World<'_>, &mut Vec<Event>) -> Outcome,
) -> Run {
    let setup: &'static Setup = &SETUPS[history.setup];
    let mut world = World::new(
        setup,
        Ways::new(history.seed, setup, history.threads),
        &mut bench.oracles[history.setup],
        history.threads,
    );
    if story {
        world.story = Some(Vec::new());
    }
    if history.threads {
        world.pool.be_slow(history.seed);
    }
    world.stock_pool(Rng::new(history.seed));
    let mut events = Vec::new();
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        body(&mut world, &mut events)
    }));
    let failure = match result {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Some(Failure {
                invariant: "nothing panics",
                text: text.unwrap_or_default(),
            })
        }
    };
    Run {
        history: History {
            events,
            ..history.clone()
        },
        failure,
        tally: world.tally.clone(),
        story: world.story.take().unwrap_or_default(),
    }
}
