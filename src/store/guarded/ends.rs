//! Where a pool's use begins and ends: registrations and the close, each with a patience of its own.

use std::time::Duration;

use super::call::{Call, Fate};
use super::owned::{Close, Register};
use super::{Guarded, Made};
use crate::error::{Result, bail};
use crate::layout::Range;

impl Guarded {
    /// [`Store::register`](crate::store::Store::register) within `patience`. `Busy` if the pool had not answered by then: it may use the
    /// range from any moment on, and the memory has to be kept. No breaker has a say.
    pub fn register_within(&self, range: Range, patience: Duration) -> Result<()> {
        self.registration(range, true, patience)
    }

    /// [`Store::unregister`](crate::store::Store::unregister) within `patience`; `Busy` as for [`register_within`](Self::register_within).
    pub fn unregister_within(&self, range: Range, patience: Duration) -> Result<()> {
        self.registration(range, false, patience)
    }

    fn registration(&self, range: Range, registers: bool, patience: Duration) -> Result<()> {
        let Some(lane) = &self.lane else {
            return match registers {
                true => self.core.store.register(range),
                false => self.core.store.unregister(range),
            };
        };
        let call = Register {
            range,
            registers,
            result: Ok(()),
        };
        let name = call.name();
        let (made, fate) = self.carry_out(lane, call, patience, None);
        match (made, fate) {
            (Made::Back(call), Fate::Answered) => call.result,
            (Made::Back(_), Fate::Closed) => bail!(Closed, "{name}: the pool was closed"),
            (Made::Back(_), Fate::Missed) => bail!(
                PoolFailed,
                "{name}: no thread was free within {} ms, the pool keeps them all",
                patience.as_millis()
            ),
            (Made::Kept(_), _) => bail!(
                Busy,
                "{name}: the pool had not answered after {} ms; the memory is kept",
                patience.as_millis()
            ),
            (Made::Back(_), Fate::Silent) => {
                bail!(Busy, "{name}: the pool panicked; the memory is kept")
            }
        }
    }

    /// [`Store::close`](crate::store::Store::close); waits for calls inside the pool and for the pool itself, together `patience`, but for the
    /// pool itself at least `least`.
    pub fn close_within(&self, patience: Duration, least: Duration) -> Result<()> {
        let Some(lane) = &self.lane else {
            return self.core.store.close();
        };
        let core = &self.core;
        let deadline = core.clock.now().saturating_add(patience);
        core.state.lock().closed = true;
        let is_empty = || core.state.lock().inside == 0;
        lane.wait_until(Some(patience), || {
            is_empty() || core.clock.now() >= deadline
        });
        {
            let mut state = core.state.lock();
            if state.inside > 0 {
                state.close_on_leave = true;
                bail!(
                    Busy,
                    "close: {} calls are still inside the pool after {} ms; what they may use is kept",
                    state.inside,
                    patience.as_millis()
                );
            }
            if std::mem::replace(&mut state.close_begun, true) {
                return Ok(());
            }
        }
        let patience = deadline.saturating_sub(core.clock.now()).max(least);
        let (made, fate) = self.carry_out(lane, Close(Ok(())), patience, None);
        match (made, fate) {
            (Made::Back(call), Fate::Answered) => call.0,
            (Made::Back(_), Fate::Missed) => {
                // No thread took it, so it can be tried again.
                core.state.lock().close_begun = false;
                bail!(
                    PoolFailed,
                    "close: no time was left to close the pool within {} ms",
                    patience.as_millis()
                )
            }
            (Made::Kept(_), _) => bail!(
                PoolFailed,
                "close: the pool had not closed after {} ms",
                patience.as_millis()
            ),
            (Made::Back(_), Fate::Closed | Fate::Silent) => bail!(
                PoolFailed,
                "close: the pool's close panicked or could not be called"
            ),
        }
    }
}
