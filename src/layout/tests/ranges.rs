//! What is registered with a pool that reads pages where they lie.

use proptest::prelude::*;

use super::*;

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
