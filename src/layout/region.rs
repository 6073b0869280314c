//! One strided byte range, and the piece of it that belongs to a page.

use crate::error::{Result, bail};

/// A strided byte range: slot `i` is the `size` bytes at `base + stride * i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Region {
    /// Address of slot 0; device address or host address.
    pub base: u64,
    /// Bytes of one slot, at least 1.
    pub size: u64,
    /// Distance of two slots in bytes, at least `size`; without meaning for a single slot.
    pub stride: u64,
    /// Number of slots, at least 1.
    pub slots: u64,
    /// Start of the address reservation that the memory was mapped into, or 0 if the memory is a
    /// reservation of its own.
    pub reservation_base: u64,
}

/// One contiguous part of a page in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Piece {
    /// Address of the first byte.
    pub address: u64,
    /// Length in bytes.
    pub size: u64,
}

impl Region {
    /// `InvalidArgument` for a region that is empty, whose slots overlap each other, or that does
    /// not fit into 64-bit addresses.
    pub(super) fn check(&self) -> Result<()> {
        let Self {
            base,
            size,
            stride,
            slots,
            reservation_base,
        } = *self;
        if base == 0 {
            bail!(InvalidArgument, "base is 0");
        }
        if size == 0 {
            bail!(InvalidArgument, "size is 0");
        }
        if slots == 0 {
            bail!(InvalidArgument, "slot count is 0");
        }
        if slots > 1 && stride < size {
            bail!(InvalidArgument, "stride {stride} is below the size {size}");
        }
        if self.checked_end().is_none() {
            bail!(
                InvalidArgument,
                "base {base:#x}, stride {stride}, {slots} slots of {size} bytes: the end lies \
                 beyond 64-bit addresses"
            );
        }
        if reservation_base > base {
            bail!(
                InvalidArgument,
                "reservation base {reservation_base:#x} lies behind the base {base:#x}"
            );
        }
        Ok(())
    }

    /// The piece of page `index`. The index was compared with the slot count and the region
    /// checked when it was added, so nothing can wrap here.
    pub(crate) fn piece(&self, index: u64) -> Piece {
        debug_assert!(index < self.slots);
        Piece {
            address: self.base.wrapping_add(self.stride.wrapping_mul(index)),
            size: self.size,
        }
    }

    /// The first address behind the last slot. The region was checked when it was added.
    pub(super) fn end(&self) -> u64 {
        self.checked_end().unwrap_or(u64::MAX)
    }

    fn checked_end(&self) -> Option<u64> {
        let last = self.slots.checked_sub(1)?.checked_mul(self.stride)?;
        self.base.checked_add(last)?.checked_add(self.size)
    }
}
