//! What the key schemes promise, by feature: A1 and A2 the schemes, A3 scopes, A4 lookahead, A5
//! shards, A6 eviction groups.

use super::cases::{HND, SCHEMES, named, naming, prefix, prompt, rank};
use super::*;
use crate::error::Kind;
use std::collections::HashSet;

fn page_error(naming: &Naming, geometry: &Geometry<'_>, shard: Shard) -> (Kind, String) {
    let error = Template::page(naming, geometry, shard).unwrap_err();
    (error.kind(), error.message().to_owned())
}

#[test]
fn a1_names_of_schemes() {
    for scheme in SCHEMES {
        assert_eq!(Scheme::from_name(scheme.name()), Some(scheme));
    }
    assert_eq!(Scheme::from_name("KVB1"), None);
    assert_eq!(Scheme::Trtllm.hash_len(), 16);
    assert_eq!(Scheme::Kvb1.hash_len(), 32);
}

#[test]
fn a1_a_token_list_that_shrinks_is_an_error() {
    for scheme in SCHEMES {
        let seed = seed(scheme, &Scope::default()).unwrap();
        let mut chain = Chain::new(scheme, 16, 0, seed).unwrap();
        let tokens = prompt(50);
        chain.extend_to(Tokens::I32(&tokens[..20])).unwrap();
        chain.extend_to(Tokens::I32(&tokens[..20])).unwrap();
        chain.extend_to(Tokens::I32(&tokens)).unwrap();
        let error = chain.extend_to(Tokens::I32(&tokens[..49])).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains("from 50 to 49"), "{error}");
        assert_eq!(chain.token_count(), 50);
        let whole = hash_blocks(scheme, &Scope::default(), Tokens::I32(&tokens), 16).unwrap();
        assert_eq!(chain.hashes(), whole);
    }
}

#[test]
fn a2_a_token_outside_int32_is_refused_before_any_block() {
    let seed = seed(Scheme::Kvb1, &Scope::default()).unwrap();
    for bad in [1 << 31, i64::from(i32::MIN) - 1, 1 << 32, i64::MAX] {
        let mut tokens: Vec<i64> = (0..64).collect();
        let mut chain = Chain::new(Scheme::Kvb1, 16, 0, seed).unwrap();
        chain.extend(Tokens::I64(&tokens[..20])).unwrap();
        let before = chain.hashes().to_vec();
        tokens[60] = bad;
        let error = chain.extend(Tokens::I64(&tokens[20..])).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains(&bad.to_string()), "{error}");
        assert!(error.message().contains("position 40"), "{error}");
        let mut other = Chain::new(Scheme::Kvb1, 16, 0, seed).unwrap();
        let batch = &mut [
            (&mut other, Tokens::I64(&tokens[..20])),
            (&mut chain, Tokens::I64(&tokens[20..])),
        ];
        assert!(extend_many(batch).is_err());
        assert_eq!((other.token_count(), chain.token_count()), (0, 20));
        assert_eq!(chain.hashes(), before);
        // The refused tokens left nothing behind.
        tokens[60] = 60;
        chain.extend(Tokens::I64(&tokens[20..])).unwrap();
        let whole = hash_blocks(Scheme::Kvb1, &Scope::default(), Tokens::I64(&tokens), 16);
        assert_eq!(chain.hashes(), whole.unwrap());
    }
}

#[test]
fn a2_every_part_of_the_identity_is_in_the_id() {
    let base = naming(Scheme::Kvb1);
    let sealed = Naming {
        page_format: PageFormat::Sealed,
        ..base.clone()
    };
    let weights = Naming {
        weights_digest: "sha256:1".to_owned(),
        ..base.clone()
    };
    let longer = Naming {
        tokens_per_block: 32,
        ..base.clone()
    };
    let tag = Geometry {
        layout_tag: "NHD",
        ..HND
    };
    let (group, window) = (
        Geometry {
            layer_group: 1,
            ..HND
        },
        Geometry { window: 1, ..HND },
    );
    let layers = Geometry {
        layer_ids: &[0, 2],
        ..HND
    };
    let regions = Geometry {
        region_sizes: &[8192],
        ..HND
    };
    // A layer id that could pass for the next field, were the lists not counted.
    let fewer = Geometry {
        layer_ids: &[0],
        ..HND
    };
    let all = [
        (&base, HND, rank(2, 0)),
        (&named(Scheme::Kvb1, "test", "org/model"), HND, rank(2, 0)),
        (&named(Scheme::Kvb1, "prod", "org/other"), HND, rank(2, 0)),
        (&sealed, HND, rank(2, 0)),
        (&weights, HND, rank(2, 0)),
        (&longer, HND, rank(2, 0)),
        (&base, tag, rank(2, 0)),
        (&base, group, rank(2, 0)),
        (&base, window, rank(2, 0)),
        (&base, layers, rank(2, 0)),
        (&base, fewer, rank(2, 0)),
        (&base, regions, rank(2, 0)),
        (&base, HND, rank(2, 1)),
        (&base, HND, rank(1, 0)),
        (&base, HND, Shard::Replicated),
    ];
    let ids: HashSet<_> = all
        .iter()
        .map(|(naming, geometry, shard)| {
            let template = Template::page(naming, geometry, *shard).unwrap();
            *template.id().unwrap()
        })
        .collect();
    assert_eq!(ids.len(), all.len());
}

