//! Changes metadata. The checksum would refuse nearly everything that libFuzzer makes of it, so it
//! is mended after each change; and some changes are made through the library's own types, so that
//! what comes out is consistent and reaches the code behind the decoder.

use kvbridge::metadata::{Metadata, Recycler, RunView, Transfers};
use kvbridge::page::crc64;
use std::sync::Arc;

/// The mutator of the targets that read metadata, for `fuzz_mutator!`.
pub fn metadata(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut dice = Dice(u64::from(seed) | 1 << 32);
    let changed = match dice.below(3) {
        0 => rebuilt(&data[..size], &mut dice).filter(|changed| changed.len() <= max_size),
        _ => None,
    };
    let size = match changed {
        Some(changed) => {
            data[..changed.len()].copy_from_slice(&changed);
            changed.len()
        }
        None => libfuzzer_sys::fuzzer_mutate(data, size, max_size),
    };
    // A few go on with a wrong sum.
    if dice.below(16) > 0 {
        mend(&mut data[..size]);
    }
    size
}

/// Makes the sum at the end that of the bytes before it.
pub fn mend(bytes: &mut [u8]) {
    if let Some((body, sum)) = bytes.split_last_chunk_mut::<8>() {
        *sum = crc64(body).to_le_bytes();
    }
}

struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Numbers at which something may end.
    fn number(&mut self) -> u64 {
        // 16 is the server's number of slots.
        const EDGES: [u64; 8] = [0, 1, 15, 16, 17, i32::MAX as u64, u32::MAX as u64, u64::MAX];
        match self.below(3) {
            0 => EDGES[self.below(EDGES.len() as u64) as usize],
            1 => self.below(100),
            _ => self.next(),
        }
    }
}

/// Another metadata with one change, encoded.
fn rebuilt(bytes: &[u8], dice: &mut Dice) -> Option<Vec<u8>> {
    let old = Metadata::decode(bytes).ok()?;
    let mut hash_bytes = 32;
    for transfers in [old.loads(), old.saves()] {
        for view in old.views(transfers) {
            if view.run.blocks > 0 {
                hash_bytes = view.hashes.len() / view.run.blocks as usize;
            }
        }
    }
    // What is above 9 changes a page too.
    let what = dice.below(14);
    let source = if what == 0 {
        dice.number()
    } else {
        old.source()
    };
    let pass = if what == 1 { dice.number() } else { old.pass() };
    let recycler = Arc::new(Recycler::new(source));
    let mut new = recycler.metadata(pass, *old.fingerprint(), hash_bytes as u32);
    new.set_groups(old.groups().iter().copied());
    let runs = (old.loads().runs().len() + old.saves().runs().len()) as u64;
    let chosen = dice.below(runs.max(1));
    let mut number = 0;
    for (is_load, transfers) in [(true, old.loads()), (false, old.saves())] {
        for view in old.views(transfers) {
            let change = if number == chosen { what } else { u64::MAX };
            number += 1;
            let copies = match change {
                2 => 0,
                3 => 2,
                _ => 1,
            };
            // 4 moves it to the other list.
            let into = if is_load != (change == 4) {
                new.loads_mut()
            } else {
                new.saves_mut()
            };
            for _ in 0..copies {
                copy(into, view, hash_bytes, old.groups().len(), change, dice);
            }
        }
    }
    let mut out = Vec::new();
    new.encode(&mut out);
    Some(out)
}

fn copy(
    into: &mut Transfers,
    view: RunView<'_>,
    hash_bytes: usize,
    groups: usize,
    change: u64,
    dice: &mut Dice,
) {
    let mut run = *view.run;
    let mut blocks = run.blocks as usize;
    match change {
        5 => run.request_id = dice.number(),
        6 => run.generation = dice.number(),
        7 => run.first_block = dice.number() as u32,
        8 => blocks = dice.below(2 * blocks as u64 + 2) as usize,
        _ => {}
    }
    let other = if (9..14).contains(&change) {
        Some(dice.below(blocks.max(1) as u64) as usize)
    } else {
        None
    };
    into.begin_run(run.request_id, run.generation, run.first_block, &run.parent);
    for block in 0..blocks.min(1000) {
        let from = block.min((run.blocks as usize).saturating_sub(1));
        let hash = view.hashes.get(from * hash_bytes..(from + 1) * hash_bytes);
        let pages = view.pages.get(from * groups..(from + 1) * groups);
        let (Some(hash), Some(pages)) = (hash, pages) else {
            return;
        };
        let page = dice.number() as i32;
        let pages = pages
            .iter()
            .map(|old| if other == Some(block) { page } else { *old });
        into.push_block(hash, pages);
    }
}
