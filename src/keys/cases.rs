//! Faults that other systems had, each with its right answer here.

use super::*;
use std::collections::HashSet;

pub(super) const SCHEMES: [Scheme; 2] = [Scheme::Trtllm, Scheme::Kvb1];
pub(super) const HND: Geometry<'static> = Geometry {
    number_format: "float16",
    layout_tag: "HND",
    layer_group: 0,
    window: 0,
    layer_ids: &[0, 1],
    region_sizes: &[4096, 4096],
};

pub(super) fn naming(scheme: Scheme) -> Naming {
    Naming {
        scheme,
        namespace: "prod".to_owned(),
        model_key: "org/model".to_owned(),
        weights_digest: String::new(),
        page_format: PageFormat::Raw,
        tokens_per_block: 16,
    }
}

pub(super) fn named(scheme: Scheme, namespace: &str, model_key: &str) -> Naming {
    Naming {
        namespace: namespace.to_owned(),
        model_key: model_key.to_owned(),
        ..naming(scheme)
    }
}

pub(super) fn rank(world: u32, rank: u32) -> Shard {
    Shard::Rank { world, rank }
}

pub(super) fn prompt(length: i32) -> Vec<i32> {
    (0..length).map(|i| i * 7919 % 32_000).collect()
}

fn hashes(scheme: Scheme, scope: &Scope<'_>, tokens: &[i32]) -> HashSet<Vec<u8>> {
    hash_blocks(scheme, scope, Tokens::I32(tokens), 16)
        .unwrap()
        .chunks_exact(scheme.hash_len())
        .map(<[u8]>::to_vec)
        .collect()
}

pub(super) fn prefix(naming: &Naming, geometry: &Geometry<'_>, shard: Shard) -> Vec<u8> {
    Template::page(naming, geometry, shard)
        .unwrap()
        .prefix()
        .to_vec()
}

#[test]
fn case_12_adapters_are_three_disjoint_key_sets() {
    for scheme in SCHEMES {
        let tokens = prompt(160);
        let mut all = HashSet::new();
        for task in [None, Some(0), Some(1)] {
            let name = task.map(|task: i64| format!("adapter {task}"));
            let scope = Scope {
                cache_salt: Some(b"tenant"),
                lora_task_id: task,
                lora_identity: name.as_ref().map(String::as_bytes),
                ..Scope::default()
            };
            all.extend(hashes(scheme, &scope, &tokens));
        }
        assert_eq!(all.len(), 30);
    }
}

#[test]
fn case_15_salt_adapter_and_media_never_run_together() {
    let le1 = 1i64.to_le_bytes();
    let digest = *b"0123456789abcdef0123456789abcdef";
    let twice = [digest; 2];
    let split = |salt, lora| Scope {
        cache_salt: Some(salt),
        lora_identity: Some(lora),
        lora_task_id: None,
        ..Scope::default()
    };
    let salted = |salt| Scope {
        cache_salt: Some(salt),
        ..Scope::default()
    };
    let task = |lora_task_id| Scope {
        lora_task_id,
        ..Scope::default()
    };
    let media = |media_digests| Scope {
        media_digests,
        ..Scope::default()
    };
    let common = [
        Scope::default(),
        salted(b"lora:1"),
        salted(&le1),
        salted(&digest),
        task(Some(1)),
        task(Some(0)),
        media(std::slice::from_ref(&digest)),
        media(&twice),
        Scope {
            cache_salt: Some(&digest),
            ..media(std::slice::from_ref(&digest))
        },
    ];
    let bytes_only = [
        split(b"a", b"bc"),
        split(b"ab", b"c"),
        split(b"abc", b""),
        split(b"", b"abc"),
        split(b"", &digest),
        Scope {
            lora_identity: Some(b""),
            ..Scope::default()
        },
        Scope {
            lora_identity: Some(&digest),
            ..Scope::default()
        },
    ];
    for (scheme, scopes) in [
        (Scheme::Trtllm, common.to_vec()),
        (Scheme::Kvb1, [&common[..], &bytes_only].concat()),
    ] {
        let seeds: HashSet<_> = scopes
            .iter()
            .map(|scope| seed(scheme, scope).unwrap().as_bytes().to_vec())
            .collect();
        assert_eq!(seeds.len(), scopes.len(), "{}", scheme.name());
    }
}

#[test]
fn case_16_media_digests_over_the_same_placeholders() {
    let placeholders = [151_655; 16];
    let mut state = 88_172_645_463_325_252_u64;
    let mut media: Vec<[u8; 32]> = Vec::new();
    for _ in 0..10_000 {
        let mut digest = [0; 32];
        for byte in &mut digest {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        media.push(digest);
    }
    let mut one_bit = media[0];
    one_bit[31] ^= 1;
    media.push(one_bit);
    for scheme in SCHEMES {
        let mut all = HashSet::new();
        for digest in &media {
            let scope = Scope {
                media_digests: std::slice::from_ref(digest),
                ..Scope::default()
            };
            all.extend(hashes(scheme, &scope, &placeholders));
        }
        assert_eq!(all.len(), media.len());
        let of = |media_digests: &[[u8; 32]]| {
            let scope = Scope {
                media_digests,
                ..Scope::default()
            };
            hashes(scheme, &scope, &placeholders)
        };
        let (there, back) = ([media[0], media[1]], [media[1], media[0]]);
        assert_ne!(of(&there), of(&back), "prompt order counts");
    }
}

#[test]
fn case_18_formats_of_equal_size_do_not_meet() {
    let keys: HashSet<_> = ["fp8_e4m3", "fp8_e5m2", "int8", "custom:int8"]
        .into_iter()
        .map(|number_format| {
            let geometry = Geometry {
                number_format,
                ..HND
            };
            prefix(&naming(Scheme::Kvb1), &geometry, rank(1, 0))
        })
        .collect();
    assert_eq!(keys.len(), 4);
}

#[test]
fn case_19_namespace_and_model_are_not_joined() {
    let names = [
        ("a/b", "c"),
        ("a", "b/c"),
        ("a%2Fb", "c"),
        ("prod", "orgA/x"),
        ("prod", "orgB/x"),
        ("prod", "a/b-c"),
        ("prod", "a-b/c"),
    ];
    let namings = names.map(|(namespace, model)| named(Scheme::Kvb1, namespace, model));
    let keys: HashSet<_> = namings
        .iter()
        .map(|naming| prefix(naming, &HND, rank(1, 0)))
        .collect();
    let groups: HashSet<_> = namings
        .iter()
        .map(|naming| Template::group(naming, 1).unwrap().prefix().to_vec())
        .collect();
    assert_eq!((keys.len(), groups.len()), (names.len(), names.len()));
}
