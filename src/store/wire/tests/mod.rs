//! The client against a stand-in of the master, whose answers a test writes.

mod alive;
mod calls;
mod client;
mod disk;
mod hostile;
mod open;
mod seam;
mod stand_in;

use std::time::{Duration, Instant};

use super::family::Family;
use super::master::Master;
use super::pack::{Text, Uuid};
use super::rpc::Failure;
use stand_in::StandIn;

/// More than any machine needs.
const LONG: Duration = Duration::from_secs(60);

fn soon() -> Instant {
    Instant::now() + LONG
}

fn connect(to: &StandIn) -> Result<Master, Failure> {
    Master::connect(vec![to.address], "default", Uuid(1, 2), soon())
}

fn keys(names: &[String]) -> Vec<Text<'_>> {
    names.iter().map(|name| Text(name.as_bytes())).collect()
}

fn numbered(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key {number}")).collect()
}

#[test]
fn a_masters_version_is_found_by_its_layouts() {
    for family in Family::ALL {
        let stand_in = StandIn::honest(family);
        let master = connect(&stand_in).unwrap();
        assert_eq!(master.family(), family);
        assert_eq!(master.trouble(), None);
    }
}

#[test]
fn a_master_of_an_unknown_version_is_refused_with_what_was_tried() {
    let stand_in = StandIn::new(|mut line, _| {
        while let Some(request) = line.request() {
            line.refuse(request.number, 4, "invalid rpc arg");
        }
    });
    let failure = connect(&stand_in).unwrap_err();
    assert!(matches!(failure, Failure::Nonsense(_)), "{failure}");
    let text = failure.to_string();
    for family in Family::ALL {
        assert!(text.contains(family.versions()), "{text}");
    }
    let code = <super::messages::PutStart<'_> as super::pack::Request>::code(Family::V0_3_12);
    let tried = format!(
        "BatchPutStart does not take type code {:08x}",
        code.unwrap()
    );
    assert!(text.contains(&tried), "{text}");
}
