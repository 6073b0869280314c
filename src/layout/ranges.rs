//! Registration ranges: what a pool or a driver is told about once, instead of page by page.

use super::{Piece, Region};
use crate::error::{Result, bail};

/// Most ranges that one layout may be cut into. A real cache has thousands; more means that the
/// mapping size was given in another unit.
const MAX_RANGES: u64 = 1 << 20;

/// A contiguous range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Range {
    /// First address.
    pub start: u64,
    /// Length in bytes.
    pub size: u64,
}

/// What a device says about the memory at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backing {
    /// Start of the address reservation, or of the allocation, that it belongs to.
    pub reservation_base: u64,
    /// First address behind the mapping, or the allocation, that it belongs to.
    pub end: u64,
}

/// The ranges of a layout, ascending; see [`Layout::ranges`](super::Layout::ranges).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ranges {
    list: Vec<Range>,
    /// Where the ranges end, ascending: no piece that a pool is given reaches over one.
    ends: Vec<u64>,
}

impl Ranges {
    fn new(list: Vec<Range>) -> Self {
        // A range lies within 64-bit addresses.
        let mut ends: Vec<u64> = list.iter().map(|range| range.start + range.size).collect();
        ends.sort_unstable();
        Self { list, ends }
    }

    /// All of them.
    pub fn list(&self) -> &[Range] {
        &self.list
    }

    /// Appends a piece to `out`, in as many parts as ranges that it reaches into.
    pub fn split(&self, piece: Piece, out: &mut Vec<Piece>) {
        let (mut address, end) = (piece.address, piece.address + piece.size);
        for &cut in self.ends_inside(address, end) {
            out.push(Piece {
                address,
                size: cut - address,
            });
            address = cut;
        }
        out.push(Piece {
            address,
            size: end - address,
        });
    }

    /// The ends of ranges between two addresses, both excluded.
    pub(super) fn ends_inside(&self, start: u64, end: u64) -> &[u64] {
        let first = self.ends.partition_point(|&cut| cut <= start);
        let behind = self.ends.partition_point(|&cut| cut < end);
        self.ends.get(first..behind).unwrap_or_default()
    }
}

/// A merged range before it is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Extent {
    reservation: u64,
    start: u64,
    end: u64,
}

impl Extent {
    /// Where mapping boundaries are counted from. Memory without a reservation base is taken for
    /// a reservation of its own.
    fn origin(&self) -> u64 {
        if self.reservation == 0 {
            self.start
        } else {
            self.reservation
        }
    }

    /// How many pieces cutting gives. `mapping` is not 0.
    fn count(&self, mapping: u64) -> u64 {
        let first = (self.start - self.origin()) / mapping;
        let last = (self.end - 1 - self.origin()) / mapping;
        (last - first).saturating_add(1)
    }
}

/// The ranges of `regions`, merged within each reservation, cut at multiples of `mapping` (0: not cut)
/// counted from the reservation's base, and where the memory ends that `backing` says that an address
/// belongs to; ascending. What it says of the base replaces the regions' word.
pub(super) fn registration_ranges<'a>(
    regions: impl Iterator<Item = &'a Region>,
    mapping: u64,
    mut backing: impl FnMut(u64) -> Result<Option<Backing>>,
) -> Result<Ranges> {
    let mut ranges = Vec::new();
    for extent in merged(regions) {
        let mut start = extent.start;
        while start < extent.end {
            // An answer that is not about this address says nothing.
            let known = backing(start)?
                .filter(|known| known.reservation_base <= start && start < known.end);
            let origin = known.map_or(extent.origin(), |known| known.reservation_base);
            let mut end = known.map_or(extent.end, |known| known.end.min(extent.end));
            if mapping > 0
                && let Some(boundary) = start.checked_add(mapping - (start - origin) % mapping)
            {
                end = end.min(boundary);
            }
            if ranges.len() as u64 >= MAX_RANGES {
                bail!(
                    InvalidArgument,
                    "the mappings of the layout's memory cut it into more than {MAX_RANGES} ranges"
                );
            }
            ranges.push(Range {
                start,
                size: end - start,
            });
            start = end;
        }
    }
    Ok(Ranges::new(ranges))
}

/// `InvalidArgument` if cutting at `mapping` gives an absurd number of ranges.
pub(super) fn check_count<'a>(
    regions: impl Iterator<Item = &'a Region>,
    mapping: u64,
) -> Result<()> {
    if mapping == 0 {
        return Ok(());
    }
    let counts = merged(regions)
        .into_iter()
        .map(|extent| extent.count(mapping));
    let total = counts.fold(0, u64::saturating_add);
    if total > MAX_RANGES {
        bail!(
            InvalidArgument,
            "mapping_bytes {mapping} cuts the layout into {total} ranges; at most {MAX_RANGES}"
        );
    }
    Ok(())
}

/// A region's whole span counts, gaps included: what lies between slots of one region is either
/// another region or padding of the same allocation.
fn merged<'a>(regions: impl Iterator<Item = &'a Region>) -> Vec<Extent> {
    let mut extents: Vec<Extent> = regions
        .map(|region| Extent {
            reservation: region.reservation_base,
            start: region.base,
            end: region.end(),
        })
        .collect();
    extents.sort_unstable_by_key(|extent| (extent.reservation, extent.start));
    extents.dedup_by(|next, last| {
        let joined = next.reservation == last.reservation && next.start <= last.end;
        if joined {
            last.end = last.end.max(next.end);
        }
        joined
    });
    extents.sort_unstable_by_key(|extent| extent.start);
    extents
}
