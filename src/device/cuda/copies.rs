//! The copies of a batch, and the ways in which a driver takes them.

use std::ptr;

use cudarc::driver::sys::{
    CUDA_MEMCPY2D_st, CUdeviceptr, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemorytype,
    CUstream,
};

use super::driver::Driver;
use super::kernel::Kernel;
use crate::device::{Direction, Transfer};
use crate::error::{Error, Result, bail};

/// How the copies of a batch travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A kernel of ours copies many pieces per launch.
    Kernel,
    /// One call of the driver takes the whole list.
    Batch,
    /// A call for each run of evenly strided pieces of one size, and for each other piece.
    Rows,
    /// A call for each piece.
    Single,
}

/// A way that is there.
#[derive(Debug, Clone, Copy)]
pub(super) enum Chosen<'a> {
    /// With the distance from where the host sees staging to where the device does.
    Kernel(&'a Kernel, u64),
    Batch,
    Rows,
    Single,
}

/// Largest distance of two rows that drivers take.
const MOST_PITCH: u64 = i32::MAX as u64;

/// Lists as the driver takes them, kept from one batch to the next.
#[derive(Debug, Default)]
pub(super) struct Copies {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    sizes: Vec<usize>,
}

impl Copies {
    /// Writes the lists anew; `OutOfRange` for a size that the machine does not have.
    pub(super) fn fill(
        &mut self,
        chosen: Chosen<'_>,
        direction: Direction,
        transfers: &[Transfer],
    ) -> Result<()> {
        self.to.clear();
        self.from.clear();
        self.sizes.clear();
        let to_device = match chosen {
            Chosen::Kernel(_, distance) => distance,
            _ => 0,
        };
        for transfer in transfers {
            let staging = transfer.staging.wrapping_add(to_device);
            let (from, to) = match direction {
                Direction::Gather => (transfer.cache, staging),
                Direction::Scatter => (staging, transfer.cache),
            };
            let Ok(size) = usize::try_from(transfer.size) else {
                bail!(OutOfRange, "a copy of {} bytes", transfer.size);
            };
            self.to.push(to);
            self.from.push(from);
            self.sizes.push(size);
        }
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.sizes.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.sizes.iter().sum()
    }

    /// Puts the copies on a stream. After an error some of them may be there.
    ///
    /// # Safety
    /// The stream is of the current context, and the ranges are as
    /// [`Device::copy`](crate::device::Device::copy) says.
    pub(super) unsafe fn queue(
        &mut self,
        driver: &Driver,
        stream: CUstream,
        chosen: Chosen<'_>,
    ) -> Result<()> {
        // SAFETY: the caller's promise, here and below.
        unsafe {
            match chosen {
                Chosen::Kernel(kernel, _) => kernel.copy(stream, &self.to, &self.from, &self.sizes),
                Chosen::Batch => self.queue_batch(driver, stream),
                Chosen::Rows => self.queue_rows(driver, stream),
                Chosen::Single => {
                    (0..self.count()).try_for_each(|at| self.queue_one(driver, stream, at))
                }
            }
        }
    }

    /// # Safety
    /// As [`queue`](Self::queue).
    unsafe fn queue_batch(&mut self, driver: &Driver, stream: CUstream) -> Result<()> {
        let (to, from) = (self.to.as_mut_ptr(), self.from.as_mut_ptr());
        let (sizes, count) = (self.sizes.as_mut_ptr(), self.sizes.len());
        // SAFETY: plain data in which zero is a value of each field: no hint where memory lies, no
        // flags.
        let mut attributes: CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        // A source is read when the stream gets there, not at once.
        attributes.srcAccessOrder = CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let attributes = &raw mut attributes;
        let mut first = 0;
        let first = &raw mut first;
        let mut failed = usize::MAX;
        // SAFETY: lists of `count`, one attribute that begins at the first copy, and what the caller
        // promises of the ranges.
        let batched = unsafe {
            driver
                .batch_v2(to, from, sizes, count, attributes, first, 1, stream)
                .or_else(|| {
                    let failed = &raw mut failed;
                    driver.batch(to, from, sizes, count, attributes, first, 1, failed, stream)
                })
        };
        // Without either it is never chosen.
        batched
            .unwrap_or(Ok(()))
            .map_err(|error| self.about(error, failed))
    }

    /// # Safety
    /// As [`queue`](Self::queue).
    unsafe fn queue_rows(&self, driver: &Driver, stream: CUstream) -> Result<()> {
        let mut at = 0;
        while at < self.count() {
            let rows = self.even_run(at);
            if rows.count < 2 {
                // SAFETY: the caller's promise.
                unsafe { self.queue_one(driver, stream, at) }?;
                at += 1;
                continue;
            }
            // By address, whatever kind of memory that is of.
            let kind = CUmemorytype::CU_MEMORYTYPE_UNIFIED;
            let described = CUDA_MEMCPY2D_st {
                srcXInBytes: 0,
                srcY: 0,
                srcMemoryType: kind,
                srcHost: ptr::null(),
                srcDevice: self.from[at],
                srcArray: ptr::null_mut(),
                srcPitch: rows.from_pitch,
                dstXInBytes: 0,
                dstY: 0,
                dstMemoryType: kind,
                dstHost: ptr::null_mut(),
                dstDevice: self.to[at],
                dstArray: ptr::null_mut(),
                dstPitch: rows.to_pitch,
                WidthInBytes: self.sizes[at],
                Height: rows.count,
            };
            // SAFETY: the rows are copies of the list.
            let queued = unsafe { driver.copy_rows(&raw const described, stream) };
            // Without it this is never chosen.
            queued.unwrap_or(Ok(())).map_err(|error| {
                let rows = format_args!("and {} more of its size", rows.count - 1);
                self.about(error.within(rows), at)
            })?;
            at += rows.count;
        }
        Ok(())
    }

    /// # Safety
    /// As [`queue`](Self::queue).
    unsafe fn queue_one(&self, driver: &Driver, stream: CUstream, at: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { driver.copy(self.to[at], self.from[at], self.sizes[at], stream) }
            .map_err(|error| self.about(error, at))
    }

    /// The copies from `at` on that have one size, and one distance on either side that is a pitch.
    fn even_run(&self, at: usize) -> Run {
        let size = self.sizes[at];
        let distance = |list: &[CUdeviceptr], next: usize| {
            let distance = list.get(next)?.checked_sub(*list.get(next - 1)?)?;
            let is_pitch = distance >= size as u64 && distance <= MOST_PITCH;
            is_pitch.then_some(distance as usize)
        };
        let both = |next| Some((distance(&self.to, next)?, distance(&self.from, next)?));
        let Some((to_pitch, from_pitch)) = both(at + 1) else {
            return Run::default();
        };
        let count = (at + 1..self.count())
            .take_while(|next| {
                self.sizes[*next] == size && both(*next) == Some((to_pitch, from_pitch))
            })
            .count();
        Run {
            count: count + 1,
            to_pitch,
            from_pitch,
        }
    }

    /// An error with the operands of the copy that it is about, if that is known.
    fn about(&self, error: Error, at: usize) -> Error {
        match (self.to.get(at), self.from.get(at), self.sizes.get(at)) {
            (Some(to), Some(from), Some(size)) => error.within(format_args!(
                "copy {at}, {size} bytes from {from:#x} to {to:#x}"
            )),
            _ => error,
        }
    }
}

/// Evenly strided copies; a count below 2 is none.
#[derive(Debug, Default, PartialEq, Eq)]
struct Run {
    count: usize,
    to_pitch: usize,
    from_pitch: usize,
}
