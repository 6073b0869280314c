//! The functions of Mooncake's C interface, found in a library at run time.
//!
//! Every function that is needed is looked up when the library is opened, so that a library that
//! lacks some is refused then, with all of their names, and no call can fail for that reason.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;

use crate::error::{Result, bail};

/// A store of Mooncake's, as its functions take it.
pub(super) type Handle = *mut c_void;

/// Declares the table, its functions with the names they have behind `mooncake_store_`, and how it
/// is filled.
macro_rules! symbols {
    (
        needed { $( $(#[$about:meta])* $name:ident: fn($($argument:ty),*) $(-> $answer:ty)?; )+ }
        optional { $( $(#[$optional_about:meta])* $optional:ident: fn($($optional_argument:ty),*) $(-> $optional_answer:ty)?; )+ }
    ) => {
        /// The functions. They stay valid as long as the process, since nothing unloads the library.
        #[derive(Debug)]
        pub(super) struct Symbols {
            $( $(#[$about])* pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $answer)?, )+
            $( $(#[$optional_about])* pub(super) $optional:
                Option<unsafe extern "C" fn($($optional_argument),*) $(-> $optional_answer)?>, )+
        }

        impl Symbols {
            /// Looks them up with `find`.
            ///
            /// Errors: `PoolRefused`, with the names of all that are needed and missing.
            ///
            /// # Safety
            /// What `find` gives for a name must be NULL or the function that Mooncake documents
            /// under this name.
            pub(super) unsafe fn resolve(find: impl Fn(&CStr) -> *mut c_void) -> Result<Self> {
                let mut missing = Vec::new();
                let mut look = |name: &'static str, needed: bool| {
                    let symbol = format!("mooncake_store_{name}");
                    let found = CString::new(symbol.as_str())
                        .ok()
                        .and_then(|symbol| NonNull::new(find(&symbol)));
                    if needed && found.is_none() {
                        missing.push(symbol);
                    }
                    found
                };
                $( let $name = look(stringify!($name), true); )+
                $( let $optional = look(stringify!($optional), false); )+
                let ($( Some($name), )+) = ($( $name, )+) else {
                    bail!(PoolRefused, "it lacks {}", missing.join(", "));
                };
                Ok(Self {
                    $(
                        // SAFETY: the caller's promise; a function's pointer has the size of one.
                        $name: unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) $(-> $answer)?>($name) },
                    )+
                    $(
                        $optional: $optional.map(|found| {
                            // SAFETY: as above.
                            unsafe { std::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($optional_argument),*) $(-> $optional_answer)?>(found) }
                        }),
                    )+
                })
            }
        }
    };
}

symbols! {
    needed {
        /// A store without a connection. Starts threads and changes the caller's signal mask.
        create: fn() -> Handle;
        /// Ends it. Once, and while no call on it runs.
        destroy: fn(Handle);
        /// Connects: own name, metadata server, bytes lent, bytes of its own buffer, protocol,
        /// device, master. 0 or a negative code.
        setup: fn(Handle, *const c_char, *const c_char, u64, u64, *const c_char, *const c_char,
            *const c_char) -> c_int;
        /// 0 while the master answers, as far as is known.
        health_check: fn(Handle) -> c_int;
        /// Keys, buffers, sizes, count, options or NULL, one code per key: 0 or negative.
        batch_put_from: fn(Handle, *mut *const c_char, *mut *mut c_void, *const usize, usize,
            *const c_void, *mut c_int) -> c_int;
        /// Keys, buffers, sizes, count, one size or negative code per key.
        batch_get_into: fn(Handle, *mut *const c_char, *mut *mut c_void, *const usize, usize,
            *mut i64) -> c_int;
        /// Keys, count, one answer per key: 1, 0 or a negative code.
        batch_is_exist: fn(Handle, *mut *const c_char, usize, *mut c_int) -> c_int;
        /// A key; leased ones only if the last argument is not 0.
        remove: fn(Handle, *const c_char, c_int) -> c_int;
        /// The size of a key's object, or a negative code.
        get_size: fn(Handle, *const c_char) -> i64;
        /// Makes a range known; 0 or a negative code.
        register_buffer: fn(Handle, *mut c_void, usize) -> c_int;
        /// Takes it back, by its start.
        unregister_buffer: fn(Handle, *mut c_void) -> c_int;
    }
    optional {
        /// `setup` with the tenant as last argument. Older builds lack it.
        setup_with_tenant: fn(Handle, *const c_char, *const c_char, u64, u64, *const c_char,
            *const c_char, *const c_char, *const c_char) -> c_int;
    }
}
