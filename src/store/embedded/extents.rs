//! Which bytes of the arena are free: a two-level segregated-fit allocator over granules.
//!
//! Free runs hang in lists by size class, sixteen classes per power of two. A run of the wanted
//! size's own class may be a little too short, so the first few are tried one by one; any run of
//! a higher class fits. Trying the own class first matters here: pages of a pool mostly have one
//! size, and the run that an evicted page left is exactly what the next page needs.
//! Neighbouring free runs are always merged.

/// Bytes per granule: a cache line, so that no two objects share one.
pub(super) const GRANULE: u64 = 64;

const NIL: u32 = u32::MAX;
/// Classes per power of two, as a power of two.
const FINE_BITS: u32 = 4;
const FINE: usize = 1 << FINE_BITS;
const COARSE: usize = 64 - FINE_BITS as usize + 1;
/// Runs of the wanted class that are tried. A bound, because a class can hold any number of
/// runs that are just too short.
const TRIES: usize = 64;

/// A run of granules, used or free, between its neighbours in address order.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u64,
    granules: u64,
    left: u32,
    right: u32,
    /// Neighbours in the list of its class, while free; `next` also links unused records.
    previous: u32,
    next: u32,
    free: bool,
}

/// The free and used runs of an arena.
#[derive(Debug)]
pub(super) struct Extents {
    runs: Vec<Run>,
    unused: u32,
    heads: Box<[[u32; FINE]; COARSE]>,
    coarse: u64,
    fine: [u16; COARSE],
    used_granules: u64,
}

/// A used run: its record and its first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub run: u32,
    pub start: u64,
}

/// The bytes that an object of `size` bytes takes up.
pub(super) fn footprint(size: u64) -> Option<u64> {
    size.max(1).checked_next_multiple_of(GRANULE)
}

fn class(granules: u64) -> (usize, usize) {
    if granules < FINE as u64 {
        return (0, granules as usize);
    }
    let exponent = 63 - granules.leading_zeros();
    let fine = (granules >> (exponent - FINE_BITS)) as usize & (FINE - 1);
    ((exponent - FINE_BITS) as usize + 1, fine)
}

impl Extents {
    /// All of `bytes` free, less what does not fill a granule.
    pub fn new(bytes: u64) -> Self {
        let mut extents = Self {
            runs: Vec::new(),
            unused: NIL,
            heads: Box::new([[NIL; FINE]; COARSE]),
            coarse: 0,
            fine: [0; COARSE],
            used_granules: 0,
        };
        if bytes >= GRANULE {
            let run = extents.record(Run {
                start: 0,
                granules: bytes / GRANULE,
                left: NIL,
                right: NIL,
                previous: NIL,
                next: NIL,
                free: true,
            });
            if let Some(run) = run {
                extents.hang(run);
            }
        }
        extents
    }

    /// Bytes in used runs.
    pub fn used(&self) -> u64 {
        self.used_granules * GRANULE
    }

    /// Takes a run for `size` bytes, or `None` if no free run is known to be long enough.
    pub fn take(&mut self, size: u64) -> Option<Spot> {
        let granules = footprint(size)? / GRANULE;
        let run = self.find(granules)?;
        let Run {
            start,
            granules: found,
            right,
            ..
        } = self.runs[run as usize];
        // The record for the rest first: without one the run stays free as it is.
        let rest = if found > granules {
            Some(self.record(Run {
                start: start + granules,
                granules: found - granules,
                left: run,
                right,
                previous: NIL,
                next: NIL,
                free: true,
            })?)
        } else {
            None
        };
        self.unhang(run);
        let taken = &mut self.runs[run as usize];
        taken.granules = granules;
        taken.free = false;
        if let Some(rest) = rest {
            taken.right = rest;
            if right != NIL {
                self.runs[right as usize].left = rest;
            }
            self.hang(rest);
        }
        self.used_granules += granules;
        Some(Spot {
            run,
            start: start * GRANULE,
        })
    }

    /// Gives a run back. `spot` came from [`Extents::take`] and is given back once.
    pub fn give(&mut self, spot: Spot) {
        let mut run = spot.run;
        debug_assert!(!self.runs[run as usize].free, "given back twice");
        self.used_granules -= self.runs[run as usize].granules;
        self.runs[run as usize].free = true;
        let left = self.runs[run as usize].left;
        if left != NIL && self.runs[left as usize].free {
            self.unhang(left);
            self.absorb(left);
            run = left;
        }
        let right = self.runs[run as usize].right;
        if right != NIL && self.runs[right as usize].free {
            self.unhang(right);
            self.absorb(run);
        }
        self.hang(run);
    }

    /// Makes `run` swallow its right neighbour, whose record becomes unused.
    fn absorb(&mut self, run: u32) {
        let gone = self.runs[run as usize].right;
        let Run {
            granules, right, ..
        } = self.runs[gone as usize];
        self.runs[run as usize].granules += granules;
        self.runs[run as usize].right = right;
        if right != NIL {
            self.runs[right as usize].left = run;
        }
        self.runs[gone as usize].next = self.unused;
        self.unused = gone;
    }

