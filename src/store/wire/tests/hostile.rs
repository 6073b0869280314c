//! Answers that no master gives: each costs its connection, and nothing more.

use std::io::Write;
use std::net::TcpListener;
use std::time::Instant;

use super::stand_in::{Line, StandIn};
use super::{connect, keys, numbered, soon};
use crate::store::wire::family::Family;
use crate::store::wire::messages::{Ping, Pong};
use crate::store::wire::pack::{Answer, Uuid};
use crate::store::wire::rpc::{Connection, Failure};
use crate::store::wire::socket::{Interest, Socket};

const NEW: Family = Family::ALL[0];

type Lie = fn(&mut Line, u32);

/// Two keys are asked for; the stand-in lies on its first connection and is honest on the next one.
fn lie(lie: Lie) -> Failure {
    let stand_in = StandIn::new(move |mut line, before| {
        line.introduce(NEW);
        let Some(request) = line.request() else {
            return;
        };
        match before {
            0 => lie(&mut line, request.number),
            _ => line.say(request.number, NEW, &vec![Answer::Ok(true); 2]),
        }
        line.wait_for_end();
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(2);
    let answers = master.exist(&keys(&names), soon());
    let failure = match answers.failure() {
        Some(Failure::Nonsense(why)) => Failure::Nonsense(why.clone()),
        Some(Failure::Refused(refusal)) => Failure::Refused(refusal.clone()),
        other => panic!("{other:?}"),
    };
    // Nothing of what came before the lie was noticed counts either, unless it was whole.
    assert_eq!(answers.or(-9).count(), 2);
    let answers = master.exist(&keys(&names), soon());
    assert_eq!(answers.or(-9).collect::<Vec<_>>(), [Ok(true); 2]);
    assert_eq!(stand_in.connections(), 2);
    failure
}

#[test]
fn answers_that_are_none_cost_the_connection_alone() {
    let lies: [(Lie, &str); 11] = [
        (|line, _| line.send(&[22; 16]), "it begins with 22"),
        (
            |line, _| line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
            "it begins with 72",
        ),
        (
            |line, number| {
                let length = u32::MAX.to_le_bytes();
                line.send(&[&[21, 0, 0, 0][..], &number.to_le_bytes(), &length, &length].concat());
            },
            "it has 8589934590 bytes",
        ),
        (
            |line, number| line.say(number + 1, NEW, &vec![Answer::Ok(true); 2]),
            "which nobody made",
        ),
        (
            |line, number| line.say(number.wrapping_sub(1), NEW, &vec![Answer::Ok(true); 2]),
            "which nobody made",
        ),
        (
            |line, number| {
                line.say(number, NEW, &vec![Answer::Ok(true)]);
            },
            "1 answers for 2 keys",
        ),
        (
            |line, number| line.say(number, NEW, &vec![Answer::Ok(true); 3]),
            "3 answers for 2 keys",
        ),
        (
            |line, number| line.say(number, NEW, &Answer::Ok(Pong::default())),
            "type code",
        ),
        (
            |line, number| line.answer(number, 0, &[]),
            "ends in the middle",
        ),
        (
            |line, number| line.refuse(number, 11, "no such function"),
            "no such function (error 11)",
        ),
        (
            |line, number| line.answer(number, 9, &[0xff; 40]),
            "no text (error 9)",
        ),
    ];
    for (told, named) in lies {
        let failure = lie(told).to_string();
        assert!(failure.contains(named), "{failure}: {named}");
    }
}

/// In one packet with the right answer: what follows it must not be taken for the next one's.
#[test]
fn more_than_was_asked_for_is_noticed() {
    let stand_in = StandIn::new(|mut line, before| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            let mut body = Vec::new();
            crate::store::wire::pack::pack(&vec![Answer::Ok(before > 0)], NEW, &mut body);
            let length = u32::try_from(body.len()).unwrap().to_le_bytes();
            let number = request.number.to_le_bytes();
            let message = [&[21, 0, 0, 0][..], &number, &length, &[0; 4], &body].concat();
            line.send(&match before {
                0 => [&message[..], &message].concat(),
                _ => message,
            });
        }
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(1);
    let first = master.exist(&keys(&names), soon()).or(-9).next();
    assert!(matches!(first, Some(Ok(false))), "{first:?}");
    let answers = master.exist(&keys(&names), soon());
    assert_eq!(answers.or(-9).collect::<Vec<_>>(), [Ok(true)]);
    assert_eq!(stand_in.connections(), 2);
}

/// The master ends in the middle of an answer.
#[test]
fn half_an_answer_is_none() {
    let stand_in = StandIn::new(|mut line, before| {
        line.introduce(NEW);
        let Some(request) = line.request() else {
            return;
        };
        if before < 2 {
            let number = request.number.to_le_bytes();
            let head = [&[21, 0, 0, 0][..], &number, &[100, 0, 0, 0, 0, 0, 0, 0]].concat();
            return line.send(&[&head[..], &[1; 50]].concat());
        }
        line.say(request.number, NEW, &vec![Answer::Ok(true)]);
        line.wait_for_end();
    });
    let master = connect(&stand_in).unwrap();
    let names = numbered(1);
    // Tried once more, and lost again.
    let answers = master.exist(&keys(&names), soon());
    assert!(matches!(answers.failure(), Some(Failure::Lost(_))));
    let answers = master.exist(&keys(&names), soon());
    assert_eq!(answers.or(-9).collect::<Vec<_>>(), [Ok(true)]);
}

/// Something is always there to be read, so that the call never waits.
#[test]
fn answers_that_never_end_do_not_outlast_the_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = Socket::connect(listener.local_addr().unwrap(), soon()).unwrap();
    let (mut master, _) = listener.accept().unwrap();
    let mut body = Vec::new();
    crate::store::wire::pack::pack(&Answer::Ok(Pong::default()), NEW, &mut body);
    let length = u32::try_from(body.len()).unwrap().to_le_bytes();
    let answer = [&[21, 0, 0, 0, 0, 0, 0, 0][..], &length, &[0; 4], &body].concat();
    master.write_all(&answer).unwrap();
    let interest = Interest {
        read: true,
        write: false,
    };
    socket.wait(interest, soon()).unwrap();
    let ping = Ping { client: Uuid(1, 2) };
    let mut connection = Connection::new(socket);
    let heard = connection.call(NEW, [ping].into_iter(), Instant::now(), |_, _| Ok(()));
    assert!(matches!(heard, Err(Failure::Deadline)), "{heard:?}");
}
