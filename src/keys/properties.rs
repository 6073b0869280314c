//! The key schemes against the plainest way to write them down, on random input.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// `framed(...)` of the schemes, spelled out.
fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    for part in parts {
        out.extend((part.len() as u32).to_le_bytes());
        out.extend(*part);
    }
    out
}

fn blake2b(text: &[u8]) -> Vec<u8> {
    let hash = blake2b_simd::Params::new().hash_length(16).hash(text);
    hash.as_bytes().to_vec()
}

/// Both schemes without steps, buffers or shortcuts.
fn plain(scheme: Scheme, salt: &[u8], lookahead: u32, tokens: &[i64], size: usize) -> Vec<u8> {
    let ahead = i64::from(lookahead).to_le_bytes();
    let mut parent = match scheme {
        Scheme::Trtllm if lookahead == 0 => blake2b(&framed(&[salt, b""])),
        Scheme::Trtllm => {
            let seed = blake2b(&framed(&[salt, b""]));
            blake2b(&[&seed[..], b"prompt-lookahead", &ahead].concat())
        }
        Scheme::Kvb1 => {
            let scope = framed(&[&[1], salt, &[0], b"", &ahead]);
            blake3::derive_key("kvbridge 1 scope", &scope).to_vec()
        }
    };
    let mut all = Vec::new();
    let mut block = 0;
    while tokens.len() >= (block + 1) * size + lookahead as usize {
        let window = &tokens[block * size..(block + 1) * size + lookahead as usize];
        parent = match scheme {
            Scheme::Trtllm => {
                let text: Vec<u8> = window.iter().flat_map(|t| t.to_le_bytes()).collect();
                blake2b(&[&parent[..], &text].concat())
            }
            Scheme::Kvb1 => {
                let key = parent[..].try_into().unwrap();
                let text: Vec<u8> = window
                    .iter()
                    .flat_map(|t| (*t as i32).to_le_bytes())
                    .collect();
                blake3::keyed_hash(key, &text).as_bytes().to_vec()
            }
        };
        all.extend(&parent);
        block += 1;
    }
    all
}

fn scheme() -> impl Strategy<Value = Scheme> {
    select(vec![Scheme::Trtllm, Scheme::Kvb1])
}

/// Short byte strings that like to look like each other's framing.
fn part() -> impl Strategy<Value = Vec<u8>> {
    vec(select(vec![0, 1, b'/', b'a']), 0..6)
}

fn name() -> impl Strategy<Value = String> {
    vec(select(vec!['/', 'a', '%', '2', 'F', '\u{df}']), 0..4)
        .prop_map(|letters| letters.into_iter().collect())
}

#[derive(Debug, Clone, PartialEq)]
struct Identity {
    names: (String, String, String, String),
    numbers: (u32, u32, u32),
    layers: Vec<u32>,
    regions: Vec<u64>,
    shard: Shard,
}

fn identity() -> impl Strategy<Value = Identity> {
    let shard = select(vec![
        Shard::Replicated,
        Shard::Rank { world: 1, rank: 0 },
        Shard::Rank { world: 12, rank: 1 },
        Shard::Rank {
            world: 12,
            rank: 11,
        },
    ]);
    (
        (name(), name(), name(), name()),
        (0..2u32, 0..2u32, 1..3u32),
        vec(0..2u32, 0..3),
        vec(0..2u64, 0..3),
        shard,
    )
        .prop_map(|(names, numbers, layers, regions, shard)| Identity {
            names,
            numbers,
            layers,
            regions,
            shard,
        })
}

