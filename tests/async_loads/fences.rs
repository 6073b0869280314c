//! Loads wait until the engine has freed the pages that it was given: its allocation fences.

use super::*;

/// A fence that opens when the test says so, or fails.
#[derive(Default)]
struct Door {
    open: AtomicBool,
    broken: AtomicBool,
    asked: AtomicU64,
}

impl Wait for Door {
    fn wait(&self) -> Result<bool> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.broken.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::DeviceFailed, "the door is stuck"));
        }
        Ok(self.open.load(Ordering::Relaxed))
    }
}

#[test]
fn loads_wait_for_the_fence_of_their_bind() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let door = Arc::new(Door::default());
    rig.fence = Fence::Given(Arc::clone(&door) as Arc<dyn Wait>);
    rig.admit(7, &tokens);
    rig.admit(8, &tokens);
    empty_pass(&mut rig);
    for _ in 0..5 {
        rig.stepper.step(0);
        rig.stepper.step(1);
    }
    assert_eq!(rig.asked(Call::Get), 0);
    assert!(rig.poll_all(&[7, 8]).unwrap().loaded.is_empty());
    door.open.store(true, Ordering::Relaxed);
    rig.stepper.step(0);
    let asked = door.asked.load(Ordering::Relaxed);
    rig.stepper.run_all();
    // Once for all loads of the bind.
    assert_eq!(door.asked.load(Ordering::Relaxed), asked);
    assert_eq!(rig.poll_all(&[]).unwrap().loaded, [7, 8]);
}

#[test]
fn a_fence_that_fails_is_an_error_of_every_later_call() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = stocked(parking(), &tokens);
    let door = Arc::new(Door::default());
    door.broken.store(true, Ordering::Relaxed);
    rig.fence = Fence::Given(door);
    rig.admit(7, &tokens);
    let before = rig.ranks[0].cache.snapshot();
    empty_pass(&mut rig);
    rig.drain();
    for _ in 0..3 {
        let polled = rig.poll_all(&[7]).unwrap_err();
        assert_eq!(polled.kind(), Kind::DeviceFailed);
        assert!(polled.to_string().contains("stuck"), "{polled}");
        assert_eq!(rig.start_load().unwrap_err().kind(), Kind::DeviceFailed);
    }
    assert!(rig.ranks[0].cache.snapshot() == before);
}

/// An engine that supplies fences, with a request that waits for its load.
fn waiting_for_a_fence() -> Rig {
    let tokens = prompt(1, 2 * T + 1);
    let setup = Setup {
        supplies_fences: true,
        ..parking()
    };
    let mut rig = stocked(parking(), &tokens);
    rig = Rig::on(setup, Arc::clone(&rig.pool));
    rig.admit(7, &tokens);
    rig
}

#[test]
fn a_fence_may_say_that_there_is_nothing_to_wait_for() {
    let mut rig = waiting_for_a_fence();
    rig.fence = Fence::Open;
    empty_pass(&mut rig);
    rig.drain();
    let polled = rig.poll_all(&[7]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[][..])
    );
    rig.check(7);
}

#[test]
fn a_missing_fence_is_said_once_and_fails_its_loads() {
    let mut rig = waiting_for_a_fence();
    let metadata = rig.build(&[]);
    rig.bind(&metadata);
    let error = rig.poll_all(&[7]).unwrap_err();
    assert!(error.to_string().contains("fence"), "{error}");
    let polled = rig.poll_all(&[]).unwrap();
    assert_eq!(
        (&polled.loaded[..], &polled.failed[..]),
        (&[7][..], &[7][..])
    );
    assert_eq!(rig.asked(Call::Get), 0);
}
