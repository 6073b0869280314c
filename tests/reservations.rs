//! The other protocol for offers: reserve, release, accept.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;

use kvbridge::error::Kind;
use kvbridge::keys::Tokens;
use kvbridge::metadata::Metadata;
use kvbridge::scheduler::{Accepted, FinishReason, GroupPages, Offer, Step};
use rig::{Rig, Setup, T, pool, prompt, request};

const BLOCKS: usize = 6;

/// A rig whose pool holds six blocks of the prompt, which has one token more.
fn stocked(async_load: bool) -> (Rig, Vec<i32>) {
    let tokens = prompt(1, BLOCKS * T + 1);
    let setup = Setup {
        async_load,
        ..Setup::default()
    };
    let mut writer = Rig::on(setup.clone(), pool(1 << 22));
    writer.publish(1, &tokens);
    let rig = Rig::on(setup, Arc::clone(&writer.pool));
    (rig, tokens)
}

fn reserve(rig: &mut Rig, tokens: &[i32], local: usize, reservation: u64) -> usize {
    let request = request(7, tokens);
    let offer = rig.scheduler.reserve(&request, local as u64, reservation);
    let Offer { tokens, is_async } = offer.unwrap();
    assert_eq!(is_async, rig.setup.async_load && tokens > 0);
    tokens as usize
}

/// Accepts on fresh pages, which are the answer, in a pass without steps.
fn accept(rig: &mut Rig, reservation: u64, id: u64) -> (Vec<i32>, Arc<Metadata>) {
    let pages = rig.take_pages(BLOCKS + 1);
    let lists = [GroupPages {
        group: 0,
        first_block: 0,
        indices: &pages,
        replace: false,
    }];
    let accepted = [Accepted {
        reservation_id: reservation,
        request_id: id,
        pages: &lists,
    }];
    let built = rig.scheduler.build_accepting(&[], &accepted).unwrap();
    (pages, built)
}

/// The first step of a request, whose prompt but for one token is loaded.
fn first_step(id: u64, tokens: &[i32]) -> Step<'_> {
    Step {
        request_id: id,
        new_tokens: Tokens::I32(tokens),
        pages: &[],
        computed_position: 0,
        scheduled_tokens: 1,
    }
}

/// First block and end of each parked run.
fn parked(metadata: &Metadata) -> Vec<(u32, u32)> {
    let runs = metadata.parked().runs().iter();
    runs.map(|run| (run.first_block, run.first_block + run.blocks))
        .collect()
}

#[test]
fn what_is_accepted_travels_once_and_is_reported_by_reservation() {
    let (mut rig, tokens) = stocked(true);
    assert_eq!(reserve(&mut rig, &tokens, 0, 900), BLOCKS * T);
    let (pages, built) = accept(&mut rig, 900, 7);
    assert_eq!(parked(&built), [(0, 6)]);
    assert!(parked(&accept(&mut rig, 900, 7).1).is_empty());
    rig.bind(&built);
    rig.drain();
    let worker = &mut rig.ranks[0].worker;
    assert!(worker.get_finished(&[], &[7]).unwrap().loaded.is_empty());
    assert_eq!(worker.get_finished(&[], &[900]).unwrap().loaded, [900]);
    assert!(worker.get_finished(&[], &[]).unwrap().loaded.is_empty());
    let step = Step {
        request_id: 7,
        new_tokens: Tokens::I32(&tokens),
        pages: &[],
        computed_position: (BLOCKS * T) as u64,
        scheduled_tokens: 1,
    };
    rig.scheduler.build(&[step]).unwrap();
    let kind = rig.ranks[0].cache.parts()[0];
    for (block, &page) in pages[..BLOCKS].iter().enumerate() {
        let found = rig.ranks[0].cache.read(kind, page);
        assert!(found == rig::content(&tokens, block, kind, 0, found.len()));
    }
}

#[test]
fn parts_are_released_once_from_both_ends() {
    let (mut rig, tokens) = stocked(true);
    reserve(&mut rig, &tokens, 0, 900);
    let mut release = |from: usize, to: usize| {
        rig.scheduler
            .release_reservation(900, (from * T) as u64, (to * T) as u64)
    };
    release(0, 1).unwrap();
    release(0, 1).unwrap();
    release(5, 6).unwrap();
    release(4, 6).unwrap();
    for (from, to) in [(2, 3), (3, 1)] {
        let error = release(from, to).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.to_string().contains("reservation 900"), "{error}");
    }
    let part = rig.scheduler.release_reservation(900, 0, 5).unwrap_err();
    assert_eq!(part.kind(), Kind::InvalidArgument);
    // Asked again it is what is still held, behind a local match that has grown.
    assert_eq!(reserve(&mut rig, &tokens, 0, 900), 0);
    assert_eq!(reserve(&mut rig, &tokens, T, 900), 3 * T);
    assert_eq!(reserve(&mut rig, &tokens, 2 * T, 900), 2 * T);
    let (_, built) = accept(&mut rig, 900, 7);
    assert_eq!(parked(&built), [(1, 4)]);
    // It travelled: nothing is held any more.
    rig.scheduler
        .release_reservation(900, 0, 6 * T as u64)
        .unwrap();
}

