//! Batches, order, deadlines, and connections that come and go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::stand_in::StandIn;
use super::{connect, keys, numbered, soon};
use crate::store::wire::family::Family;
use crate::store::wire::master::KEYS_PER_REQUEST;
use crate::store::wire::messages::{ReplicateConfig, Written};
use crate::store::wire::pack::{Answer, Text};
use crate::store::wire::rpc::Failure;

const NEW: Family = Family::ALL[0];

fn list(count: usize, value: bool) -> Vec<Answer<bool>> {
    vec![Ok(value); count]
}

/// Parts of a batch come in one go, and their answers find their keys whatever their order.
#[test]
fn large_batches_are_parts_whose_answers_may_come_in_any_order() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        let parts: Vec<_> = (0..3).map(|_| line.request().unwrap()).collect();
        // The last one is there, the others are not.
        line.say(parts[2].number, NEW, &list(3, true));
        line.say(parts[0].number, NEW, &list(KEYS_PER_REQUEST, false));
        line.say(
            parts[1].number,
            NEW,
            &vec![Answer::<bool>::Err(-7); KEYS_PER_REQUEST],
        );
        line.wait_for_end();
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(2 * KEYS_PER_REQUEST + 3);
    let answers = master.exist(&keys(&names), soon());
    assert!(answers.failure().is_none());
    let answers: Vec<_> = answers.or(0).collect();
    let middle = vec![Err(-7); KEYS_PER_REQUEST];
    let wanted = [list(KEYS_PER_REQUEST, false), middle, list(3, true)].concat();
    assert_eq!(answers, wanted);
    assert_eq!(stand_in.connections(), 1);
}

#[test]
fn a_batch_without_keys_asks_nobody() {
    let stand_in = StandIn::new(|_, _| {});
    // Not even connected: nobody answers here.
    assert!(connect(&stand_in).is_err());
    let honest = StandIn::honest(NEW);
    let master = connect(&honest).unwrap();
    assert_eq!(master.exist(&[], soon()).or(0).count(), 0);
    assert_eq!(master.put_end(&[], soon()).or(0).count(), 0);
}

#[test]
fn a_call_ends_at_its_deadline_and_its_connection_with_it() {
    let stand_in = StandIn::new(|mut line, before| {
        line.introduce(NEW);
        if before == 0 {
            return line.wait_for_end();
        }
        let request = line.request().unwrap();
        line.say(request.number, NEW, &list(2, true));
        line.wait_for_end();
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(2);
    let begun = Instant::now();
    let answers = master.exist(&keys(&names), begun + Duration::from_millis(50));
    assert!(matches!(answers.failure(), Some(Failure::Deadline)));
    assert_eq!(answers.or(-1).collect::<Vec<_>>(), [Err(-1), Err(-1)]);
    // An answer that comes late could be taken for that of the next call.
    let answers = master.exist(&keys(&names), soon());
    assert_eq!(answers.or(0).collect::<Vec<_>>(), list(2, true));
    assert_eq!(stand_in.connections(), 2);
}

#[test]
fn a_call_whose_deadline_is_over_is_not_made() {
    let stand_in = StandIn::honest(NEW);
    let master = connect(&stand_in).unwrap();
    let names = numbered(1);
    let answers = master.exist(&keys(&names), Instant::now());
    assert!(matches!(answers.failure(), Some(Failure::Deadline)));
}

#[test]
fn a_master_that_went_and_came_back_is_spoken_to_again() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        // One answer, and the connection ends.
        let request = line.request().unwrap();
        line.say(request.number, NEW, &list(1, true));
    });
    let master = connect(&stand_in).unwrap();
    for _ in 0..5 {
        let names = numbered(1);
        let answers = master.exist(&keys(&names), soon());
        assert_eq!(answers.or(0).collect::<Vec<_>>(), [Ok(true)]);
    }
    assert_eq!(stand_in.connections(), 5);
}

#[test]
fn a_lookup_that_loses_its_connection_is_made_again_and_a_put_is_not() {
    let stand_in = StandIn::new(|mut line, before| {
        line.introduce(NEW);
        let request = line.request().unwrap();
        if before > 0 {
            line.say(request.number, NEW, &list(1, true));
            line.wait_for_end();
        }
    });
    let names = numbered(1);
    let master = connect(&stand_in).unwrap();
    let answers = master.exist(&keys(&names), soon());
    assert_eq!(answers.or(0).collect::<Vec<_>>(), [Ok(true)]);
    assert_eq!(stand_in.connections(), 2);

    let starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&starts);
    let stand_in = StandIn::new(move |mut line, _| {
        line.introduce(NEW);
        if line.request().is_some() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let master = connect(&stand_in).unwrap();
    let config = ReplicateConfig::default();
    let started = master.put_start(&keys(&names), &[1], &config, soon(), |_, _| panic!());
    assert!(matches!(started, Err(Failure::Lost(_))), "{started:?}");
    drop(master);
    drop(stand_in);
    assert_eq!(starts.load(Ordering::SeqCst), 1);
}

#[test]
fn a_master_that_is_gone_is_left_alone_for_a_moment() {
    let stand_in = StandIn::new(|mut line, _| line.introduce(NEW));
    let master = connect(&stand_in).unwrap();
    drop(stand_in);
    let names = numbered(1);
    // Each says why, also those that did not try.
    for _ in 0..20 {
        let answers = master.exist(&keys(&names), soon());
        match answers.failure() {
            Some(Failure::Lost(why)) => assert!(why.contains("refused"), "{why}"),
            other => panic!("{other:?}"),
        }
        assert!(master.trouble().is_some());
    }
}

#[test]
fn what_a_put_says_of_its_keys_is_cut_with_them() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        for _ in 0..2 {
            let request = line.request().unwrap();
            // The groups stand at the end, before the tenant.
            let text = String::from_utf8_lossy(&request.body);
            let last = text.contains(&format!("group {KEYS_PER_REQUEST}"));
            assert_eq!(text.contains("group 0"), !last);
            let count = if last { 1 } else { KEYS_PER_REQUEST };
            let refused =
                vec![Answer::<Vec<super::super::messages::Replica<'_>>>::Err(-200); count];
            line.say(request.number, NEW, &refused);
        }
        for count in [KEYS_PER_REQUEST, 1] {
            let request = line.request().unwrap();
            line.say(request.number, NEW, &vec![Answer::<()>::Err(-704); count]);
        }
        line.wait_for_end();
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(KEYS_PER_REQUEST + 1);
    let groups: Vec<String> = (0..names.len()).map(|it| format!("group {it}")).collect();
    let config = ReplicateConfig {
        groups: Some(groups.iter().map(|it| Text(it.as_bytes())).collect()),
        ..ReplicateConfig::default()
    };
    let (keys, sizes) = (keys(&names), vec![1; names.len()]);
    let mut count = 0;
    master
        .put_start(&keys, &sizes, &config, soon(), |_, answer| {
            assert_eq!(answer.unwrap_err(), -200);
            count += 1;
        })
        .unwrap();
    assert_eq!(count, names.len());
    let ended = master.put_end(&keys, soon());
    assert_eq!(
        ended.or(0).filter(|it| *it == Err(-704)).count(),
        names.len()
    );
    let short = master.put_start(&keys, &[1], &config, soon(), |_, _| panic!());
    assert!(matches!(short, Err(Failure::Nonsense(_))));
    let _ = Written::default();
}