#[test]
fn a2_what_contradicts_itself_is_refused() {
    let page = |naming: &Naming| page_error(naming, &HND, rank(1, 0));
    let sealed = Naming {
        page_format: PageFormat::Sealed,
        ..naming(Scheme::Trtllm)
    };
    assert_eq!(page(&sealed).0, Kind::ConfigInvalid);
    assert_eq!(
        Template::group(&sealed, 1).unwrap_err().kind(),
        Kind::ConfigInvalid
    );
    assert_eq!(
        page(&named(Scheme::Trtllm, "a\0b", "m")).0,
        Kind::ConfigInvalid
    );
    assert!(Template::page(&named(Scheme::Kvb1, "a\0b", "m"), &HND, rank(1, 0)).is_ok());
    for scheme in SCHEMES {
        let none = Naming {
            tokens_per_block: 0,
            ..naming(scheme)
        };
        assert_eq!(page(&none).0, Kind::InvalidArgument);
        for shard in [rank(0, 0), rank(4, 4)] {
            let (kind, _) = page_error(&naming(scheme), &HND, shard);
            assert_eq!(kind, Kind::InvalidArgument);
        }
        let group = Template::group(&naming(scheme), 0).unwrap_err();
        assert_eq!(group.kind(), Kind::InvalidArgument);
        let seed = seed(scheme, &Scope::default()).unwrap();
        let chain = |scheme, block, lookahead| Chain::new(scheme, block, lookahead, seed);
        assert_eq!(
            chain(scheme, 0, 0).unwrap_err().kind(),
            Kind::InvalidArgument
        );
        assert!(chain(scheme, 1, 1).is_err(), "a seed of another lookahead");
        let other = SCHEMES.into_iter().find(|other| *other != scheme).unwrap();
        assert!(chain(other, 1, 0).is_err(), "a seed of another scheme");
    }
    let huge = Geometry {
        region_sizes: &[u64::MAX, 1],
        ..HND
    };
    let (kind, _) = page_error(&naming(Scheme::Trtllm), &huge, rank(1, 0));
    assert_eq!(kind, Kind::InvalidArgument);
}

#[test]
fn a2_number_formats() {
    for good in ["float32", "nvfp4", "int4", "custom:x", "custom: "] {
        assert!(is_number_format(good), "{good}");
    }
    for bad in ["", "fp16", "Float32", "float32 ", "custom", "custom:"] {
        assert!(!is_number_format(bad), "{bad}");
        let geometry = Geometry {
            number_format: bad,
            ..HND
        };
        let (kind, message) = page_error(&naming(Scheme::Kvb1), &geometry, rank(1, 0));
        assert_eq!(kind, Kind::InvalidArgument);
        assert!(message.contains(&format!("{bad:?}")), "{message}");
        // trtllm keys do not name the format.
        assert!(Template::page(&naming(Scheme::Trtllm), &geometry, rank(1, 0)).is_ok());
    }
}

#[test]
fn a2_keys_of_512_bytes_and_not_one_more() {
    for (scheme, letter, width) in [
        (Scheme::Trtllm, "a", 1),
        (Scheme::Kvb1, "a", 1),
        (Scheme::Kvb1, "/", 3),
        (Scheme::Kvb1, "\u{79df}", 9),
    ] {
        let page = |letters: usize, model: usize| {
            let naming = named(scheme, &letter.repeat(letters), &"m".repeat(model));
            Template::page(&naming, &HND, rank(1, 0))
        };
        let room = MAX_KEY_BYTES - page(0, 0).unwrap().key_len();
        let (letters, model) = (room / width, room % width);
        assert_eq!(page(letters, model).unwrap().key_len(), MAX_KEY_BYTES);
        let error = page(letters, model + 1).unwrap_err();
        assert_eq!(error.kind(), Kind::ConfigInvalid);
        assert!(error.message().contains("513 bytes"), "{error}");
        let bytes = (letters * letter.len()).to_string();
        assert!(error.message().contains(&bytes), "{error}");
    }
    assert!(Template::group(&named(Scheme::Kvb1, &"n".repeat(512), ""), 1).is_err());
}

#[test]
fn a2_escapes_byte_by_byte() {
    assert_eq!(percent_escape("aZ09._-"), "aZ09._-");
    assert_eq!(percent_escape("a/b %~\0"), "a%2Fb%20%25%7E%00");
    assert_eq!(percent_escape("\u{df}"), "%C3%9F");
}

