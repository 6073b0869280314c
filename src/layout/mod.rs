//! The cache layout: where the bytes of a page lie, and which address ranges hold them all.
//!
//! A layout is built from groups (layers that share one page index space) and their regions
//! (strided byte ranges), then checked with [`Layout::validate`] and not changed any more. Page `i`
//! of a group is the concatenation of `base + stride * i` of its regions, in the order they were
//! added. A group's sharded and its replicated regions form two separate pages.
//!
//! Everything here is arithmetic on addresses; no memory is touched. Addresses, sizes and strides
//! are bytes in 64 bits, and every sum and product is checked when a region is added, so that an
//! index that passed [`GroupLayout::check_index`] cannot overflow later.

mod overlap;
mod pool;
mod ranges;
mod region;
#[cfg(test)]
mod tests;

pub use pool::Pool;
pub use ranges::{Backing, Range, Ranges};
pub use region::{Piece, Region};

use std::collections::BTreeMap;

use crate::error::{Result, bail};

/// Most groups of one layout: a group's position must fit the 16 bits that page references have.
pub const MAX_GROUPS: usize = u16::MAX as usize;

/// Most regions of one layout. It bounds the overlap check, whose worst case is quadratic.
pub const MAX_REGIONS: usize = 16_384;

/// One of the two pages that a block has in a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// This rank's slice.
    Sharded,
    /// Bytes that are identical on every rank.
    Replicated,
}

/// What the layers of one group have in common. It names pages, so it is the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The engine's number for the group; unique in the layout.
    pub id: u32,
    /// Attention window in tokens, 0 for full attention.
    pub window: u32,
    /// How numbers are encoded in the page, such as `bfloat16`.
    pub number_format: String,
    /// The engine's name for the order of bytes inside a region; may be empty.
    pub layout_tag: String,
    /// The layers of the group, each once.
    pub layer_ids: Vec<u32>,
}

/// One group with its regions.
#[derive(Debug, Clone)]
pub struct GroupLayout {
    group: Group,
    sharded: Regions,
    replicated: Regions,
    slots: u64,
}

/// The regions of one part, and the sum of their sizes.
#[derive(Debug, Clone, Default)]
struct Regions {
    list: Vec<Region>,
    page_bytes: u64,
}

impl GroupLayout {
    fn new(group: Group) -> Self {
        Self {
            group,
            sharded: Regions::default(),
            replicated: Regions::default(),
            slots: 0,
        }
    }

    /// The group's description.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// The regions of one part, in page order; empty if the group has no such part.
    pub fn regions(&self, part: Part) -> &[Region] {
        &self.part(part).list
    }

    /// Bytes of one page, without any seal; 0 if the group has no such part.
    pub fn page_bytes(&self, part: Part) -> u64 {
        self.part(part).page_bytes
    }

    /// Pages that the group has: the slot count of its smallest region, 0 without regions.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// `OutOfRange` unless `index` is a page of this group. -1, "no page", is none.
    pub fn check_index(&self, index: i32) -> Result<()> {
        self.subscript(index).map(|_| ())
    }

    /// Appends the address pieces of page `index` to `out`, in page order. On an error (see
    /// [`check_index`](Self::check_index)) nothing is appended.
    pub fn pieces(&self, part: Part, index: i32, out: &mut Vec<Piece>) -> Result<()> {
        let index = self.subscript(index)?;
        out.extend(self.regions(part).iter().map(|region| region.piece(index)));
        Ok(())
    }

    /// The most pieces that a page has when none reaches over an end of these ranges.
    pub fn most_pieces(&self, part: Part, ranges: &Ranges) -> usize {
        let mut cuts: BTreeMap<u64, usize> = BTreeMap::new();
        for region in self.regions(part) {
            for end in ranges.ends_inside(region.base, region.end()) {
                // The stride of a single slot means nothing.
                let slot = match region.slots {
                    1 => 0,
                    _ => (end - region.base) / region.stride,
                };
                let piece = region.piece(slot);
                if slot < self.slots && piece.address < *end && *end < piece.address + piece.size {
                    *cuts.entry(slot).or_default() += 1;
                }
            }
        }
        self.regions(part).len() + cuts.into_values().max().unwrap_or(0)
    }

    /// The index as a subscript that every region of the group has.
    pub(crate) fn subscript(&self, index: i32) -> Result<u64> {
        match u64::try_from(index) {
            Ok(subscript) if subscript < self.slots => Ok(subscript),
            _ => bail!(
                OutOfRange,
                "page index {index} of layer group {}: the group has {} slots",
                self.group.id,
                self.slots
            ),
        }
    }

    fn part(&self, part: Part) -> &Regions {
        match part {
            Part::Sharded => &self.sharded,
            Part::Replicated => &self.replicated,
        }
    }

    fn part_mut(&mut self, part: Part) -> &mut Regions {
        match part {
            Part::Sharded => &mut self.sharded,
            Part::Replicated => &mut self.replicated,
        }
    }
}

/// A cache layout: builder and result in one.
#[derive(Debug, Clone)]
pub struct Layout {
    mapping_bytes: u64,
    groups: Vec<GroupLayout>,
}

impl Layout {
    /// An empty layout. `mapping_bytes` is the size of the physical mappings that the memory is
    /// made of, beyond which one registration must not reach; 0 if it does not matter.
    pub fn new(mapping_bytes: u64) -> Self {
        Self {
            mapping_bytes,
            groups: Vec::new(),
        }
    }

