//! What a worker refuses, and which pages it names. Its transfers are tested through the public
//! interface, with a cache and a pool, in the tests folder.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::device::{HostDevice, HostMemory, Stream};
use crate::engine::Engine;
use crate::error::Kind;
use crate::lane::ManualClock;
use crate::layout::{Group, Layout, Part, Region};
use crate::metadata::Recycler;
use crate::store::Health;
use crate::store::embedded::Pool;

fn config(more: &str) -> Config {
    Config::from_json(format!(r#"{{"model_key": "m"{more}}}"#).as_bytes()).unwrap()
}

fn pool() -> Arc<Pool> {
    Pool::new(1 << 16, 0.05, Duration::ZERO, Arc::new(ManualClock::new())).unwrap()
}

fn worker(more: &str, rank: u32, world: u32) -> Worker {
    Worker::new(
        &config(more),
        &Engine::example(rank, world),
        pool(),
        &Mode::Threads,
    )
    .unwrap()
}

/// A cache of one group; the memory must outlive the registration.
fn cache(memory: &HostMemory, size: u64, format: &str, replicated: bool) -> CacheMemory {
    let mut layout = Layout::new(0);
    layout
        .add_group(Group {
            id: 5,
            window: 0,
            number_format: format.to_owned(),
            layout_tag: String::new(),
            layer_ids: vec![0],
        })
        .unwrap();
    let region = |base| Region {
        base,
        size,
        stride: size,
        slots: 8,
        reservation_base: 0,
    };
    let base = memory.range().start;
    layout.add_region(5, region(base)).unwrap();
    if replicated {
        layout
            .add_replicated_region(5, region(base + size * 8))
            .unwrap();
    }
    #[allow(unsafe_code, reason = "a test registers its memory")]
    // SAFETY: every test keeps the memory until its worker is gone.
    unsafe {
        CacheMemory::new(layout, Arc::new(HostDevice)).unwrap()
    }
}

fn memory() -> HostMemory {
    HostMemory::new(1 << 16).unwrap()
}

#[test]
fn c11_a_capacity_worker_transfers_nothing_and_starts_no_thread() {
    let memory = memory();
    let config = config(r#", "role": "capacity""#);
    // No thread could be started.
    let mode = Mode::FailAfter(0);
    let mut worker = Worker::new(&config, &Engine::example(0, 1), pool(), &mode).unwrap();
    let refused = worker.register_layout(cache(&memory, 64, "bfloat16", false));
    assert_eq!(refused.unwrap_err().kind(), Kind::BadState);
    let handle = worker.handle();
    assert_eq!(handle.lookup(&[0; 32]).unwrap_err().kind(), Kind::BadState);
    assert_eq!(worker.get_finished(&[1], &[]).unwrap().saved, [1]);
    worker.shutdown(Duration::ZERO).unwrap();
    worker.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn a_thread_that_cannot_start_fails_the_registration() {
    let memory = memory();
    let register = |role: &str| {
        let config = config(role);
        let mut worker =
            Worker::new(&config, &Engine::example(0, 1), pool(), &Mode::FailAfter(0)).unwrap();
        let registered = worker.register_layout(cache(&memory, 64, "bfloat16", false));
        let lookup = worker.handle().lookup(&[]).map_err(|error| error.kind());
        (registered.map_err(|error| error.kind()), lookup)
    };
    assert_eq!(register(""), (Err(Kind::NoThread), Err(Kind::BadState)));
    // A consumer saves nothing and needs none.
    assert_eq!(register(r#", "role": "consumer""#), (Ok(()), Ok(0)));
}

#[test]
fn d4_options_that_the_pool_lacks_are_refused_at_start() {
    for (more, refused) in [
        (r#", "soft_pin_ttl_ms": 5"#, true),
        (r#", "group_blocks": true"#, true),
        (r#", "group_blocks": true, "role": "consumer""#, false),
        (r#", "soft_pin_ttl_ms": 5, "role": "capacity""#, false),
    ] {
        let made = Worker::new(
            &config(more),
            &Engine::example(0, 1),
            pool(),
            &Mode::Threads,
        );
        let kind = made.map(|_| ()).map_err(|error| error.kind());
        let wanted = if refused {
            Err(Kind::PoolRefused)
        } else {
            Ok(())
        };
        assert_eq!(kind, wanted, "{more}");
    }
}

#[test]
fn keys_too_long_are_refused_before_a_layout_is_there() {
    let more = format!(r#", "namespace": "{}""#, "n".repeat(600));
    let refused = Worker::new(
        &config(&more),
        &Engine::example(0, 1),
        pool(),
        &Mode::Threads,
    );
    assert_eq!(refused.err().unwrap().kind(), Kind::ConfigInvalid);
}

#[test]
fn layouts_come_and_go_but_their_pages_stay_the_same() {
    let (one, two) = (memory(), memory());
    let mut worker = worker("", 0, 1);
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(worker.unregister_layout()), Kind::BadState);
    worker
        .register_layout(cache(&one, 64, "bfloat16", false))
        .unwrap();
    let twice = worker.register_layout(cache(&two, 64, "bfloat16", false));
    assert_eq!(kind(twice), Kind::BadState);
    worker.unregister_layout().unwrap();
    assert_eq!(
        worker.handle().lookup(&[]).unwrap_err().kind(),
        Kind::BadState
    );
    for other in [
        cache(&two, 128, "bfloat16", false),
        cache(&two, 64, "int8", false),
        cache(&two, 64, "bfloat16", true),
    ] {
        assert_eq!(kind(worker.register_layout(other)), Kind::Contradiction);
    }
    worker
        .register_layout(cache(&two, 64, "bfloat16", false))
        .unwrap();
    worker.shutdown(Duration::from_secs(5)).unwrap();
    let late = worker.register_layout(cache(&one, 64, "bfloat16", false));
    assert_eq!(kind(late), Kind::Closed);
}

#[test]
fn a_configured_number_format_must_be_that_of_the_layout() {
    let memory = memory();
    let mut worker = worker(r#", "kvbridge": {"number_format": "int8"}"#, 0, 1);
    let refused = worker.register_layout(cache(&memory, 64, "bfloat16", false));
    assert_eq!(refused.unwrap_err().kind(), Kind::ConfigInvalid);
    worker
        .register_layout(cache(&memory, 64, "int8", false))
        .unwrap();
}

#[test]
fn a_block_has_a_page_per_shard_and_one_replicated() {
    let memory = memory();
    for (rank, writes) in [(0, [true, true]), (2, [true, false])] {
        let mut worker = worker("", rank, 4);
        worker
            .register_layout(cache(&memory, 64, "bfloat16", true))
            .unwrap();
        let plan = worker.shared.plan.read().clone().unwrap();
        assert_eq!(plan.lookup.len(), 5);
        let kinds: Vec<_> = plan
            .kinds
            .iter()
            .map(|kind| (kind.part, kind.writes))
            .collect();
        assert_eq!(
            kinds,
            [(Part::Sharded, writes[0]), (Part::Replicated, writes[1])]
        );
        assert_eq!(plan.kinds[0].own, plan.lookup[rank as usize]);
        assert_eq!(plan.kinds[1].own, plan.lookup[4]);
        assert_eq!(plan.object_bytes(0), 64 + 48);
        assert_eq!(plan.written() as u32, 2 - rank / 2);
    }
}

#[test]
fn c5_binding_never_fails_and_the_next_load_says_what_was_wrong() {
    let memory = memory();
    let mut worker = worker("", 0, 1);
    let none = worker.start_load(Stream::default()).unwrap_err();
    assert_eq!(none.kind(), Kind::BadState);
    assert_eq!(
        worker.wait_for_save(Stream::default()).unwrap_err().kind(),
        Kind::BadState
    );
    let recycler = Arc::new(Recycler::default());
    let own = worker.handle().terms().fingerprint;
    // Each its own life of the request: what was handed back once is moved no more.
    let metadata = |fingerprint, group, life| {
        let mut metadata = recycler.metadata(1, fingerprint, 32);
        metadata.set_groups(std::iter::once(group));
        metadata.loads_mut().begin_run(7, life, 0, &[0; 32]);
        metadata
            .loads_mut()
            .push_block(&[1; 32], std::iter::once(0));
        metadata.saves_mut().begin_run(8, 2, 0, &[0; 32]);
        metadata
            .saves_mut()
            .push_block(&[2; 32], std::iter::once(1));
        Arc::new(metadata)
    };
    // Pages to load, but no layout.
    worker.bind(metadata(own, 5, 1), Fence::None);
    assert_eq!(
        worker.start_load(Stream::default()).unwrap_err().kind(),
        Kind::BadState
    );
    assert_eq!(worker.take_failed_loads(), [7]);
    worker
        .register_layout(cache(&memory, 64, "bfloat16", false))
        .unwrap();
    for wrong in [metadata([9; 16], 5, 900), metadata(own, 6, 2)] {
        worker.bind(wrong, Fence::None);
        let error = worker.start_load(Stream::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Contradiction);
        // Said once; the request is handed back and nothing is saved.
        worker.start_load(Stream::default()).unwrap();
        assert_eq!(worker.take_failed_loads(), [7]);
        worker.wait_for_save(Stream::default()).unwrap();
        assert_eq!(worker.handle().gauges().saves_in_flight, 0);
        assert_eq!(worker.handle().stats().store_calls, 0);
    }
    // Announcements of loads that nobody began are kept, and harm nothing.
    assert!(worker.get_finished(&[], &[3]).unwrap().loaded.is_empty());
}

#[test]
fn a_worker_closes_its_own_handle_and_no_other() {
    let pool = pool();
    let make = || {
        Worker::new(
            &config(""),
            &Engine::example(0, 1),
            pool.handle().unwrap(),
            &Mode::Threads,
        )
        .unwrap()
    };
    let (mut one, two) = (make(), make());
    one.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(
        one.shared.store.health(),
        Health::Down(crate::store::code::CLOSED)
    );
    assert_eq!(two.shared.store.health(), Health::Up);
    assert!(pool.stats().is_ok());
}

#[test]
fn one_scheduler_at_a_time() {
    let worker = worker("", 0, 1);
    let link = worker.handle().link().unwrap();
    assert_eq!(worker.handle().link().err().unwrap().kind(), Kind::BadState);
    drop(link);
    assert!(worker.handle().link().is_ok());
}
