//! The golden vectors of both key schemes: hashes, keys, page identities and groups, byte by byte.
//!
//! `KVB_TRTLLM_VECTORS` and `KVB_KVB1_VECTORS` name other files of the same form to check instead.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers outside the test functions; in a test a panic is the verdict"
)]

use kvbridge::keys::{
    Chain, Geometry, Keys, Naming, PageFormat, Scheme, Scope, Seed, Shard, Template, Tokens,
    extend_many, hash_blocks, seed,
};
use serde_json::Value;

fn vectors(variable: &str, default: &str) -> Value {
    let path = std::env::var(variable)
        .unwrap_or_else(|_| format!("{}/tests/vectors/{default}", env!("CARGO_MANIFEST_DIR")));
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn trtllm_vectors() -> Value {
    vectors("KVB_TRTLLM_VECTORS", "trtllm_keys.json")
}

fn kvb1_vectors() -> Value {
    vectors("KVB_KVB1_VECTORS", "kvb1_keys.json")
}

/// The entries of a list that must have some: an empty file would pass every check.
fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    let list = value[name].as_array().unwrap();
    assert!(!list.is_empty(), "no {name}");
    list
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap()
}

fn number(value: &Value, name: &str) -> u32 {
    value[name].as_u64().unwrap().try_into().unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len() / 2)
        .map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

/// A small generator for the cuts: the same in every run, so a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

struct Case<'a> {
    name: &'a str,
    scheme: Scheme,
    tokens_per_block: u32,
    lookahead: u32,
    tokens: Vec<i64>,
    hashes: Vec<Vec<u8>>,
}

impl Case<'_> {
    fn start(&self, seed: Seed) -> Chain {
        Chain::new(self.scheme, self.tokens_per_block, self.lookahead, seed).unwrap()
    }

    fn check(&self, chain: &Chain, seed: Seed, how: &str) {
        let name = self.name;
        assert_eq!(chain.hashes(), self.hashes.concat(), "{name}, {how}");
        assert_eq!(chain.block_count(), self.hashes.len(), "{name}, {how}");
        assert_eq!(
            chain.token_count(),
            self.tokens.len() as u64,
            "{name}, {how}"
        );
        assert_eq!(chain.parent(0), Some(seed.as_bytes()), "{name}, {how}");
        for (block, hash) in self.hashes.iter().enumerate() {
            assert_eq!(chain.hash(block), Some(&hash[..]), "{name}, {how}");
            assert_eq!(chain.parent(block + 1), Some(&hash[..]), "{name}, {how}");
        }
        assert_eq!(chain.hash(self.hashes.len()), None, "{name}, {how}");
        assert_eq!(chain.parent(self.hashes.len() + 1), None, "{name}, {how}");
    }
}

