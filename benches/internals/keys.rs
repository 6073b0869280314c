//! Hashes against the bare hash functions, keys against a bare copy, page resolution.

use std::hint::black_box;

use kvbridge::keys::{
    Chain, Geometry, Keys, Naming, PageFormat, Scheme, Scope, Seed, Shard, Template, Tokens,
    extend_many, hash_blocks, seed,
};
use kvbridge::layout::{Group, Layout, Part, Region};

use super::{Outcome, Pair, Solo, timed};

const BLOCK: u32 = 32;
/// BLAKE2b: twelve rounds of two half rounds of twelve dependent cycles.
const COMPRESSION_CYCLES: usize = 288;

/// Token `n` of every benchmark; benches/peer.py makes the same.
pub fn tokens(count: usize) -> Vec<i64> {
    (0..count as i64)
        .map(|n| (n * 2_654_435_761 + 12_345) % 128_000)
        .collect()
}

pub fn pairs(each: &mut dyn FnMut(Pair) -> Outcome<()>) -> Outcome<()> {
    for block in [32, 64] {
        for count in [8 << 10, 128 << 10] {
            each(latency_floor(count, block)?)?;
        }
    }
    for count in [8 << 10, 128 << 10] {
        each(bare_blake3(count)?)?;
    }
    for (count, groups, world) in [
        (8 << 10, 1, 1),
        (8 << 10, 1, 8),
        (8 << 10, 4, 8),
        (128 << 10, 4, 8),
    ] {
        for scheme in [Scheme::Trtllm, Scheme::Kvb1] {
            each(bare_copy(scheme, count, groups, world)?)?;
        }
    }
    Ok(())
}

fn plain_seed(scheme: Scheme) -> Outcome<Seed> {
    Ok(seed(scheme, &Scope::default())?)
}

/// A chain of BLAKE2b against dependent instructions that take as many cycles as its compressions
/// must at least.
fn latency_floor(count: usize, block: u32) -> Outcome<Pair> {
    let tokens = tokens(count);
    let seed = plain_seed(Scheme::Trtllm)?;
    let mut chain = Chain::new(Scheme::Trtllm, block, 0, seed)?;
    let blocks = count / block as usize;
    let compressions = (16 + 8 * block as usize).div_ceil(128);
    // A multiplication and an addition in a row: 3 + 1 cycles.
    let steps = blocks * compressions * COMPRESSION_CYCLES / 4;
    let mut x = 3_u64;
    Ok(Pair {
        row: "hash_trtllm",
        workload: format!("{} k tokens, T = {block}", count >> 10),
        against: "÷ latency floor",
        units: blocks,
        ours: timed(1, move || {
            chain.reset(seed);
            let _ = black_box(chain.extend(Tokens::I64(black_box(&tokens))));
        }),
        contender: timed(1, move || {
            for _ in 0..steps {
                x = x.wrapping_mul(x).wrapping_add(3);
            }
            black_box(x);
        }),
    })
}

/// A chain of `kvb1` against keyed BLAKE3 over texts that lie ready.
fn bare_blake3(count: usize) -> Outcome<Pair> {
    let seed = plain_seed(Scheme::Kvb1)?;
    let tokens: Vec<i32> = tokens(count).iter().map(|&token| token as i32).collect();
    let text: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    let mut chain = Chain::new(Scheme::Kvb1, BLOCK, 0, seed)?;
    let blocks = count / BLOCK as usize;
    Ok(Pair {
        row: "hash_kvb1",
        workload: format!("{} k tokens", count >> 10),
        against: "÷ bare BLAKE3",
        units: blocks,
        ours: timed(1, move || {
            chain.reset(seed);
            let _ = black_box(chain.extend(Tokens::I32(black_box(&tokens))));
        }),
        contender: timed(1, move || {
            let mut parent = [7; 32];
            for tokens in text.chunks_exact(4 * BLOCK as usize) {
                parent = *blake3::keyed_hash(&parent, tokens).as_bytes();
            }
            black_box(parent);
        }),
    })
}

fn templates(scheme: Scheme, groups: u32, world: u32) -> Outcome<Vec<Template>> {
    let naming = Naming {
        scheme,
        namespace: "trtllm".to_owned(),
        model_key: "llama-3.1-70b-instruct".to_owned(),
        weights_digest: String::new(),
        page_format: PageFormat::Raw,
        tokens_per_block: BLOCK,
    };
    let mut templates = Vec::new();
    for layer_group in 0..groups {
        for rank in 0..world {
            let geometry = Geometry {
                number_format: "float16",
                layout_tag: "",
                layer_group,
                window: 0,
                layer_ids: &[layer_group],
                region_sizes: &[65_536],
            };
            templates.push(Template::page(
                &naming,
                &geometry,
                Shard::Rank { world, rank },
            )?);
        }
    }
    Ok(templates)
}

struct Filling {
    keys: Keys,
    templates: Vec<Template>,
    hashes: Vec<u8>,
}