#[test]
fn a3_trtllm_needs_the_task_id() {
    let scope = Scope {
        lora_identity: Some(b"adapter"),
        ..Scope::default()
    };
    let error = seed(Scheme::Trtllm, &scope).unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    let both = Scope {
        lora_task_id: Some(3),
        ..scope
    };
    let task = Scope {
        lora_identity: None,
        ..both
    };
    let bytes = Scope {
        lora_identity: Some(&[3, 0, 0, 0, 0, 0, 0, 0]),
        lora_task_id: None,
        ..both
    };
    let seeds = |scheme, scope| seed(scheme, &scope).unwrap();
    assert_eq!(seeds(Scheme::Trtllm, both), seeds(Scheme::Trtllm, task));
    assert_eq!(seeds(Scheme::Kvb1, both), seeds(Scheme::Kvb1, scope));
    assert_eq!(seeds(Scheme::Kvb1, task), seeds(Scheme::Kvb1, bytes));
}

#[test]
fn a3_an_empty_salt_is_a_salt_in_kvb1_only() {
    let empty = Scope {
        cache_salt: Some(b""),
        ..Scope::default()
    };
    let same = |scheme| seed(scheme, &empty).unwrap() == seed(scheme, &Scope::default()).unwrap();
    assert!(same(Scheme::Trtllm));
    assert!(!same(Scheme::Kvb1));
}

#[test]
fn a4_a_block_exists_once_its_lookahead_does_and_depends_on_it() {
    for scheme in SCHEMES {
        for lookahead in [0, 1, 3, 16, 20] {
            let scope = Scope {
                lookahead,
                ..Scope::default()
            };
            let seed = seed(scheme, &scope).unwrap();
            let ahead = lookahead as usize;
            let tokens = prompt(96);
            let mut chain = Chain::new(scheme, 16, lookahead, seed).unwrap();
            for (index, token) in tokens.iter().enumerate() {
                chain.extend(Tokens::I32(&[*token])).unwrap();
                let expected = (index + 1).saturating_sub(ahead) / 16;
                assert_eq!(chain.block_count(), expected, "{index}");
            }
            let mut changed = tokens.clone();
            changed[31 + ahead] += 1;
            chain.reset(seed);
            chain.extend(Tokens::I32(&changed)).unwrap();
            let all = hash_blocks(scheme, &scope, Tokens::I32(&tokens), 16).unwrap();
            let hash = |block: usize| &all[block * scheme.hash_len()..][..scheme.hash_len()];
            assert_ne!(chain.hash(1).unwrap(), hash(1), "its last lookahead token");
            assert_eq!(chain.hash(0).unwrap(), hash(0), "a token behind its window");
        }
    }
}

#[test]
fn a4_without_lookahead_a_draft_changes_nothing_and_with_it_the_seed_differs() {
    for scheme in SCHEMES {
        let seeds: HashSet<Vec<u8>> = (0..4)
            .map(|lookahead| {
                let scope = Scope {
                    lookahead,
                    ..Scope::default()
                };
                seed(scheme, &scope).unwrap().as_bytes().to_vec()
            })
            .collect();
        assert_eq!(seeds.len(), 4);
        assert!(seeds.contains(seed(scheme, &Scope::default()).unwrap().as_bytes()));
    }
}

#[test]
fn a5_shards() {
    for scheme in SCHEMES {
        let naming = naming(scheme);
        let ranks: HashSet<_> = (0..4).map(|r| prefix(&naming, &HND, rank(4, r))).collect();
        assert_eq!(ranks.len(), 4);
        assert!(!ranks.contains(&prefix(&naming, &HND, rank(1, 0))));
        assert!(!ranks.contains(&prefix(&naming, &HND, Shard::Replicated)));
    }
    let trtllm = prefix(&naming(Scheme::Trtllm), &HND, rank(1, 0));
    assert_eq!(trtllm, b"prod/org/model/w1r0/lg0/t16b8192/");
    let replicated = prefix(&naming(Scheme::Trtllm), &HND, Shard::Replicated);
    assert_eq!(replicated, b"prod/org/model/replicated/lg0/t16b8192/");
}

#[test]
fn a6_one_group_for_all_pages_of_a_block() {
    for scheme in SCHEMES {
        let group = |naming: &Naming, world| Template::group(naming, world).unwrap();
        let other = Naming {
            tokens_per_block: 64,
            weights_digest: "w".to_owned(),
            ..naming(scheme)
        };
        assert_eq!(group(&naming(scheme), 4), group(&other, 4));
        assert_ne!(group(&naming(scheme), 4), group(&naming(scheme), 2));
        assert_eq!(group(&other, 4).id(), None);
    }
    let kvb1 = Template::group(&naming(Scheme::Kvb1), 4).unwrap();
    assert_eq!(kvb1.prefix(), b"kvb1/prod/org%2Fmodel/w4/");
}
