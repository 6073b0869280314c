//! The kernel that copies many small pieces: `pieces.cu`, made into PTX by `scripts/kernel`.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};

use super::context::Context;
use crate::error::Result;

/// Fewest copies of a batch that a kernel makes.
///
/// As with [`MOST_BYTES`], an estimate that was **not measured on a GPU yet**; `scripts/gpu-check`
/// prints the ways side by side. A launch costs about as much as a few copies.
pub const LEAST_PIECES: usize = 16;

/// Largest mean size of a batch's copies, in bytes, that a kernel makes.
///
/// An estimate, see [`LEAST_PIECES`]: a copy engine needs one or two microseconds to begin a copy, in
/// which a link of 50 GB/s moves some 64 KiB. Half of that, since a kernel takes processors away from the
/// engine's own.
pub const MOST_BYTES: u64 = 32 << 10;

/// Where the driver ends reading.
const PTX: &str = concat!(include_str!("pieces.ptx"), "\0");
const NAME: &CStr = c"kvb_copy_pieces";

const THREADS: u32 = 256;
/// Bytes of a piece that one block is for: four times 16 for each thread.
const BYTES_PER_BLOCK: usize = 16 << 10;
/// Blocks that a piece gets at most; they take the rest in turns.
const MOST_BLOCKS: usize = 64;

/// One copy, as `pieces.cu` declares it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    to: u64,
    from: u64,
    size: u64,
}

const PER_LAUNCH: usize = 170;

/// The kernel's argument, which travels with the launch: no list has to be pinned and kept.
#[repr(C)]
struct Pieces {
    list: [Piece; PER_LAUNCH],
    count: u64,
}

// What a kernel's arguments may have in PTX 7.0.
const _: () = assert!(size_of::<Pieces>() <= 4096);

/// The kernel, loaded into the engine's context.
#[derive(Debug)]
pub(super) struct Kernel {
    context: Arc<Context>,
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: the driver's functions for modules and launches may be called from any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; nothing of ours changes it.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Has the driver compile it for the device; `None` if this driver has no functions for that. With
    /// the context current.
    ///
    /// Blocks: while it is compiled. The driver may wait for the context's work.
    pub(super) fn load(context: &Arc<Context>) -> Result<Option<Self>> {
        let driver = context.driver;
        if !driver.has_kernels() {
            return Ok(None);
        }
        let mut module = ptr::null_mut();
        // SAFETY: writes one handle; the text ends with a NUL.
        let loaded = unsafe { driver.module_load(&raw mut module, PTX.as_ptr().cast()) };
        let Some(loaded) = loaded else {
            return Ok(None);
        };
        loaded?;
        // From here on dropping it unloads the module.
        let mut kernel = Self {
            context: Arc::clone(context),
            module,
            function: ptr::null_mut(),
        };
        let out = &raw mut kernel.function;
        // SAFETY: writes one handle; the module is alive.
        match unsafe { driver.module_function(out, module, NAME.as_ptr()) } {
            Some(found) => found.map(|()| Some(kernel)),
            None => Ok(None),
        }
    }

    /// Puts copies on a stream, all of them unordered; with none, a launch that does nothing.
    ///
    /// # Safety
    /// The lists are of one length, the stream is of the kernel's context, which is current, and the ranges
    /// are memory that its device sees at these addresses until the stream is past the copies.
    pub(super) unsafe fn copy(
        &self,
        stream: CUstream,
        to: &[CUdeviceptr],
        from: &[CUdeviceptr],
        sizes: &[usize],
    ) -> Result<()> {
        let mut pieces = Pieces {
            list: [Piece::default(); PER_LAUNCH],
            count: 0,
        };
        let mut first = 0;
        loop {
            let end = sizes.len().min(first + PER_LAUNCH);
            for (piece, at) in pieces.list.iter_mut().zip(first..end) {
                (piece.to, piece.from, piece.size) = (to[at], from[at], sizes[at] as u64);
            }
            pieces.count = (end - first) as u64;
            let largest = sizes[first..end].iter().copied().max().unwrap_or(0);
            let blocks = largest.div_ceil(BYTES_PER_BLOCK).clamp(1, MOST_BLOCKS);
            // SAFETY: the caller's promise.
            unsafe { self.launch(stream, (end - first).max(1), blocks, &mut pieces) }.map_err(
                |error| error.within(format_args!("the kernel for copies {first} to {end}")),
            )?;
            first = end;
            if first >= sizes.len() {
                return Ok(());
            }
        }
    }

    /// # Safety
    /// As [`copy`](Self::copy).
    unsafe fn launch(
        &self,
        stream: CUstream,
        pieces: usize,
        blocks: usize,
        argument: &mut Pieces,
    ) -> Result<()> {
        let mut arguments: [*mut c_void; 1] = [ptr::from_mut(argument).cast()];
        // SAFETY: the kernel takes this one argument, which is read at once; see also above.
        let launched = unsafe {
            self.context.driver.launch(
                self.function,
                pieces as u32,
                blocks as u32,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        // Without the function there is no kernel.
        launched.unwrap_or(Ok(()))
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let unloaded = self.context.run(|_| {
            // SAFETY: nobody has it any more, and nothing of it runs.
            let unloaded = unsafe { self.context.driver.module_unload(self.module) };
            unloaded.unwrap_or(Ok(()))
        });
        if let Err(error) = unloaded {
            tracing::warn!("a kernel is kept: {error}");
        }
    }
}
