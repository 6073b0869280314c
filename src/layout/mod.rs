//! Stand-in for the layout module until it is merged.

/// A contiguous range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
}
