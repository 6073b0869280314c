//! Objects on the disks of owners that are stand-ins, and in their memory, which is a segment of ours.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::seam::segment;
use super::soon;
use super::stand_in::{Asked, Line, StandIn};
use crate::device::memory::{Source, Target};
use crate::keys::Keys;
use crate::store::wire::disk::{Disks, Found, Terms};
use crate::store::wire::family::Family;
use crate::store::wire::messages::{
    Buffer, COMPLETE, InMemory, Locate, OnDisk, Place, Replica, Replicas, Stage, Staged, Unstage,
};
use crate::store::wire::pack::{Answer, Request, Text, Uuid};
use crate::store::wire::segment::Segment;
use crate::store::wire::transfer::{self, Directory, Peers, WriteJob};
use crate::store::{GetOutcome, Pieces, Store, code};

const NEW: Family = Family::ALL[0];
/// Large enough that eight of them are several requests.
const PAGE: usize = 1 << 20;
const PAGES: usize = 8;
const LANDED: GetOutcome = GetOutcome::Landed(PAGE as u64);

/// What an owner's memory holds, and who reads it.
struct Rig {
    segment: Segment,
    peers: Peers,
    disks: Disks,
}

impl Rig {
    /// Page `n` is full of `n + 1`.
    fn new() -> Self {
        let segment = segment();
        let peers = Peers::new(transfer::Settings::new(Directory::Handshake));
        let pages: Vec<Vec<u8>> = (0..PAGES).map(|it| vec![it as u8 + 1; PAGE]).collect();
        let sources: Vec<_> = pages.iter().map(|page| [Source::from(&page[..])]).collect();
        let at = |page: usize| segment.base() + (page * PAGE) as u64;
        let jobs = sources.iter().enumerate();
        let mut jobs: Vec<_> = jobs
            .map(|(page, source)| WriteJob::new(segment.endpoint(), at(page), PAGE as u64, source))
            .collect();
        peers.write(&mut jobs, soon());
        assert!(jobs.iter().all(|job| job.outcome == Ok(())));
        let disks = Disks::new();
        Self {
            segment,
            peers,
            disks,
        }
    }

    /// What an owner knows: it gives pages by the number at the end of their key.
    fn owner(&self) -> Owner {
        Owner {
            base: self.segment.base(),
            endpoint: self.segment.endpoint().to_owned(),
            ttl_ms: 60_000,
            said: Arc::default(),
        }
    }

    /// Reads pages that each lie on the disks of all these owners.
    fn read(&self, owners: &[&str], size: usize, deadline: Instant) -> (Vec<GetOutcome>, Vec<u8>) {
        let mut keys = Keys::new();
        let mut found = Found::default();
        for page in 0..PAGES {
            keys.push(format!("k{page}").as_bytes());
            let replicas = owners.iter().map(|owner| on_disk(owner)).collect();
            let said = Replicas {
                replicas,
                ..Replicas::default()
            };
            // Twice, as after a connection that was lost.
            found.note(page, &Ok(said.clone()));
            found.note(page, &Ok(said));
        }
        let mut out = vec![GetOutcome::Failed(code::UNREACHABLE_MEMORY); PAGES];
        let mut landing = vec![0xee; size * PAGES];
        let mut targets: Vec<_> = landing.chunks_mut(size).map(Target::from).collect();
        let terms = Terms {
            tenant: Text::from("blue"),
            family: NEW,
            peers: &self.peers,
            deadline,
        };
        let pieces = Pieces::one_each(&mut targets);
        self.disks.read(&found, &keys, pieces, terms, &mut out);
        drop(targets);
        (out, landing)
    }

    /// Reads them all, and compares every byte.
    fn read_well(&self, owners: &[&str]) {
        let (out, landing) = self.read(owners, PAGE, soon());
        assert_eq!(out, [LANDED; PAGES]);
        check(&landing);
    }

    /// Reads none of them, which all fail like that.
    fn read_badly(&self, owner: &StandIn, outcome: GetOutcome) {
        let (out, landing) = self.read(&[&owner.address.to_string()], PAGE, soon());
        assert_eq!(out, [outcome; PAGES]);
        assert!(landing.iter().all(|&byte| byte == 0xee));
    }
}

