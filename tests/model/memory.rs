//! A rank's cache and what it should hold. Whoever owns a page writes both; the library writes only the
//! real one, so that any byte that it changed shows.

#![allow(
    unsafe_code,
    reason = "the cache is read and written while threads of the library may use other pages of it"
)]

use std::alloc::{Layout as Room, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::sync::Arc;

use kvbridge::device::{CacheMemory, HostDevice};
use kvbridge::layout::{Group, Layout, Part, Region as Described};

use crate::oracle::Page;
use crate::setup::{PAGE, Setup};

/// Memory that is reached by address only.
struct Memory {
    start: *mut u8,
    room: Room,
}

impl Memory {
    fn new(size: usize) -> Self {
        let room = Room::from_size_align(size, 64).unwrap();
        // SAFETY: the size is not 0: no region is empty.
        let start = unsafe { alloc_zeroed(room) };
        if start.is_null() {
            handle_alloc_error(room);
        }
        let _ = start.expose_provenance();
        Self { start, room }
    }

    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at + out.len() <= self.room.size());
        // SAFETY: inside the allocation, as was just checked; nothing of ours writes meanwhile. The
        // library writes only inside calls that have returned, or for loads whose pages are not read
        // before they were reported.
        unsafe { std::ptr::copy_nonoverlapping(self.start.add(at), out.as_mut_ptr(), out.len()) };
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.room.size());
        // SAFETY: inside the allocation, as was just checked. If the library reads it meanwhile, that is
        // the bug that is looked for.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.add(at), bytes.len()) };
    }

    fn equals(&self, bytes: &[u8]) -> bool {
        assert_eq!(bytes.len(), self.room.size());
        // SAFETY: the whole allocation, initialised, and nobody writes it now: no load is in flight.
        let own = unsafe { std::slice::from_raw_parts(self.start, bytes.len()) };
        own == bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and the worker that used it was shut down.
        unsafe { dealloc(self.start, self.room) };
    }
}

struct Region {
    memory: Memory,
    shadow: Vec<u8>,
    size: usize,
}

pub struct Cache {
    regions: Vec<Region>,
    /// Per kind of page its regions.
    kinds: Vec<Range<usize>>,
    pub slots: usize,
    layout: Layout,
}

impl Cache {
    pub fn new(setup: &Setup, slots: usize) -> Self {
        let mut layout = Layout::new(0);
        let mut regions: Vec<Region> = Vec::new();
        let mut kinds = Vec::new();
        for &id in setup.groups {
            let group = Group {
                id,
                window: 0,
                number_format: "bfloat16".to_owned(),
                layout_tag: String::new(),
                layer_ids: vec![id],
            };
            layout.add_group(group).unwrap();
        }
        for kind in setup.kinds {
            let first = regions.len();
            for &size in kind.regions {
                let memory = Memory::new(size as usize * slots);
                let region = Described {
                    base: memory.start.addr() as u64,
                    size,
                    stride: size,
                    slots: slots as u64,
                    reservation_base: 0,
                };
                let id = setup.groups[kind.group];
                match kind.part {
                    Part::Sharded => layout.add_region(id, region).unwrap(),
                    Part::Replicated => layout.add_replicated_region(id, region).unwrap(),
                }
                regions.push(Region {
                    shadow: vec![0; size as usize * slots],
                    memory,
                    size: size as usize,
                });
            }
            kinds.push(first..regions.len());
        }
        Self {
            regions,
            kinds,
            slots,
            layout,
        }
    }

    pub fn register(&self) -> CacheMemory {
        // SAFETY: the memory lives until its worker was shut down.
        unsafe { CacheMemory::new(self.layout.clone(), Arc::new(HostDevice)) }.unwrap()
    }

    pub fn read(&self, kind: usize, page: i32) -> Page {
        let mut bytes = [0; PAGE];
        let mut at = 0;
        for region in &self.regions[self.kinds[kind].clone()] {
            let place = page as usize * region.size;
            region.memory.read(place, &mut bytes[at..at + region.size]);
            at += region.size;
        }
        bytes
    }

    fn shadow(&self, kind: usize, page: usize) -> Page {
        let mut bytes = [0; PAGE];
        let mut at = 0;
        for region in &self.regions[self.kinds[kind].clone()] {
            let place = page * region.size;
            bytes[at..at + region.size].copy_from_slice(&region.shadow[place..place + region.size]);
            at += region.size;
        }
        bytes
    }

    /// Writes the KV of one token, or all of a page.
    pub fn write(&mut self, kind: usize, page: i32, from: usize, bytes: &[u8]) {
        let mut at = 0;
        for region in &mut self.regions[self.kinds[kind].clone()] {
            let start = from.max(at);
            let end = (from + bytes.len()).min(at + region.size);
            if start < end {
                let place = page as usize * region.size + start - at;
                let part = &bytes[start - from..end - from];
                region.memory.write(place, part);
                region.shadow[place..place + part.len()].copy_from_slice(part);
            }
            at += region.size;
        }
    }

    /// Takes a page as it is now.
    pub fn accept(&mut self, kind: usize, page: i32) {
        let now = self.read(kind, page);
        self.write(kind, page, 0, &now);
    }

    /// Every page that is not as its owner left it, once: kind, page, what is there now.
    pub fn changes(&mut self, mut found: impl FnMut(usize, i32, &Page)) {
        let mut intact = true;
        for region in &self.regions {
            intact &= region.memory.equals(&region.shadow);
        }
        if intact {
            return;
        }
        for kind in 0..self.kinds.len() {
            for page in 0..self.slots {
                let now = self.read(kind, page as i32);
                if now != self.shadow(kind, page) {
                    found(kind, page as i32, &now);
                    self.write(kind, page as i32, 0, &now);
                }
            }
        }
    }
}
