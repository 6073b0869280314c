//! Reading what the host passes and writing what it gets back: the only file that follows the
//! host's pointers to data. Each check names the argument as the header calls it.

use crate::error::{Error, Kind, Result, bail};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

/// A struct of the ABI that is plain: every bit pattern, all zeroes included, is a value.
///
/// # Safety
/// The type is `repr(C)` and holds integers, raw pointers and structs of these alone.
pub(super) unsafe trait Plain: Copy {}

// SAFETY: integers.
unsafe impl Plain for u8 {}
// SAFETY: integers.
unsafe impl Plain for i32 {}
// SAFETY: integers.
unsafe impl Plain for u32 {}
// SAFETY: integers.
unsafe impl Plain for i64 {}
// SAFETY: integers.
unsafe impl Plain for u64 {}
// SAFETY: an array of integers.
unsafe impl Plain for [u8; 32] {}

/// A struct that may grow: it begins with its size, as the side that made it knows it.
///
/// A field that is added later must not lie where older versions had padding: what their callers
/// left there is undefined.
///
/// # Safety
/// The type is `repr(C)` and its first field is `struct_size: u32`.
pub(super) unsafe trait Growable: Copy {}

/// No host has anything below: such a pointer is NULL with the offset of a field, or a number.
pub(super) const LOWEST: usize = 4096;

// Here and in `list`: once per request of every pass, so only what is wrong is a call.
#[inline(always)]
fn located<T>(pointer: *const T, argument: &str) -> Result<()> {
    match pointer.addr() >= LOWEST && pointer.is_aligned() {
        true => Ok(()),
        false => Err(mislocated(pointer.cast(), align_of::<T>(), argument)),
    }
}

#[cold]
fn mislocated(pointer: *const c_void, alignment: usize, argument: &str) -> Error {
    if pointer.is_null() {
        return Error::new(Kind::NullPointer, format!("{argument} is NULL"));
    }
    let what = match pointer.addr() < LOWEST {
        true => "no address of memory".to_owned(),
        false => format!("not aligned to {alignment} bytes"),
    };
    let message = format!("{argument} ({pointer:p}) is {what}");
    Error::new(Kind::InvalidArgument, message)
}

/// A list of the host's. Length 0 ignores the pointer.
///
/// # Safety
/// A pointer that is neither NULL nor ignored points to `count` initialised elements that stay as
/// they are during `'a`.
#[inline(always)]
pub(super) unsafe fn list<'a, T: Plain>(
    pointer: *const T,
    count: usize,
    argument: &str,
) -> Result<&'a [T]> {
    if count == 0 {
        return Ok(&[]);
    }
    located(pointer, argument)?;
    if count
        .checked_mul(size_of::<T>())
        .is_none_or(|bytes| isize::try_from(bytes).is_err())
    {
        return Err(too_many(count, size_of::<T>(), argument));
    }
    // SAFETY: not NULL, aligned, of a possible size; the rest is the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

#[cold]
fn too_many(count: usize, size: usize, argument: &str) -> Error {
    Error::new(
        Kind::InvalidArgument,
        format!("{argument} has {count} elements of {size} bytes, more than memory can hold"),
    )
}

/// A text of the host's: UTF-8, not terminated.
///
/// # Safety
/// As for [`list`].
pub(super) unsafe fn text<'a>(pointer: *const u8, size: usize, argument: &str) -> Result<&'a str> {
    // SAFETY: passed on.
    let bytes = unsafe { list(pointer, size, argument) }?;
    std::str::from_utf8(bytes).map_err(|error| {
        Error::new(
            Kind::InvalidArgument,
            format!("{argument} is not UTF-8 at byte {}", error.valid_up_to()),
        )
    })
}

/// A struct of the host's whose size is fixed.
///
/// # Safety
/// As for [`list`], for one element.
pub(super) unsafe fn fixed<T: Plain>(pointer: *const T, argument: &str) -> Result<T> {
    located(pointer, argument)?;
    // SAFETY: not NULL, aligned; the rest is the caller's promise.
    Ok(unsafe { *pointer })
}

/// A struct of the host's that may be shorter or longer than ours: a missing tail reads as zero, a
/// tail we do not know is ignored.
///
/// # Safety
/// A pointer that is not NULL points to a struct that begins with its size in bytes and is that
/// long.
pub(super) unsafe fn growable<T: Growable + Plain>(pointer: *const T, argument: &str) -> Result<T> {
    // SAFETY: passed on.
    let size = unsafe { struct_size(pointer, argument) }?;
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: both sides hold `size` bytes at least; a plain value may consist of any bytes.
    unsafe {
        ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            value.as_mut_ptr().cast::<u8>(),
            size.min(size_of::<T>()),
        );
        Ok(value.assume_init())
    }
}

/// # Safety
/// As for [`growable`].
unsafe fn struct_size<T: Growable>(pointer: *const T, argument: &str) -> Result<usize> {
    located(pointer, argument)?;
    // SAFETY: aligned for a struct that begins with its size.
    let size = unsafe { *pointer.cast::<u32>() } as usize;
    if size < size_of::<u32>() {
        bail!(
            InvalidArgument,
            "{argument}->struct_size is {size}; set it to the size of the struct"
        );
    }
    Ok(size)
}

/// Where a result goes. Checked before the work, written after it.
pub(super) struct Out<'a, T> {
    place: *mut T,
    host: PhantomData<&'a mut T>,
}

/// # Safety
/// A pointer that is not NULL points to a `T` that may be written during `'a`.
pub(super) unsafe fn out<'a, T>(pointer: *mut T, argument: &str) -> Result<Out<'a, T>> {
    located(pointer, argument)?;
    Ok(Out {
        place: pointer,
        host: PhantomData,
    })
}

