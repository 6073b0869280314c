//! The pool behind the ranks: its faults, its keys, its objects.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{Rig, T};
use kvbridge::error::Result;
use kvbridge::keys::{Chain, Geometry, Keys, Naming, Scope, Shard, Template, Tokens, seed};
use kvbridge::lane::ManualClock;
use kvbridge::layout::{Part, Range};
use kvbridge::store::embedded::Pool;
use kvbridge::store::faulty::{Action, Call, Rule, Script, Which};
use kvbridge::store::{
    Capabilities, GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome,
    Store,
};
use parking_lot::Mutex;

/// A pool with room for `bytes` whose clock stands still and whose leases end at once.
pub fn pool(bytes: u64) -> Arc<Pool> {
    Pool::new(bytes, 0.05, Duration::ZERO, Arc::new(ManualClock::new())).unwrap()
}

/// What goes wrong with these keys in every call of one kind.
pub fn rule(call: Call, keys: Which, action: Action) -> Rule {
    Rule {
        call,
        at: 0..u64::MAX,
        keys,
        action,
    }
}

/// A store that its users cannot close, so that they can share it, unless it is one rank's own. Knows the memory and the
/// wishes that it was given.
pub struct Lent {
    store: Arc<dyn Store>,
    is_own: bool,
    addresses: Mutex<BTreeSet<u64>>,
    /// Claims to honour pins and groups, and notes them.
    pins: bool,
    capabilities: Capabilities,
    wishes: Mutex<Vec<Wish>>,
    /// What was made known to it and not taken back.
    ranges: Mutex<Vec<Range>>,
}

/// What came with one key of a put.
#[derive(Debug, PartialEq, Eq)]
pub struct Wish {
    pub key: Vec<u8>,
    pub group: Option<Vec<u8>>,
    pub soft_pin_ttl: Option<Duration>,
}

impl Lent {
    pub fn new(store: Arc<dyn Store>, pins: bool) -> Arc<Self> {
        Arc::new(Self::around(store, pins))
    }

    /// A store that its user closes.
    pub fn own(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            is_own: true,
            ..Self::around(store, false)
        })
    }

    fn around(store: Arc<dyn Store>, pins: bool) -> Self {
        let mut capabilities = store.capabilities().clone();
        capabilities.soft_pin_ttl |= pins;
        capabilities.groups |= pins;
        Self {
            store,
            is_own: false,
            addresses: Mutex::default(),
            pins,
            capabilities,
            wishes: Mutex::default(),
            ranges: Mutex::default(),
        }
    }

    /// Sizes of the memory that is known to it, the smallest first.
    pub fn known_sizes(&self) -> Vec<u64> {
        let mut sizes: Vec<u64> = self.ranges.lock().iter().map(|range| range.size).collect();
        sizes.sort_unstable();
        sizes
    }

    /// What puts asked for since the last call of this.
    pub fn take_wishes(&self) -> Vec<Wish> {
        std::mem::take(&mut *self.wishes.lock())
    }

    /// Where the pieces of gets and puts since the last call of this began.
    pub fn take_addresses(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.addresses.lock())
    }

    fn note(&self, addresses: impl Iterator<Item = u64>) {
        self.addresses.lock().extend(addresses);
    }
}

