//! What every store must show, whatever is behind it.
//!
//! The suite uses keys that no other run has used, takes what it stored out again where it can,
//! and needs about a mebibyte. It never panics: a failed expectation is an `Err` that names the
//! check.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{GetOutcome, Health, Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store};
use crate::device::memory::{Source, Target};
use crate::keys::Keys;
use crate::layout::Range;

type Checked = Result<(), String>;
type Check = fn(&dyn Store) -> Checked;

const CHECKS: &[(&str, Check)] = &[
    ("capabilities make sense", capabilities),
    ("what was never put is absent", absent),
    ("what was put can be read", round_trip),
    ("an object is the concatenation of its pieces", pieces),
    ("a key keeps its first bytes", first_bytes),
    ("targets of another size stay untouched", wrong_size),
    ("similar keys are different keys", similar_keys),
    ("a key twice in one put is stored once", twice),
    ("a removed key can be put again", removal),
    ("lists that do not fit are refused", malformed),
    ("batches without keys are answered", no_keys),
    ("options are honoured or refused", options),
    ("ranges can be registered and unregistered", registration),
    ("threads do not disturb each other", threads),
    ("a closed handle refuses", closed),
];

/// Runs the suite, each check on a store of its own from `make`.
///
/// # Errors
/// The first expectation that failed: the check's name and what was seen.
pub fn check(make: &dyn Fn() -> Arc<dyn Store>) -> Result<(), String> {
    for (name, check) in CHECKS {
        let store = make();
        check(&*store).map_err(|seen| format!("{name}: {seen}"))?;
        store
            .close()
            .map_err(|error| format!("{name}: close: {error}"))?;
    }
    Ok(())
}

fn expect<T: PartialEq + std::fmt::Debug>(what: &str, seen: T, wanted: T) -> Checked {
    if seen == wanted {
        Ok(())
    } else {
        Err(format!("{what}: {seen:?} instead of {wanted:?}"))
    }
}

fn ensure(what: &str, holds: bool) -> Checked {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

/// A digest that nobody used before, in hex.
fn fresh() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    let time = time.unwrap_or(Duration::ZERO).as_nanos() as u64;
    let process = std::process::id();
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{time:016x}{process:08x}{next:08x}")
}

fn page_keys(count: usize) -> Keys {
    let mut keys = Keys::default();
    for _ in 0..count {
        keys.push(format!("conformance/pages/{}", fresh()).as_bytes());
    }
    keys
}

/// Bytes that tell which key they belong to.
fn value(key: &[u8], size: usize) -> Vec<u8> {
    let salt = key
        .iter()
        .fold(17_u8, |sum, &byte| sum.wrapping_mul(31).wrapping_add(byte));
    (0..size)
        .map(|i| salt.wrapping_add((i % 251) as u8))
        .collect()
}

fn put(store: &dyn Store, keys: &Keys, values: &[Vec<u8>]) -> Vec<PutOutcome> {
    let mut sources: Vec<Source<'_>> = values.iter().map(|value| (&value[..]).into()).collect();
    let mut out = vec![PutOutcome::NoSpace; 3];
    let pieces = Pieces::one_each(&mut sources);
    store.put(keys, pieces, &PutOptions::default(), &mut out);
    out
}

fn get(store: &dyn Store, keys: &Keys, sizes: &[usize]) -> (Vec<GetOutcome>, Vec<Vec<u8>>) {
    let mut landings: Vec<Vec<u8>> = sizes.iter().map(|&size| vec![0xee; size]).collect();
    let mut targets: Vec<Target<'_>> = landings
        .iter_mut()
        .map(|landing| (&mut landing[..]).into())
        .collect();
    let mut out = vec![GetOutcome::Missing; 3];
    store.get(keys, Pieces::one_each(&mut targets), &mut out);
    (out, landings)
}

fn exist(store: &dyn Store, keys: &Keys) -> Vec<Presence> {
    let mut out = vec![Presence::Present; 3];
    store.exist(keys, &mut out);
    out
}

fn remove(store: &dyn Store, keys: &Keys) -> Vec<RemoveOutcome> {
    let mut out = vec![RemoveOutcome::Leased; 3];
    store.remove(keys, true, &mut out);
    out
}

