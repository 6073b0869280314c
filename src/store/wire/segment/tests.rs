//! Segments against our own client, against raw connections, and against those that send anything.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

use proptest::prelude::*;

use super::*;
use crate::device::memory::{Source, Target};
use crate::error::Kind;
use crate::store::wire::transfer::frame::{Operation, REQUEST, Request, Status, Version};
use crate::store::wire::transfer::owner::{self, Description};
use crate::store::wire::transfer::{self, Directory, Peers};

const SIZE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(120);

type Outcome<T = ()> = std::result::Result<T, i32>;

fn limits() -> Limits {
    Limits {
        stall: PATIENCE,
        ..Limits::default()
    }
}

fn open(limits: Limits) -> Arc<Segment> {
    let settings = Settings {
        bind: "127.0.0.1".parse().unwrap(),
        host: "127.0.0.1".to_owned(),
        size: SIZE,
        limits,
    };
    Arc::new(Segment::open(&settings).unwrap())
}

fn peers(own: Option<Arc<Segment>>) -> Peers {
    Peers::new(transfer::Settings {
        silence: PATIENCE,
        own,
        ..transfer::Settings::new(Directory::Handshake)
    })
}

fn write(peers: &Peers, segment: &Segment, pages: &[(u64, Vec<u8>)]) -> Vec<Outcome> {
    let sources: Vec<Vec<Source<'_>>> = pages
        .iter()
        .map(|(_, page)| {
            page.chunks(page.len().div_ceil(5))
                .map(Source::from)
                .collect()
        })
        .collect();
    let mut jobs: Vec<_> = pages
        .iter()
        .zip(&sources)
        .map(|((offset, page), pieces)| {
            let address = segment.base().wrapping_add(*offset);
            WriteJob::new(segment.endpoint(), address, page.len() as u64, pieces)
        })
        .collect();
    peers.write(&mut jobs, Instant::now() + PATIENCE);
    jobs.iter().map(|job| job.outcome).collect()
}

fn read(peers: &Peers, segment: &Segment, offset: u64, size: usize) -> Outcome<Vec<u8>> {
    let mut page = vec![0xEE; size];
    let mut pieces: Vec<_> = page
        .chunks_mut(size.div_ceil(3))
        .map(Target::from)
        .collect();
    let address = segment.base().wrapping_add(offset);
    let mut jobs = [ReadJob::new(
        segment.endpoint(),
        address,
        size as u64,
        &mut pieces,
    )];
    peers.read(&mut jobs, Instant::now() + PATIENCE);
    jobs[0].outcome.map(|()| page)
}

fn describe(segment: &Segment) -> Description {
    Description::parse(segment.description().as_bytes()).unwrap()
}

fn data_address(segment: &Segment) -> SocketAddr {
    let description = describe(segment);
    SocketAddr::new(description.host.unwrap(), description.port)
}

