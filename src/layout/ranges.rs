//! Registration ranges: what a pool or a driver is told about once, instead of page by page.

use super::Region;
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

    /// The first mapping boundary behind `at`, or the end.
    fn cut_behind(&self, at: u64, mapping: u64) -> u64 {
        let into = (at - self.origin()) % mapping;
        at.checked_add(mapping - into)
            .map_or(self.end, |boundary| boundary.min(self.end))
    }

    /// How many pieces cutting gives. `mapping` is not 0.
    fn count(&self, mapping: u64) -> u64 {
        let first = (self.start - self.origin()) / mapping;
        let last = (self.end - 1 - self.origin()) / mapping;
        (last - first).saturating_add(1)
    }
}

/// The ranges of `regions`, merged within each reservation and cut at multiples of `mapping`
/// (0: not cut) counted from the reservation's base; ascending.
pub(super) fn registration_ranges<'a>(
    regions: impl Iterator<Item = &'a Region>,
    mapping: u64,
) -> Vec<Range> {
    let mut ranges = Vec::new();
    for extent in merged(regions) {
        let mut start = extent.start;
        while start < extent.end {
            let end = match mapping {
                0 => extent.end,
                _ => extent.cut_behind(start, mapping),
            };
            ranges.push(Range {
                start,
                size: end - start,
            });
            start = end;
        }
    }
    ranges
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
