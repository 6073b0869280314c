//! Those who ask for what is not lent, send anything, stand still, or never stop coming.

use std::io::Write;
use std::net::{Shutdown, TcpStream};

use proptest::prelude::*;

use super::*;

#[test]
fn ranges_that_are_not_lent_are_refused() {
    let segment = open(limits());
    let own = peers(Some(Arc::clone(&segment)));
    assert_eq!(
        write(&own, &segment, &[(0, vec![7; SIZE as usize])]),
        [Ok(())]
    );
    let base = segment.base();
    for (address, size) in [
        (base - 1, 1),
        (base - 1, 2),
        (base, 0),
        (base, SIZE + 1),
        (base + SIZE, 1),
        (base + SIZE - 1, 2),
        (0, u64::MAX),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (base, u64::MAX),
        (base + 1, u64::MAX - base),
    ] {
        for operation in [Operation::Read, Operation::Write] {
            let offset = address.wrapping_sub(base);
            let mut stream = connect(&segment);
            let two = request(&segment, operation, Version::Two, offset, size);
            let good = request(&segment, Operation::Read, Version::Two, 0, 1);
            stream
                .write_all(&[&two[..], &good, &[1; 40]].concat())
                .unwrap();
            assert_eq!(
                take(&mut stream, 8),
                Status::Rejected.encode(),
                "{address} {size}"
            );
            assert!(is_ended(&mut stream));
            let mut stream = connect(&segment);
            let one = request(&segment, operation, Version::One, offset, size);
            stream.write_all(&one).unwrap();
            assert!(is_ended(&mut stream), "{address} {size}");
        }
    }
    let whole = read(&peers(None), &segment, 0, SIZE as usize);
    assert!(whole == Ok(vec![7; SIZE as usize]));
}

#[test]
fn what_is_no_request_ends_the_connection() {
    let segment = open(limits());
    for operation in [2, 0x7F, 0x82, 0xFF] {
        let mut bytes = request(&segment, Operation::Read, Version::One, 0, 1);
        bytes[16] = operation;
        let mut stream = connect(&segment);
        stream.write_all(&bytes).unwrap();
        assert!(is_ended(&mut stream), "{operation}");
    }
}

#[test]
fn closing_waits_for_no_connection() {
    let segment = open(limits());
    let idle = connect(&segment);
    let mut in_request = connect(&segment);
    in_request.write_all(&[0; 7]).unwrap();
    let mut in_data = connect(&segment);
    let bytes = request(&segment, Operation::Write, Version::Two, 0, 100);
    in_data.write_all(&[&bytes[..], &[1; 50]].concat()).unwrap();
    let mut takes_nothing = connect(&segment);
    let bytes = request(&segment, Operation::Read, Version::Two, 0, SIZE);
    takes_nothing.write_all(&bytes.repeat(100)).unwrap();
    let mut in_greeting = greet(&segment);
    in_greeting.write_all(&[9, 0, 0]).unwrap();
    // So that all have been accepted.
    assert!(read(&peers(None), &segment, 0, 10).is_ok());
    let address = data_address(&segment);
    segment.close();
    for mut stream in [idle, in_request, in_data, in_greeting] {
        assert!(is_ended(&mut stream));
    }
    assert!(TcpStream::connect(address).is_err());
    assert!(TcpStream::connect(segment.endpoint()).is_err());
}

#[test]
fn connections_that_stand_still_are_ended_and_idle_ones_are_not() {
    let segment = open(Limits {
        stall: Duration::from_millis(200),
        ..limits()
    });
    let mut idle = connect(&segment);
    let mut in_request = connect(&segment);
    in_request.write_all(&[0; 7]).unwrap();
    let mut in_data = connect(&segment);
    let bytes = request(&segment, Operation::Write, Version::Two, 0, 100);
    in_data.write_all(&bytes).unwrap();
    let mut in_greeting = greet(&segment);
    in_greeting.write_all(&[9, 0, 0]).unwrap();
    for stream in [
        &mut in_request,
        &mut in_data,
        &mut in_greeting,
        &mut greet(&segment),
    ] {
        assert!(is_ended(stream));
    }
    let bytes = request(&segment, Operation::Read, Version::Two, 0, 3);
    idle.write_all(&bytes).unwrap();
    assert_eq!(take(&mut idle, 8), Status::Fine.encode());
}