fn connect(segment: &Segment) -> TcpStream {
    let stream = TcpStream::connect(data_address(segment)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn greet(segment: &Segment) -> TcpStream {
    let stream = TcpStream::connect(segment.endpoint()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn request(
    segment: &Segment,
    operation: Operation,
    version: Version,
    offset: u64,
    size: u64,
) -> [u8; REQUEST] {
    let request = Request {
        size,
        address: segment.base().wrapping_add(offset),
        operation,
        version,
    };
    request.encode()
}

fn take(stream: &mut TcpStream, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// Whether the other side ended the connection, having sent nothing more.
fn is_ended(stream: &mut TcpStream) -> bool {
    match stream.read(&mut [0]) {
        Ok(count) => count == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn what_is_written_is_read_by_others_and_by_its_own_process() {
    let segment = open(limits());
    let (others, own) = (peers(None), peers(Some(Arc::clone(&segment))));
    let pages: Vec<_> = (0..60)
        .map(|page| {
            (
                page * 17_000,
                (0..16_001).map(|at| (at * (page + 3)) as u8).collect(),
            )
        })
        .collect();
    for (writer, reader) in [
        (&others, &own),
        (&own, &others),
        (&others, &others),
        (&own, &own),
    ] {
        let outcomes = write(writer, &segment, &pages);
        assert!(outcomes.iter().all(|it| *it == Ok(())), "{outcomes:?}");
        for (offset, page) in &pages {
            assert!(read(reader, &segment, *offset, page.len()).as_ref() == Ok(page));
        }
        let empty: Vec<_> = pages
            .iter()
            .map(|(at, page)| (*at, vec![0; page.len()]))
            .collect();
        write(writer, &segment, &empty);
    }
}

#[test]
fn own_memory_needs_nobody() {
    let segment = open(limits());
    segment.close();
    segment.close();
    let own = peers(Some(Arc::clone(&segment)));
    assert_eq!(write(&own, &segment, &[(0, vec![7; 9])]), [Ok(())]);
    assert_eq!(read(&own, &segment, 0, 9), Ok(vec![7; 9]));
    assert_eq!(
        read(&own, &segment, SIZE - 1, 2),
        Err(code::ADDRESS_REJECTED)
    );
    assert_eq!(
        write(&own, &segment, &[(SIZE - 1, vec![1; 2])]),
        [Err(code::ADDRESS_REJECTED)]
    );
    assert_eq!(read(&peers(None), &segment, 0, 9), Err(code::UNREACHABLE));
}

#[test]
fn many_small_requests_fill_all_buffers_and_nobody_waits() {
    let segment = open(limits());
    let others = Peers::new(transfer::Settings {
        connections: 1,
        silence: PATIENCE,
        ..transfer::Settings::new(Directory::Handshake)
    });
    let pages: Vec<_> = (0..60_000)
        .map(|page| (page, vec![page as u8; 1]))
        .collect();
    assert!(
        write(&others, &segment, &pages)
            .iter()
            .all(|it| *it == Ok(()))
    );
    let expected: Vec<u8> = (0..60_000_u64).map(|page| page as u8).collect();
    assert!(read(&others, &segment, 0, 60_000) == Ok(expected.clone()));
    let mut bytes = vec![0; 60_000];
    let mut pieces: Vec<_> = bytes.chunks_mut(1).map(|it| [Target::from(it)]).collect();
    let mut jobs: Vec<_> = pieces
        .iter_mut()
        .enumerate()
        .map(|(at, pieces)| ReadJob::new(segment.endpoint(), segment.base() + at as u64, 1, pieces))
        .collect();
    others.read(&mut jobs, Instant::now() + PATIENCE);
    assert!(jobs.iter().all(|job| job.outcome.is_ok()));
    assert!(bytes == expected);
}

#[test]
fn several_clients_are_served_at_once() {
    let segment = open(limits());
    let threads: Vec<_> = (0..6_u64)
        .map(|number| {
            let segment = Arc::clone(&segment);
            thread::spawn(move || {
                let others = peers(None);
                for round in 0..20_u8 {
                    let page = vec![round ^ number as u8; 100_000];
                    let at = number * 150_000;
                    assert_eq!(write(&others, &segment, &[(at, page.clone())]), [Ok(())]);
                    assert!(read(&others, &segment, at, page.len()) == Ok(page));
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn readers_of_what_is_rewritten_get_old_or_new_bytes() {
    let segment = open(limits());
    let own = peers(Some(Arc::clone(&segment)));
    let writer = {
        let segment = Arc::clone(&segment);
        thread::spawn(move || {
            let others = peers(None);
            for round in 0..50 {
                let page = vec![if round % 2 == 0 { 0xFF } else { 0 }; 200_000];
                assert_eq!(write(&others, &segment, &[(0, page)]), [Ok(())]);
            }
        })
    };
    while !writer.is_finished() {
        for reader in [&own, &peers(None)] {
            let page = read(reader, &segment, 0, 200_000).unwrap();
            assert!(page.iter().all(|byte| [0, 0xFF].contains(byte)));
        }
        let page = vec![0xFF; 100_000];
        assert_eq!(write(&own, &segment, &[(50_000, page)]), [Ok(())]);
    }
    writer.join().unwrap();
}

#[test]
fn both_versions_byte_by_byte_and_in_one_piece() {
    let segment = open(limits());
    for version in [Version::One, Version::Two] {
        let bytes = [
            &request(&segment, Operation::Write, version, 5, 3)[..],
            b"abc",
            &request(&segment, Operation::Write, version, 8, 2),
            b"de",
            &request(&segment, Operation::Read, version, 4, 7),
            &request(&segment, Operation::Read, version, 6, 1),
        ]
        .concat();
        let fine = match version {
            Version::One => vec![],
            Version::Two => Status::Fine.encode().to_vec(),
        };
        let expected = [&fine[..], &fine, &fine, b"\0abcde\0", &fine, b"b"].concat();
        for part in [1, 24, 25, bytes.len()] {
            let mut stream = connect(&segment);
            stream.set_nodelay(true).unwrap();
            for part in bytes.chunks(part) {
                stream.write_all(part).unwrap();
            }
            assert_eq!(
                take(&mut stream, expected.len()),
                expected,
                "{version:?} {part}"
            );
            stream.shutdown(Shutdown::Write).unwrap();
            assert!(is_ended(&mut stream));
            let clean = peers(Some(Arc::clone(&segment)));
            assert_eq!(write(&clean, &segment, &[(0, vec![0; 20])]), [Ok(())]);
        }
    }
}

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
fn handshakes() {
    let segment = open(limits());
    let ask = |bytes: &[u8]| {
        let mut stream = greet(&segment);
        stream.set_nodelay(true).unwrap();
        for part in bytes.chunks(bytes.len().div_ceil(3)) {
            stream.write_all(part).unwrap();
        }
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap_or(0);
        answer
    };
    let expected = owner::handshake(1, segment.description());
    let long = "x".repeat(100_000);
    for text in ["", "{}\n", &long] {
        assert_eq!(ask(&owner::handshake(1, text)), expected, "{}", text.len());
    }
    assert_eq!(ask(&owner::handshake(0, "{}")), owner::handshake(0, "{}\n"));
    for bad in [[0; 9], [0xFF; 9]] {
        assert_eq!(ask(&bad), b"");
    }
    let description = describe(&segment);
    assert_eq!(
        description.ranges,
        [(segment.base(), segment.base() + SIZE)]
    );
    assert_eq!(description.version, Version::Two);
}

#[test]
fn only_the_configured_address_is_listened_on() {
    let segment = open(limits());
    let mut data = data_address(&segment);
    let mut greeting: SocketAddr = segment.endpoint().parse().unwrap();
    for address in [&mut data, &mut greeting] {
        TcpStream::connect(*address).unwrap();
        address.set_ip("127.0.0.2".parse().unwrap());
        assert!(TcpStream::connect(*address).is_err());
    }
}

#[test]
fn an_endpoint_is_the_configured_host() {
    let endpoint = |host: &str| {
        let segment = Segment::open(&Settings {
            bind: "127.0.0.1".parse().unwrap(),
            host: host.to_owned(),
            size: 1,
            limits: limits(),
        });
        let segment = segment.unwrap();
        let (host, port) = segment.endpoint().rsplit_once(':').unwrap();
        assert!(port.parse::<u16>().unwrap() > 0);
        host.to_owned()
    };
    assert_eq!(endpoint("node-1"), "node-1");
    assert_eq!(endpoint("::1"), "[::1]");
    assert_eq!(endpoint("[::1]"), "[::1]");
}

#[test]
fn what_cannot_be_lent_is_refused() {
    let open = |bind: &str, size| {
        let settings = Settings {
            bind: bind.parse().unwrap(),
            host: "x".to_owned(),
            size,
            limits: limits(),
        };
        Segment::open(&settings).unwrap_err().kind()
    };
    assert_eq!(open("127.0.0.1", 0), Kind::NoMemory);
    assert_eq!(open("127.0.0.1", MOST + 1), Kind::NoMemory);
    assert_eq!(open("192.0.2.1", 1), Kind::PoolFailed);
}

#[test]
fn addresses_differ_and_end_within_what_others_can_hold() {
    let bases: Vec<_> = (0..100).map(|_| new_base()).collect();
    for base in &bases {
        assert!(base % ALIGNMENT == 0 && (LOWEST..2 * LOWEST).contains(base));
        assert!(base + MOST < 1 << 47, "addresses of user space");
    }
    assert!(bases.iter().any(|base| *base != bases[0]));
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
