//! `kvb_config`.

use super::args;
use super::guard::{guard, guard_or};
use super::handle::{self, Noun, Shared};
use super::status::kvb_status;
use crate::config::Config;
use crate::error::{Result, bail};
use std::ffi::c_char;
use std::path::Path;
use std::sync::Arc;

/// A validated configuration: one JSON object, immutable once read.
///
/// Threads: shared. Made by kvb_config_from_file and kvb_config_from_json, freed by
/// kvb_config_free; what was made from it does not need it any more.
pub struct kvb_config {
    _opaque: (),
}

impl Noun for kvb_config {
    const TAG: u64 = u64::from_be_bytes(*b"kvbconfg");
    const NAME: &'static str = "kvb_config";
    const LIVES_IN_ONE_PROCESS: bool = false;
    type Access = Shared;
    type Common = Arc<Config>;
    type Alone = ();
}

/// Reads the configuration file at `path_or_null` (UTF-8). With NULL, whatever `path_size` is, it
/// is the file that the environment variable KVBRIDGE_CONFIG names, else the one that
/// MOONCAKE_CONFIG_PATH names. The environment is read in this call only, and never changed.
///
/// Threads: any. Blocks: while the file is read.
/// Errors: KVB_INVALID_ARGUMENT, a path that is not NULL and empty, or has a NUL in it;
/// KVB_CONFIG_UNREADABLE; KVB_CONFIG_INVALID with every problem of the file, one a line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_config_from_file(
    path_or_null: *const c_char,
    path_size: usize,
    out: *mut *mut kvb_config,
) -> kvb_status {
    guard("kvb_config_from_file", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (path, out) = unsafe {
            let out = args::out(out, "out")?;
            let path = match path_or_null.is_null() {
                true => None,
                false => Some(path(path_or_null, path_size)?),
            };
            (path, out)
        };
        let config = Config::from_file(path.map(Path::new))?;
        out.write(handle::create(Arc::new(config), ()));
        Ok(())
    })
}

/// # Safety
/// As for [`args::text`].
unsafe fn path<'a>(pointer: *const c_char, size: usize) -> Result<&'a str> {
    // SAFETY: passed on.
    let path = unsafe { args::text(pointer.cast(), size, "path") }?;
    if path.is_empty() {
        bail!(
            InvalidArgument,
            "path is empty; it is NULL for the file that the environment names"
        );
    }
    if let Some(at) = path.find('\0') {
        bail!(
            InvalidArgument,
            "path has a NUL at byte {at}; path_size does not count a terminator"
        );
    }
    Ok(path)
}

/// Reads a configuration from the bytes of its JSON text.
///
/// Threads: any. Errors: KVB_CONFIG_INVALID with every problem of the text, one a line.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_config_from_json(
    json: *const u8,
    size: usize,
    out: *mut *mut kvb_config,
) -> kvb_status {
    guard("kvb_config_from_json", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (json, out) = unsafe {
            let out = args::out(out, "out")?;
            (args::list(json, size, "json")?, out)
        };
        let config = Config::from_json(json)?;
        out.write(handle::create(Arc::new(config), ()));
        Ok(())
    })
}

/// Writes the effective configuration as JSON text: every field, also those left to their
/// defaults. Reading it gives the same configuration.
///
/// Errors: KVB_TOO_SMALL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_config_render(
    config: *const kvb_config,
    buffer: *mut c_char,
    capacity: usize,
    out_needed: *mut usize,
) -> kvb_status {
    guard("kvb_config_render", || {
        // SAFETY: the caller's promise, see the header's conventions.
        let (config, buffer) = unsafe {
            (
                handle::shared(config, "config")?,
                args::buffer(buffer.cast(), capacity, out_needed)?,
            )
        };
        buffer.text(&config.common().render())
    })
}

/// Frees a configuration. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvb_config_free(config: *mut kvb_config) {
    // SAFETY: the caller's promise, see the header's conventions.
    guard_or("kvb_config_free", (), || unsafe {
        handle::free(config, "config")
    });
}