fn check(landing: &[u8]) {
    for (page, bytes) in landing.chunks(PAGE).enumerate() {
        assert!(
            bytes.iter().all(|&byte| usize::from(byte) == page + 1),
            "{page}"
        );
    }
}

fn on_disk(endpoint: &str) -> Replica<'_> {
    let place = Place::Disk(OnDisk {
        client: Uuid(1, 2),
        size: PAGE as u64,
        endpoint: Text(endpoint.as_bytes()),
    });
    Replica {
        id: 1,
        place,
        status: COMPLETE,
    }
}

#[derive(Clone)]
struct Owner {
    base: u64,
    endpoint: String,
    ttl_ms: u64,
    said: Arc<Mutex<Said>>,
}

#[derive(Default)]
struct Said {
    /// Batches that were given and not given back.
    given: Vec<u64>,
    count: u64,
}

impl Owner {
    /// The pages that a request asks for. Of those with short lists.
    fn pages(request: &Asked) -> Vec<usize> {
        assert_eq!(request.function, Stage::function_id());
        let mut rest = &request.body[5..];
        let count = usize::from(request.body[4]);
        let mut pages = Vec::new();
        for _ in 0..count {
            let (key, behind) = rest[1..].split_at(usize::from(rest[0]));
            let text = std::str::from_utf8(key).unwrap();
            pages.push(text.strip_prefix("blue\0k").unwrap().parse().unwrap());
            rest = behind;
        }
        assert_eq!(rest.len(), 1 + 8 * count);
        for size in rest[1..].chunks(8) {
            assert_eq!(size, (PAGE as i64).to_le_bytes());
        }
        pages
    }

    fn addresses(&self, pages: &[usize]) -> Vec<u64> {
        let at = |page: &usize| self.base + (page * PAGE) as u64;
        pages.iter().map(at).collect()
    }

    fn staged(&self, addresses: Vec<u64>) -> Answer<Staged<'_>> {
        let mut said = self.said.lock().unwrap();
        said.count += 1;
        let batch = said.count;
        said.given.push(batch);
        Ok(Staged {
            batch,
            addresses,
            endpoint: Text(self.endpoint.as_bytes()),
            ttl_ms: self.ttl_ms,
        })
    }

    /// Answers one request as it should; false at the end.
    fn serve_one(&self, line: &mut Line) -> bool {
        let Some(request) = line.request() else {
            return false;
        };
        if request.function == Unstage::function_id() {
            self.take_back(line, &request);
        } else {
            let addresses = self.addresses(&Self::pages(&request));
            line.say(request.number, NEW, &self.staged(addresses));
        }
        true
    }

    fn take_back(&self, line: &mut Line, request: &Asked) {
        let batch = u64::from_le_bytes(request.body[4..].try_into().unwrap());
        let mut said = self.said.lock().unwrap();
        let before = said.given.len();
        said.given.retain(|it| *it != batch);
        line.say(request.number, NEW, &(said.given.len() < before));
    }

    fn serve(&self, line: &mut Line) {
        while self.serve_one(line) {}
    }

    /// Serves as it should.
    fn start(&self) -> StandIn {
        let owner = self.clone();
        StandIn::new(move |mut line, _| owner.serve(&mut line))
    }

    /// Answers each request for pages like that, given the pages.
    fn answering(
        &self,
        answer: impl Fn(&Self, &mut Line, &Asked, &[usize]) + Send + Sync + 'static,
    ) -> StandIn {
        let owner = self.clone();
        StandIn::new(move |mut line, _| {
            while let Some(request) = line.request() {
                if request.function == Unstage::function_id() {
                    owner.take_back(&mut line, &request);
                } else {
                    answer(&owner, &mut line, &request, &Self::pages(&request));
                }
            }
        })
    }
}

/// Where nobody listens.
fn nobody() -> String {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap();
    gone.local_addr().unwrap().to_string()
}

#[test]
fn pages_are_read_from_the_owners_memory_and_that_is_given_back() {
    let rig = Rig::new();
    let owner = rig.owner();
    let stand_in = owner.start();
    let endpoint = stand_in.address.to_string();
    for _ in 0..5 {
        rig.read_well(&[&endpoint]);
        let said = owner.said.lock().unwrap();
        assert_eq!(said.given, [0; 0]);
        assert!(said.count > 1, "all in one request");
    }
    // Connections are used again: three at once are all that an owner gets.
    assert!(stand_in.connections() <= 3, "{}", stand_in.connections());
}