/// Stores values of these sizes under fresh keys.
fn stored(store: &dyn Store, sizes: &[usize]) -> Result<(Keys, Vec<Vec<u8>>), String> {
    let keys = page_keys(sizes.len());
    let sized = keys.iter().zip(sizes);
    let values: Vec<_> = sized.map(|(key, &size)| value(key, size)).collect();
    let outcomes = put(store, &keys, &values);
    expect("put", outcomes, vec![PutOutcome::Stored; sizes.len()])?;
    Ok((keys, values))
}

fn expect_values(store: &dyn Store, keys: &Keys, values: &[Vec<u8>]) -> Checked {
    let sizes: Vec<_> = values.iter().map(Vec::len).collect();
    let (outcomes, landings) = get(store, keys, &sizes);
    let wanted: Vec<_> = sizes
        .iter()
        .map(|&size| GetOutcome::Landed(size as u64))
        .collect();
    expect("get", outcomes, wanted)?;
    ensure("the bytes are not those that were put", landings == values)
}

fn capabilities(store: &dyn Store) -> Checked {
    let can = store.capabilities();
    ensure("no name", !can.name.is_empty())?;
    ensure("no piece per key", can.pieces_per_key >= 1)?;
    ensure("no key per call", can.keys_per_call >= 1)?;
    expect("health", store.health(), Health::Up)
}

fn absent(store: &dyn Store) -> Checked {
    let keys = page_keys(2);
    expect("exist", exist(store, &keys), vec![Presence::Absent; 2])?;
    let (outcomes, landings) = get(store, &keys, &[8, 8]);
    expect("get", outcomes, vec![GetOutcome::Missing; 2])?;
    expect("targets", landings, vec![vec![0xee; 8]; 2])?;
    let outcomes = remove(store, &keys);
    expect("remove", outcomes, vec![RemoveOutcome::Missing; 2])
}

fn round_trip(store: &dyn Store) -> Checked {
    let sizes = [1, 63, 64, 65, 4096, 65_536 + 48];
    let (keys, values) = stored(store, &sizes)?;
    let present = vec![Presence::Present; sizes.len()];
    expect("exist", exist(store, &keys), present)?;
    expect_values(store, &keys, &values)?;
    expect_values(store, &keys, &values)?;
    remove(store, &keys);
    Ok(())
}

fn pieces(store: &dyn Store) -> Checked {
    if store.capabilities().pieces_per_key < 3 {
        return Ok(());
    }
    let keys = page_keys(2);
    let values = [value(keys.get(0), 100), value(keys.get(1), 7)];
    let mut sources: Vec<Source<'_>> = vec![
        values[0][..1].into(),
        values[0][1..70].into(),
        values[0][70..].into(),
        values[1][..].into(),
    ];
    let mut out = Vec::new();
    let grouped = Pieces::grouped(&mut sources, &[3, 4]);
    store.put(&keys, grouped, &PutOptions::default(), &mut out);
    expect("put", out, vec![PutOutcome::Stored; 2])?;

    let mut landings = [vec![0; 50], vec![0; 50], vec![0; 3], vec![0; 4]];
    let mut targets: Vec<Target<'_>> = landings
        .iter_mut()
        .map(|landing| (&mut landing[..]).into())
        .collect();
    let mut out = Vec::new();
    store.get(&keys, Pieces::grouped(&mut targets, &[2, 4]), &mut out);
    let wanted = vec![GetOutcome::Landed(100), GetOutcome::Landed(7)];
    expect("get", out, wanted)?;
    ensure("first object", landings[..2].concat() == values[0])?;
    ensure("second object", landings[2..].concat() == values[1])?;
    remove(store, &keys);
    Ok(())
}

fn first_bytes(store: &dyn Store) -> Checked {
    let (keys, values) = stored(store, &[300])?;
    for other in [vec![1; 300], vec![2; 10]] {
        let outcomes = put(store, &keys, &[other]);
        expect("second put", outcomes, vec![again(store)])?;
    }
    expect_values(store, &keys, &values)?;
    remove(store, &keys);
    Ok(())
}