impl<T> Out<'_, T> {
    pub(super) fn write(self, value: T) {
        // SAFETY: checked and promised when it was made. Nothing is dropped in its place.
        unsafe { self.place.write(value) };
    }
}

/// Where a list of results goes: room for `count` of them, ignored when that is 0.
pub(super) struct OutList<'a, T> {
    place: *mut T,
    count: usize,
    host: PhantomData<&'a mut T>,
}

/// # Safety
/// A pointer that is neither NULL nor ignored points to room for `count` elements that may be
/// written during `'a`.
pub(super) unsafe fn out_list<'a, T: Plain>(
    pointer: *mut T,
    count: usize,
    argument: &str,
) -> Result<OutList<'a, T>> {
    // Uninitialised memory must not become a slice, so only the checks are shared with `list`.
    if count > 0 {
        located(pointer, argument)?;
    }
    Ok(OutList {
        place: pointer,
        count,
        host: PhantomData,
    })
}

impl<T: Plain> OutList<'_, T> {
    /// Writes one value per element; what `values` lacks becomes `missing`.
    pub(super) fn write(self, values: impl IntoIterator<Item = T>, missing: T) {
        let values = values.into_iter().chain(std::iter::repeat(missing));
        for (index, value) in values.take(self.count).enumerate() {
            // SAFETY: below `count`, for which there is room; checked and promised when it was made.
            unsafe { self.place.add(index).write(value) };
        }
    }
}

/// Where a struct goes that may be shorter or longer than ours.
pub(super) struct OutGrowable<'a, T> {
    place: *mut T,
    size: usize,
    host: PhantomData<&'a mut T>,
}

/// # Safety
/// A pointer that is not NULL points to a struct that begins with its size in bytes, is that long,
/// and may be written during `'a`.
pub(super) unsafe fn out_growable<'a, T: Growable>(
    pointer: *mut T,
    argument: &str,
) -> Result<OutGrowable<'a, T>> {
    Ok(OutGrowable {
        place: pointer,
        // SAFETY: passed on.
        size: unsafe { struct_size(pointer.cast_const(), argument) }?,
        host: PhantomData,
    })
}

impl<T: Growable> OutGrowable<'_, T> {
    /// Writes as much of `value` as the host's struct has room for, except for the size itself.
    pub(super) fn write(self, value: &T) {
        let skip = size_of::<u32>();
        let end = self.size.min(size_of::<T>());
        // SAFETY: `skip <= size` and `skip <= size_of::<T>()`, so that both ranges lie within their
        // structs, which do not overlap: one is the host's, one is ours.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::from_ref(value).cast::<u8>().add(skip),
                self.place.cast::<u8>().add(skip),
                end.saturating_sub(skip),
            );
        }
    }
}

/// A buffer for text or bytes whose length the host cannot know before.
pub(super) struct Buffer<'a> {
    start: *mut u8,
    capacity: usize,
    needed: Out<'a, usize>,
}

/// A buffer named `buffer` with its `out_needed`. Capacity 0 ignores the pointer.
///
/// # Safety
/// A pointer that is neither NULL nor ignored points to `capacity` bytes that may be written
/// during `'a`; `needed` as for [`out`].
pub(super) unsafe fn buffer<'a>(
    start: *mut u8,
    capacity: usize,
    needed: *mut usize,
) -> Result<Buffer<'a>> {
    if capacity > 0 {
        located(start, "buffer")?;
    }
    Ok(Buffer {
        start,
        capacity,
        // SAFETY: passed on.
        needed: unsafe { out(needed, "out_needed") }?,
    })
}

impl Buffer<'_> {
    /// Writes `bytes`, or only how much room they need.
    pub(super) fn bytes(self, bytes: &[u8]) -> Result<()> {
        self.parts(bytes, &[])
    }

    /// Writes `text` and a NUL behind it, or only how much room the two need.
    pub(super) fn text(self, text: &str) -> Result<()> {
        self.parts(text.as_bytes(), &[0])
    }

    /// Says how much room is needed, which is more than there is.
    pub(super) fn lacks(self, needed: usize) -> Result<()> {
        self.needed.write(needed);
        bail!(
            TooSmall,
            "the buffer has {} bytes, {needed} are needed",
            self.capacity
        );
    }

    fn parts(self, first: &[u8], second: &[u8]) -> Result<()> {
        let needed = first.len().saturating_add(second.len());
        if needed > self.capacity {
            return self.lacks(needed);
        }
        self.needed.write(needed);
        // SAFETY: `needed` bytes fit into the buffer, checked and promised when it was made.
        unsafe {
            ptr::copy_nonoverlapping(first.as_ptr(), self.start, first.len());
            ptr::copy_nonoverlapping(second.as_ptr(), self.start.add(first.len()), second.len());
        }
        Ok(())
    }
}

/// A flag of the host's: 0 or 1.
pub(super) fn flag(value: u8, argument: &str) -> Result<bool> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        _ => bail!(InvalidArgument, "{argument} is {value}, not 0 or 1"),
    }
}

/// An enumeration of the host's: one of `known`, which pairs numbers with values.
pub(super) fn choice<T: Copy>(value: i32, known: &[(i32, T)], argument: &str) -> Result<T> {
    match known.iter().find(|(number, _)| *number == value) {
        Some((_, found)) => Ok(*found),
        None => bail!(
            InvalidArgument,
            "{argument} is {value}, which is none of its constants"
        ),
    }
}

#[cfg(test)]
mod tests;