    fn find(&self, granules: u64) -> Option<u32> {
        let (coarse, fine) = class(granules);
        let mut run = self.heads[coarse][fine];
        for _ in 0..TRIES {
            if run == NIL {
                break;
            }
            if self.runs[run as usize].granules >= granules {
                return Some(run);
            }
            run = self.runs[run as usize].next;
        }
        let higher = u32::from(self.fine[coarse]) & (!0_u32 << (fine + 1));
        let (coarse, higher) = if higher != 0 {
            (coarse, higher)
        } else {
            let above = self.coarse & (!0_u64 << coarse << 1);
            if above == 0 {
                return None;
            }
            let coarse = above.trailing_zeros() as usize;
            (coarse, u32::from(self.fine[coarse]))
        };
        Some(self.heads[coarse][higher.trailing_zeros() as usize])
    }

    fn record(&mut self, run: Run) -> Option<u32> {
        let index = self.unused;
        if index != NIL {
            self.unused = self.runs[index as usize].next;
            self.runs[index as usize] = run;
            return Some(index);
        }
        let index = u32::try_from(self.runs.len()).ok().filter(|&i| i != NIL)?;
        self.runs.push(run);
        Some(index)
    }

    fn hang(&mut self, run: u32) {
        let (coarse, fine) = class(self.runs[run as usize].granules);
        let head = self.heads[coarse][fine];
        self.runs[run as usize].previous = NIL;
        self.runs[run as usize].next = head;
        if head != NIL {
            self.runs[head as usize].previous = run;
        }
        self.heads[coarse][fine] = run;
        self.fine[coarse] |= 1 << fine;
        self.coarse |= 1 << coarse;
    }

    fn unhang(&mut self, run: u32) {
        let Run {
            granules,
            previous,
            next,
            ..
        } = self.runs[run as usize];
        if next != NIL {
            self.runs[next as usize].previous = previous;
        }
        if previous != NIL {
            self.runs[previous as usize].next = next;
            return;
        }
        let (coarse, fine) = class(granules);
        self.heads[coarse][fine] = next;
        if next == NIL {
            self.fine[coarse] &= !(1 << fine);
            if self.fine[coarse] == 0 {
                self.coarse &= !(1 << coarse);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_whole_arena_is_one_object_again_and_again() {
        let size = 1_002_240 + 48;
        let mut extents = Extents::new(footprint(size).unwrap());
        for _ in 0..3 {
            let spot = extents.take(size).unwrap();
            assert!(extents.take(1).is_none());
            extents.give(spot);
        }
        assert_eq!(extents.used(), 0);
    }

    #[test]
    fn the_hole_of_one_page_takes_the_next() {
        let size = 1_002_240 + 48;
        let mut extents = Extents::new(footprint(size).unwrap() * 5);
        let spots: Vec<_> = (0..5).map(|_| extents.take(size).unwrap()).collect();
        assert!(extents.take(size).is_none());
        extents.give(spots[2]);
        assert_eq!(extents.take(size).unwrap().start, spots[2].start);
    }

    #[test]
    fn terabytes_and_impossible_sizes() {
        let mut extents = Extents::new(4 << 40);
        let spot = extents.take(3 << 40).unwrap();
        assert!(extents.take(2 << 40).is_none());
        assert!(extents.take(u64::MAX).is_none());
        assert_eq!(extents.take(1 << 40).unwrap().start, 3 << 40);
        extents.give(spot);
        assert!(Extents::new(GRANULE - 1).take(1).is_none());
        assert!(Extents::new(u64::MAX).take(1 << 63).is_some());
    }

    proptest! {
        #[test]
        fn used_runs_never_overlap_and_free_ones_merge(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..3000), 1..400),
        ) {
            let bytes = 64 * 1024;
            let mut extents = Extents::new(bytes);
            let mut used: Vec<(Spot, u64)> = Vec::new();
            for (take, number) in steps {
                if take {
                    if let Some(spot) = extents.take(number) {
                        let end = spot.start + footprint(number).unwrap();
                        prop_assert!(end <= bytes);
                        for (other, size) in &used {
                            let other_end = other.start + footprint(*size).unwrap();
                            prop_assert!(end <= other.start || other_end <= spot.start);
                        }
                        used.push((spot, number));
                    }
                } else if !used.is_empty() {
                    let (spot, _) = used.swap_remove(number as usize % used.len());
                    extents.give(spot);
                }
                let sum: u64 = used.iter().map(|(_, size)| footprint(*size).unwrap()).sum();
                prop_assert_eq!(extents.used(), sum);
            }
            for (spot, _) in used {
                extents.give(spot);
            }
            prop_assert!(extents.take(bytes).is_some());
        }
    }
}
