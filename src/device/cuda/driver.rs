//! The functions of the CUDA driver, found once in its library.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    self, CUDA_MEMCPY2D_st, CUcontext, CUdeviceptr, CUevent, CUfunction, CUmemcpyAttributes,
    CUmodule, CUstream,
};
use parking_lot::Mutex;

use crate::error::{Error, Kind, Result, bail};

/// `CUresult`, which is only ever a number here.
type Code = c_int;

const SUCCESS: Code = sys::CUresult::CUDA_SUCCESS as Code;
const OUT_OF_MEMORY: Code = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code;
/// What a driver answers that does not know an attribute.
const NOT_KNOWN: [Code; 2] = [
    sys::CUresult::CUDA_ERROR_INVALID_VALUE as Code,
    sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as Code,
];

/// After one of these every later call for the context answers it again: its work and its memory are lost, and only a new
/// process has the device back. The driver's reference says so of 226 and of each from 700 on; 214 and 220 are errors of the
/// hardware that end the context alike.
const STICKY: [Code; 13] = [
    sys::CUresult::CUDA_ERROR_ECC_UNCORRECTABLE as Code,
    sys::CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE as Code,
    sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as Code,
    sys::CUresult::CUDA_ERROR_LAUNCH_TIMEOUT as Code,
    sys::CUresult::CUDA_ERROR_ASSERT as Code,
    sys::CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR as Code,
    sys::CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION as Code,
    sys::CUresult::CUDA_ERROR_MISALIGNED_ADDRESS as Code,
    sys::CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE as Code,
    sys::CUresult::CUDA_ERROR_INVALID_PC as Code,
    sys::CUresult::CUDA_ERROR_LAUNCH_FAILED as Code,
    TENSOR_MEMORY_LEAK,
    CONTAINED,
];
/// `CUDA_ERROR_TENSOR_MEMORY_LEAK` and `CUDA_ERROR_CONTAINED`, which older headers lack.
const TENSOR_MEMORY_LEAK: Code = 721;
const CONTAINED: Code = 226;

/// What a driver answers to a handle that is none, or not of the current context.
const STRANGE: [Code; 2] = [
    sys::CUresult::CUDA_ERROR_INVALID_HANDLE as Code,
    sys::CUresult::CUDA_ERROR_INVALID_CONTEXT as Code,
];

/// 12.0, as drivers write it.
const OLDEST: c_int = 12_000;

/// Compares a declaration with the one of `cudarc`, which is made from NVIDIA's header. Those differ
/// that have integers in place of enums, and the old list of arguments of a function that has a newer one.
macro_rules! alike {
    ($symbol:ident($($type:ty),*)) => {
        const _: unsafe fn($($type),*) -> sys::CUresult = sys::$symbol;
    };
    ($symbol:ident($($type:ty),*) differs) => {};
}

