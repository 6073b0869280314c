//! What everything should hold. The KV of a token is a number made of all tokens up to it, the kind of
//! page and the shard; a page is the KV of its tokens. A block *is* its whole prefix, and the
//! library's naming (pinned by golden vectors) is asked only how it spells that block's keys.

use std::collections::HashMap;

use kvbridge::keys::{Chain, Geometry, Keys, Naming, Scheme, Scope, Shard, Template, Tokens, seed};
use kvbridge::layout::Part;
use kvbridge::page::seal;

use crate::random::{mix, scramble};
use crate::setup::{PAGE, Setup, T, Ways};

pub type Page = [u8; PAGE];

/// The mark of the empty prefix.
pub fn no_tokens(scope: usize) -> u64 {
    scramble(0xabcd + scope as u64)
}

/// The mark of a prefix with one token more.
pub fn add_token(prefix: u64, token: i32) -> u64 {
    mix(prefix, token as u64)
}

/// What greedy decoding says next.
pub fn next_token(prefix: u64) -> i32 {
    100 + (mix(prefix, 1) % 2) as i32
}

/// The KV of the last token of a prefix.
pub fn kv(prefix: u64, kind: usize, shard: u64) -> u64 {
    mix(prefix, 1000 + 100 * kind as u64 + shard)
}

/// How the shard of a rank counts in a kind of page.
pub fn shard(setup: &Setup, kind: usize, rank: usize) -> u64 {
    match setup.kinds[kind].part {
        Part::Sharded => rank as u64,
        Part::Replicated => 99,
    }
}

pub fn scope(number: usize) -> Scope<'static> {
    Scope {
        cache_salt: (number == 1).then_some(b"salt"),
        ..Scope::default()
    }
}

/// A page in the pool, as its key says.
pub struct Known {
    /// Mark of all tokens that the block stands for.
    pub block: u64,
    pub kind: usize,
    pub bytes: Page,
}

/// All blocks that any history came to, for one setup.
pub struct Oracle {
    lookahead: usize,
    scheme: Scheme,
    templates: Vec<(usize, u64, Template)>,
    pub pages: HashMap<Vec<u8>, Known>,
    /// The keys of a block: all kinds, all shards.
    keys: HashMap<u64, Vec<Vec<u8>>>,
}

impl Oracle {
    pub fn new(setup: &Setup) -> Self {
        let config = setup.config(&setup.servers[0], &Ways::default());
        let naming = Naming {
            scheme: config.key_scheme(),
            namespace: config.namespace().to_owned(),
            model_key: config.model_key().to_owned(),
            weights_digest: String::new(),
            page_format: config.page_format(),
            tokens_per_block: T as u32,
        };
        let mut templates = Vec::new();
        for (number, kind) in setup.kinds.iter().enumerate() {
            let id = setup.groups[kind.group];
            let geometry = Geometry {
                number_format: "bfloat16",
                layout_tag: "",
                layer_group: id,
                window: 0,
                layer_ids: &[id],
                region_sizes: kind.regions,
            };
            let world = setup.world;
            let mut add = |shard, named| {
                let template = Template::page(&naming, &geometry, named).unwrap();
                templates.push((number, shard, template));
            };
            match kind.part {
                Part::Replicated => add(99, Shard::Replicated),
                Part::Sharded => {
                    (0..world).for_each(|rank| add(u64::from(rank), Shard::Rank { world, rank }))
                }
            }
        }
        Self {
            lookahead: setup.lookahead,
            scheme: naming.scheme,
            templates,
            pages: HashMap::new(),
            keys: HashMap::new(),
        }
    }

    /// Blocks of `tokens` tokens that can be named.
    pub fn blocks(&self, tokens: usize) -> usize {
        tokens.saturating_sub(self.lookahead) / T
    }

    /// The mark of a block, from the marks of all prefixes.
    pub fn block(&self, marks: &[u64], block: usize) -> u64 {
        marks[(block + 1) * T + self.lookahead]
    }

    pub fn content(&self, marks: &[u64], block: usize, kind: usize, shard: u64) -> Page {
        let mut page = [0; PAGE];
        for (place, bytes) in page.chunks_exact_mut(8).enumerate() {
            let prefix = marks[block * T + place + 1 + self.lookahead];
            bytes.copy_from_slice(&kv(prefix, kind, shard).to_le_bytes());
        }
        page
    }

    /// The keys of a block that was learnt.
    pub fn keys(&self, block: u64) -> &[Vec<u8>] {
        self.keys.get(&block).map_or(&[], Vec::as_slice)
    }

    /// What is stored under a key: the page and, unless pages are raw, its seal.
    pub fn object(&self, key: &[u8]) -> Vec<u8> {
        let page = &self.pages[key].bytes;
        if self.scheme == Scheme::Trtllm {
            return page.to_vec();
        }
        [&page[..], &seal(key, page)].concat()
    }

    /// The key of one page of a block.
    pub fn key(&self, block: u64, kind: usize, rank: usize) -> &[u8] {
        let wanted = |(number, shard, _): &(usize, u64, Template)| {
            *number == kind && (*shard == rank as u64 || *shard == 99)
        };
        let place = self.templates.iter().position(wanted).unwrap();
        &self.keys[&block][place]
    }

    /// Learns the blocks of these tokens.
    pub fn learn(&mut self, scope_number: usize, tokens: &[i32], marks: &[u64]) {
        let blocks = self.blocks(tokens.len());
        if blocks == 0 || self.keys.contains_key(&self.block(marks, blocks - 1)) {
            return;
        }
        let scope = Scope {
            lookahead: self.lookahead as u32,
            ..scope(scope_number)
        };
        let seed = seed(self.scheme, &scope).unwrap();
        let mut chain = Chain::new(self.scheme, T as u32, self.lookahead as u32, seed).unwrap();
        chain.extend(Tokens::I32(tokens)).unwrap();
        for block in 0..blocks {
            let mark = self.block(marks, block);
            if self.keys.contains_key(&mark) {
                continue;
            }
            let hash = chain.hash(block).unwrap();
            let mut own = Vec::new();
            for (kind, shard, template) in &self.templates {
                let mut keys = Keys::new();
                keys.push_key(template, hash).unwrap();
                let known = Known {
                    block: mark,
                    kind: *kind,
                    bytes: self.content(marks, block, *kind, *shard),
                };
                let key = keys.get(0).to_vec();
                assert!(
                    self.pages.insert(key.clone(), known).is_none(),
                    "two pages have one key"
                );
                own.push(key);
            }
            self.keys.insert(mark, own);
        }
    }
}
