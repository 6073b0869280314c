//! A device that fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Rig, Setup};
use kvbridge::device::{
    Device, Direction, Event, HostDevice, Pending, StagingMemory, Stream, Transfer,
};
use kvbridge::error::{Error, Kind, Result};

/// A host whose parts can be made to fail.
#[derive(Default)]
pub struct Sick {
    pub gather: AtomicBool,
    pub scatter: AtomicBool,
    pub record: AtomicBool,
    pub wait: AtomicBool,
    /// It works no more.
    pub lost: AtomicBool,
    /// An event takes its time to go, and says here when it has.
    pub slow_events: Option<Arc<AtomicBool>>,
}

struct SlowToGo(Arc<AtomicBool>);

impl Pending for SlowToGo {
    fn wait(&self) -> Result<()> {
        Ok(())
    }
}

impl Drop for SlowToGo {
    fn drop(&mut self) {
        std::thread::sleep(Duration::from_millis(200));
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Sick {
    fn check(&self, part: &AtomicBool) -> Result<()> {
        self.usable()?;
        if part.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::DeviceFailed, "by script"));
        }
        Ok(())
    }
}

impl Device for Sick {
    fn name(&self) -> &str {
        "sick"
    }
    fn usable(&self) -> Result<()> {
        match self.lost.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(Error::new(Kind::DeviceLost, "by script")),
        }
    }
    fn record(&self, stream: Stream) -> Result<Event> {
        self.check(&self.record)?;
        match &self.slow_events {
            Some(gone) => Ok(Event::pending(Box::new(SlowToGo(Arc::clone(gone))))),
            None => HostDevice.record(stream),
        }
    }
    fn wait(&self, event: &Event) -> Result<()> {
        self.check(&self.wait)?;
        HostDevice.wait(event)
    }
    fn wait_foreign(&self, _event: u64) -> Result<()> {
        self.check(&self.wait)
    }
    fn stage(&self, bytes: u64) -> Result<StagingMemory> {
        HostDevice.stage(bytes)
    }
    unsafe fn copy(
        &self,
        behind: Option<Stream>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        self.check(match direction {
            Direction::Gather => &self.gather,
            Direction::Scatter => &self.scatter,
        })?;
        // SAFETY: the caller's promise is passed on.
        unsafe { HostDevice.copy(behind, direction, transfers) }
    }
}

/// A rig with the caches of all ranks on one such device.
pub fn rig_on(setup: Setup, sick: Sick) -> (Rig, Arc<Sick>) {
    let mut rig = Rig::new(setup);
    let sick = Arc::new(sick);
    for rank in &mut rig.ranks {
        rank.worker.unregister_layout().unwrap();
        let memory = rank.cache.register_on(Arc::clone(&sick) as Arc<dyn Device>);
        rank.worker.register_layout(memory).unwrap();
    }
    (rig, sick)
}
