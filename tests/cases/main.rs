//! Faults that were reported for systems of this kind, one test per case, through the two halves
//! and the embedded pool. Numbers are those of the case list.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]
#![allow(
    unsafe_code,
    reason = "ranges of untouched memory are described by address"
)]

mod loads;
mod offers;
mod pages;
mod pools;
mod ranks;
#[path = "../rig/mod.rs"]
mod rig;
mod saves;

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;

use kvbridge::layout::Part;
use kvbridge::store::faulty::{Action, Call, Rule, Which};
use rig::rule;

const OWN: (usize, Part) = (0, Part::Sharded);

/// A rule that stops calls of one kind until the sender is dropped, and tells when one has come.
fn stopped(call: Call) -> (Rule, mpsc::Sender<()>, mpsc::Receiver<()>) {
    let (come, came) = mpsc::channel();
    let (go, stop) = mpsc::channel::<()>();
    let (come, stop) = (Mutex::new(come), Mutex::new(stop));
    let hook = Action::Hook(Arc::new(move || {
        let _ = come.lock().send(());
        // An error is the sender's end.
        let _ = stop.lock().recv();
    }));
    (rule(call, Which::All, hook), go, came)
}
