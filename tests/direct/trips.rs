//! Pages that arrive, and those that do not.

use kvbridge::scheduler::FinishReason;
use kvbridge::store::code;
use kvbridge::store::faulty::{Action, Call, Rule, Which};

use crate::rig::{Rig, Setup, T, pool, prompt, rule, two_groups};
use crate::{OWN, are_in_the_cache, asynchronous, direct, rig_on, staged, stocked};

/// Loads a request and ends its pass.
fn load(rig: &mut Rig, id: u64, tokens: &[i32]) {
    assert_eq!(rig.admit(id, tokens) as usize, tokens.len() / T * T);
    if rig.setup.async_load {
        rig.pass(&[]);
        rig.drain();
        let polled = rig.poll_all(&[id]).unwrap();
        assert_eq!((polled.loaded, polled.failed), (vec![id], vec![]));
    }
    rig.pass(&[(id, tokens.len() % T)]);
    rig.check(id);
    rig.drain();
}

#[test]
fn c9_pages_travel_between_the_cache_and_the_pool() {
    let tokens = prompt(1, 10 * T + 3);
    for can_be_late in [false, true] {
        for setup in [direct(), asynchronous()] {
            let setup = Setup {
                groups: two_groups(),
                ..setup
            };
            let (mut rig, strict) = rig_on(setup, &pool(1 << 22), can_be_late);
            rig.publish(1, &tokens);
            assert_eq!(rig.stored(), 30);
            let saved = rig.ranks[0].lent.take_addresses();
            assert!(are_in_the_cache(&rig, &saved));
            load(&mut rig, 2, &tokens);
            let loaded = rig.ranks[0].lent.take_addresses();
            assert!(are_in_the_cache(&rig, &loaded));
            assert_eq!(rig.stats().loaded_pages, 30);
            assert_eq!(rig.stats().loaded_bytes, 10 * (64 + 40 + 40));
            rig.finish(2, FinishReason::Ended);
            rig.poll();
            assert!(rig.ending.is_empty());
            rig.ranks[0].worker.unregister_layout().unwrap();
            assert_eq!(strict.registered(), []);
        }
    }
}

#[test]
fn c9_pages_of_both_ways_are_the_same() {
    let tokens = prompt(1, 4 * T + 1);
    for (writer, reader) in [(direct(), staged()), (staged(), direct())] {
        let pool = stocked(writer, &tokens);
        load(&mut Rig::on(reader, pool), 2, &tokens);
    }
}

#[test]
fn c9_pieces_end_where_mappings_do() {
    let tokens = prompt(1, 6 * T + 1);
    for mapping in [50, 100, 200] {
        let setup = Setup {
            mapping,
            ..direct()
        };
        let (mut rig, strict) = rig_on(setup, &pool(1 << 22), true);
        let ranges = strict.registered();
        assert!(ranges.iter().all(|range| range.size <= mapping));
        let bytes: u64 = ranges.iter().map(|range| range.size).sum();
        assert_eq!(bytes, 128 * 256);
        rig.publish(1, &tokens);
        assert_eq!(rig.stored(), 6);
        load(&mut rig, 2, &tokens);
        // The pool that was asked refuses pieces that reach over an end.
        let most = strict.pieces().iter().map(Vec::len).max().unwrap();
        assert!(
            most > 2,
            "{most} pieces of 2 regions, mappings of {mapping}"
        );
    }
}

#[test]
fn c9_calls_have_so_many_pieces_as_a_pool_over_a_network_can_take() {
    let tokens = prompt(1, 16 * T + 1);
    // Pages of 128 pieces each.
    let setup = Setup {
        batch: 64,
        mapping: 1,
        ..direct()
    };
    for (can_be_late, most) in [(true, 8), (false, 16)] {
        let (mut rig, _) = rig_on(setup.clone(), &pool(1 << 22), can_be_late);
        rig.publish(1, &tokens);
        assert_eq!(rig.faulty.count(Call::Put).calls, 16 / most);
    }
}

#[test]
fn c9_a_lost_page_hands_its_request_back() {
    let tokens = prompt(1, 6 * T + 1);
    for can_be_late in [false, true] {
        for action in [
            Action::Lose,
            Action::Fail(code::HOST_FAILED),
            Action::Truncate,
            Action::WrongLength(-1),
        ] {
            let pool = stocked(direct(), &tokens);
            let (mut rig, _) = rig_on(direct(), &pool, can_be_late);
            rig.admit(7, &tokens);
            // One of the second batch.
            let wrong = Rule {
                at: 1..2,
                ..rule(Call::Get, Which::All, action.clone())
            };
            rig.script(vec![wrong]);
            let metadata = rig.build(&[(7, 1)]);
            rig.bind(&metadata);
            rig.start_load().unwrap();
            assert_eq!(rig.ranks[0].worker.take_failed_loads(), [7], "{action:?}");
            assert_eq!(rig.stats().loaded_pages, 4);
            rig.reset(7);
            // The next offer ends before what was lost.
            assert_eq!(rig.admit(7, &tokens) as usize, 4 * T);
            rig.pass(&[(7, 2 * T + 1)]);
            rig.check(7);
            rig.drain();
            load(&mut rig, 8, &tokens);
        }
    }
}

#[test]
fn c9_nothing_is_written_for_a_request_that_is_gone() {
    let tokens = prompt(1, 4 * T + 1);
    let pool = stocked(direct(), &tokens);
    let (mut rig, _) = rig_on(asynchronous(), &pool, true);
    rig.admit(7, &tokens);
    rig.pass(&[]);
    let pages = rig.live[&7].pages[0].clone();
    rig.reset(7);
    rig.drain();
    assert_eq!(rig.asked(Call::Get), 0);
    for page in pages {
        assert_eq!(rig.ranks[0].cache.read(OWN, page), [0xBB; 128]);
    }
}

#[test]
fn c9_what_was_given_back_is_not_read() {
    let tokens = prompt(1, 4 * T);
    let (mut rig, _) = rig_on(direct(), &pool(1 << 22), true);
    rig.admit(7, &tokens);
    rig.pass(&[(7, 4 * T)]);
    rig.reset(7);
    rig.drain();
    assert_eq!((rig.stored(), rig.asked(Call::Put)), (0, 0));
    assert_eq!(rig.stats().dropped_save_pages, 4);
}

/// Two requests of one pass that are the same prompt load the same keys into different pages.
#[test]
fn c9_keys_that_come_twice() {
    let tokens = prompt(1, 3 * T + 1);
    let pool = stocked(direct(), &tokens);
    let (mut rig, _) = rig_on(direct(), &pool, true);
    rig.admit(7, &tokens);
    rig.admit(8, &tokens);
    rig.pass(&[(7, 1), (8, 1)]);
    rig.check(7);
    rig.check(8);
    assert_eq!(rig.stats().loaded_pages, 6);
}
