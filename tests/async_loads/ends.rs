//! Requests that finish or are reset, layouts that are unregistered, and workers that shut down, in each state of a load.

use super::*;

/// Steps a load of four blocks in batches of two so far: fence, get, scatter, get, scatter, end.
fn advanced(steps: usize) -> Rig {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    for step in 0..steps {
        let came = rig.stepper.step(0);
        assert_eq!(came == Some(LaneStep::Done), step == 5, "{step}");
    }
    rig
}

/// Slots that no load holds are what there was before the load: another request can be loaded.
fn still_works(rig: &mut Rig) {
    rig.drain();
    assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
    let tokens = prompt(1, 4 * T + 1);
    for id in 20..24 {
        assert_eq!(rig.admit(id, &tokens) as usize, 4 * T);
    }
    empty_pass(rig);
    rig.drain();
    assert_eq!(
        rig.poll_all(&[20, 21, 22, 23]).unwrap().loaded,
        [20, 21, 22, 23]
    );
    (20..24).for_each(|id| rig.check(id));
}

#[test]
fn case_37_a_load_is_finished_in_each_of_its_states() {
    for announced in [false, true] {
        for steps in 0..=6 {
            let mut rig = advanced(steps);
            if announced {
                let loaded = rig.poll_all(&[7]).unwrap().loaded;
                // What was reported has no load any more.
                if !loaded.is_empty() {
                    assert_eq!((loaded, steps), (vec![7], 6));
                }
            }
            let pinned = rig.finish(7, FinishReason::Cancelled);
            assert!(pinned, "{steps}");
            let polled = rig.poll_all(&[]).unwrap();
            assert!(polled.loaded.is_empty() && polled.failed.is_empty());
            // Its pages come back only when the item has ended.
            assert_eq!(polled.saved.is_empty(), steps < 6, "{steps}");
            if steps < 6 {
                assert_eq!(rig.stepper.step(0), Some(LaneStep::Done), "{steps}");
                assert_eq!(rig.poll(), [7]);
            }
            let garbage = rig.ranks[0].cache.snapshot();
            rig.drain();
            assert!(rig.ranks[0].cache.snapshot() == garbage, "{steps}");
            assert!(rig.poll_all(&[]).unwrap().loaded.is_empty());
            still_works(&mut rig);
        }
    }
}

#[test]
fn case_37_a_load_is_reset_in_each_of_its_states() {
    for announced in [false, true] {
        for steps in 0..=6 {
            let mut rig = advanced(steps);
            if announced {
                rig.poll_all(&[7]).unwrap();
            }
            rig.reset(7);
            let garbage = rig.ranks[0].cache.snapshot();
            rig.drain();
            assert!(rig.ranks[0].cache.snapshot() == garbage, "{steps}");
            assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default(), "{steps}");
            still_works(&mut rig);
        }
    }
}

#[test]
fn a_reset_between_build_and_bind_moves_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    rig.admit(7, &tokens);
    let metadata = rig.build(&[]);
    rig.reset(7);
    rig.admit(7, &tokens);
    let garbage = rig.ranks[0].cache.snapshot();
    rig.bind(&metadata);
    rig.drain();
    assert!(rig.ranks[0].cache.snapshot() == garbage);
    assert_eq!(rig.poll_all(&[7]).unwrap(), Polled::default());
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn other_ranks_hear_of_ended_lives_with_the_next_metadata() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    let first = rig.build(&[]);
    rig.bind(&first);
    // Ended here, and another life of the id begins before anybody polled.
    rig.scheduler.reset(7).unwrap();
    let live = rig.live.remove(&7).unwrap();
    rig.parked.remove(&7);
    rig.admit(7, &tokens);
    let second = rig.build(&[]);
    assert_eq!(second.ended().len(), 1);
    rig.bind(&second);
    let before: Vec<_> = live.pages[0]
        .iter()
        .map(|&page| {
            let kind = rig.ranks[1].cache.parts()[0];
            rig.ranks[1].cache.read(kind, page)
        })
        .collect();
    rig.drain();
    for (page, before) in live.pages[0].iter().zip(before) {
        let kind = rig.ranks[1].cache.parts()[0];
        assert!(rig.ranks[1].cache.read(kind, *page) == before);
    }
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn an_unregistered_layout_fails_what_is_on_its_way() {
    for steps in 0..=5 {
        let mut rig = advanced(steps);
        rig.ranks[0].worker.unregister_layout().unwrap();
        let after = rig.ranks[0].cache.snapshot();
        rig.stepper.run_all();
        assert!(rig.ranks[0].cache.snapshot() == after);
        let polled = rig.poll_all(&[7]).unwrap();
        assert_eq!(
            (&polled.loaded[..], &polled.failed[..]),
            (&[7][..], &[7][..])
        );
        let again = rig.ranks[0].cache.register();
        rig.ranks[0].worker.register_layout(again).unwrap();
        rig.reset(7);
        // The block that did not arrive is not asked for again.
        let tokens = prompt(1, 4 * T + 1);
        assert!(rig.admit(7, &tokens) < 4 * T as u64);
    }
}

