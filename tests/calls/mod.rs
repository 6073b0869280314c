//! Calls of a store by hand, each with its answers.

use kvbridge::device::memory::{Source, Target};
use kvbridge::keys::Keys;
use kvbridge::store::{GetOutcome, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store};

/// So many keys that begin alike.
pub fn numbered(start: &str, count: usize) -> Keys {
    let mut keys = Keys::new();
    for number in 0..count {
        keys.push(format!("{start}/{number}").as_bytes());
    }
    keys
}

pub fn exist(store: &dyn Store, keys: &Keys) -> Vec<Presence> {
    let mut out = Vec::new();
    store.exist(keys, &mut out);
    out
}

/// The same bytes for every key.
pub fn put(store: &dyn Store, keys: &Keys, bytes: &[u8]) -> Vec<PutOutcome> {
    let mut sources = vec![Source::from(bytes); keys.len()];
    let mut out = Vec::new();
    let options = PutOptions::default();
    store.put(keys, Pieces::one_each(&mut sources), &options, &mut out);
    out
}

/// Also what landed, one object behind the other.
pub fn get(store: &dyn Store, keys: &Keys, size: usize) -> (Vec<GetOutcome>, Vec<u8>) {
    let mut landing = vec![0_u8; size * keys.len()];
    let mut targets: Vec<_> = landing.chunks_mut(size).map(Target::from).collect();
    let mut out = Vec::new();
    store.get(keys, Pieces::one_each(&mut targets), &mut out);
    (out, landing)
}

pub fn remove(store: &dyn Store, keys: &Keys, force: bool) -> Vec<RemoveOutcome> {
    let mut out = Vec::new();
    store.remove(keys, force, &mut out);
    out
}
