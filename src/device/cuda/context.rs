//! The engine's context, made current around our calls.

use std::ffi::c_uint;
use std::ptr;
use std::sync::OnceLock;

use cudarc::driver::sys::{CUcontext, CUmemorytype, CUpointer_attribute, CUstreamCaptureMode};

use super::driver::Driver;
use crate::error::{Error, Kind, Result, bail};

/// A thread of this mode may do what others' captures would else forbid.
const RELAXED: c_uint = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint;

/// What is asked of an address, and the answer for memory of a device.
const MEMORY_TYPE: c_uint = CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint;
const OF_A_DEVICE: c_uint = CUmemorytype::CU_MEMORYTYPE_DEVICE as c_uint;
const DEVICE_ORDINAL: c_uint = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL as c_uint;

/// A context of the engine's. It belongs to the engine, which must not destroy it before the layout
/// is unregistered.
#[derive(Debug)]
pub(super) struct Context {
    pub(super) driver: &'static Driver,
    raw: CUcontext,
    /// Its device's number.
    pub(super) ordinal: i32,
    /// What the first error said after which nothing works here any more.
    lost: OnceLock<String>,
}

// SAFETY: a context may be current on any thread, on several at once.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The one that is current on the calling thread.
    ///
    /// Errors: `NoDevice`, there is none; `InvalidArgument`, it is of another device than `wanted`;
    /// `DeviceFailed`.
    pub(super) fn adopt(driver: &'static Driver, wanted: Option<u32>) -> Result<Self> {
        let raw = current(driver)?;
        if raw.is_null() {
            bail!(
                NoDevice,
                "no CUDA context is current on the calling thread; the one of the cache must be"
            );
        }
        let mut ordinal = -1;
        // SAFETY: writes one integer.
        unsafe { driver.context_device(&raw mut ordinal) }?;
        match wanted {
            Some(wanted) if i32::try_from(wanted) != Ok(ordinal) => bail!(
                InvalidArgument,
                "engine.device_ordinal = {wanted}, but the CUDA context that is current is of device {ordinal}"
            ),
            _ => Ok(Self {
                driver,
                raw,
                ordinal,
                lost: OnceLock::new(),
            }),
        }
    }

    /// Runs `work` with this context current, whatever captures are under way; `work` is told what was current before. That is
    /// current again afterwards, also on an error.
    pub(super) fn run<T>(&self, work: impl FnOnce(CUcontext) -> Result<T>) -> Result<T> {
        let result = match Relaxed::enter(self.driver) {
            Ok(_mode) => self.enter(work),
            Err(error) => Err(error),
        };
        result.map_err(|error| {
            let error = error.within(format_args!("CUDA device {}", self.ordinal));
            if error.kind() == Kind::DeviceLost {
                self.lost.get_or_init(|| error.message().to_owned());
            }
            error
        })
    }

    /// `DeviceLost` from the first such error on, with its text.
    pub(super) fn usable(&self) -> Result<()> {
        match self.lost.get() {
            None => Ok(()),
            Some(text) => Err(Error::new(Kind::DeviceLost, text.clone())),
        }
    }

    /// [`run`](Self::run), if the device still works. What gives something back tries in any case.
    pub(super) fn run_if_usable<T>(&self, work: impl FnOnce(CUcontext) -> Result<T>) -> Result<T> {
        self.usable()?;
        self.run(work)
    }

    fn enter<T>(&self, work: impl FnOnce(CUcontext) -> Result<T>) -> Result<T> {
        let before = current(self.driver)?;
        if before == self.raw {
            return work(before);
        }
        set(self.driver, self.raw)?;
        // A value, so that it is set back also when `work` panics.
        let mut back = Back {
            driver: self.driver,
            before,
            is_due: true,
        };
        let result = work(before);
        let restored = back.restore();
        match (result, restored) {
            (Ok(value), Ok(())) => Ok(value),
            (Err(error), _) | (Ok(_), Err(error)) => Err(error),
        }
    }

    /// Whether a stream's handle means, with `before` current, a stream that is not of this context.
    pub(super) fn is_strange(&self, stream: u64, before: CUcontext) -> bool {
        // 0 and 1 are the legacy stream, 2 the thread's own.
        stream <= 2 && !before.is_null() && before != self.raw
    }

    /// Refuses an address that is not memory of this device. With the context current.
    pub(super) fn check_address(&self, address: u64) -> Result<()> {
        let mut kind: c_uint = 0;
        let mut ordinal: i32 = -1;
        // SAFETY: each writes one integer; any address may be asked for.
        let asked = unsafe {
            self.driver
                .pointer_attribute((&raw mut kind).cast(), MEMORY_TYPE, address)
                .and_then(|()| {
                    self.driver.pointer_attribute(
                        (&raw mut ordinal).cast(),
                        DEVICE_ORDINAL,
                        address,
                    )
                })
        };
        if let Err(error) = asked {
            if error.kind() == Kind::DeviceLost {
                return Err(error);
            }
            bail!(
                InvalidArgument,
                "{address:#x} is no memory that the driver knows: {error}"
            );
        }
        if kind != OF_A_DEVICE {
            bail!(InvalidArgument, "{address:#x} is memory of the host");
        }
        if ordinal != self.ordinal {
            bail!(
                InvalidArgument,
                "{address:#x} is memory of CUDA device {ordinal}"
            );
        }
        Ok(())
    }
}