#[test]
fn a_reservation_that_was_released_whole_is_reported_all_the_same() {
    let (mut rig, tokens) = stocked(true);
    reserve(&mut rig, &tokens, 0, 900);
    rig.scheduler
        .release_reservation(900, 0, 6 * T as u64)
        .unwrap();
    let (_, built) = accept(&mut rig, 900, 7);
    assert_eq!(built.parked().blocks(), 0);
    rig.bind(&built);
    rig.drain();
    let worker = &mut rig.ranks[0].worker;
    assert_eq!(worker.get_finished(&[], &[900]).unwrap().loaded, [900]);
}

#[test]
fn unknown_duplicate_and_stale_ids_change_nothing() {
    let (mut rig, tokens) = stocked(true);
    assert!(parked(&accept(&mut rig, 900, 7).1).is_empty());
    rig.scheduler.release_reservation(900, 0, T as u64).unwrap();
    reserve(&mut rig, &tokens, 0, 900);
    // Another id for the same request makes the first one stale.
    reserve(&mut rig, &tokens, 0, 901);
    assert!(parked(&accept(&mut rig, 900, 7).1).is_empty());
    // Accepted for another request.
    assert!(parked(&accept(&mut rig, 901, 8).1).is_empty());
    // Held by another request.
    let error = rig
        .scheduler
        .reserve(&request(8, &tokens), 0, 901)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    assert_eq!(parked(&accept(&mut rig, 901, 7).1), [(0, 6)]);
    rig.scheduler.reset(7).unwrap();
    reserve(&mut rig, &tokens, 0, 902);
    rig.scheduler.finished(7, FinishReason::Cancelled);
    assert!(parked(&accept(&mut rig, 902, 7).1).is_empty());
}

#[test]
fn a_pass_that_is_refused_accepts_nothing() {
    let (mut rig, tokens) = stocked(true);
    reserve(&mut rig, &tokens, 0, 900);
    let pages = rig.take_pages(BLOCKS);
    let lists = [GroupPages {
        group: 0,
        first_block: 0,
        indices: &pages,
        replace: false,
    }];
    let accepted = Accepted {
        reservation_id: 900,
        request_id: 7,
        pages: &lists,
    };
    let few = [GroupPages {
        indices: &pages[..2],
        ..lists[0]
    }];
    let missing = Accepted {
        pages: &few,
        ..accepted
    };
    let error = rig.scheduler.build_accepting(&[], &[missing]).unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    // The step of a request that is parked by the same pass is too early.
    let step = first_step(7, &tokens);
    let error = rig
        .scheduler
        .build_accepting(&[step], &[accepted])
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Contradiction);
    assert!(parked(&rig.scheduler.build(&[]).unwrap()).is_empty());
    let built = rig.scheduler.build_accepting(&[], &[accepted]).unwrap();
    assert_eq!(parked(&built), [(0, 6)]);
}

#[test]
fn synchronous_reservations_load_with_their_step() {
    let (mut rig, tokens) = stocked(false);
    assert_eq!(reserve(&mut rig, &tokens, 0, 900), BLOCKS * T);
    let pages = rig.take_pages(BLOCKS + 1);
    let lists = [GroupPages {
        group: 0,
        first_block: 0,
        indices: &pages,
        replace: false,
    }];
    let accepted = [Accepted {
        reservation_id: 900,
        request_id: 7,
        pages: &lists,
    }];
    let step = first_step(7, &tokens);
    let built = rig.scheduler.build_accepting(&[step], &accepted).unwrap();
    assert_eq!((built.loads().blocks(), built.parked().blocks()), (6, 0));
    rig.bind(&built);
    rig.start_load().unwrap();
    let kind = rig.ranks[0].cache.parts()[0];
    let found = rig.ranks[0].cache.read(kind, pages[5]);
    assert!(found == rig::content(&tokens, 5, kind, 0, found.len()));

    // Once the request ran its reservation holds nothing, and another may have the number.
    let again = rig.scheduler.reserve(&request(8, &tokens), 0, 900).unwrap();
    assert_eq!(again.tokens as usize, BLOCKS * T);
    let error = rig
        .scheduler
        .reserve(&request(9, &tokens), 0, 900)
        .unwrap_err();
    assert_eq!(error.kind(), Kind::InvalidArgument);
    // Of the first one's end the second one's reservation notices nothing.
    rig.scheduler.finished(7, FinishReason::Ended);
    let (_, built) = accept(&mut rig, 900, 8);
    let step = first_step(8, &tokens);
    assert_eq!(
        built.loads().blocks(),
        0,
        "it travels with the request's step"
    );
    assert_eq!(rig.scheduler.build(&[step]).unwrap().loads().blocks(), 6);
}

#[test]
fn a_reservation_may_have_the_number_of_another_request() {
    let (mut rig, tokens) = stocked(true);
    reserve(&mut rig, &tokens, 0, 300);
    let (_, built) = accept(&mut rig, 300, 7);
    rig.bind(&built);
    let worker = &mut rig.ranks[0].worker;
    assert!(worker.get_finished(&[], &[300]).unwrap().loaded.is_empty());
    rig.scheduler.finished(300, FinishReason::Ended);
    assert!(worker.get_finished(&[300], &[]).unwrap().loaded.is_empty());
    rig.drain();
    let worker = &mut rig.ranks[0].worker;
    assert_eq!(worker.get_finished(&[], &[]).unwrap().loaded, [300]);
}
