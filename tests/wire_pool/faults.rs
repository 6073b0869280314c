//! Leases that end, owners and masters that stop and die.

use std::time::Duration;

use kvbridge::config::Config;
use kvbridge::device::memory::Target;
use kvbridge::keys::Keys;
use kvbridge::store::wire::{Connection, PATIENCE};
use kvbridge::store::{GetOutcome, Pieces, Presence, PutOutcome, code};

use crate::calls::{exist, get, numbered, put};
use crate::exchange::{LENT, put_in_the_end};
use crate::real_pool::{Member, NOTHING_LENT, master};
use crate::{config_within, guarded, open, with_pool, with_pool_of};

#[test]
fn what_comes_after_its_lease_is_lost() {
    let lease = "default_kv_lease_ttl=1";
    with_pool_of(&["--segment", "256", "--set", lease], "faults::leases");
}

#[test]
#[ignore = "needs a pool"]
fn leases() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let (keys, page) = (numbered("page", 4), vec![7_u8; 32 << 20]);
    assert_eq!(put(&*store, &keys, &page), [PutOutcome::Stored; 4]);
    // No machine moves 128 MiB in a millisecond.
    let outcomes = get(&*store, &keys, page.len()).0;
    let late = GetOutcome::Failed(code::LEASE_EXPIRED);
    assert_eq!(outcomes, [late; 4]);
    assert!(!store.is_outage(code::LEASE_EXPIRED));
}

#[test]
fn an_owner_that_stops_costs_the_deadline_and_never_writes_later() {
    with_pool("64", "faults::stopped_owner");
}

#[test]
#[ignore = "needs a pool"]
fn stopped_owner() {
    let config = config_within(&master(), NOTHING_LENT, 3000);
    let store = Connection::open(&config, PATIENCE)
        .unwrap()
        .handle()
        .unwrap();
    let (keys, page) = (numbered("page", 64), vec![7_u8; 65_536]);
    assert_eq!(put(&*store, &keys, &page), vec![PutOutcome::Stored; 64]);
    Member::Lender.stop();
    let mut landing = vec![0_u8; page.len() * keys.len()];
    let mut targets: Vec<_> = landing.chunks_mut(page.len()).map(Target::from).collect();
    let mut out = Vec::new();
    store.get(&keys, Pieces::one_each(&mut targets), &mut out);
    drop(targets);
    let failed = |it: &GetOutcome| *it == GetOutcome::Failed(code::LENDER_LOST);
    assert!(out.iter().all(failed), "{out:?}");
    landing.fill(0xee);
    let other = numbered("other", 4);
    let outcomes = put(&*store, &other, &page);
    let failed = |it: &PutOutcome| *it == PutOutcome::Failed(code::LENDER_LOST);
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    assert_eq!(exist(&*store, &other), [Presence::Absent; 4]);
    Member::Lender.wake();
    // It answers again, and what it owed goes nowhere.
    let mut outcomes = Vec::new();
    for _ in 0..300 {
        outcomes = get(&*store, &keys, page.len()).0;
        if outcomes == vec![GetOutcome::Landed(65_536); 64] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(outcomes, vec![GetOutcome::Landed(65_536); 64]);
    assert!(landing.iter().all(|&byte| byte == 0xee));
}

#[test]
fn an_owner_that_dies_costs_its_pages() {
    with_pool("64", "faults::dead_owner");
}

#[test]
#[ignore = "needs a pool"]
fn dead_owner() {
    let store = open(NOTHING_LENT).handle().unwrap();
    let (keys, page) = (numbered("page", 8), vec![7_u8; 65_536]);
    assert_eq!(put(&*store, &keys, &page), vec![PutOutcome::Stored; 8]);
    Member::Lender.kill();
    let outcomes = get(&*store, &keys, page.len()).0;
    let failed = |it: &GetOutcome| *it == GetOutcome::Failed(code::LENDER_LOST);
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    // What was begun is taken back: put again, it is not taken for somebody else's.
    for _ in 0..2 {
        let outcomes = put(&*store, &numbered("other", 2), &page);
        let failed = |it: &PutOutcome| *it == PutOutcome::Failed(code::LENDER_LOST);
        assert!(outcomes.iter().all(failed), "{outcomes:?}");
    }
    Member::Lender.replace(&[]);
    put_in_the_end(&*store, &numbered("new", 3));
}

#[test]
fn a_page_in_two_places_survives_an_owner() {
    with_pool("64", "faults::two_places");
}

#[test]
#[ignore = "needs a pool"]
fn two_places() {
    let config = |replicas: u32, segment: &str| {
        let text = format!(
            r#"{{"master_server_address": "{}", "model_key": "m", "global_segment_size": "{segment}",
                "kvbridge": {{"store": "mooncake-tcp", "replica_num": {replicas}}}}}"#,
            master()
        );
        Config::from_json(text.as_bytes()).unwrap()
    };
    let open = |config| Connection::open(&config, PATIENCE).unwrap();
    // Two lenders: that of the pool, and this one.
    let lender = open(config(1, "64MiB"));
    let store = open(config(2, "0")).handle().unwrap();
    let (keys, page) = (numbered("page", 16), vec![7_u8; 100_000]);
    assert_eq!(put(&*store, &keys, &page), vec![PutOutcome::Stored; 16]);
    Member::Lender.kill();
    // The first answers may still wait for it.
    for _ in 0..2 {
        let (outcomes, landed) = get(&*store, &keys, page.len());
        assert_eq!(outcomes, vec![GetOutcome::Landed(100_000); 16]);
        assert!(landed.iter().all(|&byte| byte == 7));
    }
    drop(lender);
}

