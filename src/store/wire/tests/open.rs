//! What a master does not take, found out before the store is there.

use std::sync::{Arc, Mutex};

use super::LONG;
use super::stand_in::StandIn;
use crate::config::Config;
use crate::error::Kind;
use crate::store::wire::family::Family;
use crate::store::wire::messages::{PutRevoke, PutStart, Replica};
use crate::store::wire::open::Connection;
use crate::store::wire::pack::{Answer, Request};

const NEW: Family = Family::ALL[0];
/// Of the stand-in.
const MOST_MS: u64 = 5000;

/// A master that takes no longer pins, answers other puts like that, and keeps a list of what was begun: the pin of each.
fn master(others: Answer<()>) -> (StandIn, Arc<Mutex<Vec<Option<u64>>>>) {
    let begun = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&begun);
    let stand_in = StandIn::new(move |mut line, _| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            if request.function == PutStart::function_id() {
                let pin = pin(&request.body);
                list.lock().unwrap().push(pin);
                let answer: Answer<Vec<Replica<'_>>> = match pin {
                    _ if pin > Some(MOST_MS) => Err(-600),
                    _ => others.map(|()| vec![Replica::default()]),
                };
                line.say(request.number, NEW, &vec![answer]);
            } else {
                assert_eq!(request.function, PutRevoke::function_id());
                assert_eq!(others, Ok(()), "nothing was begun");
                line.say(request.number, NEW, &vec![Answer::Ok(())]);
            }
        }
    });
    (stand_in, begun)
}

/// The pin that a put asks for: the action and the time stand behind three numbers of replicas, which stand behind the key.
fn pin(body: &[u8]) -> Option<u64> {
    let replicas: Vec<u8> = [1_u64, 0, 0]
        .iter()
        .flat_map(|it| it.to_le_bytes())
        .collect();
    let at = body.windows(24).rposition(|it| it == replicas).unwrap();
    match &body[at + 24..] {
        [0, 0, ..] => None,
        [1, 1, rest @ ..] => Some(u64::from_le_bytes(*rest.first_chunk().unwrap())),
        other => panic!("{other:?}"),
    }
}

fn open(to: &StandIn, more: &str) -> crate::error::Result<Arc<Connection>> {
    let text = format!(
        r#"{{"model_key": "m", "master_server_address": "{}", "global_segment_size": 0{more},
            "kvbridge": {{"store": "mooncake-tcp"}}}}"#,
        to.address
    );
    Connection::open(&Config::from_json(text.as_bytes()).unwrap(), LONG)
}

#[test]
fn a_pin_that_the_master_does_not_take_is_refused_at_start() {
    // Where there is no room, as in a pool that nobody lends memory yet, a pin is judged all the same.
    for others in [Ok(()), Err(-200)] {
        let (stand_in, begun) = master(others);
        open(&stand_in, "").unwrap();
        assert_eq!(*begun.lock().unwrap(), [None]);
        open(&stand_in, r#", "soft_pin_ttl_ms": 5000"#).unwrap();
        let error = open(&stand_in, r#", "soft_pin_ttl_ms": 5001"#).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolRefused);
        let text = error.message();
        assert!(text.contains("soft_pin_ttl_ms = 5001, "), "{text}");
        assert!(text.contains("(-600)"), "{text}");
        let begun = begun.lock().unwrap();
        assert_eq!(*begun, [None, None, Some(5000), None, Some(5001)]);
        // Who writes nothing pins nothing.
        drop(begun);
        open(
            &stand_in,
            r#", "soft_pin_ttl_ms": 5001, "role": "consumer""#,
        )
        .unwrap();
    }
}

#[test]
fn a_master_that_knows_no_pins_is_refused_where_one_is_asked_for() {
    let stand_in = StandIn::honest(Family::V0_3_12);
    let error = open(&stand_in, r#", "soft_pin_ttl_ms": 1"#).unwrap_err();
    assert_eq!(error.kind(), Kind::PoolRefused);
    let text = error.message();
    assert!(text.contains("soft_pin_ttl_ms is set"), "{text}");
    assert!(text.contains("a Mooncake 0.3.12"), "{text}");
}
