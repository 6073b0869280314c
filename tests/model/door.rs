//! Fences: what asynchronous loads wait for until the engine's own copies are done.

use std::sync::Arc;

use kvbridge::error::{Error, Kind, Result};
use kvbridge::worker::{Fence, Wait};
use parking_lot::{Condvar, Mutex};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Position {
    Closed,
    Open,
    Stuck,
}

/// A fence that opens when the engine's own copies are done.
pub struct Door {
    position: Mutex<Position>,
    moved: Condvar,
    /// With threads whoever asks waits.
    blocks: bool,
    pub answers: Mutex<u32>,
}

impl Door {
    pub fn new(blocks: bool, open: bool) -> Arc<Self> {
        let position = match open {
            true => Position::Open,
            false => Position::Closed,
        };
        Arc::new(Self {
            position: Mutex::new(position),
            moved: Condvar::new(),
            blocks,
            answers: Mutex::new(0),
        })
    }

    pub fn turn(&self, to: Position) {
        let mut position = self.position.lock();
        if *position == Position::Closed {
            *position = to;
        }
        self.moved.notify_all();
    }

    pub fn position(&self) -> Position {
        *self.position.lock()
    }
}

impl Wait for Door {
    fn wait(&self) -> Result<bool> {
        let mut position = self.position.lock();
        while self.blocks && *position == Position::Closed {
            self.moved.wait(&mut position);
        }
        *self.answers.lock() += u32::from(*position != Position::Closed);
        match *position {
            Position::Closed => Ok(false),
            Position::Open => Ok(true),
            Position::Stuck => Err(Error::new(Kind::DeviceFailed, "the door is stuck")),
        }
    }
}

/// What a bind takes.
pub fn fence(door: &Option<Arc<Door>>) -> Fence {
    match door {
        Some(door) => Fence::Given(Arc::clone(door) as Arc<dyn Wait>),
        None => Fence::None,
    }
}
