//! Why a prompt gets the offer that it gets, for every reason; and always the offer that a match gets.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod rig;

use std::sync::Arc;

use kvbridge::engine::{Drafter, Serving};
use kvbridge::error::Kind;
use kvbridge::keys::{Scope, Tokens};
use kvbridge::store::faulty::{Action, Call, Which};
use kvbridge::worker::{Explanation, Missing, Other, Question, Why};
use rig::{GroupShape, Rig, Setup, T, pool, prompt, rule, two_groups};

fn question(tokens: &[i32], local: usize) -> Question<'_> {
    Question {
        prompt: Tokens::I32(tokens),
        scope: Scope::default(),
        has_media: false,
        context_only: true,
        local_tokens: local as u64,
    }
}

/// Explains, and holds the answer against what a match says.
fn explain(rig: &mut Rig, tokens: &[i32], local: usize) -> Explanation {
    let handle = rig.ranks[0].worker.handle();
    let before = rig.stats();
    let answer = handle.explain(&question(tokens, local)).unwrap();
    assert_eq!(rig.stats(), before);
    assert_eq!(rig.offer(99, tokens, local), answer.offered_tokens);
    rig.scheduler.reset(99).unwrap();
    answer
}

#[test]
fn what_is_stored_ends_with_the_last_token_or_not_at_all() {
    let tokens = prompt(1, 4 * T);
    let mut rig = Rig::new(Setup::default());
    rig.publish(1, &tokens);
    let whole = explain(&mut rig, &tokens, 0);
    assert_eq!(
        (whole.offered_tokens as usize, whole.why),
        (3 * T, Why::LastToken)
    );
    assert_eq!(whole.stored, [true; 4]);
    let longer = [&tokens[..], &[1]].concat();
    let more = explain(&mut rig, &longer, T);
    assert_eq!(
        (more.offered_tokens as usize, more.why),
        (3 * T, Why::Complete)
    );
    assert!(
        more.text().contains("blocks 0 … 3: stored"),
        "{}",
        more.text()
    );
    let odd = explain(&mut rig, &longer, T + 1);
    assert_eq!((odd.offered_tokens, odd.why), (0, Why::Unaligned));
    let short = explain(&mut rig, &tokens[..T - 1], 0);
    assert_eq!((short.stored.len(), short.why), (0, Why::Complete));
}

#[test]
fn an_absent_page_is_named_by_group_and_rank() {
    let tokens = prompt(1, 5 * T + 1);
    let setup = Setup {
        world: 2,
        groups: two_groups(),
        ..Setup::default()
    };
    let mut rig = Rig::new(setup);
    rig.publish(1, &tokens);
    let kinds = rig.ranks[0].cache.parts();
    // The second group's shard of rank 1.
    rig.remove(&tokens, 3, kinds[2], 1);
    let answer = explain(&mut rig, &tokens, 0);
    let missing = Missing {
        block: 3,
        group: 9,
        rank: Some(1),
    };
    assert_eq!(
        (answer.offered_tokens as usize, answer.why),
        (3 * T, Why::Absent(missing))
    );
    assert_eq!(answer.stored, [true, true, true, false, true]);
    let text = answer.text();
    assert!(
        text.contains("block 3 in layer group 9, rank 1 of 2 is absent"),
        "{text}"
    );
    assert!(text.contains("block 4: stored"), "{text}");
    // Behind the local match it does not matter.
    let behind = explain(&mut rig, &tokens, 4 * T);
    assert_eq!(
        (behind.offered_tokens as usize, behind.why),
        (T, Why::Complete)
    );
    // The replicated page of the first group.
    rig.remove(&tokens, 1, kinds[1], 0);
    let shared = explain(&mut rig, &tokens, 0);
    let missing = Missing {
        block: 1,
        group: 3,
        rank: None,
    };
    assert_eq!(shared.why, Why::Absent(missing));
}

