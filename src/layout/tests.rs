use proptest::prelude::*;

use super::*;
use crate::error::{Error, Kind};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn group(id: u32) -> Group {
    Group {
        id,
        window: 0,
        number_format: "bfloat16".to_owned(),
        layout_tag: String::new(),
        layer_ids: vec![0, 1],
    }
}

fn region(base: u64, size: u64, stride: u64, slots: u64) -> Region {
    Region {
        base,
        size,
        stride,
        slots,
        reservation_base: 0,
    }
}

/// One group with these sharded regions.
fn layout(mapping: u64, regions: &[Region]) -> Result<Layout> {
    let mut layout = Layout::new(mapping);
    layout.add_group(group(0))?;
    for region in regions {
        layout.add_region(0, *region)?;
    }
    layout.validate()?;
    Ok(layout)
}

/// Without a device's word.
fn ranges_of(layout: &Layout) -> Vec<Range> {
    layout.ranges(|_| Ok(None)).unwrap().list().to_vec()
}

fn refusal(result: Result<Layout>) -> Error {
    let error = result.expect_err("refused");
    assert_eq!(error.kind(), Kind::InvalidArgument);
    error
}

fn pool(layer_first: bool) -> Pool {
    Pool {
        base: 0x1000,
        blocks: 10,
        layers: 3,
        kv_factor: 2,
        block_elements: 64,
        element_bits: 16,
        layer_first,
        replicated: false,
        reservation_base: 0,
    }
}

#[test]
fn a_page_is_its_regions_in_the_order_they_were_added() {
    let mut layout = layout(0, &[region(9000, 10, 30, 8), region(1000, 20, 20, 7)]).unwrap();
    layout
        .add_replicated_region(0, region(5000, 5, 8, 9))
        .unwrap();
    let group = &layout.groups()[0];
    assert_eq!(group.slots(), 7);
    assert_eq!(
        (
            group.page_bytes(Part::Sharded),
            group.page_bytes(Part::Replicated)
        ),
        (30, 5)
    );

    let mut pieces = vec![Piece {
        address: 1,
        size: 1,
    }];
    group.pieces(Part::Sharded, 6, &mut pieces).unwrap();
    group.pieces(Part::Replicated, 0, &mut pieces).unwrap();
    let pairs: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.address, piece.size))
        .collect();
    assert_eq!(pairs, [(1, 1), (9180, 10), (1120, 20), (5000, 5)]);
}

/// Reported elsewhere: 2143 * 1,002,240 exceeds 31 bits.
#[test]
fn page_addresses_are_64_bits_wide() {
    let layout = layout(0, &[region(1 << 40, 1_002_240, 1_002_240, 4096)]).unwrap();
    let group = &layout.groups()[0];
    let mut pieces = Vec::new();
    group.pieces(Part::Sharded, 2143, &mut pieces).unwrap();
    assert_eq!(pieces[0].address, (1 << 40) + 2_147_800_320);
}

#[test]
fn an_index_outside_the_group_names_group_index_and_slots() {
    let layout = layout(0, &[region(1 << 40, 1_002_240, 1_002_240, 4096)]).unwrap();
    let group = &layout.groups()[0];
    for index in [-1, i32::MIN, 4096, i32::MAX] {
        let mut pieces = Vec::new();
        let error = group.pieces(Part::Sharded, index, &mut pieces).unwrap_err();
        assert_eq!(error.kind(), Kind::OutOfRange);
        let text = format!("page index {index} of layer group 0: the group has 4096 slots");
        assert_eq!(error.message(), text);
        assert!(pieces.is_empty());
        assert!(group.check_index(index).is_err());
    }
    assert!(group.check_index(4095).is_ok());
}

#[test]
fn a_group_without_regions_has_no_page() {
    let mut layout = Layout::new(0);
    layout.add_group(group(3)).unwrap();
    assert!(layout.groups()[0].check_index(0).is_err());
    assert!(
        refusal(layout.validate().map(|()| layout))
            .message()
            .contains("layer group 3")
    );
    refusal(Layout::new(0).validate().map(|()| Layout::new(0)));
}

