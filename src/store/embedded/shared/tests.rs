//! What a pool counts, evicts and remembers, step by step.

use super::*;
use crate::lane::ManualClock;

const SIZE: u64 = 1024;

/// A pool of two objects of `SIZE`, without leases.
fn pool() -> Shared {
    Shared::new(2 * SIZE, 0.5, Duration::ZERO, Arc::new(ManualClock::new())).unwrap()
}

fn keys(key: &[u8]) -> Keys {
    let mut keys = Keys::default();
    keys.push(key);
    keys
}

fn put(pool: &Shared, key: &[u8]) -> PutOutcome {
    let (bytes, mut out) = ([key[0]; SIZE as usize], Vec::new());
    let mut sources = [Source::from(&bytes[..])];
    pool.put(&keys(key), Pieces::one_each(&mut sources), &mut out);
    out[0]
}

fn get(pool: &Shared, key: &[u8]) -> GetOutcome {
    let (mut bytes, mut out) = ([0; SIZE as usize], Vec::new());
    let mut targets = [Target::from(&mut bytes[..])];
    pool.get(&keys(key), Pieces::one_each(&mut targets), &mut out);
    if let GetOutcome::Landed(_) = out[0] {
        assert!(bytes.iter().all(|byte| *byte == key[0]));
    }
    out[0]
}

fn remove(pool: &Shared, key: &[u8], force: bool) -> RemoveOutcome {
    let mut out = Vec::new();
    pool.remove(&keys(key), force, &mut out);
    out[0]
}

#[test]
fn a_key_that_is_being_written_is_taken_but_not_there() {
    let pool = pool();
    let claimed = pool.state.lock().claim(b"a", Ok(SIZE), &pool, 0);
    let (entry, mut room) = claimed.unwrap();
    assert_eq!(put(&pool, b"a"), PutOutcome::AlreadyThere);
    let mut there = Vec::new();
    pool.exist(&keys(b"a"), &mut there);
    assert_eq!(there, [Presence::Absent]);
    assert_eq!(get(&pool, b"a"), GetOutcome::Missing);
    assert_eq!(remove(&pool, b"a", true), RemoveOutcome::Missing);
    assert_eq!(pool.stats().objects, 0);
    // Its bytes are not evicted for others.
    assert_eq!(put(&pool, b"b"), PutOutcome::Stored);
    assert_eq!(put(&pool, b"c"), PutOutcome::Stored);
    assert_eq!(get(&pool, b"b"), GetOutcome::Missing);

    assert!(
        pool.arena
            .fill(&mut room, &[[b'a'; SIZE as usize][..].into()])
    );
    pool.state.lock().index.publish(entry, room.seal(), 1000);
    assert_eq!(get(&pool, b"a"), GetOutcome::Landed(SIZE));
}

#[test]
fn an_object_that_is_read_is_neither_evicted_nor_freed() {
    let pool = pool();
    assert_eq!(put(&pool, b"a"), PutOutcome::Stored);
    assert_eq!(put(&pool, b"b"), PutOutcome::Stored);
    let (a, reading_a, _) = pool.state.lock().pin(b"a", Ok(SIZE)).unwrap();
    let (b, reading_b, _) = pool.state.lock().pin(b"b", Ok(SIZE)).unwrap();
    assert_eq!(put(&pool, b"c"), PutOutcome::NoSpace);

    // Removed while it is read: the key is free, the bytes are not.
    assert_eq!(remove(&pool, b"a", false), RemoveOutcome::Removed);
    assert_eq!(get(&pool, b"a"), GetOutcome::Missing);
    assert_eq!(put(&pool, b"a"), PutOutcome::NoSpace);
    assert_eq!(pool.stats().bytes_used, 2 * SIZE);
    let mut bytes = [0; SIZE as usize];
    assert!(
        pool.arena
            .copy_out(&reading_a, &mut [(&mut bytes[..]).into()])
    );
    assert!(bytes.iter().all(|byte| *byte == b'a'));

    let end = |entry, reading| {
        let mut guard = pool.state.lock();
        let state = &mut *guard;
        state.index.end_reading(entry, reading, &mut state.books);
        state.evictor.readings_ended();
    };
    end(a, reading_a);
    assert_eq!(pool.stats().bytes_used, SIZE);
    assert_eq!(put(&pool, b"c"), PutOutcome::Stored);
    end(b, reading_b);
    assert_eq!(put(&pool, b"d"), PutOutcome::Stored);
    assert_eq!(get(&pool, b"b"), GetOutcome::Missing);
}

#[test]
fn the_end_of_a_reading_makes_room_for_a_put_that_was_refused() {
    let pool = pool();
    assert_eq!(put(&pool, b"a"), PutOutcome::Stored);
    assert_eq!(put(&pool, b"b"), PutOutcome::Stored);
    let pin = |key| pool.state.lock().pin(key, Ok(SIZE)).unwrap();
    let ((a, reading_a, _), _b) = (pin(b"a"), pin(b"b"));
    assert_eq!(put(&pool, b"c"), PutOutcome::NoSpace);
    let mut guard = pool.state.lock();
    let state = &mut *guard;
    state.index.end_reading(a, reading_a, &mut state.books);
    state.evictor.readings_ended();
    drop(guard);
    assert_eq!(put(&pool, b"c"), PutOutcome::Stored);
    assert_eq!(get(&pool, b"a"), GetOutcome::Missing);
}
