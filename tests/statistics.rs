//! The numbers: exact counts of lookups, holes and loads, the two lines at their intervals, phases.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;
use std::time::Duration;

use kvbridge::lane::{ManualClock, Mode, Step as LaneStep, Stepper};
use kvbridge::stats::{PHASES, Phase};
use kvbridge::store::faulty::{Action, Call, Which};
use kvbridge::sync::Clock;
use kvbridge::worker::Worker;
use rig::{Lines, Rig, Setup, T, pool, prompt, rule, two_groups};

fn timed() -> Setup {
    Setup {
        more: r#""stats_interval": 10,"#,
        ..Setup::default()
    }
}

/// Replaces the rig's worker by one whose statistics are due by this clock.
fn with_clock(rig: &mut Rig, clock: &Arc<ManualClock>) {
    replace_with_clock(rig, Arc::clone(clock) as Arc<_>, &Stepper::new());
}

/// Replaces the rig's worker by one with this clock, whose threads step by this stepper.
fn replace_with_clock(rig: &mut Rig, clock: Arc<dyn Clock>, stepper: &Arc<Stepper>) {
    let store = rig::Lent::new(Arc::clone(&rig.faulty) as Arc<_>, false);
    let mode = Mode::Stepped(Arc::clone(stepper));
    let (config, engine) = (rig.setup.config(), rig.setup.engine(0));
    let mut worker = Worker::with_clock(&config, &engine, store, &mode, clock).unwrap();
    worker
        .register_layout(rig.ranks[0].cache.register())
        .unwrap();
    rig.replace_worker(worker);
}

#[test]
fn holes_are_counted_to_the_end_of_the_chunk_with_the_first_miss() {
    let tokens = prompt(1, 12 * T);
    let setup = Setup {
        groups: two_groups(),
        chunk: 10,
        ..Setup::default()
    };
    let mut writer = Rig::new(setup.clone());
    writer.publish(1, &tokens);
    let kinds = writer.ranks[0].cache.parts();
    // Of blocks 0 … 11: 2, 3 (once in each group, once in both), 6 and 11 are missing somewhere.
    writer.remove(&tokens, 2, kinds[0], 0);
    writer.remove(&tokens, 3, kinds[1], 0);
    writer.remove(&tokens, 3, kinds[2], 0);
    writer.remove(&tokens, 6, kinds[2], 0);
    writer.remove(&tokens, 11, kinds[0], 0);
    let mut rig = Rig::on(setup, Arc::clone(&writer.pool));
    let longer = [&tokens[..], &[1]].concat();
    assert_eq!(rig.offer(1, &longer, 0) as usize, 2 * T);
    let stats = rig.stats();
    assert_eq!(
        (stats.lookups, stats.lookup_blocks, stats.hit_blocks),
        (1, 10, 2)
    );
    // Two holes in the first chunk of ten; nothing is known of the second one.
    assert_eq!((stats.holes, stats.hole_blocks), (2, 3));
    assert_eq!(stats.tokens_behind_holes, (5 * T) as u64);
    assert_eq!((stats.lookup_keys, stats.missing_keys), (30, 4));
}

#[test]
fn a_tail_that_is_missing_is_no_hole() {
    let tokens = prompt(1, 6 * T);
    let mut rig = Rig::new(Setup::default());
    rig.publish(1, &tokens[..4 * T]);
    let before = rig.stats();
    rig.offer(2, &[&tokens[..], &[1]].concat(), 0);
    let stats = rig.stats();
    assert_eq!(stats.hit_blocks - before.hit_blocks, 4);
    assert_eq!(
        (stats.holes, stats.hole_blocks, stats.tokens_behind_holes),
        (0, 0, 0)
    );
}

#[test]
fn lines_come_at_their_interval_and_add_up() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let tokens = prompt(1, 4 * T + 1);
    let mut writer = Rig::new(Setup::default());
    writer.publish(1, &tokens);
    let clock = Arc::new(ManualClock::new());
    let mut rig = Rig::on(timed(), Arc::clone(&writer.pool));
    with_clock(&mut rig, &clock);
    let load = |rig: &mut Rig, id: u64| {
        assert_eq!(rig.admit(id, &tokens) as usize, 4 * T);
        rig.pass(&[(id, 1)]);
    };
    load(&mut rig, 1);
    load(&mut rig, 2);
    assert!(lines.take("stats: rank").is_empty());
    clock.advance(Duration::from_secs(10));
    load(&mut rig, 3);
    let said = lines.take("stats: rank");
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("prefix-hole stats: rank 0: lookups 3, blocks 12, hit blocks 12, holes 0, missing blocks in them 0, tokens stored behind them 0"),
        "{said:?}"
    );
    assert!(
        said[1].contains(
            "load stats: rank 0: pages 12, failed pages 0, store calls 3, bytes 1536, transfer "
        ),
        "{said:?}"
    );
    for phase in PHASES {
        assert!(said[1].contains(&format!(", {} ", phase.name())) || phase == Phase::Resolve);
    }
    // Within the interval nothing; at the end what is left.
    clock.advance(Duration::from_secs(9));
    rig.script(vec![rule(Call::Get, Which::Index(1), Action::Lose)]);
    rig.admit(4, &tokens);
    rig.pass(&[(4, 1)]);
    assert!(lines.take("stats: rank").is_empty());
    rig.ranks[0]
        .worker
        .shutdown(Duration::from_secs(5))
        .unwrap();
    let said = lines.take("stats: rank");
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(
        said[0].contains("lookups 1, blocks 4, hit blocks 4"),
        "{said:?}"
    );
    assert!(
        said[1].contains("pages 0, failed pages 4, store calls 1, bytes 0"),
        "{said:?}"
    );
    rig.ranks[0]
        .worker
        .shutdown(Duration::from_secs(5))
        .unwrap();
    assert!(lines.take("stats: rank").is_empty());
}

