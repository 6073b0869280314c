//! What is refused when a layout is registered, and memory that the pool does not give back.

use std::sync::Arc;
use std::time::Duration;

use kvbridge::error::{Error, Kind};
use kvbridge::lane::{Mode, Stepper};
use kvbridge::store::Store;
use kvbridge::worker::Worker;

use crate::rig::{Cache, Rig, Setup, T, pool, prompt, two_groups};
use crate::strict::Strict;
use crate::{direct, rig_on};

/// Registers a layout on a store that is closed with its worker.
fn register(setup: &Setup, store: Arc<dyn Store>) -> Result<(Worker, Cache), Error> {
    let mode = Mode::Stepped(Stepper::new());
    let mut worker = Worker::new(&setup.config(), &setup.engine(0), store, &mode)?;
    let cache = Cache::new(setup);
    worker.register_layout(cache.register())?;
    Ok((worker, cache))
}

fn refusal(setup: &Setup, store: &Arc<Strict>) -> Error {
    let Err(error) = register(setup, Arc::clone(store) as _) else {
        panic!("accepted");
    };
    assert_eq!(store.registered(), [], "nothing stays registered");
    error
}

fn one_piece() -> Arc<Strict> {
    Strict::with_pieces(pool(1 << 20), 1)
}

#[test]
fn c9_pages_of_several_pieces_need_a_store_that_takes_them() {
    let error = refusal(&direct(), &one_piece());
    assert_eq!(error.kind(), Kind::PoolRefused);
    for part in [
        "stage_through_host = false",
        "layer group 0 have up to 2 pieces, the store \"embedded\" takes 1",
        "with stage_through_host = true",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
    // One region each, but pages reach over ends of mappings; the other group's do not.
    let mut setup = Setup {
        groups: two_groups(),
        mapping: 100,
        ..direct()
    };
    setup.groups[1].sharded = vec![25];
    let error = refusal(&setup, &one_piece());
    let part = "layer group 3 have up to 2 pieces, 1 of them since pages reach over ends";
    assert!(error.message().contains(part), "{error}");
    // Ends of mappings that are ends of pages: 64, 40 and 25 bytes.
    setup.mapping = 1600;
    register(&setup, one_piece() as _).unwrap();
}

#[test]
fn c9_a_store_of_one_piece_serves_pages_of_one() {
    let mut setup = direct();
    setup.groups[0].sharded = vec![128];
    let (mut worker, _cache) = register(&setup, one_piece() as _).unwrap();
    worker.shutdown(Duration::ZERO).unwrap();
    let pool = pool(1 << 22);
    let strict = Strict::with_pieces(pool.handle().unwrap(), 1);
    let faulty = kvbridge::store::faulty::Faulty::new(pool.handle().unwrap(), Vec::new());
    let mut rig = Rig::with(setup, pool, faulty, strict);
    rig.publish(1, &prompt(1, 5 * T));
    assert_eq!(rig.stored(), 5);
}

#[test]
fn c9_refused_ranges_are_named_with_what_speaks_against_them() {
    let setup = Setup {
        mapping: 4096,
        ..direct()
    };
    // 24 KiB and 8 KiB of regions are 8 ranges.
    let store = Strict::new(pool(1 << 20));
    store.refuse(&[1, 6]);
    let error = refusal(&setup, &store);
    assert_eq!(error.kind(), Kind::PoolFailed);
    let text = error.message();
    assert!(
        text.contains("refuses 2 of the cache's 8 ranges: 4096 bytes at 0x"),
        "{text}"
    );
    assert_eq!(text.matches("no more regions").count(), 2);
    assert!(
        text.contains("locked memory: 32768 bytes of the cache, "),
        "{text}"
    );
    store.refuse(&(0..64).collect::<Vec<_>>());
    let setup = Setup {
        mapping: 1024,
        ..direct()
    };
    let text = refusal(&setup, &store).message().to_owned();
    assert_eq!(text.matches("no more regions").count(), 8);
    assert!(text.contains("of the cache's 32 ranges"), "{text}");
    assert!(text.contains(" and 24 more; "), "{text}");
}

/// What was registered before the refusal and is not given back must be kept, and the error's kind is what says so.
#[test]
fn c9_ranges_that_stay_registered_after_a_refusal_are_busy() {
    let setup = Setup {
        mapping: 4096,
        ..direct()
    };
    let store = Strict::new(pool(1 << 20));
    store.refuse(&[3]);
    store.keep(1);
    let Err(error) = register(&setup, Arc::clone(&store) as _) else {
        panic!("accepted");
    };
    assert_eq!(store.registered().len(), 1);
    assert_eq!(error.kind(), Kind::Busy, "{error}");
    for part in [
        "no more regions",
        "does not give back 1 ranges",
        "still in use",
    ] {
        assert!(error.message().contains(part), "{error}");
    }
}

#[test]
fn c10_memory_that_the_pool_does_not_give_back_is_busy_and_tried_again() {
    let setup = Setup {
        mapping: 4096,
        ..direct()
    };
    let tokens = prompt(1, 3 * T);
    let (mut rig, strict) = rig_on(setup, &pool(1 << 22), false);
    rig.publish(1, &tokens);
    strict.keep(1);
    let error = rig.ranks[0].worker.unregister_layout().unwrap_err();
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.message().contains("still in use"), "{error}");
    assert_eq!(strict.registered().len(), 1);
    let memory = rig.ranks[0].cache.register();
    let error = rig.ranks[0].worker.register_layout(memory).unwrap_err();
    assert_eq!(error.kind(), Kind::BadState);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(strict.registered(), []);
    let again = rig.ranks[0].cache.register();
    rig.ranks[0].worker.register_layout(again).unwrap();
    rig.publish(2, &prompt(2, 3 * T));
    assert_eq!(rig.stored(), 6);
    rig.ranks[0].worker.shutdown(Duration::ZERO).unwrap();
    assert_eq!(strict.registered(), []);
}
