//! Segments against our own client and raw connections.

mod hostile;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::Instant;

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
        crowded: PATIENCE,
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
    let expected = owner::handshake(1, &segment.description());
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
fn nothing_is_moved_at_addresses_of_before() {
    let segment = open(limits());
    let (others, own) = (peers(None), peers(Some(Arc::clone(&segment))));
    assert_eq!(write(&others, &segment, &[(9, vec![7; 100])]), [Ok(())]);
    let before = segment.base();
    // One that has sent a half, and one that is sent more than all buffers hold.
    let mut writing = connect(&segment);
    let half = request(&segment, Operation::Write, Version::Two, 0, 8);
    writing.write_all(&[&half[..], &[1; 4]].concat()).unwrap();
    while read(&own, &segment, 0, 4) != Ok(vec![1; 4]) {
        thread::yield_now();
    }
    let mut reading = connect(&segment);
    let all = request(&segment, Operation::Read, Version::Two, 0, SIZE);
    reading.write_all(&all.repeat(64)).unwrap();
    assert_eq!(take(&mut reading, 8), Status::Fine.encode());

    let base = segment.move_on();
    assert_ne!(base, before);
    assert_eq!(segment.base(), base);
    let old = Request {
        size: 4,
        address: before + 9,
        operation: Operation::Read,
        version: Version::Two,
    };
    let mut asking = connect(&segment);
    asking.write_all(&old.encode()).unwrap();
    assert_eq!(take(&mut asking, 8), Status::Rejected.encode());
    writing.write_all(&[1; 4]).unwrap();
    assert!(is_ended(&mut writing));
    // What the system has taken already still comes, then the end.
    let mut rest = Vec::new();
    let _ = reading.read_to_end(&mut rest);
    assert!(rest.len() < 64 * SIZE as usize);

    for peers in [&others, &own] {
        let mut page = [0; 4];
        let mut pieces = [Target::from(&mut page[..])];
        let mut jobs = [ReadJob::new(segment.endpoint(), before + 9, 4, &mut pieces)];
        peers.read(&mut jobs, Instant::now() + PATIENCE);
        assert_eq!(jobs[0].outcome, Err(code::ADDRESS_REJECTED));
        // Others ask anew where it is.
        assert_eq!(read(peers, &segment, 9, 100), Ok(vec![7; 100]));
    }
    assert_eq!(describe(&segment).ranges, [(base, base + SIZE)]);
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