/// A clock that nobody may read.
struct Untouched;

impl Clock for Untouched {
    fn now(&self) -> Duration {
        panic!("a clock was read");
    }
}

#[test]
fn off_no_clock_is_read_and_no_call_added() {
    let tokens = prompt(1, 4 * T + 1);
    for async_load in [false, true] {
        let lines = Lines::default();
        let _guard = tracing::subscriber::set_default(lines.clone());
        let mut writer = Rig::new(Setup::default());
        writer.publish(1, &tokens);
        let mut calls = Vec::new();
        for setup in [Setup::default(), timed()] {
            let off = setup.more.is_empty();
            let setup = Setup {
                async_load,
                ..setup
            };
            let mut rig = Rig::on(setup, Arc::clone(&writer.pool));
            if off {
                let stepper = Arc::clone(&rig.stepper);
                replace_with_clock(&mut rig, Arc::new(Untouched), &stepper);
            }
            assert_eq!(rig.admit(1, &tokens) as usize, 4 * T);
            if async_load {
                rig.pass(&[]);
                rig.drain();
                assert_eq!(rig.poll_all(&[1]).unwrap().loaded, [1]);
            }
            rig.pass(&[(1, 1)]);
            rig.check(1);
            let times = rig.ranks[0].worker.handle().phase_times();
            let spent: Duration = PHASES.iter().map(|&phase| times.wall(phase)).sum();
            assert_eq!(spent == Duration::ZERO, off);
            assert_eq!(times.queued == Duration::ZERO, off || !async_load);
            calls.push(rig.stats().store_calls);
            rig.ranks[0]
                .worker
                .shutdown(Duration::from_secs(5))
                .unwrap();
        }
        assert_eq!(calls[0], calls[1]);
        // Those of the second rig, at its end.
        assert_eq!(lines.take("stats: rank").len(), 2);
    }
}

#[test]
fn the_line_of_asynchronous_loads_says_how_many_wait_and_how_long_they_did() {
    let lines = Lines::default();
    let _guard = tracing::subscriber::set_default(lines.clone());
    let tokens = prompt(1, 2 * T + 1);
    let mut writer = Rig::new(Setup::default());
    writer.publish(1, &tokens);
    let clock = Arc::new(ManualClock::new());
    let setup = Setup {
        async_load: true,
        ..timed()
    };
    let mut rig = Rig::on(setup, Arc::clone(&writer.pool));
    let stepper = Stepper::new();
    replace_with_clock(&mut rig, Arc::clone(&clock) as Arc<_>, &stepper);
    let ids = [10, 11, 12, 13];
    for id in ids {
        rig.admit(id, &tokens);
    }
    rig.pass(&[]);
    // The first load that ends begins the interval, and the next one says what is behind it.
    while stepper.step(0) != Some(LaneStep::Done) {}
    clock.advance(Duration::from_secs(10));
    // The last one has begun, so that one is left that waits.
    assert_eq!(stepper.step(2), Some(LaneStep::More));
    while stepper.step(0) != Some(LaneStep::Done) {}
    let said = lines.take("load stats: rank");
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        said[0].contains("pages 4, failed pages 0, store calls 2"),
        "{said:?}"
    );
    let (_, rest) = said[0].split_once("; queued 1, queue wait ").unwrap();
    let wait: f64 = rest.strip_suffix(" ms").unwrap().parse().unwrap();
    assert!(wait > 0.0, "{said:?}");
}

#[test]
fn asynchronous_loads_count_their_queue() {
    let tokens = prompt(1, 2 * T + 1);
    let mut writer = Rig::new(Setup::default());
    writer.publish(1, &tokens);
    let setup = Setup {
        async_load: true,
        ..timed()
    };
    let mut rig = Rig::on(setup, pool(1 << 20));
    rig.publish(1, &tokens);
    for id in 10..13 {
        rig.admit(id, &tokens);
    }
    rig.pass(&[]);
    let gauges = |rig: &Rig| {
        let gauges = rig.ranks[0].worker.handle().gauges();
        (gauges.loads_in_flight, gauges.loads_queued)
    };
    assert_eq!(gauges(&rig), (3, 3));
    rig.stepper.step(1);
    assert_eq!(gauges(&rig), (3, 2));
    rig.scheduler.reset(12).unwrap();
    rig.drain();
    assert_eq!(gauges(&rig), (0, 0));
    let times = rig.ranks[0].worker.handle().phase_times();
    assert!(times.queued > Duration::ZERO);
    assert!(times.wall(Phase::Get) > Duration::ZERO && times.transfer() >= times.wall(Phase::Get));
    let text = rig.ranks[0].worker.handle().prometheus();
    assert!(text.contains("kvbridge_loads_in_flight{rank=\"0\"} 0\n"));
    assert!(text.contains("phase=\"get\",clock=\"wall\"} 0."));
}