#[test]
fn one_connection_too_many_takes_the_place_of_an_idle_one() {
    let segment = open(Limits {
        threads: 1,
        connections: 2,
        ..limits()
    });
    let one_byte = request(&segment, Operation::Read, Version::Two, 0, 1);
    let ask = |stream: &mut TcpStream| {
        stream.write_all(&one_byte).unwrap();
        take(stream, 9)
    };
    let mut first = connect(&segment);
    ask(&mut first);
    let mut second = connect(&segment);
    ask(&mut second);
    let mut third = connect(&segment);
    ask(&mut third);
    assert!(is_ended(&mut first));
    // None of them is idle any more: what came with the request that is answered has been seen, too.
    for stream in [&mut second, &mut third] {
        let bytes = request(&segment, Operation::Write, Version::Two, 0, 2);
        stream.write_all(&[&one_byte[..], &bytes].concat()).unwrap();
        take(stream, 9);
    }
    let mut fourth = connect(&segment);
    assert!(is_ended(&mut fourth));
    for stream in [&mut second, &mut third] {
        stream.write_all(b"ab").unwrap();
        assert_eq!(take(stream, 8), Status::Fine.encode());
    }
}

/// Each sends a byte now and then, so that it is never taken for dead.
#[test]
fn connections_that_creep_keep_nobody_out() {
    let segment = open(Limits {
        threads: 1,
        connections: 2,
        crowded: Duration::from_millis(100),
        ..limits()
    });
    let bytes = request(&segment, Operation::Write, Version::Two, 0, 100);
    let mut creeping: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = connect(&segment);
            // Its answer says that what came with it has been seen.
            let first = request(&segment, Operation::Read, Version::Two, 0, 1);
            stream.write_all(&[&first[..], &bytes].concat()).unwrap();
            take(&mut stream, 9);
            stream
        })
        .collect();
    thread::sleep(Duration::from_millis(200));
    let mut honest = connect(&segment);
    let one_byte = request(&segment, Operation::Read, Version::Two, 0, 1);
    honest.write_all(&one_byte).unwrap();
    assert_eq!(take(&mut honest, 8), Status::Fine.encode());
    assert!(is_ended(&mut creeping[0]));
}

#[test]
fn handshakes_that_do_not_end_keep_nobody_out() {
    let segment = open(Limits {
        greetings: 2,
        ..limits()
    });
    let mut open: Vec<_> = (0..5).map(|_| greet(&segment)).collect();
    assert!(read(&peers(None), &segment, 0, 10).is_ok());
    assert!(is_ended(&mut open[0]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn any_bytes_cost_a_connection_and_no_more(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        heads in proptest::collection::vec((any::<bool>(), any::<bool>(), 0..40_u64, 0..60_u64), 0..4),
        to_data: bool,
    ) {
        static SEGMENT: std::sync::OnceLock<Arc<Segment>> = std::sync::OnceLock::new();
        let segment = SEGMENT.get_or_init(|| open(limits()));
        let mut stream = if to_data { connect(segment) } else { greet(segment) };
        for (is_write, is_two, offset, size) in heads {
            let operation = if is_write { Operation::Write } else { Operation::Read };
            let version = if is_two { Version::Two } else { Version::One };
            // It may have ended already.
            let _ = stream.write_all(&request(segment, operation, version, offset, size));
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        let others = peers(None);
        prop_assert_eq!(read(&others, segment, 999, 5), Ok(vec![0; 5]));
    }
}

#[test]
fn others_take_up_a_part_of_the_handles_of_the_process() {
    for (handles, connections) in [
        (Some(1024), 256),
        (Some(0), 16),
        (Some(4096), 1024),
        (Some(u64::MAX), 1024),
        (None, 1024),
    ] {
        assert_eq!(share(handles), connections, "{handles:?}");
    }
    let of_the_process = getrlimit(Resource::Nofile).current;
    assert_eq!(Limits::default().connections, share(of_the_process));
}