#[test]
fn a_load_of_nothing_that_is_broken_off_lost_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let offered = rig.offer(7, &tokens, 0);
    rig.settle(7, &tokens, offered, 0);
    empty_pass(&mut rig);
    rig.ranks[0].worker.unregister_layout().unwrap();
    let polled = rig.poll_all(&[7]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[][..])
    );
    let again = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(again).unwrap();
    rig.reset(7);
    // No block failed, so all are offered again.
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
}

#[test]
fn under_tp_an_unregistered_layout_forgets_what_is_on_its_way() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        world: 2,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    rig.admit(7, &tokens);
    empty_pass(&mut rig);
    rig.poll_all(&[7]).unwrap();
    rig.stepper.step(0);
    for rank in &mut rig.ranks {
        rank.worker.unregister_layout().unwrap();
        rank.worker.register_layout(rank.cache.register()).unwrap();
    }
    assert_eq!(rig.poll_all(&[]).unwrap(), Polled::default());
    rig.reset(7);
    assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
    empty_pass(&mut rig);
    rig.drain();
    assert_eq!(rig.poll_all(&[7]).unwrap().loaded, [7]);
    rig.check(7);
}

#[test]
fn a_shutdown_in_each_state_touches_nothing_afterwards() {
    for steps in 0..=6 {
        let mut rig = advanced(steps);
        rig.ranks[0]
            .worker
            .shutdown(std::time::Duration::from_secs(5))
            .unwrap();
        let after = rig.ranks[0].cache.snapshot();
        rig.stepper.run_all();
        assert!(rig.ranks[0].cache.snapshot() == after, "{steps}");
        assert_eq!(rig.ranks[0].worker.handle().gauges().loads_in_flight, 0);
        assert!(rig.stepper.pending().is_empty());
    }
}

#[test]
fn a_load_that_is_stuck_in_the_pool_outlives_the_shutdown_and_writes_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let setup = Setup {
        stepped: false,
        ..parking()
    };
    let mut rig = stocked(setup, &tokens);
    let (come, came) = mpsc::channel();
    let (go, stop) = mpsc::channel::<()>();
    let (come, stop) = (Mutex::new(come), Mutex::new(stop));
    let hook = Action::Hook(Arc::new(move || {
        let _ = come.lock().send(());
        // An error is the sender's end.
        let _ = stop.lock().recv();
    }));
    rig.script(vec![rule(Call::Get, Which::All, hook)]);
    rig.admit(7, &tokens);
    let before = rig.ranks[0].cache.snapshot();
    empty_pass(&mut rig);
    came.recv().unwrap();
    let worker = &mut rig.ranks[0].worker;
    let busy = worker.shutdown(Duration::from_millis(50)).unwrap_err();
    assert_eq!(busy.kind(), Kind::Busy);
    drop(go);
    worker.shutdown(Duration::from_secs(60)).unwrap();
    assert_eq!(worker.handle().gauges().loads_in_flight, 0);
    assert!(rig.ranks[0].cache.snapshot() == before);
}