/// What a put of a key is answered that is there already.
fn again(store: &dyn Store) -> PutOutcome {
    match store.capabilities().tells_already_there {
        true => PutOutcome::AlreadyThere,
        false => PutOutcome::Stored,
    }
}

fn wrong_size(store: &dyn Store) -> Checked {
    let (keys, values) = stored(store, &[300])?;
    for size in [0, 1, 299, 301, 4096] {
        let (outcomes, landings) = get(store, &keys, &[size]);
        expect("get", outcomes, vec![GetOutcome::WrongSize(300)])?;
        let spared = size < 300 || store.capabilities().spares_wrong_targets;
        let is_untouched = landings[0].iter().all(|&b| b == 0xee);
        ensure("a target was written", is_untouched || !spared)?;
    }
    expect_values(store, &keys, &values)?;
    remove(store, &keys);
    Ok(())
}

fn similar_keys(store: &dyn Store) -> Checked {
    let digest = fresh();
    let texts = [
        format!("conformance/a/{digest}"),
        format!("conformance/b/{digest}"),
        format!("conformance/a/{digest}{digest}"),
        format!("conformance/a//{digest}"),
        format!("conformance/a/{digest}/"),
        format!("conformance/a/{digest}0"),
        format!("conformance/a/F{}", &digest[1..]),
        format!("conformance/a/f{}", &digest[1..]),
        format!("conformance/{}/{digest}", "n".repeat(460)),
    ];
    let mut keys = Keys::default();
    let mut values = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        let mut one = Keys::default();
        one.push(text.as_bytes());
        let there = exist(store, &one);
        expect("before its put", there, vec![Presence::Absent])?;
        values.push(vec![i as u8; 40]);
        let outcomes = put(store, &one, &values[i..]);
        expect("put", outcomes, vec![PutOutcome::Stored])?;
        keys.push(text.as_bytes());
    }
    expect_values(store, &keys, &values)?;
    remove(store, &keys);
    Ok(())
}

fn twice(store: &dyn Store) -> Checked {
    let mut keys = page_keys(1);
    let key = keys.get(0).to_vec();
    keys.push(&key);
    let outcomes = put(store, &keys, &[vec![1; 64], vec![1; 64]]);
    let wanted = vec![PutOutcome::Stored, again(store)];
    expect("put", outcomes, wanted)?;
    expect_values(store, &keys, &[vec![1; 64], vec![1; 64]])?;
    remove(store, &keys);
    Ok(())
}

fn removal(store: &dyn Store) -> Checked {
    let (keys, _) = stored(store, &[100, 100])?;
    exist(store, &keys);
    let outcomes = remove(store, &keys);
    expect("remove", outcomes, vec![RemoveOutcome::Removed; 2])?;
    expect("exist", exist(store, &keys), vec![Presence::Absent; 2])?;
    let values = [vec![9; 5], vec![8; 500]];
    let outcomes = put(store, &keys, &values);
    expect("put again", outcomes, vec![PutOutcome::Stored; 2])?;
    expect_values(store, &keys, &values)?;
    remove(store, &keys);
    Ok(())
}

fn malformed(store: &dyn Store) -> Checked {
    let keys = page_keys(2);
    let (bytes, options) = ([1_u8; 8], PutOptions::default());
    for ends in [&[1][..], &[1, 2], &[1, 4], &[4, 3], &[3, 1], &[1, 2, 3]] {
        let mut sources = [Source::from(&bytes[..]); 3];
        let mut out = Vec::new();
        let grouped = Pieces::grouped(&mut sources, ends);
        store.put(&keys, grouped, &options, &mut out);
        expect("outcomes of put", out.len(), keys.len())?;
        let failed = |outcome: &PutOutcome| matches!(outcome, PutOutcome::Failed(_));
        ensure("a malformed put", out.iter().all(failed))?;

        let mut landing = [0xee_u8; 24];
        let mut targets: Vec<_> = landing.chunks_mut(8).map(Target::from).collect();
        let mut out = Vec::new();
        store.get(&keys, Pieces::grouped(&mut targets, ends), &mut out);
        expect("outcomes of get", out.len(), keys.len())?;
        let failed = |outcome: &GetOutcome| matches!(outcome, GetOutcome::Failed(_));
        ensure("a malformed get", out.iter().all(failed))?;
    }
    let outcomes = put(store, &keys, &[vec![1]]);
    expect("outcomes of a short put", outcomes.len(), keys.len())?;
    expect("exist", exist(store, &keys), vec![Presence::Absent; 2])
}

