use super::*;
use crate::device::{HostDevice, HostMemory};
use crate::error::Kind;
use crate::layout::{Group, Region};
use proptest::prelude::*;

const STREAM: Option<Stream> = Some(Stream(0));

/// A cache in host memory: group 0 has two interleaved regions and a replicated one, group 1
/// one region with gaps. `memory` outlives what the tests do with `cache`.
struct Rig {
    cache: CacheMemory,
    memory: HostMemory,
}

const SLOTS: u64 = 8;
/// Offset in the memory, size and stride of each region.
const REGIONS: [(u64, u64, u64); 4] = [(0, 24, 64), (24, 40, 64), (600, 16, 16), (1000, 100, 150)];

impl Rig {
    fn new() -> Self {
        let mut memory = HostMemory::new(4096).unwrap();
        for (at, byte) in memory.bytes_mut().iter_mut().enumerate() {
            *byte = (at % 251) as u8;
        }
        let base = memory.range().start;
        let region = |which: usize| {
            let (offset, size, stride) = REGIONS[which];
            Region {
                base: base + offset,
                size,
                stride,
                slots: SLOTS,
                reservation_base: 0,
            }
        };
        let mut layout = Layout::new(0);
        for id in [10, 11] {
            let format = "int8".to_owned();
            let tag = String::new();
            let group = Group {
                id,
                window: 0,
                number_format: format,
                layout_tag: tag,
                layer_ids: vec![],
            };
            layout.add_group(group).unwrap();
        }
        layout.add_region(10, region(0)).unwrap();
        layout.add_region(10, region(1)).unwrap();
        layout.add_replicated_region(10, region(2)).unwrap();
        layout.add_region(11, region(3)).unwrap();
        // SAFETY: all regions lie in `memory`, which is kept beside the cache, and is only read
        // or written between the calls.
        let cache = unsafe { CacheMemory::new(layout, Arc::new(HostDevice)) }.unwrap();
        Self { cache, memory }
    }

    /// The bytes of a page, read without any of the code under test.
    fn page(&self, page: PageRef) -> Vec<u8> {
        let regions: &[usize] = match (page.group, page.part) {
            (0, Part::Sharded) => &[0, 1],
            (0, Part::Replicated) => &[2],
            _ => &[3],
        };
        let pieces = regions.iter().flat_map(|which| {
            let (offset, size, stride) = REGIONS[*which];
            let start = (offset + stride * page.index as u64) as usize;
            self.memory.bytes()[start..start + size as usize]
                .iter()
                .copied()
        });
        pieces.collect()
    }
}

fn page(group: u16, part: Part, index: i32, slot: u32) -> PageRef {
    PageRef {
        group,
        part,
        index,
        slot,
    }
}

fn slots() -> Slots {
    Slots::new(&HostDevice, 128, 4).unwrap()
}

#[test]
fn a_page_lands_contiguous_at_the_start_of_its_slot() {
    let rig = Rig::new();
    let mut slots = slots();
    slots.slots_mut().for_each(|slot| slot.fill(0xEE));
    let pages = [
        page(0, Part::Sharded, 7, 2),
        page(0, Part::Replicated, 3, 0),
        page(1, Part::Sharded, 0, 3),
    ];
    rig.cache.gather(STREAM, &pages, &mut slots).unwrap();
    for page in pages {
        let expected = rig.page(page);
        let slot = slots.slot(page.slot).unwrap();
        assert_eq!(&slot[..expected.len()], expected, "{page:?}");
        assert!(
            slot[expected.len()..].iter().all(|byte| *byte == 0xEE),
            "{page:?}"
        );
    }
    assert!(slots.slot(1).unwrap().iter().all(|byte| *byte == 0xEE));
}

