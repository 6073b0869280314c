//! No byte may belong to two regions: a load into one page would silently change another one.
//!
//! Regions whose spans (first to last byte) are apart cannot overlap. Where spans meet, regions
//! may interleave if they repeat with the same stride and their slots keep different phases of it.
//! Different strides in one span would need every slot compared, and no cache is built that way,
//! so they are refused.

use super::{Part, Region};
use crate::error::{Result, bail};

/// A region as the check sees it.
#[derive(Clone, Copy)]
struct Span<'a> {
    group: u32,
    part: Part,
    region: &'a Region,
    end: u64,
}

impl Span<'_> {
    fn meets(&self, other: &Self) -> bool {
        self.region.base < other.end && other.region.base < self.end
    }

    fn name(&self) -> String {
        format!(
            "{:?} region {:#x}..{:#x} of layer group {}",
            self.part, self.region.base, self.end, self.group
        )
    }
}

/// `InvalidArgument` names the first two regions found that must not lie as they do.
pub(super) fn check<'a>(regions: impl Iterator<Item = (u32, Part, &'a Region)>) -> Result<()> {
    let mut spans: Vec<Span> = regions
        .map(|(group, part, region)| Span {
            group,
            part,
            region,
            end: region.end(),
        })
        .collect();
    spans.sort_by_key(|span| span.region.base);
    for (position, first) in spans.iter().enumerate() {
        let later = spans.iter().skip(position + 1);
        for second in later.take_while(|second| second.region.base < first.end) {
            check_pair(first, second)?;
        }
    }
    Ok(())
}

fn check_pair(first: &Span, second: &Span) -> Result<()> {
    debug_assert!(first.meets(second));
    let (a, b) = (first.region, second.region);
    if a.reservation_base != b.reservation_base {
        bail!(
            InvalidArgument,
            "{} and {} interleave, but name different reservation bases",
            first.name(),
            second.name()
        );
    }
    if a.stride != b.stride {
        bail!(
            InvalidArgument,
            "{} and {} meet, but their strides {} and {} differ",
            first.name(),
            second.name(),
            a.stride,
            b.stride
        );
    }
    if shares_phase(a, b) {
        bail!(
            InvalidArgument,
            "{} and {} overlap",
            first.name(),
            second.name()
        );
    }
    Ok(())
}

/// Whether slots of two regions of one stride overlap when both are seen as arcs on a circle of
/// that length. For regions whose spans meet this is exact: if arcs overlap, some two real slots
/// do, because neither region has a gap that is longer than the stride.
fn shares_phase(a: &Region, b: &Region) -> bool {
    let stride = a.stride;
    if stride == 0 || a.size > stride || b.size > stride {
        // Single slots with a stride that says nothing; since the spans meet, they overlap.
        return true;
    }
    let (a_start, b_start) = (a.base % stride, b.base % stride);
    // Distance from the start of one arc to the start of the other, going upwards. Neither sum
    // can overflow: both starts are below the stride.
    let up = if b_start >= a_start {
        b_start - a_start
    } else {
        stride - (a_start - b_start)
    };
    let down = if up == 0 { 0 } else { stride - up };
    up < a.size || down < b.size
}
