//! The bytes of a metadata, which come over a network: what decodes is what was encoded.

#![no_main]

use kvbridge::metadata::Metadata;
use kvbridge_fuzz::edge::Fenced;
use kvbridge_fuzz::mutate;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate::metadata(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let mut memory = Fenced::new(data.len());
    let bytes = memory.put(data);
    let Ok(metadata) = Metadata::decode(bytes) else {
        return;
    };
    let mut again = Vec::new();
    metadata.encode(&mut again);
    assert_eq!(again, bytes, "encodes to something else");
    assert_eq!(metadata.encoded_size(), bytes.len());
    assert_eq!(Metadata::decode(&again).ok().as_ref(), Some(&metadata));
    for transfers in [metadata.loads(), metadata.saves()] {
        let (mut runs, mut before) = (0, 0);
        for view in metadata.views(transfers) {
            let blocks = view.run.blocks as usize;
            assert_eq!(&transfers.runs()[runs], view.run);
            assert_eq!(view.pages.len(), blocks * metadata.groups().len());
            assert!(
                [16, 32]
                    .map(|size| size * blocks)
                    .contains(&view.hashes.len())
            );
            assert!(view.run.first_block.checked_add(view.run.blocks).is_some());
            let found = metadata.view_at(transfers, runs, before);
            assert!(found.is_some_and(|found| found.hashes == view.hashes
                && found.pages == view.pages
                && found.run == view.run));
            runs += 1;
            before += blocks;
        }
        assert_eq!(runs, transfers.runs().len(), "a run has no view");
        assert_eq!(before as u64, transfers.blocks());
        assert!(metadata.view_at(transfers, runs, before).is_none());
    }
});