fn check_chains(scheme: Scheme, vectors: &Value) {
    assert_eq!(text(vectors, "scheme"), scheme.name());
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for chain in list(vectors, "chains") {
        let media: Vec<[u8; 32]> = chain["multimodal_digests"]
            .as_array()
            .unwrap()
            .iter()
            .map(|digest| unhex(digest.as_str().unwrap()).try_into().unwrap())
            .collect();
        let case = Case {
            name: text(chain, "name"),
            scheme,
            tokens_per_block: number(chain, "tokens_per_block"),
            lookahead: number(chain, "prompt_lookahead"),
            tokens: chain["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(|token| token.as_i64().unwrap())
                .collect(),
            hashes: chain["block_hashes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|hash| unhex(hash.as_str().unwrap()))
                .collect(),
        };
        let identity = chain["lora_identity"].as_str().map(unhex);
        let scope = Scope {
            cache_salt: chain["cache_salt"].as_str().map(str::as_bytes),
            lora_identity: identity.as_deref(),
            lora_task_id: chain["lora_task_id"].as_i64(),
            media_digests: &media,
            lookahead: case.lookahead,
        };
        let seed = seed(scheme, &scope).unwrap();
        let tokens = &case.tokens;

        let mut once = case.start(seed);
        once.extend(Tokens::I64(tokens)).unwrap();
        case.check(&once, seed, "in one step");
        assert_eq!(
            hash_blocks(scheme, &scope, Tokens::I64(tokens), case.tokens_per_block).unwrap(),
            case.hashes.concat(),
            "{}",
            case.name
        );

        for round in 0..16 {
            once.reset(seed);
            let mut rest = &tokens[..];
            while !rest.is_empty() {
                // Small and large steps, empty ones too.
                let bound = if round % 2 == 0 { 5 } else { rest.len() + 1 };
                let (step, behind) = rest.split_at(random.below(bound).min(rest.len()));
                once.extend(Tokens::I64(step)).unwrap();
                rest = behind;
            }
            case.check(&once, seed, "in steps");
        }

        let mut chains: Vec<Chain> = (0..21).map(|_| case.start(seed)).collect();
        let mut batch: Vec<_> = chains
            .iter_mut()
            .map(|chain| (chain, Tokens::I64(tokens)))
            .collect();
        extend_many(&mut batch).unwrap();
        for chain in &chains {
            case.check(chain, seed, "side by side");
        }

        let narrow: Result<Vec<i32>, _> = tokens.iter().map(|&token| token.try_into()).collect();
        let narrow = match (narrow, scheme) {
            (Ok(narrow), _) => narrow,
            (Err(_), Scheme::Trtllm) => continue,
            (Err(error), Scheme::Kvb1) => panic!("{}: {error}", case.name),
        };
        let mut chain = case.start(seed);
        let cut = random.below(narrow.len() + 1);
        chain.extend(Tokens::I32(&narrow[..cut])).unwrap();
        chain.extend(Tokens::I64(&tokens[cut..])).unwrap();
        case.check(&chain, seed, "in both widths");
    }
}

#[test]
fn vectors_of_trtllm_chains() {
    check_chains(Scheme::Trtllm, &trtllm_vectors());
}

#[test]
fn vectors_of_kvb1_chains() {
    check_chains(Scheme::Kvb1, &kvb1_vectors());
}

/// The one key of the arena, after both ways to put it there agree.
fn spell(template: &Template, hash: &[u8]) -> String {
    let mut keys = Keys::new();
    keys.push_key(template, hash).unwrap();
    keys.fill(std::slice::from_ref(template), &[hash, hash].concat())
        .unwrap();
    assert_eq!(keys.len(), 3);
    assert_eq!(keys.get(0), keys.get(1));
    assert_eq!(keys.get(0), keys.get(2));
    String::from_utf8(keys.get(0).to_vec()).unwrap()
}

#[test]
fn vectors_of_trtllm_keys() {
    for key in list(&trtllm_vectors(), "keys") {
        let naming = Naming {
            scheme: Scheme::Trtllm,
            namespace: text(key, "namespace").to_owned(),
            model_key: text(key, "model_key").to_owned(),
            weights_digest: String::new(),
            page_format: PageFormat::Raw,
            tokens_per_block: number(key, "tokens_per_block"),
        };
        let bytes = key["bytes_per_page"].as_u64().unwrap();
        let geometry = Geometry {
            number_format: "",
            layout_tag: "",
            layer_group: number(key, "layer_group"),
            window: 0,
            layer_ids: &[],
            region_sizes: &[bytes - bytes / 3, bytes / 3],
        };
        let world = number(key, "world_size");
        let rank = number(key, "rank");
        let hash = unhex(text(key, "block_hash"));
        let page = |shard| spell(&Template::page(&naming, &geometry, shard).unwrap(), &hash);
        assert_eq!(page(Shard::Rank { world, rank }), text(key, "sharded_key"));
        assert_eq!(page(Shard::Replicated), text(key, "replicated_key"));
        let group = Template::group(&naming, world).unwrap();
        assert_eq!(spell(&group, &hash), text(key, "group"));
    }
}

#[test]
fn vectors_of_kvb1_keys() {
    for key in list(&kvb1_vectors(), "keys") {
        let naming = Naming {
            scheme: Scheme::Kvb1,
            namespace: text(key, "namespace").to_owned(),
            model_key: text(key, "model_key").to_owned(),
            weights_digest: text(key, "weights_digest").to_owned(),
            page_format: match text(key, "page_format") {
                "raw" => PageFormat::Raw,
                "sealed" => PageFormat::Sealed,
                other => panic!("page_format {other}"),
            },
            tokens_per_block: number(key, "tokens_per_block"),
        };
        let layer_ids: Vec<u32> = key["layer_ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_u64().unwrap().try_into().unwrap())
            .collect();
        let region_sizes: Vec<u64> = key["region_sizes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|size| size.as_u64().unwrap())
            .collect();
        let geometry = Geometry {
            number_format: text(key, "number_format"),
            layout_tag: text(key, "layout_tag"),
            layer_group: number(key, "layer_group"),
            window: number(key, "window"),
            layer_ids: &layer_ids,
            region_sizes: &region_sizes,
        };
        let world = number(key, "world_size");
        let shard = match key["replicated"].as_bool().unwrap() {
            true => Shard::Replicated,
            false => Shard::Rank {
                world,
                rank: number(key, "rank"),
            },
        };
        let hash = unhex(text(key, "block_hash"));
        let page = Template::page(&naming, &geometry, shard).unwrap();
        assert_eq!(page.id().unwrap()[..], unhex(text(key, "id")));
        assert_eq!(spell(&page, &hash), text(key, "key"));
        let group = Template::group(&naming, world).unwrap();
        assert_eq!(spell(&group, &hash), text(key, "group"));
    }
}
