//! The entries through which a loaded library calls functions of others, and how one is pointed
//! elsewhere: for that library alone, and without a trace in the rest of the process.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};

/// The entries of a dynamic section that are read here, by their tags in the ELF specification.
mod tag {
    pub(super) const END: i64 = 0;
    pub(super) const JUMP_BYTES: i64 = 2;
    pub(super) const STRINGS: i64 = 5;
    pub(super) const SYMBOLS: i64 = 6;
    pub(super) const RELOCATIONS: i64 = 7;
    pub(super) const RELOCATION_BYTES: i64 = 8;
    pub(super) const JUMPS: i64 = 23;
}

#[repr(C)]
struct LinkMap {
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dynamic,
}

#[repr(C)]
struct Dynamic {
    tag: i64,
    value: usize,
}

#[repr(C)]
struct Relocation {
    offset: usize,
    info: u64,
    addend: i64,
}

/// Points the entries of a loaded library, and of no other, for the function called `name` at the
/// one at `address`. Answers how many there were: none is no error, since such a library does not
/// call it.
///
/// # Safety
/// `library` is open and stays so, no thread is calling the function through it for the first time,
/// and what is at `address` can stand for it.
pub(super) unsafe fn redirect(library: NonNull<c_void>, name: &CStr, address: usize) -> usize {
    let mut map: *const LinkMap = ptr::null();
    // SAFETY: an open library, of which this gives the loader's entry.
    let asked = unsafe {
        libc::dlinfo(
            library.as_ptr(),
            libc::RTLD_DI_LINKMAP,
            (&raw mut map).cast(),
        )
    };
    if asked != 0 || map.is_null() {
        return 0;
    }
    // SAFETY: the loader's entry of an open library begins with these fields. Its dynamic section
    // ends with END, and the loader has made addresses of the offsets in it.
    let (base, entry) = unsafe {
        let map = &*map;
        let entry = |wanted: i64| {
            let mut at = map.dynamic;
            while (*at).tag != tag::END {
                if (*at).tag == wanted {
                    return Some((*at).value);
                }
                at = at.add(1);
            }
            None
        };
        let tables = [
            (entry(tag::JUMPS), entry(tag::JUMP_BYTES)),
            (entry(tag::RELOCATIONS), entry(tag::RELOCATION_BYTES)),
        ];
        (map.base, (entry(tag::STRINGS), entry(tag::SYMBOLS), tables))
    };
    let (Some(strings), Some(symbols), tables) = entry else {
        return 0;
    };
    let mut redirected = 0;
    for (start, bytes) in tables {
        let (Some(start), Some(bytes)) = (start, bytes) else {
            continue;
        };
        let start: *const Relocation = ptr::with_exposed_provenance(start);
        for at in 0..bytes / size_of::<Relocation>() {
            // SAFETY: within the table that the dynamic section describes; symbols and strings are
            // the tables that it names, as the loader itself reads them.
            let (slot, is_meant) = unsafe {
                let relocation = &*start.add(at);
                (
                    base + relocation.offset,
                    binds(relocation.info, symbols, strings, name),
                )
            };
            // SAFETY: the slot of such an entry is a function's address.
            if is_meant && unsafe { write_entry(slot, address) } {
                redirected += 1;
            }
        }
    }
    redirected
}

/// # Safety
/// The tables of an open library, and an entry of its relocations.
unsafe fn binds(info: u64, symbols: usize, strings: usize, name: &CStr) -> bool {
    // The two kinds that bind a function's address alone, on x86-64 and on AArch64.
    const BINDS: [u32; 2] = if cfg!(target_arch = "x86_64") {
        [6, 7]
    } else {
        [1025, 1026]
    };
    let (kind, symbol) = (info as u32, (info >> 32) as usize);
    if symbol == 0 || !BINDS.contains(&kind) {
        return false;
    }
    let symbols: *const libc::Elf64_Sym = ptr::with_exposed_provenance(symbols);
    let strings: *const libc::c_char = ptr::with_exposed_provenance(strings);
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(strings.add((*symbols.add(symbol)).st_name as usize)) == name }
}

/// Whether it was written.
///
/// # Safety
/// The address of an entry for a function of an open library, which `address` can stand for.
unsafe fn write_entry(slot: usize, address: usize) -> bool {
    let slot: *mut usize = ptr::with_exposed_provenance_mut(slot);
    // SAFETY: asks for a number. Then the page of the entry, which holds nothing but entries and
    // which the loader may have made read-only, becomes writable and stays so.
    let opened = unsafe {
        let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(4096);
        let start = slot.map_addr(|address| address & !(page - 1));
        libc::mprotect(start.cast(), page, libc::PROT_READ | libc::PROT_WRITE)
    };
    if opened != 0 {
        return false;
    }
    // SAFETY: writable now, aligned as the loader's own writes are. Whoever calls meanwhile sees the
    // old or the new address.
    unsafe { slot.write_volatile(address) };
    true
}