impl Filling {
    fn new(scheme: Scheme, count: usize, groups: u32, world: u32) -> Outcome<Self> {
        let tokens = tokens(count);
        let mut filling = Self {
            keys: Keys::new(),
            templates: templates(scheme, groups, world)?,
            hashes: hash_blocks(scheme, &Scope::default(), Tokens::I64(&tokens), BLOCK)?,
        };
        filling.fill();
        Ok(filling)
    }

    fn fill(&mut self) {
        self.keys.clear();
        let _ = black_box(self.keys.fill(&self.templates, black_box(&self.hashes)));
    }

    /// So many fills make a turn of about a hundred microseconds.
    fn times(&self) -> usize {
        (1 << 15) / self.keys.len().min(1 << 15)
    }
}

fn bare_copy(scheme: Scheme, count: usize, groups: u32, world: u32) -> Outcome<Pair> {
    let mut filling = Filling::new(scheme, count, groups, world)?;
    let original: Vec<u8> = filling
        .keys
        .iter()
        .flat_map(|key| [key, &[0]].concat())
        .collect();
    let mut copy = original.clone();
    let times = filling.times();
    Ok(Pair {
        row: "keys",
        workload: format!(
            "{} k tokens, {groups}×{world}, {}",
            count >> 10,
            scheme.name()
        ),
        against: "÷ memcpy",
        units: filling.keys.len() * times,
        ours: timed(times, move || filling.fill()),
        contender: timed(times, move || {
            black_box(&mut copy[..]).copy_from_slice(black_box(&original));
        }),
    })
}

/// Our side of the figures that benches/bench.py holds against the peer.
pub fn solos() -> Outcome<Vec<Solo>> {
    let mut solos = vec![many(256, BLOCK as usize, 8)?, many(8, 8 << 10, 1)?];
    for (groups, world) in [(1, 1), (1, 8), (4, 8)] {
        let mut filling = Filling::new(Scheme::Trtllm, 8 << 10, groups, world)?;
        let times = filling.times();
        solos.push(Solo {
            name: format!("keys/{groups}x{world}"),
            units: filling.keys.len() * times,
            check: filling.keys.get(filling.keys.len() - 1).to_vec(),
            ours: timed(times, move || filling.fill()),
        });
    }
    for regions in [2, 64] {
        solos.push(resolve(regions)?);
    }
    Ok(solos)
}

/// `requests` chains that get `count` tokens each; all have other tokens.
fn many(requests: usize, count: usize, times: usize) -> Outcome<Solo> {
    let seed = plain_seed(Scheme::Trtllm)?;
    let tokens = tokens(requests * count);
    let mut chains = Vec::new();
    for _ in 0..requests {
        chains.push(Chain::new(Scheme::Trtllm, BLOCK, 0, seed)?);
    }
    let last = &tokens[tokens.len() - count..];
    let hashes = hash_blocks(Scheme::Trtllm, &Scope::default(), Tokens::I64(last), BLOCK)?;
    let check = hashes[hashes.len() - 16..].to_vec();
    Ok(Solo {
        name: format!("many/{requests}x{count}"),
        units: requests * count / BLOCK as usize * times,
        check,
        ours: timed(times, move || {
            let mut batch: Vec<_> = chains
                .iter_mut()
                .zip(tokens.chunks_exact(count))
                .map(|(chain, tokens)| {
                    chain.reset(seed);
                    (chain, Tokens::I64(tokens))
                })
                .collect();
            let _ = black_box(extend_many(&mut batch));
        }),
    })
}

fn resolve(regions: u64) -> Outcome<Solo> {
    const PAGES: i32 = 512;
    let mut layout = Layout::new(0);
    layout.add_group(Group {
        id: 0,
        window: 0,
        number_format: "float16".to_owned(),
        layout_tag: String::new(),
        layer_ids: vec![0],
    })?;
    for region in 0..regions {
        layout.add_region(
            0,
            Region {
                base: 4096 + (region << 32),
                size: 8192,
                stride: 16_384,
                slots: 4096,
                reservation_base: 0,
            },
        )?;
    }
    let indices: Vec<i32> = (0..PAGES).map(|page| page * 7).collect();
    let mut pieces = Vec::new();
    let groups = layout.groups();
    groups[0].pieces(Part::Sharded, indices[indices.len() - 1], &mut pieces)?;
    let check = pieces
        .iter()
        .flat_map(|piece| [piece.address.to_le_bytes(), piece.size.to_le_bytes()].concat())
        .collect();
    let times = (256 / regions) as usize;
    Ok(Solo {
        name: format!("resolve/{regions}"),
        units: PAGES as usize * times,
        check,
        ours: timed(times, move || {
            pieces.clear();
            for &index in black_box(&indices) {
                let _ = layout.groups()[0].pieces(Part::Sharded, index, &mut pieces);
            }
            black_box(&pieces);
        }),
    })
}