    /// Adds a group without regions. `InvalidArgument` if the id is taken or a layer comes twice.
    pub fn add_group(&mut self, group: Group) -> Result<()> {
        let id = group.id;
        if self.groups.iter().any(|known| known.group.id == id) {
            bail!(InvalidArgument, "layer group {id} was added before");
        }
        if self.groups.len() >= MAX_GROUPS {
            bail!(
                InvalidArgument,
                "layer group {id}: more than {MAX_GROUPS} groups"
            );
        }
        let mut layers = group.layer_ids.clone();
        layers.sort_unstable();
        if let Some(twice) = layers.windows(2).find(|pair| pair[0] == pair[1]) {
            bail!(
                InvalidArgument,
                "layer group {id}: layer {} comes twice",
                twice[0]
            );
        }
        self.groups.push(GroupLayout::new(group));
        Ok(())
    }

    /// Appends a region to the sharded page of `group`. `InvalidArgument` for an unknown group, or
    /// a region that is empty or does not fit into 64-bit addresses.
    pub fn add_region(&mut self, group: u32, region: Region) -> Result<()> {
        self.add(group, Part::Sharded, &[region])
    }

    /// As [`add_region`](Self::add_region), for the replicated page.
    pub fn add_replicated_region(&mut self, group: u32, region: Region) -> Result<()> {
        self.add(group, Part::Replicated, &[region])
    }

    /// Appends the regions of one KVCacheManager block pool; all of them or, on an error, none.
    pub fn add_pool(&mut self, group: u32, pool: Pool) -> Result<()> {
        let regions = pool
            .regions()
            .map_err(|error| error.within(format_args!("pool of layer group {group}")))?;
        let part = if pool.replicated {
            Part::Replicated
        } else {
            Part::Sharded
        };
        self.add(group, part, &regions)
    }

    fn add(&mut self, group: u32, part: Part, regions: &[Region]) -> Result<()> {
        let total: usize = self.all_regions().count();
        if total.saturating_add(regions.len()) > MAX_REGIONS {
            bail!(
                InvalidArgument,
                "layer group {group}: more than {MAX_REGIONS} regions"
            );
        }
        let Some(known) = self.groups.iter_mut().find(|known| known.group.id == group) else {
            bail!(
                InvalidArgument,
                "layer group {group} is not part of the layout"
            );
        };
        let mut page_bytes = known.page_bytes(part);
        for (position, region) in regions.iter().enumerate() {
            let place = known.regions(part).len() + position;
            let name = format_args!("region {place} ({part:?}) of layer group {group}");
            region.check().map_err(|error| error.within(name))?;
            match page_bytes.checked_add(region.size) {
                Some(sum) => page_bytes = sum,
                None => bail!(InvalidArgument, "{name}: the page exceeds 2^64 bytes"),
            }
        }
        let smallest = regions.iter().map(|region| region.slots).min();
        known.slots = match (known.slots, smallest) {
            (0, Some(slots)) => slots,
            (slots, Some(other)) => slots.min(other),
            (slots, None) => slots,
        };
        let known = known.part_mut(part);
        known.list.extend_from_slice(regions);
        known.page_bytes = page_bytes;
        Ok(())
    }

    /// The groups in the order they were added.
    pub fn groups(&self) -> &[GroupLayout] {
        &self.groups
    }

    /// Checks the layout as a whole; `InvalidArgument` names what is wrong. At least one group,
    /// each with a region; no byte belongs to two regions; and the registration ranges are few
    /// enough to be registered at all.
    pub fn validate(&self) -> Result<()> {
        if self.groups.is_empty() {
            bail!(InvalidArgument, "the layout has no layer group");
        }
        if let Some(empty) = self.groups.iter().find(|group| group.slots() == 0) {
            bail!(
                InvalidArgument,
                "layer group {} has no region",
                empty.group.id
            );
        }
        overlap::check(self.all_regions())?;
        ranges::check_count(
            self.all_regions().map(|(_, _, region)| region),
            self.mapping_bytes,
        )
    }

    /// The address ranges to register so that every page is covered: neighbouring and overlapping
    /// ones of one reservation merged, then cut at multiples of the mapping size counted from the
    /// reservation's base. `backing` is what a device says about the memory at an address, if it does:
    /// its word on the reservation goes before the layout's, and ranges end where its mappings do.
    /// Ascending and disjoint for a layout that passed [`validate`](Self::validate).
    ///
    /// Errors: those of `backing`; `InvalidArgument` for an absurd number of ranges.
    pub fn ranges(&self, backing: impl FnMut(u64) -> Result<Option<Backing>>) -> Result<Ranges> {
        let regions = self.all_regions().map(|(_, _, region)| region);
        ranges::registration_ranges(regions, self.mapping_bytes, backing)
    }

    /// Every region with its group's id and its part.
    fn all_regions(&self) -> impl Iterator<Item = (u32, Part, &Region)> {
        self.groups.iter().flat_map(|group| {
            let sharded = group
                .sharded
                .list
                .iter()
                .map(|region| (Part::Sharded, region));
            let replicated = group
                .replicated
                .list
                .iter()
                .map(|region| (Part::Replicated, region));
            let id = group.group.id;
            sharded
                .chain(replicated)
                .map(move |(part, region)| (id, part, region))
        })
    }
}
