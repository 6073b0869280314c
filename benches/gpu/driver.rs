//! The few functions of the CUDA driver that the bench calls itself, as an engine would.
#![allow(unsafe_code, reason = "calls functions of a foreign library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::Outcome;

/// Declares a table of functions, found by their names.
macro_rules! functions {
    ($( $name:ident($($type:ty),*); )+) => {
        #[expect(non_snake_case, reason = "the driver's names")]
        struct Functions {
            $( $name: unsafe extern "C" fn($($type),*) -> c_int, )+
            is_stand_in: bool,
        }

        impl Functions {
            fn find() -> Option<Self> {
                // SAFETY: loads the driver's library, as any program that uses CUDA does.
                let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
                if library.is_null() {
                    return None;
                }
                let find = |name: &CStr| {
                    // SAFETY: the library is loaded.
                    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                    (!found.is_null()).then_some(found)
                };
                Some(Self {
                    $(
                        // SAFETY: the driver's function of this name is declared like this.
                        $name: unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) -> c_int>(
                                find(CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()).ok()?)?,
                            )
                        },
                    )+
                    is_stand_in: find(c"stand_in_alive").is_some(),
                })
            }
        }
    };
}

functions! {
    cuInit(c_uint);
    cuDriverGetVersion(*mut c_int);
    cuDeviceGetCount(*mut c_int);
    cuDeviceGet(*mut c_int, c_int);
    cuDeviceGetName(*mut c_char, c_int, c_int);
    cuCtxCreate_v2(*mut *mut c_void, c_uint, c_int);
    cuStreamCreate(*mut *mut c_void, c_uint);
    cuStreamSynchronize(*mut c_void);
    cuMemAlloc_v2(*mut u64, usize);
    cuMemcpyAsync(u64, u64, usize, *mut c_void);
}

/// A GPU with a context, which is current and stays, and a stream.
pub struct Gpu {
    functions: Functions,
    stream: *mut c_void,
    /// What it is, for people.
    pub name: String,
}

fn check(code: c_int, what: &str) -> Outcome<()> {
    match code {
        0 => Ok(()),
        _ => Err(format!("{what} answered {code}").into()),
    }
}

impl Gpu {
    /// The first GPU; an `Err` inside says why there is none.
    pub fn open() -> Outcome<Result<Self, String>> {
        let Some(functions) = Functions::find() else {
            return Ok(Err("no driver of CUDA 12 or newer is installed".to_owned()));
        };
        let (mut count, mut version, mut device) = (0, 0, 0);
        let mut name = [0; 256];
        let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: each writes what it is given a place for.
        unsafe {
            match (functions.cuInit)(0) {
                0 => {}
                code => return Ok(Err(format!("the driver does not start (code {code})"))),
            }
            check(
                (functions.cuDeviceGetCount)(&raw mut count),
                "cuDeviceGetCount",
            )?;
            if count == 0 {
                return Ok(Err("the driver has no device".to_owned()));
            }
            check(
                (functions.cuDriverGetVersion)(&raw mut version),
                "cuDriverGetVersion",
            )?;
            check((functions.cuDeviceGet)(&raw mut device, 0), "cuDeviceGet")?;
            let (text, size) = (name.as_mut_ptr(), name.len() as c_int);
            check(
                (functions.cuDeviceGetName)(text, size, device),
                "cuDeviceGetName",
            )?;
            check(
                (functions.cuCtxCreate_v2)(&raw mut context, 0, device),
                "cuCtxCreate_v2",
            )?;
            check(
                (functions.cuStreamCreate)(&raw mut stream, 1),
                "cuStreamCreate",
            )?;
        }
        // SAFETY: the driver ends the text with a NUL.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy();
        let stand_in = match functions.is_stand_in {
            true => ", A STAND-IN: figures mean nothing",
            false => "",
        };
        let (major, minor) = (version / 1000, version % 1000 / 10);
        Ok(Ok(Self {
            name: format!("{name}, driver of CUDA {major}.{minor}{stand_in}"),
            functions,
            stream,
        }))
    }

    /// Device memory, for as long as the process lasts.
    pub fn allocate(&self, size: usize) -> Outcome<u64> {
        let mut start = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.functions.cuMemAlloc_v2)(&raw mut start, size) };
        check(code, "cuMemAlloc_v2")?;
        Ok(start)
    }

    /// One copy, waited for.
    ///
    /// # Safety
    /// Both are memory that the driver knows, and nobody else uses them.
    pub unsafe fn copy(&self, to: u64, from: u64, size: usize) -> Outcome<()> {
        // SAFETY: the caller's promise; the stream is alive.
        unsafe {
            check(
                (self.functions.cuMemcpyAsync)(to, from, size, self.stream),
                "cuMemcpyAsync",
            )?;
            check(
                (self.functions.cuStreamSynchronize)(self.stream),
                "cuStreamSynchronize",
            )
        }
    }
}