impl Store for Lent {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn exist(&self, keys: &Keys, out: &mut Vec<Presence>) {
        self.store.exist(keys, out);
    }
    fn put(
        &self,
        keys: &Keys,
        mut sources: Pieces<'_, kvbridge::device::memory::Source<'_>>,
        options: &PutOptions<'_>,
        out: &mut Vec<PutOutcome>,
    ) {
        for key in 0..keys.len() {
            self.note(sources.of(key).iter().map(|piece| piece.address()));
        }
        if !self.pins {
            return self.store.put(keys, sources, options, out);
        }
        self.wishes.lock().extend((0..keys.len()).map(|key| Wish {
            key: keys.get(key).to_vec(),
            group: options.groups.map(|groups| groups.get(key).to_vec()),
            soft_pin_ttl: options.soft_pin_ttl,
        }));
        self.store.put(keys, sources, &PutOptions::default(), out);
    }
    fn get(
        &self,
        keys: &Keys,
        mut targets: Pieces<'_, kvbridge::device::memory::Target<'_>>,
        out: &mut Vec<GetOutcome>,
    ) {
        for key in 0..keys.len() {
            self.note(targets.of(key).iter().map(|piece| piece.address()));
        }
        self.store.get(keys, targets, out);
    }
    fn remove(&self, keys: &Keys, force: bool, out: &mut Vec<RemoveOutcome>) {
        self.store.remove(keys, force, out);
    }
    fn register(&self, range: Range) -> Result<()> {
        self.store.register(range)?;
        self.ranges.lock().push(range);
        Ok(())
    }
    fn unregister(&self, range: Range) -> Result<()> {
        self.store.unregister(range)?;
        self.ranges
            .lock()
            .retain(|known| (known.start, known.size) != (range.start, range.size));
        Ok(())
    }
    fn health(&self) -> Health {
        self.store.health()
    }
    fn is_outage(&self, code: i32) -> bool {
        self.store.is_outage(code)
    }
    fn may_still_write(&self, code: i32) -> bool {
        self.store.may_still_write(code)
    }
    fn may_still_read(&self, code: i32) -> bool {
        self.store.may_still_read(code)
    }
    fn close(&self) -> Result<()> {
        match self.is_own {
            true => self.store.close(),
            false => Ok(()),
        }
    }
}

impl Rig {
    pub fn script(&self, script: Script) {
        self.faulty.set_script(script);
    }

    pub fn asked(&self, call: Call) -> u64 {
        self.faulty.count(call).keys
    }

    /// The key of one page.
    pub fn key(&self, tokens: &[i32], block: usize, kind: (usize, Part), rank: u32) -> Vec<u8> {
        let config = self.setup.config();
        let naming = Naming {
            scheme: config.key_scheme(),
            namespace: config.namespace().to_owned(),
            model_key: config.model_key().to_owned(),
            weights_digest: String::new(),
            page_format: config.page_format(),
            tokens_per_block: T as u32,
        };
        let shape = &self.setup.groups[kind.0];
        let (sizes, shard) = match kind.1 {
            Part::Replicated => (&shape.replicated, Shard::Replicated),
            Part::Sharded => {
                let world = self.setup.world;
                (&shape.sharded, Shard::Rank { world, rank })
            }
        };
        let geometry = Geometry {
            number_format: self.setup.format,
            layout_tag: "",
            layer_group: shape.id,
            window: 0,
            layer_ids: &[shape.id],
            region_sizes: sizes,
        };
        let template = Template::page(&naming, &geometry, shard).unwrap();
        let seed = seed(config.key_scheme(), &Scope::default()).unwrap();
        let mut chain = Chain::new(config.key_scheme(), T as u32, 0, seed).unwrap();
        chain.extend(Tokens::I32(tokens)).unwrap();
        let mut keys = Keys::new();
        keys.push_key(&template, chain.hash(block).unwrap())
            .unwrap();
        keys.get(0).to_vec()
    }

    /// Removes one page from the pool.
    pub fn remove(&self, tokens: &[i32], block: usize, kind: (usize, Part), rank: u32) {
        let mut keys = Keys::new();
        keys.push(&self.key(tokens, block, kind, rank));
        let mut out = Vec::new();
        self.pool.remove(&keys, true, &mut out);
        assert_eq!(out, [RemoveOutcome::Removed]);
    }

    /// Removes one page from the pool, if it is there.
    pub fn evict(&self, tokens: &[i32], block: usize, kind: (usize, Part), rank: u32) {
        let mut keys = Keys::new();
        keys.push(&self.key(tokens, block, kind, rank));
        self.pool.remove(&keys, true, &mut Vec::new());
    }

    /// Number of objects in the pool.
    pub fn stored(&self) -> u64 {
        self.pool.stats().unwrap().objects
    }
}
