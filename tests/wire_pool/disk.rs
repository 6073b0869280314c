//! Pages that left the memory of the pool for the disk of the process that lends it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvbridge::store::wire::master::Master;
use kvbridge::store::wire::messages::Place;
use kvbridge::store::wire::pack::{Text, Uuid};
use kvbridge::store::{GetOutcome, Presence, PutOutcome, Store, code};

use crate::calls::{exist, get, numbered, put, remove};
use crate::exchange::{COUNT, get_content, put_content, python};
use crate::real_pool::{Member, NOTHING_LENT, master};
use crate::{open, with_pool_of};

/// Waits until no copy of these is in memory.
fn wait_until_on_disk(name: &str, count: usize) {
    wait_until_on_disk_of("default", name, count);
}

fn wait_until_on_disk_of(tenant: &str, name: &str, count: usize) {
    let deadline = || Instant::now() + Duration::from_secs(20);
    let address = master().parse().unwrap();
    let master = Master::connect(vec![address], tenant, Uuid(7, 7), deadline()).unwrap();
    let keys = numbered(name, count);
    let keys: Vec<Text<'_>> = keys.iter().map(Text).collect();
    let mut on_disk = 0;
    for _ in 0..60 {
        on_disk = 0;
        let found = master.locate(&keys, deadline(), |_, answer| {
            let places = answer.unwrap().replicas;
            on_disk += usize::from(places.iter().all(|it| matches!(it.place, Place::Disk(_))));
        });
        found.unwrap();
        if on_disk == count {
            return;
        }
        // Looking renews the leases, which keep them in memory.
        std::thread::sleep(Duration::from_millis(2500));
    }
    panic!("{on_disk} of {count} are on disk");
}

#[test]
fn pages_that_only_a_disk_has_are_read() {
    with_pool_of(&["--segment", "64", "--disk"], "disk::theirs");
}

#[test]
#[ignore = "needs a pool"]
fn theirs() {
    let store = open(NOTHING_LENT).handle().unwrap();
    python("write.py", "disk");
    wait_until_on_disk("disk", COUNT);
    let all = numbered("disk", COUNT);
    assert_eq!(exist(&*store, &all), vec![Presence::Present; COUNT]);
    get_content(&*store, "disk");
    // Over the connections that stand.
    get_content(&*store, "disk");
    // Not as long as it is.
    let wrong = get(&*store, &all, 7).0;
    assert_eq!(wrong, vec![GetOutcome::WrongSize(100_000); COUNT]);
    ours(&store);
    // The owner is gone, and the master does not know yet.
    Member::Lender.kill();
    let outcomes = get(&*store, &all, 100_000).0;
    let failed = |it: &GetOutcome| matches!(it, GetOutcome::Failed(code::LENDER_LOST));
    assert!(outcomes.iter().all(failed), "{outcomes:?}");
}

/// More than one request, with the owner's memory given back in between: it has 64 MiB.
fn ours(store: &Arc<dyn Store>) {
    put_content(&**store, "ours");
    wait_until_on_disk("ours", COUNT);
    get_content(&**store, "ours");
    const LARGE: usize = 5_000_000;
    let keys = numbered("large", 8);
    let page: Vec<u8> = (0..LARGE).map(|at| (at * 7 + (at >> 9)) as u8).collect();
    assert_eq!(put(&**store, &keys, &page), [PutOutcome::Stored; 8]);
    wait_until_on_disk("large", 8);
    for _ in 0..5 {
        let (outcomes, landed) = get(&**store, &keys, LARGE);
        assert_eq!(outcomes, [GetOutcome::Landed(LARGE as u64); 8]);
        assert!(landed.chunks(LARGE).all(|it| it == page));
    }
    // One that is nowhere any more costs the others nothing.
    remove(&**store, &numbered("ours", 1), true);
    let outcomes = get(&**store, &numbered("ours", COUNT), 100_000).0;
    assert_eq!(outcomes[0], GetOutcome::Missing);
    assert_eq!(outcomes[1..], vec![GetOutcome::Landed(100_000); COUNT - 1]);
}

/// On the disk, too, each tenant's pages are its own.
#[test]
fn pages_of_a_tenant_are_read_from_a_disk() {
    let options = ["--segment", "64", "--disk", "--tenant", "blue"];
    with_pool_of(&options, "disk::tenant");
}

#[test]
#[ignore = "needs a pool"]
fn tenant() {
    let store = open(r#""global_segment_size": 0, "tenant_id": "blue","#)
        .handle()
        .unwrap();
    put_content(&*store, "blue");
    wait_until_on_disk_of("blue", "blue", COUNT);
    get_content(&*store, "blue");
}

/// Against the master at `KVB_POOL_MASTER`, whatever its version is, to which another process of that version lends memory
/// and a disk: `scripts/wire-versions`.
#[test]
#[ignore = "needs a pool"]
fn any_version() {
    ours(&open(NOTHING_LENT).handle().unwrap());
}