impl Identity {
    fn template(&self) -> Template {
        let naming = Naming {
            scheme: Scheme::Kvb1,
            namespace: self.names.0.clone(),
            model_key: self.names.1.clone(),
            weights_digest: self.names.2.clone(),
            page_format: PageFormat::Sealed,
            tokens_per_block: self.numbers.2,
        };
        let geometry = Geometry {
            number_format: "int8",
            layout_tag: &self.names.3,
            layer_group: self.numbers.0,
            window: self.numbers.1,
            layer_ids: &self.layers,
            region_sizes: &self.regions,
        };
        Template::page(&naming, &geometry, self.shard).unwrap()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_steps_and_widths_give_the_plain_hashes(
        scheme in scheme(),
        salt in part(),
        size in 1..40u32,
        lookahead in select(vec![0u32, 0, 1, 2, 7, 45]),
        tokens in vec(any::<i32>(), 0..300),
        wide in any::<bool>(),
        cuts in vec((prop_oneof![1..=1usize, 0..60usize], any::<bool>()), 0..20),
    ) {
        let mut all: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let wide = wide && scheme == Scheme::Trtllm;
        if wide {
            all.iter_mut().for_each(|token| *token = token.wrapping_mul(0x1_0000_0001));
        }
        let scope = Scope { cache_salt: Some(&salt), lookahead, ..Scope::default() };
        let seed = seed(scheme, &scope).unwrap();
        let mut chain = Chain::new(scheme, size, lookahead, seed).unwrap();
        let mut at = 0;
        for (step, narrow) in cuts {
            let end = (at + step).min(all.len());
            let new = match narrow && !wide {
                true => Tokens::I32(&tokens[at..end]),
                false => Tokens::I64(&all[at..end]),
            };
            // Taken back and given again, as long as they complete no block.
            let before = chain.block_count();
            let room = chain.open_room();
            let taken = chain.extend_open(new);
            prop_assert_eq!(taken, new.len() <= room && (taken || !new.is_empty()), "{}", room);
            match taken {
                true => {
                    prop_assert_eq!(chain.block_count(), before);
                    chain.retract_open(new.len());
                    prop_assert_eq!(chain.token_count(), at as u64);
                    prop_assert!(chain.extend_open(new));
                }
                false => chain.extend(new).unwrap(),
            }
            at = end;
            let expected = plain(scheme, &salt, lookahead, &all[..at], size as usize);
            prop_assert_eq!(chain.hashes(), expected);
        }
        chain.extend_to(Tokens::I64(&all)).unwrap();
        prop_assert_eq!(chain.hashes(), plain(scheme, &salt, lookahead, &all, size as usize));
        prop_assert_eq!(chain.token_count(), all.len() as u64);
    }

    #[test]
    fn many_chains_side_by_side_are_the_same_chains(
        requests in vec((scheme(), 1..20u32, 0..3u32, vec(any::<i32>(), 0..150)), 0..40),
        first in 0..40usize,
    ) {
        let mut chains: Vec<Chain> = Vec::new();
        for (scheme, size, lookahead, _) in &requests {
            let scope = Scope { lookahead: *lookahead, ..Scope::default() };
            let seed = seed(*scheme, &scope).unwrap();
            chains.push(Chain::new(*scheme, *size, *lookahead, seed).unwrap());
        }
        for part in 0..2 {
            let mut batch: Vec<_> = chains
                .iter_mut()
                .zip(&requests)
                .map(|(chain, (.., tokens))| {
                    let (front, back) = tokens.split_at(first.min(tokens.len()));
                    (chain, Tokens::I32(if part == 0 { front } else { back }))
                })
                .collect();
            extend_many(&mut batch).unwrap();
        }
        for (chain, (scheme, size, lookahead, tokens)) in chains.iter().zip(&requests) {
            let scope = Scope { lookahead: *lookahead, ..Scope::default() };
            let alone = hash_blocks(*scheme, &scope, Tokens::I32(tokens), *size).unwrap();
            prop_assert_eq!(chain.hashes(), alone);
            prop_assert_eq!(chain.token_count(), tokens.len() as u64);
        }
    }

    #[test]
    fn different_identities_never_share_a_key(a in identity(), b in identity()) {
        let (one, two) = (a.template(), b.template());
        prop_assert_eq!(one.id() == two.id(), a == b);
        prop_assert_eq!(one.prefix() == two.prefix(), a == b);
    }

    #[test]
    fn neighbouring_identities_never_share_a_key(a in identity(), moved in 0..4usize) {
        // The same characters, cut elsewhere: what a join without framing mixes up.
        let mut b = a.clone();
        match moved {
            0 => b.names.1.extend(b.names.0.pop()),
            1 => b.names.2.extend(b.names.1.pop()),
            2 => b.names.3.extend(b.names.2.pop()),
            _ => b.regions.extend(b.layers.pop().map(u64::from)),
        }
        prop_assert_eq!(a.template().id() == b.template().id(), a == b);
    }

    #[test]
    fn different_scopes_never_share_a_seed(
        scheme in scheme(),
        scopes in vec((
            proptest::option::of(part()),
            proptest::option::of(0..2i64),
            vec(select(vec![[0u8; 32], [b'a'; 32]]), 0..3),
            0..2u32,
        ), 2),
    ) {
        let seeds: Vec<Vec<u8>> = scopes
            .iter()
            .map(|(salt, lora_task_id, media, lookahead)| {
                let scope = Scope {
                    cache_salt: salt.as_deref(),
                    lora_identity: None,
                    lora_task_id: *lora_task_id,
                    media_digests: media,
                    lookahead: *lookahead,
                };
                seed(scheme, &scope).unwrap().as_bytes().to_vec()
            })
            .collect();
        let known: Vec<_> = scopes
            .into_iter()
            .map(|(salt, task, media, lookahead)| match scheme {
                Scheme::Trtllm => (Some(salt.unwrap_or_default()), task, media, lookahead),
                Scheme::Kvb1 => (salt, task, media, lookahead),
            })
            .collect();
        prop_assert_eq!(seeds[0] == seeds[1], known[0] == known[1]);
    }

    #[test]
    fn filled_keys_are_the_formatted_keys(
        scheme in scheme(),
        shards in vec((1..12u32, 0..2000u32), 0..45),
        blocks in 0..70usize,
        before in vec(part(), 0..3),
        seedling in any::<u8>(),
    ) {
        let naming = Naming {
            scheme,
            namespace: "n".to_owned(),
            model_key: "org/m".to_owned(),
            weights_digest: String::new(),
            page_format: PageFormat::Raw,
            tokens_per_block: 16,
        };
        let templates: Vec<Template> = shards
            .iter()
            .map(|(world, layer_group)| {
                let geometry = Geometry {
                    number_format: "int8",
                    layout_tag: "",
                    layer_group: *layer_group,
                    window: 0,
                    layer_ids: &[],
                    region_sizes: &[64],
                };
                let shard = Shard::Rank { world: *world, rank: world - 1 };
                Template::page(&naming, &geometry, shard).unwrap()
            })
            .collect();
        let length = scheme.hash_len();
        let hashes: Vec<u8> = (0..blocks * length)
            .map(|i| (i * i + i / 7) as u8 ^ seedling)
            .collect();
        let mut expected: Vec<Vec<u8>> = before.clone();
        for hash in hashes.chunks_exact(length) {
            for ((world, group), template) in shards.iter().zip(&templates) {
                expected.push(match template.id() {
                    None => format!("n/org/m/w{world}r{}/lg{group}/t16b64/{}", world - 1, hex(hash)),
                    Some(id) => format!("kvb1/n/org%2Fm/{}/{}", hex(id), hex(hash)),
                }.into_bytes());
            }
        }
        let mut keys = Keys::new();
        for _ in 0..2 {
            keys.clear();
            before.iter().for_each(|key| keys.push(key));
            keys.fill(&templates, &hashes).unwrap();
            prop_assert_eq!(keys.iter().collect::<Vec<_>>(), expected.clone());
        }
        for (index, key) in expected.iter().enumerate() {
            prop_assert_eq!(keys.with_nul(index), [&key[..], b"\0"].concat());
        }
        prop_assert_eq!(keys.get(expected.len()), b"");
    }

    #[test]
    fn retained_keys_are_the_filtered_keys(list in vec((part(), any::<bool>()), 0..30)) {
        let mut keys = Keys::new();
        list.iter().for_each(|(key, _)| keys.push(key));
        let mut asked = Vec::new();
        keys.retain(|index| {
            asked.push(index);
            list[index].1
        });
        prop_assert_eq!(asked, (0..list.len()).collect::<Vec<_>>());
        let mut expected = Keys::new();
        list.iter().filter(|(_, keep)| *keep).for_each(|(key, _)| expected.push(key));
        prop_assert_eq!(&keys, &expected);
        keys.extend(&expected);
        prop_assert_eq!(keys.len(), 2 * expected.len());
        for index in 0..expected.len() {
            prop_assert_eq!(keys.get(index), expected.get(index));
            prop_assert_eq!(keys.get(expected.len() + index), expected.get(index));
        }
    }

    #[test]
    fn token_digests_see_tokens_and_not_steps(
        tokens in vec(any::<i32>(), 0..600),
        cut in 0..600usize,
        other in any::<prop::sample::Index>(),
    ) {
        let wide: Vec<i64> = tokens.iter().map(|token| i64::from(*token)).collect();
        let cut = cut.min(tokens.len());
        let mut once = TokenDigest::new();
        once.extend(Tokens::I32(&tokens));
        let mut steps = TokenDigest::default();
        steps.extend(Tokens::I64(&wide[..cut]));
        steps.extend(Tokens::I32(&tokens[cut..]));
        prop_assert_eq!(once, steps);
        let mut text: Vec<u8> = wide.iter().flat_map(|token| token.to_le_bytes()).collect();
        text.extend((tokens.len() as u64).to_le_bytes());
        prop_assert_eq!(once.value(), crc_fast::crc64_nvme(&text));
        prop_assert_eq!(once.count(), tokens.len() as u64);
        if !tokens.is_empty() {
            let mut changed = tokens.clone();
            let at = other.index(tokens.len());
            changed[at] = changed[at].wrapping_add(1);
            let mut digest = TokenDigest::new();
            digest.extend(Tokens::I32(&changed));
            prop_assert_ne!(digest.value(), once.value());
        }
    }
}

#[test]
fn hashes_of_other_lengths_are_refused() {
    let template = |scheme| {
        let naming = Naming {
            scheme,
            namespace: "n".to_owned(),
            model_key: "m".to_owned(),
            weights_digest: String::new(),
            page_format: PageFormat::Raw,
            tokens_per_block: 16,
        };
        Template::group(&naming, 1).unwrap()
    };
    let (short, long) = (template(Scheme::Trtllm), template(Scheme::Kvb1));
    let mut keys = Keys::new();
    assert!(keys.push_key(&short, &[0; 32]).is_err());
    assert!(keys.push_key(&long, &[0; 16]).is_err());
    assert!(keys.push_key(&long, &[]).is_err());
    assert!(keys.fill(std::slice::from_ref(&short), &[0; 17]).is_err());
    assert!(keys.fill(&[short, long], &[0; 32]).is_err());
    assert!(keys.is_empty());
}