/// Others are loaded throughout, also behind the guard, which leaves alone a pool that fails.
#[test]
fn a_lender_that_hangs_costs_no_pages_of_others() {
    with_pool("64", "faults::hung_lender");
}

#[test]
#[ignore = "needs a pool"]
fn hung_lender() {
    lose_lender(|| Member::Lender.stop());
    Member::Lender.wake();
}

#[test]
fn a_lender_that_is_killed_costs_no_pages_of_others() {
    with_pool("64", "faults::killed_lender");
}

#[test]
#[ignore = "needs a pool"]
fn killed_lender() {
    lose_lender(|| Member::Lender.kill());
}

/// One of two lenders is lost. What the first load says of each page is said by all others, until the master notices.
fn lose_lender(lose: impl FnOnce()) {
    let ours = open(LENT);
    let store = guarded(open(NOTHING_LENT).handle().unwrap());
    let keys = numbered("page", 32);
    assert_eq!(
        put(&*store, &keys, &[7; 1000]),
        vec![PutOutcome::Stored; 32]
    );
    lose();
    let (outcomes, landed) = get(&*store, &keys, 1000);
    let is_lost = |it: &GetOutcome| *it == GetOutcome::Failed(code::LENDER_LOST);
    let lost: Vec<bool> = outcomes.iter().map(is_lost).collect();
    assert!(
        lost.contains(&true) && lost.contains(&false),
        "{outcomes:?}"
    );
    for _ in 0..3 {
        let pages = lost.iter().zip(landed.chunks(1000)).enumerate();
        for (number, (is_lost, page)) in pages {
            assert!(*is_lost || page.iter().all(|&byte| byte == 7));
            let mut one = Keys::new();
            one.push(keys.get(number));
            assert_eq!(exist(&*store, &one), [Presence::Present]);
            let (outcomes, _) = get(&*store, &one, 1000);
            assert_eq!(
                outcomes == [GetOutcome::Landed(1000)],
                !is_lost,
                "{outcomes:?}"
            );
        }
    }
    // The breaker of this guard would let the next call through at once: nothing above tells whether it opened.
    let counts = store.counts();
    assert_eq!(
        (counts.opened, counts.failures, counts.deadlines),
        (0, 0, 0)
    );
    drop(ours);
}

#[test]
fn a_master_that_stops_costs_the_deadline() {
    with_pool("64", "faults::stopped_master");
}

#[test]
#[ignore = "needs a pool"]
fn stopped_master() {
    let config = config_within(&master(), NOTHING_LENT, 500);
    let store = Connection::open(&config, PATIENCE)
        .unwrap()
        .handle()
        .unwrap();
    let keys = numbered("page", 2);
    put_in_the_end(&*store, &keys);
    Member::Master.stop();
    let late = Presence::Unknown(code::DEADLINE);
    assert_eq!(exist(&*store, &keys), [late; 2]);
    // A new connection is not answered either, and the next one is not tried for a moment.
    let outcomes = get(&*store, &keys, 100).0;
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    let outcomes = put(&*store, &numbered("other", 1), &[1]);
    let failed = |it: &PutOutcome| matches!(it, PutOutcome::Failed(code) if store.is_outage(*code));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
    Member::Master.wake();
    put_in_the_end(&*store, &numbered("new", 1));
    assert_eq!(get(&*store, &keys, 100).0, [GetOutcome::Landed(100); 2]);
}