#[test]
fn another_copy_is_read_where_an_owner_fails() {
    let rig = Rig::new();
    let good = rig.owner().start();
    let good = good.address.to_string();
    let mut ill = Vec::new();
    // Gone; gone in the middle; without the page; with an answer that is none.
    ill.push(nobody());
    let ends = StandIn::new(|mut line, _| drop(line.request()));
    ill.push(ends.address.to_string());
    let empty = rig.owner().answering(|_, line, asked, _| {
        line.say(asked.number, NEW, &Answer::<Staged<'_>>::Err(-400))
    });
    ill.push(empty.address.to_string());
    let liar = StandIn::new(|mut line, _| {
        line.send(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        line.wait_for_end();
    });
    ill.push(liar.address.to_string());
    for ill in &ill {
        rig.read_well(&[ill, &good]);
    }
    let all: Vec<&str> = ill.iter().chain([&good]).map(String::as_str).collect();
    rig.read_well(&all);
    // The same one again and again.
    rig.read_well(&[&ill[0], &ill[0], &ill[1], &ill[1], &good]);
    let (out, _) = rig.read(&[&ill[0]], PAGE, soon());
    assert_eq!(out, [GetOutcome::Failed(code::LENDER_LOST); PAGES]);
}

#[test]
fn connections_that_end_when_they_are_used_again_are_made_anew() {
    let rig = Rig::new();
    let owner = rig.owner();
    let stand_in = StandIn::new(move |mut line, _| {
        // Pages and their memory once, and an end in place of the next answer.
        if owner.serve_one(&mut line) && owner.serve_one(&mut line) {
            drop(line.request());
        }
    });
    for _ in 0..5 {
        rig.read_well(&[&stand_in.address.to_string()]);
    }
}

#[test]
fn an_owner_that_is_silent_costs_its_pages_and_nothing_lands_later() {
    let rig = Rig::new();
    let owner = rig.owner();
    let good = owner.start();
    let silent = StandIn::new(|mut line, _| line.wait_for_end());
    let (good, endpoint) = (good.address.to_string(), silent.address.to_string());
    // Its patience ends before the call does, and another is asked.
    rig.read_well(&[&endpoint, &good]);
    // For a moment it is not even asked.
    let before = silent.connections();
    rig.read_well(&[&endpoint, &good]);
    assert_eq!(silent.connections(), before);
    let (out, _) = rig.read(&[&good], PAGE, Instant::now());
    assert_eq!(out, [GetOutcome::Failed(code::DEADLINE); PAGES]);
}

/// Where the call ends before the owner's time does, the owner is lost all the same: a deadline that is missed would count as
/// an outage of the pool.
#[test]
fn an_owner_that_is_silent_until_the_deadline_is_lost() {
    let rig = Rig::new();
    let good = rig.owner().start();
    let silent = StandIn::new(|mut line, _| line.wait_for_end());
    let (good, endpoint) = (good.address.to_string(), silent.address.to_string());
    // Nobody can tell in so little time.
    let too_soon = Instant::now() + Duration::from_millis(10);
    let (out, _) = rig.read(&[&endpoint], PAGE, too_soon);
    assert_eq!(out, [GetOutcome::Failed(code::DEADLINE); PAGES]);
    let soon_over = Instant::now() + Duration::from_secs(2);
    let (out, landing) = rig.read(&[&endpoint, &good], PAGE, soon_over);
    assert_eq!(out, [GetOutcome::Failed(code::LENDER_LOST); PAGES]);
    assert!(landing.iter().all(|&byte| byte == 0xee));
    // For a moment it is not even asked.
    let before = silent.connections();
    assert!(before > 0);
    rig.read_well(&[&endpoint, &good]);
    assert_eq!(silent.connections(), before);
}

/// The time counts from before the request: this owner takes longer than it gives.
#[test]
fn what_is_read_after_its_time_is_lost() {
    let rig = Rig::new();
    let mut owner = rig.owner();
    let late = GetOutcome::Failed(code::LEASE_EXPIRED);
    let slow = |owner: &Owner| {
        owner.answering(|owner, line, asked, pages| {
            thread::sleep(Duration::from_millis(100));
            line.say(asked.number, NEW, &owner.staged(owner.addresses(pages)));
        })
    };
    for ttl_ms in [0, 100] {
        owner.ttl_ms = ttl_ms;
        rig.read_badly(&slow(&owner), late);
        assert_eq!(owner.said.lock().unwrap().given, [0; 0], "given back");
    }
    owner.ttl_ms = u64::MAX;
    rig.read_well(&[&slow(&owner).address.to_string()]);
    // The time of one does not end the reads from another.
    owner.ttl_ms = 0;
    let (short, good) = (owner.start(), rig.owner().start());
    rig.read_well(&[&short.address.to_string(), &good.address.to_string()]);
}

/// An owner gives all that it is asked for or nothing.
#[test]
fn a_page_that_an_owner_lacks_costs_no_other() {
    let rig = Rig::new();
    for (number, outcome) in [
        (-400, GetOutcome::Missing),
        (-1100, GetOutcome::Missing),
        (-10, GetOutcome::Failed(-10)),
        // No error, and nothing was read.
        (0, GetOutcome::Failed(code::LENDER_LOST)),
        (5, GetOutcome::Failed(code::LENDER_LOST)),
    ] {
        let owner = rig.owner();
        let stand_in = owner.answering(move |owner, line, asked, pages| {
            let answer = match pages.contains(&3) {
                true => Err(number),
                false => owner.staged(owner.addresses(pages)),
            };
            line.say(asked.number, NEW, &answer);
        });
        let (out, landing) = rig.read(&[&stand_in.address.to_string()], PAGE, soon());
        for (page, found) in out.into_iter().enumerate() {
            let wanted = if page == 3 { outcome } else { LANDED };
            assert_eq!(found, wanted, "{number} {page}");
        }
        assert!(landing[4 * PAGE..].iter().all(|&byte| byte > 4));
        assert_eq!(owner.said.lock().unwrap().given, [0; 0]);
    }
}

#[test]
fn an_owner_that_offers_no_such_call_is_out_of_reach() {
    let rig = Rig::new();
    let unreachable = GetOutcome::Failed(code::UNREACHABLE_MEMORY);
    // No method, another layout, and an error of its own code.
    for error in [11, 4, 5] {
        let stand_in = StandIn::new(move |mut line, _| {
            while let Some(request) = line.request() {
                line.refuse(request.number, error, "no");
            }
        });
        rig.read_badly(&stand_in, unreachable);
    }
}

type Lie = fn(&Owner, &mut Line, &Asked, Vec<u64>);

#[test]
fn lies_of_an_owner_are_noticed() {
    fn say(owner: &Owner, line: &mut Line, asked: &Asked, addresses: Vec<u64>) {
        line.say(asked.number, NEW, &owner.staged(addresses));
    }
    fn named(line: &mut Line, asked: &Asked, addresses: Vec<u64>, endpoint: &[u8]) {
        let staged = Staged {
            batch: 1,
            addresses,
            endpoint: Text(endpoint),
            ttl_ms: 60_000,
        };
        line.say(asked.number, NEW, &Answer::Ok(staged));
    }
    let rig = Rig::new();
    let bad = code::LENDER_LOST;
    let lies: [(Lie, i32); 10] = [
        (
            |owner, line, asked, all| say(owner, line, asked, all[1..].to_vec()),
            bad,
        ),
        (
            |owner, line, asked, all| say(owner, line, asked, [&all[..], &all].concat()),
            bad,
        ),
        (
            |owner, line, asked, all| say(owner, line, asked, vec![0; all.len()]),
            bad,
        ),
        (
            |owner, line, asked, all| say(owner, line, asked, vec![u64::MAX; all.len()]),
            bad,
        ),
        // A list that is longer than its message.
        (
            |_, line, asked, _| {
                line.answer(
                    asked.number,
                    0,
                    &[0xb1, 0xac, 3, 0xfc, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255],
                )
            },
            bad,
        ),
        (
            |owner, line, asked, _| line.say(asked.number, NEW, &owner.said.lock().unwrap().count),
            bad,
        ),
        (|_, line, asked, all| named(line, asked, all, b""), bad),
        (|_, line, asked, all| named(line, asked, all, &[0xff]), bad),
        (
            |_, line, asked, all| named(line, asked, all, &[b'a'; 2000]),
            bad,
        ),
        // No bytes of such an owner.
        (
            |owner, line, asked, all| {
                let outside = all.iter().map(|it| it + (64 << 20)).collect();
                say(owner, line, asked, outside);
            },
            code::ADDRESS_REJECTED,
        ),
    ];
    for (number, (lie, code)) in lies.into_iter().enumerate() {
        let stand_in = rig.owner().answering(move |owner, line, asked, pages| {
            lie(owner, line, asked, owner.addresses(pages));
        });
        let (out, landing) = rig.read(&[&stand_in.address.to_string()], PAGE, soon());
        assert_eq!(out, [GetOutcome::Failed(code); PAGES], "{number}");
        assert!(landing.iter().all(|&byte| byte == 0xee));
    }
}

#[test]
fn an_owner_whose_memory_is_nowhere_is_out_of_reach() {
    let rig = Rig::new();
    let mut owner = rig.owner();
    owner.endpoint = nobody();
    rig.read_badly(&owner.start(), GetOutcome::Failed(code::LENDER_LOST));
    assert_eq!(owner.said.lock().unwrap().given, [0; 0]);
}

#[test]
fn a_page_of_another_size_is_not_asked_for() {
    let rig = Rig::new();
    let stand_in = rig.owner().start();
    let (out, _) = rig.read(&[&stand_in.address.to_string()], 100, soon());
    assert_eq!(out, [GetOutcome::WrongSize(PAGE as u64); PAGES]);
    assert_eq!(stand_in.connections(), 0);
}

/// Memory first, and the disk for what it does not bring.
#[test]
fn memory_is_preferred() {
    let rig = Rig::new();
    let owner = rig.owner();
    let disk = owner.start();
    let in_memory = |endpoint: &str, owner: &Owner| {
        let buffer = Buffer {
            size: PAGE as u64,
            address: owner.base,
            protocol: "tcp".into(),
            endpoint: Text(endpoint.to_owned().leak().as_bytes()),
        };
        Replica {
            place: Place::Memory(InMemory { buffer }),
            ..on_disk("")
        }
    };
    let here = in_memory(&owner.endpoint, &owner);
    let gone = in_memory(&nobody(), &owner);
    let on_disk = on_disk(disk.address.to_string().leak());
    let mut half = on_disk.clone();
    half.status = 2;
    for (replicas, outcome, asked) in [
        (vec![on_disk.clone(), here], LANDED, 0),
        (
            vec![half.clone(), gone.clone()],
            GetOutcome::Failed(code::LENDER_LOST),
            0,
        ),
        (vec![half], GetOutcome::Missing, 0),
        (vec![on_disk.clone(), gone], LANDED, 1),
        (vec![on_disk], LANDED, 2),
    ] {
        let master = StandIn::new(move |mut line, _| {
            line.introduce(NEW);
            while let Some(request) = line.request() {
                assert_eq!(request.function, Locate::function_id());
                let said = Replicas {
                    replicas: replicas.clone(),
                    lease_ms: 60_000,
                    checksum: None,
                };
                line.say(request.number, NEW, &vec![Answer::Ok(said)]);
            }
        });
        let handle = super::client::handle(Arc::new(connect_as_blue(&master)), None);
        let mut keys = Keys::new();
        keys.push(b"k0");
        let mut page = vec![0; PAGE];
        let mut targets = [Target::from(&mut page[..])];
        let mut out = Vec::new();
        handle.get(&keys, Pieces::one_each(&mut targets), &mut out);
        assert_eq!(out, [outcome]);
        assert_eq!(owner.said.lock().unwrap().count, asked);
        if outcome == LANDED {
            assert!(page.iter().all(|&byte| byte == 1));
        }
    }
}

fn connect_as_blue(to: &StandIn) -> super::Master {
    super::Master::connect(vec![to.address], "blue", Uuid(1, 2), soon()).unwrap()
}