/// Reported elsewhere: sizes that 32 bits cannot hold.
#[test]
fn pieces_of_3_and_2_gib_make_a_page_of_5_gib() {
    let regions = [
        region(GIB, 3 * GIB, 3 * GIB, 4),
        region(100 * GIB, 2 * GIB, 2 * GIB, 4),
    ];
    let layout = layout(0, &regions).unwrap();
    assert_eq!(layout.groups()[0].page_bytes(Part::Sharded), 5 * GIB);
    let mut pieces = Vec::new();
    layout.groups()[0]
        .pieces(Part::Sharded, 3, &mut pieces)
        .unwrap();
    let total: u64 = pieces.iter().map(|piece| piece.size).sum();
    assert_eq!((total, pieces[1].address), (5 * GIB, 106 * GIB));
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let end = u64::MAX;
    let reserved = Region {
        reservation_base: 4097,
        ..region(4096, 8, 8, 8)
    };
    for (wrong, what) in [
        (region(0, 8, 8, 8), "base is 0"),
        (region(4096, 0, 8, 8), "size is 0"),
        (region(4096, 8, 8, 0), "slot count is 0"),
        (region(4096, 8, 7, 2), "stride 7 is below the size 8"),
        (region(end - 8, 9, 9, 1), "beyond 64-bit addresses"),
        (region(1, 1, end, 3), "beyond 64-bit addresses"),
        (region(1, 1, 2, end), "beyond 64-bit addresses"),
        (reserved, "reservation base 0x1001"),
    ] {
        let error = refusal(layout(0, &[wrong]));
        assert!(error.message().contains(what), "{wrong:?}: {error}");
        assert!(error.message().contains("layer group 0"), "{error}");
    }
    // The limits themselves are allowed.
    layout(0, &[region(end - 8, 8, 0, 1)]).unwrap();
    layout(0, &[region(4096, 8, 7, 1)]).unwrap();
}

#[test]
fn a_page_of_more_than_64_bits_is_refused_and_leaves_the_group_as_it_was() {
    let half = 1 << 63;
    let mut layout = layout(0, &[region(1, half, half, 1)]).unwrap();
    let error = layout.add_region(0, region(1, half, half, 1)).unwrap_err();
    assert!(error.message().contains("exceeds 2^64"), "{error}");
    assert_eq!(layout.groups()[0].regions(Part::Sharded).len(), 1);
    assert_eq!(layout.groups()[0].page_bytes(Part::Sharded), half);
}

#[test]
fn ids_are_unique_and_known() {
    let mut layout = Layout::new(0);
    layout.add_group(group(7)).unwrap();
    assert!(
        layout
            .add_group(group(7))
            .unwrap_err()
            .message()
            .contains("7 was added")
    );
    let twice = Group {
        layer_ids: vec![4, 1, 4],
        ..group(8)
    };
    assert!(
        layout
            .add_group(twice)
            .unwrap_err()
            .message()
            .contains("layer 4 comes twice")
    );
    let unknown = layout.add_region(8, region(4096, 8, 8, 8)).unwrap_err();
    assert_eq!(unknown.kind(), Kind::InvalidArgument);
    assert_eq!(layout.groups().len(), 1);
}

#[test]
fn a_range_that_comes_twice_is_refused() {
    let once = region(4096, 64, 64, 100);
    let error = refusal(layout(0, &[once, once]));
    assert!(error.message().contains("overlap"), "{error}");

    // Also across groups and parts, and a single shared byte.
    let mut layout = layout(0, &[once]).unwrap();
    layout.add_group(group(1)).unwrap();
    layout
        .add_replicated_region(1, region(4096 + 6399, 64, 64, 2))
        .unwrap();
    let error = refusal(layout.validate().map(|()| layout));
    assert!(error.message().contains("layer group 0 and"), "{error}");
    assert!(error.message().contains("Replicated region"), "{error}");
}

#[test]
fn regions_interleave_only_with_one_stride_and_apart() {
    // Two layers side by side in each slot.
    layout(0, &[region(1000, 40, 100, 9), region(1040, 60, 100, 9)]).unwrap();
    // The second wraps round the stride into the first one's next slot.
    refusal(layout(
        0,
        &[region(1000, 40, 100, 9), region(1040, 61, 100, 9)],
    ));
    // The gap is large enough, but the strides drift apart.
    let error = refusal(layout(
        0,
        &[region(1000, 10, 100, 9), region(1040, 10, 101, 9)],
    ));
    assert!(error.message().contains("strides 100 and 101"), "{error}");
    // Equal phases of one stride, but one after the other.
    layout(0, &[region(1000, 40, 100, 9), region(1900, 40, 100, 9)]).unwrap();
    // One reservation for what is interleaved.
    let other = Region {
        reservation_base: 512,
        ..region(1040, 60, 100, 9)
    };
    refusal(layout(0, &[region(1000, 40, 100, 9), other]));
}