// All three are tried twice: to do them again is harmless, and a context that is not set back, or an event
// that cannot be destroyed for want of one, is worse.

fn current(driver: &Driver) -> Result<CUcontext> {
    let mut raw = ptr::null_mut();
    let out = &raw mut raw;
    // SAFETY: writes one pointer.
    unsafe {
        driver
            .context_current(out)
            .or_else(|_| driver.context_current(out))
    }?;
    Ok(raw)
}

fn set(driver: &Driver, context: CUcontext) -> Result<()> {
    // SAFETY: the engine's promise for its context: it is alive. What was current before still is,
    // since nobody else runs on this thread meanwhile.
    unsafe {
        driver
            .context_set(context)
            .or_else(|_| driver.context_set(context))
    }
}

/// Sets the calling thread's capture mode.
fn exchange_mode(driver: &Driver, mode: &mut c_uint) -> Result<()> {
    let mode: *mut c_uint = mode;
    // SAFETY: reads and writes one integer.
    unsafe {
        match driver.capture_mode(mode) {
            Some(Err(_)) => driver.capture_mode(mode),
            once => once,
        }
    }
    .unwrap_or(Ok(()))
}

/// Work of ours is in no graph: while the engine captures one on some thread, waiting or pinning on another would
/// fail, and end the engine's capture. Sets the thread's mode back when dropped.
struct Relaxed {
    driver: &'static Driver,
    before: c_uint,
}

impl Relaxed {
    fn enter(driver: &'static Driver) -> Result<Self> {
        let mut mode = RELAXED;
        exchange_mode(driver, &mut mode)?;
        Ok(Self {
            driver,
            before: mode,
        })
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if self.before != RELAXED
            && let Err(error) = exchange_mode(self.driver, &mut self.before)
        {
            tracing::error!("the thread's stream capture mode cannot be set back: {error}");
        }
    }
}

/// Sets back what was current.
struct Back {
    driver: &'static Driver,
    before: CUcontext,
    is_due: bool,
}

impl Back {
    fn restore(&mut self) -> Result<()> {
        self.is_due = false;
        set(self.driver, self.before).map_err(|error| {
            error.within("the CUDA context that was current before cannot be set back")
        })
    }
}

impl Drop for Back {
    fn drop(&mut self) {
        if self.is_due
            && let Err(error) = self.restore()
        {
            tracing::error!("{error}");
        }
    }
}