#[test]
fn what_is_wrong_is_found_before_any_byte_moves() {
    let mut rig = Rig::new();
    let good = page(0, Part::Sharded, 0, 0);
    let cases = [
        (
            page(2, Part::Sharded, 0, 1),
            Kind::OutOfRange,
            "position 2 of 2",
        ),
        (
            page(1, Part::Replicated, 0, 1),
            Kind::InvalidArgument,
            "layer group 11 has no Repl",
        ),
        (
            page(0, Part::Sharded, -1, 1),
            Kind::OutOfRange,
            "page index -1 of layer group 10",
        ),
        (
            page(0, Part::Sharded, 8, 1),
            Kind::OutOfRange,
            "the group has 8 slots",
        ),
        (
            page(1, Part::Sharded, i32::MAX, 1),
            Kind::OutOfRange,
            "layer group 11",
        ),
        (
            page(0, Part::Sharded, 1, 4),
            Kind::OutOfRange,
            "staging slot 4 of 4",
        ),
    ];
    for (wrong, kind, text) in cases {
        let mut slots = slots();
        let before = rig.memory.bytes().to_vec();
        let gathered = rig
            .cache
            .gather(STREAM, &[good, wrong], &mut slots)
            .unwrap_err();
        assert!(
            slots
                .slots_mut()
                .all(|slot| slot.iter().all(|byte| *byte == 0)),
            "{wrong:?}"
        );
        slots.slots_mut().for_each(|slot| slot.fill(0xEE));
        let scattered = rig
            .cache
            .scatter(STREAM, &[good, wrong], &mut slots)
            .unwrap_err();
        assert_eq!(rig.memory.bytes_mut(), before, "{wrong:?}");
        for error in [gathered, scattered] {
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().contains(text), "{error}");
        }
    }
}

#[test]
fn a_page_that_exceeds_its_slot_is_refused() {
    let rig = Rig::new();
    let mut small = Slots::new(&HostDevice, 64, 4).unwrap();
    rig.cache
        .gather(STREAM, &[page(0, Part::Sharded, 0, 0)], &mut small)
        .unwrap();
    let error = rig
        .cache
        .gather(STREAM, &[page(1, Part::Sharded, 0, 0)], &mut small)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::TooSmall);
    assert!(
        error.message().contains("100 bytes, a staging slot 64"),
        "{error}"
    );
}

#[test]
fn a_destination_comes_once() {
    let rig = Rig::new();
    let mut slots = slots();
    let one_slot = [
        page(0, Part::Sharded, 0, 1),
        page(0, Part::Replicated, 0, 1),
    ];
    let one_page = [page(0, Part::Sharded, 5, 1), page(0, Part::Sharded, 5, 2)];
    let error = rig.cache.gather(STREAM, &one_slot, &mut slots).unwrap_err();
    assert!(error.message().contains("staging slot 1"), "{error}");
    let error = rig
        .cache
        .scatter(STREAM, &one_page, &mut slots)
        .unwrap_err();
    assert!(error.message().contains("page 5"), "{error}");
    // As sources both are fine.
    rig.cache.gather(STREAM, &one_page, &mut slots).unwrap();
    rig.cache.scatter(STREAM, &one_slot, &mut slots).unwrap();
}

#[test]
fn a_layout_that_is_wrong_as_a_whole_is_no_cache() {
    // SAFETY: a layout without regions has no memory.
    let result = unsafe { CacheMemory::new(Layout::new(0), Arc::new(HostDevice)) };
    assert_eq!(
        result.err().map(|error| error.kind()),
        Some(Kind::InvalidArgument)
    );
}

proptest! {
    /// Pages that are gathered, cleared and scattered again are what they were, and nothing
    /// beside them changes.
    #[test]
    fn scatter_undoes_what_gather_took(
        picks in proptest::collection::vec((0..3usize, 0..SLOTS as i32), 1..=4),
    ) {
        let parts = [(0, Part::Sharded), (0, Part::Replicated), (1, Part::Sharded)];
        let mut pages: Vec<PageRef> = Vec::new();
        for (part, index) in picks {
            let (group, part) = parts[part];
            let known = pages.iter().any(|p| (p.group, p.part, p.index) == (group, part, index));
            if !known {
                pages.push(page(group, part, index, pages.len() as u32));
            }
        }
        let mut rig = Rig::new();
        let before = rig.memory.bytes().to_vec();
        let mut slots = slots();
        rig.cache.gather(STREAM, &pages, &mut slots).unwrap();

        let mut empty = Slots::new(&HostDevice, 128, 4).unwrap();
        rig.cache.scatter(STREAM, &pages, &mut empty).unwrap();
        for page in &pages {
            prop_assert!(rig.page(*page).iter().all(|byte| *byte == 0));
        }
        let cleared: usize = pages.iter().map(|page| rig.page(*page).len()).sum();
        let changed = rig.memory.bytes().iter().zip(&before).filter(|(now, was)| now != was);
        prop_assert!(changed.count() <= cleared);

        rig.cache.scatter(STREAM, &pages, &mut slots).unwrap();
        prop_assert_eq!(rig.memory.bytes_mut(), &before[..]);
    }
}