/// Declares the table: functions with arguments and symbol, and how they are found and called.
macro_rules! functions {
    (
        required { $( $(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*) = $symbol:ident $($differs:ident)?; )+ }
        optional { $( $(#[$optional_about:meta])* $optional:ident($($optional_argument:ident: $optional_type:ty),*) = $optional_symbol:ident $($optional_differs:ident)?; )+ }
    ) => {
        /// The functions. They stay valid as long as the process, since nothing unloads the library.
        #[derive(Debug)]
        pub(super) struct Driver {
            $( $name: unsafe extern "C" fn($($type),*) -> Code, )+
            $( $optional: Option<unsafe extern "C" fn($($optional_type),*) -> Code>, )+
        }

        $( alike!($symbol($($type),*) $($differs)?); )+
        $( alike!($optional_symbol($($optional_type),*) $($optional_differs)?); )+

        impl Driver {
            /// Errors: `NoDevice`, with the names of all that are required and missing.
            ///
            /// # Safety
            /// What the library exports under the driver's names must be the driver's functions.
            unsafe fn resolve() -> Result<Self> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the caller's promise; the library was found.
                    let $name = unsafe { sys::culib().get::<unsafe extern "C" fn($($type),*) -> Code>(stringify!($symbol)) };
                    if $name.is_err() {
                        missing.push(stringify!($symbol));
                    }
                )+
                let ($( Ok($name), )+) = ($( $name, )+) else {
                    bail!(NoDevice, "the CUDA driver's library lacks {}", missing.join(", "));
                };
                Ok(Self {
                    $( $name: *$name, )+
                    $(
                        // SAFETY: as above.
                        $optional: unsafe { sys::culib().get::<unsafe extern "C" fn($($optional_type),*) -> Code>(stringify!($optional_symbol)) }
                            .ok().map(|found| *found),
                    )+
                })
            }

            $(
                $(#[$about])*
                ///
                /// # Safety
                /// As the driver documents: handles are alive, and pointers are valid for what they
                /// are for.
                pub(super) unsafe fn $name(&self, $($argument: $type),*) -> Result<()> {
                    // SAFETY: the caller's promise.
                    self.check(stringify!($symbol), unsafe { (self.$name)($($argument),*) })
                }
            )+
            $(
                $(#[$optional_about])*
                /// `None` if this driver lacks it.
                ///
                /// # Safety
                /// As the driver documents: handles are alive, and pointers are valid for what they
                /// are for.
                pub(super) unsafe fn $optional(&self, $($optional_argument: $optional_type),*) -> Option<Result<()>> {
                    // SAFETY: the caller's promise.
                    let code = unsafe { self.$optional?($($optional_argument),*) };
                    Some(self.check(stringify!($optional_symbol), code))
                }
            )+
        }
    };
}

functions! {
    required {
        /// Starts the driver in this process; again it does nothing. Flags are 0.
        init(flags: c_uint) = cuInit;
        /// 12.4 is 12040.
        version(out: *mut c_int) = cuDriverGetVersion;
        /// The constant's name of a code, as a text that stays.
        #[expect(dead_code, reason = "called by its field: what it answers has no name")]
        error_name(code: Code, out: *mut *const c_char) = cuGetErrorName differs;
        /// NULL if there is none.
        context_current(out: *mut CUcontext) = cuCtxGetCurrent;
        /// For the calling thread; NULL for none.
        context_set(context: CUcontext) = cuCtxSetCurrent;
        /// The current context's device.
        context_device(out: *mut c_int) = cuCtxGetDevice;
        /// Waits for all work of the current context.
        context_synchronize() = cuCtxSynchronize;
        /// 1 is non-blocking: not ordered against the legacy stream.
        stream_create(out: *mut CUstream, flags: c_uint) = cuStreamCreate;
        /// Work that it has goes on.
        stream_destroy(stream: CUstream) = cuStreamDestroy_v2;
        /// Later work of the stream waits for what the event recorded last.
        stream_wait(stream: CUstream, event: CUevent, flags: c_uint) = cuStreamWaitEvent;
        /// Waits for the stream's work.
        stream_synchronize(stream: CUstream) = cuStreamSynchronize;
        /// 1: who waits sleeps; 2: no times are taken.
        event_create(out: *mut CUevent, flags: c_uint) = cuEventCreate;
        /// At once; the driver keeps what still waits for it.
        event_destroy(event: CUevent) = cuEventDestroy_v2;
        /// Marks the present end of the stream's work. Both belong to one context.
        event_record(event: CUevent, stream: CUstream) = cuEventRecord;
        /// Waits for what was recorded last.
        event_synchronize(event: CUevent) = cuEventSynchronize;
        /// Pins memory of the host; flag 1: for all contexts.
        host_register(start: *mut c_void, size: usize, flags: c_uint) = cuMemHostRegister_v2;
        /// By its start.
        host_unregister(start: *mut c_void) = cuMemHostUnregister;
        /// Of the memory that an address belongs to.
        pointer_attribute(out: *mut c_void, attribute: c_uint, address: CUdeviceptr) = cuPointerGetAttribute differs;
        /// To, from, bytes, stream. Either may be memory of the host.
        copy(to: CUdeviceptr, from: CUdeviceptr, size: usize, stream: CUstream) = cuMemcpyAsync;
    }
    optional {
        /// Sets how the calling thread meets captures of others, and leaves in `mode` what it was: 0, with one of the
        /// common kind under way, calls that might disturb it fail and end it; 2, they do not care.
        capture_mode(mode: *mut c_uint) = cuThreadExchangeStreamCaptureMode differs;
        /// Whether a graph is made of a stream's work instead of it being done: not 0.
        #[expect(dead_code, reason = "called by its field: a handle that is none is the engine's mistake")]
        raw_stream_captures(stream: CUstream, out: *mut c_uint) = cuStreamIsCapturing differs;
        /// Start and size of the allocation that an address belongs to.
        allocation(start: *mut CUdeviceptr, size: *mut usize, address: CUdeviceptr) = cuMemGetAddressRange_v2;
        /// Of a device, by its handle.
        #[expect(dead_code, reason = "called by its field: not to know one is no error")]
        raw_device_attribute(out: *mut c_int, attribute: c_uint, device: c_int) = cuDeviceGetAttribute differs;
        /// Makes what others have written into memory of the current context (target 0) visible, to
        /// the context's device at least (scope 100).
        flush_writes(target: c_uint, scope: c_uint) = cuFlushGPUDirectRDMAWrites differs;
        /// To, from, bytes, count, attributes, index of the first copy of each, their count,
        /// stream: any but the legacy one. From 13.0 on.
        #[expect(clippy::too_many_arguments, reason = "as the driver has them")]
        batch_v2(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize,
            attributes: *mut CUmemcpyAttributes, firsts: *mut usize, attribute_count: usize,
            stream: CUstream) = cuMemcpyBatchAsync_v2;
        /// The same with the index of the copy that failed before the stream. From 12.8 on.
        #[expect(clippy::too_many_arguments, reason = "as the driver has them")]
        batch(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize,
            attributes: *mut CUmemcpyAttributes, firsts: *mut usize, attribute_count: usize,
            failed: *mut usize, stream: CUstream) = cuMemcpyBatchAsync differs;
        /// Rows of one size at even distances, as copies of one each.
        copy_rows(rows: *const CUDA_MEMCPY2D_st, stream: CUstream) = cuMemcpy2DAsync_v2;
        /// Where the current context's device sees pinned memory of the host, by its start. Flags are 0.
        host_seen(out: *mut CUdeviceptr, start: *mut c_void, flags: c_uint) = cuMemHostGetDevicePointer_v2;
        /// A module out of a text of PTX, for the current context.
        module_load(out: *mut CUmodule, text: *const c_void) = cuModuleLoadData;
        /// With all of its functions.
        module_unload(module: CUmodule) = cuModuleUnload;
        /// By its name; it is the module's.
        module_function(out: *mut CUfunction, module: CUmodule, name: *const c_char) = cuModuleGetFunction;
        /// Function, grid, block, shared memory, stream, arguments, which are read at once, and nothing.
        #[expect(clippy::too_many_arguments, reason = "as the driver has them")]
        launch(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
            block_x: c_uint, block_y: c_uint, block_z: c_uint, shared: c_uint, stream: CUstream,
            arguments: *mut *mut c_void, extra: *mut *mut c_void) = cuLaunchKernel;
    }
}

/// The table, once there is one. What failed is tried again by the next who asks.
static DRIVER: Mutex<Option<&'static Driver>> = Mutex::new(None);

impl Driver {
    /// The driver of this machine, loaded and started the first time.
    ///
    /// Blocks: while the driver starts, the first time. Errors: `NoDevice`, which says what is missing.
    pub(super) fn get() -> Result<&'static Self> {
        let mut known = DRIVER.lock();
        if let Some(driver) = *known {
            return Ok(driver);
        }
        // SAFETY: loads the driver's library, as any program that uses CUDA does.
        if !unsafe { sys::is_culib_present() } {
            bail!(
                NoDevice,
                "the CUDA driver's library libcuda.so.1 cannot be loaded"
            );
        }
        // SAFETY: a library of this name is the driver's.
        let driver = unsafe { Self::resolve() }?;
        driver.start()?;
        let driver: &'static Self = Box::leak(Box::new(driver));
        *known = Some(driver);
        Ok(driver)
    }

    /// Whether one call takes a list of copies.
    pub(super) fn has_batch(&self) -> bool {
        self.batch_v2.is_some() || self.batch.is_some()
    }

    /// Whether one call takes rows.
    pub(super) fn has_rows(&self) -> bool {
        self.copy_rows.is_some()
    }

    /// Whether all is there that a kernel of ours needs.
    pub(super) fn has_kernels(&self) -> bool {
        self.module_load.is_some()
            && self.module_unload.is_some()
            && self.module_function.is_some()
            && self.launch.is_some()
            && self.host_seen.is_some()
    }

    fn start(&self) -> Result<()> {
        let mut version = 0;
        // SAFETY: starts the driver, and writes one integer.
        let started = unsafe { self.init(0).and_then(|()| self.version(&raw mut version)) };
        // Nobody's device failed yet: there is none to be had.
        started.map_err(|error| Error::new(Kind::NoDevice, error.message()))?;
        if version < OLDEST {
            bail!(
                NoDevice,
                "the CUDA driver supports CUDA {}.{}; 12.0 or newer is needed",
                version / 1000,
                version % 1000 / 10
            );
        }
        Ok(())
    }

    /// [`pointer_attribute`](Self::pointer_attribute) of memory of the driver's; false: it does not know this attribute.
    ///
    /// # Safety
    /// As for that.
    pub(super) unsafe fn pointer_attribute_if_known(
        &self,
        out: *mut c_void,
        attribute: c_uint,
        address: CUdeviceptr,
    ) -> Result<bool> {
        // SAFETY: the caller's promise.
        let code = unsafe { (self.pointer_attribute)(out, attribute, address) };
        self.unless_unknown("cuPointerGetAttribute", code)
    }

    /// Whether a graph is made of the work of a stream of the engine's, instead of it being done. `InvalidArgument`: the handle is
    /// none of the current context's streams.
    ///
    /// # Safety
    /// The stream is alive, in whatever context.
    pub(super) unsafe fn captures(&self, stream: CUstream) -> Result<bool> {
        let Some(function) = self.raw_stream_captures else {
            return Ok(false);
        };
        let mut captures = 0;
        // SAFETY: the caller's promise; writes one integer.
        let code = unsafe { function(stream, &raw mut captures) };
        match self.check("cuStreamIsCapturing", code) {
            Err(error) if STRANGE.contains(&code) => {
                Err(Error::new(Kind::InvalidArgument, error.message()))
            }
            answer => answer.map(|()| captures != 0),
        }
    }

    /// An attribute of a device; `None`: the driver does not know it.
    pub(super) fn device_attribute(
        &self,
        attribute: c_uint,
        device: c_int,
    ) -> Result<Option<c_int>> {
        let Some(function) = self.raw_device_attribute else {
            return Ok(None);
        };
        let mut value = 0;
        // SAFETY: writes one integer; any attribute of any device may be asked for.
        let code = unsafe { function(&raw mut value, attribute, device) };
        let known = self.unless_unknown("cuDeviceGetAttribute", code)?;
        Ok(known.then_some(value))
    }

    fn unless_unknown(&self, function: &str, code: Code) -> Result<bool> {
        match NOT_KNOWN.contains(&code) {
            true => Ok(false),
            false => self.check(function, code).map(|()| true),
        }
    }

    /// What a function answered.
    fn check(&self, function: &str, code: Code) -> Result<()> {
        let kind = match code {
            SUCCESS => return Ok(()),
            OUT_OF_MEMORY => Kind::NoMemory,
            code if STICKY.contains(&code) => Kind::DeviceLost,
            _ => Kind::DeviceFailed,
        };
        Err(Error::new(
            kind,
            format!("{function}: {} ({code})", self.name_of(code)),
        ))
    }

    fn name_of(&self, code: Code) -> String {
        let mut name = std::ptr::null();
        // SAFETY: writes one pointer, NULL for a code that it does not know.
        let known = unsafe { (self.error_name)(code, &raw mut name) };
        if known != SUCCESS || name.is_null() {
            return "an unknown code".to_owned();
        }
        // SAFETY: a text of the driver that stays.
        unsafe { CStr::from_ptr(name) }
            .to_string_lossy()
            .into_owned()
    }
}