#[test]
fn a_block_first_pool_is_one_region() {
    let mut layout = Layout::new(0);
    layout.add_group(group(0)).unwrap();
    layout.add_pool(0, pool(false)).unwrap();
    let bytes = 3 * 2 * 128;
    let regions = layout.groups()[0].regions(Part::Sharded);
    assert_eq!(regions, [region(0x1000, bytes, bytes, 10)]);
}

#[test]
fn a_layer_first_pool_is_one_region_per_layer() {
    let mut layout = Layout::new(0);
    layout.add_group(group(0)).unwrap();
    let packed = Pool {
        element_bits: 4,
        kv_factor: 1,
        replicated: true,
        ..pool(true)
    };
    layout.add_pool(0, packed).unwrap();
    layout.validate().unwrap();
    let expected: Vec<_> = (0..3)
        .map(|i| region(0x1000 + i * 320, 32, 32, 10))
        .collect();
    assert_eq!(layout.groups()[0].regions(Part::Replicated), expected);
    assert!(layout.groups()[0].regions(Part::Sharded).is_empty());
    assert_eq!(
        ranges_of(&layout),
        [Range {
            start: 0x1000,
            size: 960
        }]
    );
}

#[test]
fn pools_that_cannot_be_are_refused_whole() {
    for wrong in [
        Pool {
            base: 0,
            ..pool(true)
        },
        Pool {
            blocks: 0,
            ..pool(true)
        },
        Pool {
            layers: 0,
            ..pool(true)
        },
        Pool {
            kv_factor: 0,
            ..pool(true)
        },
        Pool {
            kv_factor: 3,
            ..pool(true)
        },
        Pool {
            block_elements: 0,
            ..pool(true)
        },
        Pool {
            block_elements: 63,
            element_bits: 4,
            ..pool(true)
        },
        Pool {
            block_elements: u64::MAX,
            ..pool(true)
        },
        Pool {
            block_elements: u64::MAX / 16,
            layers: u32::MAX,
            ..pool(false)
        },
        Pool {
            blocks: u64::MAX / 512,
            ..pool(true)
        },
        Pool {
            layers: u32::MAX,
            ..pool(true)
        },
    ] {
        let mut layout = Layout::new(0);
        layout.add_group(group(5)).unwrap();
        let error = layout.add_pool(5, wrong).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument, "{wrong:?}");
        assert!(error.message().contains("layer group 5"), "{error}");
        assert!(
            layout.groups()[0].regions(Part::Sharded).is_empty(),
            "{wrong:?}"
        );
    }
}

/// Mappings of 32 MiB, a pool that starts 8 MiB above its reservation and is 100 MiB long: each
/// range ends where a mapping ends, not 32 MiB behind the pool's start.
#[test]
fn ranges_are_cut_at_mappings_of_the_reservation() {
    let reservation = 1 << 40;
    let cache = Region {
        reservation_base: reservation,
        ..region(reservation + 8 * MIB, MIB, MIB, 100)
    };
    let cuts = |mapping, cache: Region| -> Vec<(u64, u64)> {
        let ranges = ranges_of(&layout(mapping, &[cache]).unwrap());
        ranges
            .iter()
            .map(|r| ((r.start - reservation) / MIB, r.size / MIB))
            .collect()
    };
    assert_eq!(
        cuts(32 * MIB, cache),
        [(8, 24), (32, 32), (64, 32), (96, 12)]
    );
    assert_eq!(cuts(0, cache), [(8, 100)]);
    assert_eq!(cuts(1024 * MIB, cache), [(8, 100)]);
    let own = Region {
        reservation_base: 0,
        ..cache
    };
    assert_eq!(cuts(32 * MIB, own), [(8, 32), (40, 32), (72, 32), (104, 4)]);
}

#[test]
fn ranges_of_different_reservations_stay_apart() {
    let at = |base, reservation_base| Region {
        reservation_base,
        ..region(base, 64, 64, 16)
    };
    // Neighbours in one reservation, neighbours across two, and one apart.
    let regions = [
        at(4096, 4096),
        at(5120, 4096),
        at(6144, 6144),
        at(8192, 6144),
    ];
    let ranges = ranges_of(&layout(0, &regions).unwrap());
    let pairs: Vec<_> = ranges
        .iter()
        .map(|range| (range.start, range.size))
        .collect();
    assert_eq!(pairs, [(4096, 2048), (6144, 1024), (8192, 1024)]);
}

