//! A rank's cache in host memory, and what its pages must hold.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use super::{Setup, T};
use kvbridge::device::{CacheMemory, Device, HostDevice, HostMemory};
use kvbridge::layout::{Group, Layout, Part, Region};

/// One rank's cache: per group and part its regions.
pub struct Cache {
    regions: BTreeMap<(usize, Part), Vec<(HostMemory, u64)>>,
    pub layout: Layout,
}

impl Cache {
    pub fn new(setup: &Setup) -> Self {
        let mut layout = Layout::new(setup.mapping);
        let mut regions: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for (position, shape) in setup.groups.iter().enumerate() {
            layout
                .add_group(Group {
                    id: shape.id,
                    window: 0,
                    number_format: setup.format.to_owned(),
                    layout_tag: String::new(),
                    layer_ids: vec![shape.id],
                })
                .unwrap();
            for (part, sizes) in [
                (Part::Sharded, &shape.sharded),
                (Part::Replicated, &shape.replicated),
            ] {
                for &size in sizes {
                    let memory = HostMemory::new(size * setup.slots).unwrap();
                    let region = Region {
                        base: memory.range().start,
                        size,
                        stride: size,
                        slots: setup.slots,
                        reservation_base: 0,
                    };
                    match part {
                        Part::Sharded => layout.add_region(shape.id, region).unwrap(),
                        Part::Replicated => layout.add_replicated_region(shape.id, region).unwrap(),
                    }
                    regions
                        .entry((position, part))
                        .or_default()
                        .push((memory, size));
                }
            }
        }
        Self { regions, layout }
    }

    pub fn register(&self) -> CacheMemory {
        self.register_on(Arc::new(HostDevice))
    }

    pub fn register_on(&self, device: Arc<dyn Device>) -> CacheMemory {
        // SAFETY: the rig keeps the memory beside the worker, and touches no page in flight unless
        // a test is about exactly that.
        unsafe { CacheMemory::new(self.layout.clone(), device) }.unwrap()
    }

    pub fn parts(&self) -> Vec<(usize, Part)> {
        self.regions.keys().copied().collect()
    }

    pub fn write(&mut self, (group, part): (usize, Part), page: i32, bytes: &[u8]) {
        let mut rest = bytes;
        for (memory, size) in self.regions.get_mut(&(group, part)).unwrap() {
            let (own, other) = rest.split_at(*size as usize);
            let start = page as usize * *size as usize;
            memory.bytes_mut()[start..start + own.len()].copy_from_slice(own);
            rest = other;
        }
    }

    pub fn read(&self, (group, part): (usize, Part), page: i32) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (memory, size) in &self.regions[&(group, part)] {
            let start = page as usize * *size as usize;
            bytes.extend_from_slice(&memory.bytes()[start..start + *size as usize]);
        }
        bytes
    }

    /// All bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        let regions = self.regions.values().flatten();
        regions.flat_map(|one| one.0.bytes()).copied().collect()
    }

    pub fn page_bytes(&self, kind: (usize, Part)) -> usize {
        self.regions[&kind].iter().map(|one| one.1 as usize).sum()
    }
}

/// What the page of a block holds on a rank.
pub fn content(
    tokens: &[i32],
    block: usize,
    kind: (usize, Part),
    rank: u32,
    size: usize,
) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    tokens[..(block + 1) * T].hash(&mut hasher);
    let shard = if kind.1 == Part::Replicated {
        u32::MAX
    } else {
        rank
    };
    (kind.0, kind.1, shard).hash(&mut hasher);
    let mut state = hasher.finish();
    (0..size)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}
