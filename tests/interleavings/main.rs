//! Orders of events that an engine, a pool and the save thread can come to, step by step. Pages
//! that the engine got back are overwritten at once, so whoever touches them too late shows.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod any_order;
mod ends;
mod lives;
mod passes;
#[path = "../rig/mod.rs"]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use kvbridge::metadata::Metadata;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use rig::{Rig, Setup, T, prompt};

const LONG: Duration = Duration::from_secs(60);

/// Every block of the prompt that the pool has is right; how many there are from the head on.
fn verify(rig: &Rig, tokens: &[i32]) -> usize {
    let mut reader = Rig::on(
        Setup {
            role: "consumer",
            ..rig.setup.clone()
        },
        Arc::clone(&rig.pool),
    );
    let longer = [tokens, &[-1]].concat();
    let offered = reader.admit(1, &longer) as usize;
    reader.pass(&[(1, longer.len() - offered)]);
    reader.check(1);
    offered / T
}

fn small() -> Setup {
    Setup {
        batch: 2,
        ..Setup::default()
    }
}

fn panicking(at: std::ops::Range<u64>) -> Rule {
    Rule {
        call: Call::Put,
        at,
        keys: Which::All,
        action: Action::Hook(Arc::new(|| panic!("the store is broken"))),
    }
}

/// A request with two blocks in the pool and two to compute, in a pass that was built.
fn half_known(rig: &mut Rig) -> (Vec<i32>, Arc<Metadata>) {
    let known = prompt(1, 2 * T);
    rig.publish(9, &known);
    let tokens = [known, prompt(2, 3 * T)].concat();
    assert_eq!(rig.admit(6, &tokens), 2 * T as u64);
    let metadata = rig.build(&[(6, 2 * T)]);
    assert_eq!(
        (metadata.loads().blocks(), metadata.saves().blocks()),
        (2, 2)
    );
    (tokens, metadata)
}