/// A reservation of one kind of mappings, as a device reports it.
fn mapped(base: u64, mapping: u64) -> impl FnMut(u64) -> Result<Option<Backing>> {
    move |address| {
        let number = (address - base) / mapping;
        Ok(Some(Backing {
            reservation_base: base,
            end: base + (number + 1) * mapping,
        }))
    }
}

#[test]
fn the_devices_word_on_a_reservation_goes_before_the_layouts() {
    let reservation = 1 << 40;
    let cache = region(reservation + 8 * MIB, MIB, MIB, 100);
    let sizes = |layout: Layout, mapping| -> Vec<u64> {
        let ranges = layout.ranges(mapped(reservation, mapping)).unwrap();
        let list = ranges.list();
        assert_eq!(list[0].start, cache.base);
        list.iter().map(|range| range.size / MIB).collect()
    };
    let plain = || layout(0, &[cache]).unwrap();
    assert_eq!(sizes(plain(), 32 * MIB), [24, 32, 32, 12]);
    // A size of the layout's own is counted from the device's base, too.
    assert_eq!(
        sizes(layout(32 * MIB, &[cache]).unwrap(), 1024 * MIB),
        [24, 32, 32, 12]
    );
    assert_eq!(
        sizes(layout(48 * MIB, &[cache]).unwrap(), 32 * MIB),
        [24, 16, 16, 32, 12]
    );
    // A device that knows nothing, or something else.
    assert_eq!(
        layout(0, &[cache])
            .unwrap()
            .ranges(|_| Ok(None))
            .unwrap()
            .list()
            .len(),
        1
    );
    for (reservation_base, end) in [(0, cache.base), (cache.base + 1, u64::MAX)] {
        let wrong = Backing {
            reservation_base,
            end,
        };
        let ranges = layout(0, &[cache])
            .unwrap()
            .ranges(|_| Ok(Some(wrong)))
            .unwrap();
        assert_eq!(ranges.list().len(), 1);
    }
    let error = layout(0, &[cache])
        .unwrap()
        .ranges(mapped(reservation, 64))
        .unwrap_err();
    assert!(
        error.message().contains("more than 1048576 ranges"),
        "{error}"
    );
}

#[test]
fn neighbouring_allocations_are_ranges_of_their_own() {
    let cache = region(4096, 64, 64, 32);
    let backing = |address: u64| {
        let base = if address < 5000 { 4096 } else { 5000 };
        let end = if address < 5000 { 5000 } else { 9000 };
        Ok(Some(Backing {
            reservation_base: base,
            end,
        }))
    };
    let ranges = layout(0, &[cache]).unwrap().ranges(backing).unwrap();
    let pairs: Vec<_> = ranges.list().iter().map(|r| (r.start, r.size)).collect();
    assert_eq!(pairs, [(4096, 904), (5000, 1144)]);
}

#[test]
fn pieces_that_straddle_a_mapping_are_two() {
    let reservation = 1 << 40;
    // 100 MiB from 8 MiB on, in pages of 10 MiB: boundaries at 32, 64 and 96 MiB lie inside of pages.
    let cache = region(reservation + 8 * MIB, 10 * MIB, 10 * MIB, 10);
    let layout = layout(0, &[cache]).unwrap();
    let ranges = layout.ranges(mapped(reservation, 32 * MIB)).unwrap();
    let group = &layout.groups()[0];
    let parts = |index| -> Vec<(u64, u64)> {
        let (mut whole, mut parts) = (Vec::new(), Vec::new());
        group.pieces(Part::Sharded, index, &mut whole).unwrap();
        whole
            .iter()
            .for_each(|piece| ranges.split(*piece, &mut parts));
        parts
            .iter()
            .map(|piece| ((piece.address - reservation) / MIB, piece.size / MIB))
            .collect()
    };
    assert_eq!(parts(0), [(8, 10)]);
    assert_eq!(parts(2), [(28, 4), (32, 6)]);
    assert_eq!(parts(5), [(58, 6), (64, 4)]);
    assert_eq!(parts(8), [(88, 8), (96, 2)]);
    assert_eq!(group.most_pieces(Part::Sharded, &ranges), 2);
    // Boundaries between pages cut none.
    let fitting = layout
        .ranges(mapped(reservation + 8 * MIB, 20 * MIB))
        .unwrap();
    assert_eq!(fitting.list().len(), 5);
    assert_eq!(group.most_pieces(Part::Sharded, &fitting), 1);
    assert_eq!(group.most_pieces(Part::Replicated, &fitting), 0);
}

#[test]
fn a_mapping_size_that_cuts_into_crumbs_is_refused() {
    let error = refusal(layout(16, &[region(1 << 40, MIB, MIB, 100)]));
    assert!(error.message().contains("mapping_bytes 16"), "{error}");
}