fn no_keys(store: &dyn Store) -> Checked {
    let keys = Keys::default();
    ensure("exist", exist(store, &keys).is_empty())?;
    ensure("put", put(store, &keys, &[]).is_empty())?;
    ensure("get", get(store, &keys, &[]).0.is_empty())?;
    ensure("remove", remove(store, &keys).is_empty())
}

fn options(store: &dyn Store) -> Checked {
    let can = store.capabilities();
    let groups = page_keys(1);
    let place = super::Place {
        parent: [0; 32],
        ordinal: 0,
    };
    let none = PutOptions::default();
    let asks = [
        (
            can.soft_pin_ttl,
            PutOptions {
                soft_pin_ttl: Some(Duration::from_secs(60)),
                ..none
            },
        ),
        (
            can.groups,
            PutOptions {
                groups: Some(&groups),
                ..none
            },
        ),
        (
            can.places,
            PutOptions {
                places: Some(std::slice::from_ref(&place)),
                ..none
            },
        ),
    ];
    for (able, options) in asks {
        let keys = page_keys(1);
        let bytes = [3_u8; 16];
        let mut sources = [Source::from(&bytes[..])];
        let mut out = Vec::new();
        store.put(&keys, Pieces::one_each(&mut sources), &options, &mut out);
        let stored = matches!(out[..], [PutOutcome::Stored]);
        let refused = matches!(out[..], [PutOutcome::Failed(_)]);
        ensure(
            &format!("{options:?} was answered {out:?}"),
            if able { stored } else { refused },
        )?;
        let there = exist(store, &keys) == [Presence::Present];
        expect("exist afterwards", there, able)?;
        remove(store, &keys);
    }
    Ok(())
}

fn registration(store: &dyn Store) -> Checked {
    let memory = vec![0_u8; 8192];
    let range = Range {
        start: memory.as_ptr().expose_provenance() as u64,
        size: memory.len() as u64,
    };
    for _ in 0..2 {
        store
            .register(range)
            .and_then(|()| store.unregister(range))
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn threads(store: &dyn Store) -> Checked {
    let keys = page_keys(8);
    std::thread::scope(|scope| -> Checked {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let keys = &keys;
                scope.spawn(move || -> Checked {
                    for round in 0..50 {
                        let mut one = Keys::default();
                        one.push(keys.get((worker * 3 + round) % 8));
                        let wanted = value(one.get(0), 1000);
                        put(store, &one, std::slice::from_ref(&wanted));
                        let (outcomes, landings) = get(store, &one, &[1000]);
                        if outcomes == [GetOutcome::Landed(1000)] {
                            ensure("foreign bytes", landings[0] == wanted)?;
                        } else {
                            let missing = outcomes == [GetOutcome::Missing];
                            ensure(&format!("get: {outcomes:?}"), missing)?;
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        for worker in workers {
            worker
                .join()
                .map_err(|_| "a thread panicked".to_owned())
                .flatten()?;
        }
        Ok(())
    })?;
    remove(store, &keys);
    Ok(())
}

fn closed(store: &dyn Store) -> Checked {
    let (keys, values) = stored(store, &[10])?;
    remove(store, &keys);
    for _ in 0..2 {
        store.close().map_err(|error| error.to_string())?;
    }
    let there = exist(store, &keys);
    ensure("exist", matches!(there[..], [Presence::Unknown(_)]))?;
    let outcomes = put(store, &keys, &values);
    ensure("put", matches!(outcomes[..], [PutOutcome::Failed(_)]))?;
    let (outcomes, _) = get(store, &keys, &[10]);
    ensure("get", matches!(outcomes[..], [GetOutcome::Failed(_)]))?;
    let outcomes = remove(store, &keys);
    ensure("remove", matches!(outcomes[..], [RemoveOutcome::Failed(_)]))?;
    ensure("health", store.health() != Health::Up)
}
