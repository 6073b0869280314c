//! What the engine's thread pays per pass grows with what the pass is about, and not with what waits beside it. Times are
//! compared with each other, the best of many rounds on each side, and bounds lie far from both what is and
//! what they are there to find.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvbridge::keys::Tokens;
use kvbridge::lane::Step as LaneStep;
use kvbridge::scheduler::Step;
use rig::{Rig, Setup, T, pool, prompt};

/// The shortest of so many rounds.
fn best(rounds: usize, mut round: impl FnMut() -> Duration) -> Duration {
    (0..rounds).map(|_| round()).min().unwrap()
}

/// An engine with so many requests that wait for a block each, all announced.
fn waiting(requests: usize) -> Rig {
    let tokens = prompt(1, T + 1);
    let setup = Setup {
        async_load: true,
        slots: 2 * requests as u64 + 2,
        ..Setup::default()
    };
    let mut writer = Rig::on(setup.clone(), pool(1 << 22));
    writer.publish(1, &tokens);
    let mut rig = Rig::on(setup, Arc::clone(&writer.pool));
    let ids: Vec<u64> = (1..=requests as u64).collect();
    for &id in &ids {
        assert_eq!(rig.admit(id, &tokens) as usize, T);
    }
    rig.pass(&[]);
    assert!(rig.poll_all(&ids).unwrap().loaded.is_empty());
    rig
}

/// How long a poll takes of which nothing comes, and one that reports one load.
fn polls(requests: usize) -> [Duration; 2] {
    const CALLS: u32 = 50;
    let mut rig = waiting(requests);
    let idle = best(40, || {
        let start = Instant::now();
        for _ in 0..CALLS {
            let polled = rig.ranks[0].worker.get_finished(&[], &[]).unwrap();
            assert!(black_box(polled).loaded.is_empty());
        }
        start.elapsed() / CALLS
    });
    let reporting = best(10, || {
        while rig.stepper.step(0) != Some(LaneStep::Done) {}
        let start = Instant::now();
        let polled = rig.ranks[0].worker.get_finished(&[], &[]).unwrap();
        let spent = start.elapsed();
        assert_eq!(polled.loaded.len(), 1);
        spent
    });
    [idle, reporting]
}

#[test]
fn a_poll_does_not_look_at_requests_that_wait() {
    let (few, many) = (polls(20), polls(10_000));
    for (few, many) in few.into_iter().zip(many) {
        assert!(
            many < few * 10 + Duration::from_nanos(500),
            "{few:?} beside 20 requests, {many:?} beside 10,000"
        );
    }
}

/// How long `build` takes per request, of so many that decode and have nothing to save.
fn decoding(requests: usize) -> Duration {
    let tokens = prompt(1, T);
    let setup = Setup {
        slots: 2 * requests as u64,
        ..Setup::default()
    };
    let mut rig = Rig::new(setup);
    let chunks: Vec<(u64, usize)> = (1..=requests as u64).map(|id| (id, T)).collect();
    for &(id, _) in &chunks {
        rig.admit(id, &tokens);
    }
    rig.pass(&chunks);
    rig.drain();
    rig.pass(&[]);
    let token = [7];
    let mut computed = T as u64;
    let spent = best(T - 2, || {
        let steps: Vec<Step<'_>> = chunks
            .iter()
            .map(|&(request_id, _)| Step {
                request_id,
                new_tokens: Tokens::I32(&token),
                pages: &[],
                computed_position: computed,
                scheduled_tokens: 1,
            })
            .collect();
        let start = Instant::now();
        let metadata = rig.scheduler.build(&steps).unwrap();
        let spent = start.elapsed();
        assert_eq!(metadata.saves().blocks(), 0);
        rig.bind(&metadata);
        rig.start_load().unwrap();
        rig.wait_for_save();
        computed += 1;
        spent
    });
    spent / requests as u32
}

#[test]
fn a_pass_costs_each_request_the_same_however_many_there_are() {
    let (few, many) = (decoding(128), decoding(4096));
    assert!(
        many < few * 6 + Duration::from_nanos(50),
        "{few:?} each of 128 requests, {many:?} each of 4,096"
    );
}
