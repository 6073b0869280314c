mod ranges;

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