#[test]
fn a_pool_that_does_not_answer_is_told_from_one_that_has_nothing() {
    let tokens = prompt(1, 4 * T + 1);
    let mut rig = Rig::new(Setup::default());
    rig.publish(1, &tokens);
    rig.script(vec![rule(Call::Exist, Which::Index(2), Action::Fail(-900))]);
    let answer = explain(&mut rig, &tokens, 0);
    assert!(matches!(
        answer.why,
        Why::NoAnswer(Missing { block: 2, .. }, -900)
    ));
    rig.script(vec![rule(Call::Exist, Which::All, Action::WrongLength(-1))]);
    let handle = rig.ranks[0].worker.handle();
    let short = handle.explain(&question(&tokens, 0)).unwrap();
    assert!(matches!(
        short.why,
        Why::NoAnswer(Missing { block: 3, .. }, 0)
    ));
}

#[test]
fn pages_of_another_kind_of_server_are_recognised() {
    let tokens = prompt(1, 2 * T + 1);
    let one_group = |bytes| {
        vec![GroupShape {
            id: 0,
            sharded: vec![bytes],
            replicated: Vec::new(),
        }]
    };
    let whole = Setup {
        groups: one_group(256),
        ..Setup::default()
    };
    let halves = Setup {
        world: 2,
        groups: one_group(128),
        ..Setup::default()
    };
    let mut writer = Rig::on(whole.clone(), pool(1 << 20));
    writer.publish(1, &tokens);
    let mut reader = Rig::on(halves, Arc::clone(&writer.pool));
    let answer = explain(&mut reader, &tokens, 0);
    let missing = Missing {
        block: 0,
        group: 0,
        rank: Some(0),
    };
    assert_eq!(answer.why, Why::OtherGeometry(missing, Other::World(1)));
    assert!(
        answer.text().contains("servers of 1 ranks"),
        "{}",
        answer.text()
    );
    let raw = Setup {
        kvbridge: r#""page_format": "raw","#,
        ..whole
    };
    let mut reader = Rig::on(raw, Arc::clone(&writer.pool));
    let answer = explain(&mut reader, &tokens, 0);
    assert_eq!(answer.why, Why::OtherGeometry(missing, Other::PageFormat));
}

#[test]
fn requests_and_workers_that_take_no_part() {
    let tokens = prompt(1, 2 * T + 1);
    let mut rig = Rig::new(Setup::default());
    rig.publish(1, &tokens);
    let handle = rig.ranks[0].worker.handle();
    let why = |question: &Question<'_>| handle.explain(question).unwrap().why;
    let media = Question {
        has_media: true,
        ..question(&tokens, 0)
    };
    assert_eq!(why(&media), Why::Media);
    let wrong = handle.explain(&question(&tokens, 2 * T + 2)).unwrap_err();
    assert_eq!(wrong.kind(), Kind::InvalidArgument);
    rig.ranks[0].worker.unregister_layout().unwrap();
    assert_eq!(why(&question(&tokens, 0)), Why::NoLayout);
    rig.ranks[0]
        .worker
        .shutdown(std::time::Duration::ZERO)
        .unwrap();
    let closed = handle.explain(&question(&tokens, 0)).unwrap_err();
    assert_eq!(closed.kind(), Kind::Closed);

    let producer = Setup {
        role: "producer",
        ..Setup::default()
    };
    let answer = explain(&mut Rig::new(producer), &tokens, 0);
    assert_eq!(answer.why, Why::Role);
    let drafting = Setup {
        drafter: Drafter::Eagle3,
        serving: Serving::Context,
        ..Setup::default()
    };
    let rig = Rig::new(drafting);
    let generating = Question {
        context_only: false,
        ..question(&tokens, 0)
    };
    let answer = rig.ranks[0].worker.handle().explain(&generating).unwrap();
    assert_eq!(answer.why, Why::NotContextOnly);
}
