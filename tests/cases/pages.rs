//! Page tables, two groups with equal page numbers, and sizes beyond 32 bits.

use crate::rig::{self, Rig, Setup, T, pool, prompt, rule, two_groups};
use kvbridge::device::HostMemory;
use kvbridge::device::memory::Source;
use kvbridge::error::Kind;
use kvbridge::keys::{Keys, Tokens};
use kvbridge::layout::{Group, Layout, Part, Region};
use kvbridge::scheduler::{GroupPages, Step};
use kvbridge::store::faulty::{Action, Call, Which};
use kvbridge::store::{Pieces, PutOptions, PutOutcome, Store, code};

#[test]
fn case_63_a_replacement_is_the_whole_table() {
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 5 * T);
    rig.offer(1, &tokens, 0);
    let list = |indices, replace| GroupPages {
        group: 0,
        first_block: 0,
        indices,
        replace,
    };
    let first = list(&[1, 2, 3, 4, 5, 6, 7], false);
    rig.scheduler.allocated(1, 0, &[first]).unwrap();
    let new = [21, 22, 23, 24, 25];
    let refused = rig.scheduler.allocated(1, 0, &[list(&new, false)]);
    assert_eq!(refused.unwrap_err().kind(), Kind::Contradiction);
    let metadata = rig
        .scheduler
        .build(&[Step {
            request_id: 1,
            new_tokens: Tokens::I32(&tokens),
            pages: &[list(&new, true)],
            computed_position: 0,
            scheduled_tokens: 5 * T as u64,
        }])
        .unwrap();
    let pages: Vec<&[i32]> = metadata
        .views(metadata.saves())
        .map(|view| view.pages)
        .collect();
    assert_eq!(pages, [&new[..]]);
}

#[test]
fn case_73_pages_of_two_groups_with_one_index_are_two_pages() {
    let mut rig = Rig::new(Setup {
        groups: two_groups(),
        ..Setup::default()
    });
    let (one, two) = (prompt(1, 2 * T), prompt(2, 2 * T));
    rig.publish(1, &one);
    rig.publish(1, &two);
    for (id, tokens, pages) in [(2, &one, [7, 8]), (3, &two, [9, 7])] {
        assert_eq!(rig.offer(id, tokens, 0), 16);
        let lists: Vec<GroupPages<'_>> = [3, 9]
            .into_iter()
            .zip(pages.chunks(1))
            .map(|(group, indices)| GroupPages {
                group,
                first_block: 0,
                indices,
                replace: false,
            })
            .collect();
        rig.scheduler.allocated(id, 16, &lists).unwrap();
    }
    let step = |request_id, tokens| Step {
        request_id,
        new_tokens: Tokens::I32(tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 16,
    };
    let metadata = rig
        .scheduler
        .build(&[step(2, &one), step(3, &two)])
        .unwrap();
    rig.script(vec![rule(
        Call::Get,
        Which::Containing(rig.key(&two, 0, (1, Part::Sharded), 0)),
        Action::Lose,
    )]);
    rig.bind(&metadata);
    rig.start_load().unwrap();
    assert_eq!(rig.ranks[0].worker.take_failed_loads(), [3]);
    let kind = (0, Part::Sharded);
    assert_eq!(
        rig.ranks[0].cache.read(kind, 7),
        rig::content(&one, 0, kind, 0, 64)
    );
}

#[test]
fn case_80_pages_beyond_4_gib_are_accounted_or_refused() {
    const GIB: u64 = 1 << 30;
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 0,
            window: 0,
            number_format: "bfloat16".into(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    // Reserved, never touched.
    let memory = [
        HostMemory::new(3 * GIB).unwrap(),
        HostMemory::new(2 * GIB).unwrap(),
    ];
    for memory in &memory {
        let range = memory.range();
        layout
            .add_region(
                0,
                Region {
                    base: range.start,
                    size: range.size,
                    stride: range.size,
                    slots: 1,
                    reservation_base: 0,
                },
            )
            .unwrap();
    }
    assert_eq!(layout.groups()[0].page_bytes(Part::Sharded), 5 * GIB);
    let mut sources: Vec<Source<'_>> = memory
        .iter()
        // SAFETY: the memory is mapped until the end of the test, and nobody writes it.
        .map(|memory| unsafe { Source::from_raw(memory.range().start, memory.range().size) })
        .collect();
    let mut keys = Keys::new();
    keys.push(b"large");
    let mut out = Vec::new();
    // 5 GiB cut to 32 bits would be 1 GiB, and would fit.
    let pool = pool(4 * GIB);
    pool.put(
        &keys,
        Pieces::grouped(&mut sources, &[2]),
        &PutOptions::default(),
        &mut out,
    );
    assert_eq!(out, [PutOutcome::Failed(code::TOO_LARGE)]);
    assert_eq!(pool.stats().unwrap().bytes_used, 0);
}

#[test]
fn case_81_addresses_have_64_bits_and_indices_a_range() {
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 0,
            window: 0,
            number_format: "bfloat16".into(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    let stride = 1_002_240;
    let region = Region {
        base: 1 << 40,
        size: stride,
        stride,
        slots: 2144,
        reservation_base: 0,
    };
    layout.add_region(0, region).unwrap();
    let mut pieces = Vec::new();
    layout.groups()[0]
        .pieces(Part::Sharded, 2143, &mut pieces)
        .unwrap();
    assert_eq!(pieces[0].address, (1 << 40) + 2_147_800_320);
    for index in [2144, i32::MAX, -1, i32::MIN] {
        let refused = layout.groups()[0].pieces(Part::Sharded, index, &mut pieces);
        assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange);
    }
    // The scheduler refuses it before it travels.
    let mut rig = Rig::new(Setup::default());
    let tokens = prompt(1, 2 * T);
    rig.offer(1, &tokens, 0);
    for index in [256, i32::MAX, -2, i32::MIN] {
        let list = GroupPages {
            group: 0,
            first_block: 0,
            indices: &[index],
            replace: false,
        };
        let refused = rig.scheduler.allocated(1, 0, &[list]);
        assert_eq!(refused.unwrap_err().kind(), Kind::OutOfRange, "{index}");
    }
}