/// Regions in a small address space, so that they often meet.
fn any_regions() -> impl Strategy<Value = Vec<Region>> {
    let one = (
        1u64..60,
        1u64..6,
        prop_oneof![Just(6u64), Just(8), 1u64..9],
        1u64..7,
        0u64..2,
    );
    let one = one.prop_map(|(base, size, stride, slots, reservation)| Region {
        reservation_base: reservation * base.min(3),
        ..region(base, size, stride.max(size), slots)
    });
    proptest::collection::vec(one, 1..5)
}

/// Every byte of every slot, one by one.
fn bytes_of(regions: &[Region]) -> Vec<u64> {
    let slots = regions
        .iter()
        .flat_map(|r| (0..r.slots).map(move |i| (r.base + r.stride * i, r.size)));
    slots
        .flat_map(|(start, size)| start..start + size)
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// What is accepted shares no byte; what shares a byte is refused. Regions of one stride and
    /// reservation are refused only if they share a byte.
    #[test]
    fn accepted_layouts_share_no_byte(regions in any_regions()) {
        let mut bytes = bytes_of(&regions);
        let all = bytes.len();
        bytes.sort_unstable();
        bytes.dedup();
        let apart = bytes.len() == all;
        let accepted = layout(0, &regions).is_ok();
        if accepted {
            prop_assert!(apart);
        }
        let alike = |a: &Region, b: &Region| (a.stride, a.reservation_base) == (b.stride, b.reservation_base);
        if apart && regions.iter().all(|r| alike(r, &regions[0])) {
            prop_assert!(accepted);
        }
    }

    /// The pieces of all pages are disjoint and inside the registration ranges; these are
    /// ascending, disjoint, the same bytes whatever the mapping, and cross no mapping boundary.
    #[test]
    fn pages_lie_inside_the_ranges(regions in any_regions(), mapping in 1u64..40) {
        let Ok(cut) = layout(mapping, &regions) else { return Ok(()) };
        let group = &cut.groups()[0];
        let ranges = ranges_of(&cut);

        let mut pieces = Vec::new();
        for index in 0..group.slots() {
            group.pieces(Part::Sharded, index as i32, &mut pieces).unwrap();
        }
        pieces.sort_unstable_by_key(|piece| piece.address);
        for pair in pieces.windows(2) {
            prop_assert!(pair[0].address + pair[0].size <= pair[1].address);
        }
        let inside = |at: u64| ranges.iter().any(|r| r.start <= at && at < r.start + r.size);
        for piece in &pieces {
            prop_assert!((piece.address..piece.address + piece.size).all(inside));
        }

        for pair in ranges.windows(2) {
            prop_assert!(pair[0].start + pair[0].size <= pair[1].start);
        }
        let whole = ranges_of(&layout(0, &regions).unwrap());
        let spread = |ranges: &[Range]| -> Vec<u64> {
            ranges.iter().flat_map(|r| r.start..r.start + r.size).collect()
        };
        prop_assert_eq!(spread(&ranges), spread(&whole));

        let reservations: Vec<u64> = regions.iter().map(|r| r.reservation_base).filter(|&r| r != 0).collect();
        let cut_by = cut.ranges(|_| Ok(None)).unwrap();
        let mut most = 0;
        for index in 0..group.slots() {
            let (mut whole, mut parts) = (Vec::new(), Vec::new());
            group.pieces(Part::Sharded, index as i32, &mut whole).unwrap();
            whole.iter().for_each(|piece| cut_by.split(*piece, &mut parts));
            most = most.max(parts.len());
            for part in &parts {
                let within = |r: &&Range| r.start <= part.address && part.address + part.size <= r.start + r.size;
                prop_assert!(part.size > 0);
                prop_assert_eq!(ranges.iter().filter(within).count(), 1);
            }
            let bytes = |list: &[Piece]| -> Vec<u64> {
                list.iter().flat_map(|piece| piece.address..piece.address + piece.size).collect()
            };
            prop_assert_eq!(bytes(&whole), bytes(&parts));
        }
        prop_assert_eq!(group.most_pieces(Part::Sharded, &cut_by), most);

        if reservations.len() == regions.len() && reservations.iter().all(|&r| r == reservations[0]) {
            for range in &ranges {
                let (first, last) = (range.start - reservations[0], range.start + range.size - 1 - reservations[0]);
                prop_assert_eq!(first / mapping, last / mapping);
            }
        }
    }
}
