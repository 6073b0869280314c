//! Puts and ends of a whole client, whose master and memory are stand-ins.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Instant;

use super::stand_in::StandIn;
use super::{LONG, connect, soon};
use crate::device::memory::Source;
use crate::fork::Process;
use crate::keys::Keys;
use crate::store::wire::alive::{self, Lent, Memory};
use crate::store::wire::client::{Client, Times};
use crate::store::wire::disk::Disks;
use crate::store::wire::family::Family;
use crate::store::wire::handle::Handle;
use crate::store::wire::messages::{
    Buffer, InMemory, Ping, Place, Pong, PutRevoke, PutStart, Replica,
};
use crate::store::wire::open::capabilities;
use crate::store::wire::pack::{Answer, Request, Text, Uuid};
use crate::store::wire::spots::MOST_REPLICAS;
use crate::store::wire::transfer::{Directory, Peers, Settings};
use crate::store::{Pieces, Presence, PutOptions, PutOutcome, RemoveOutcome, Store, code};

const NEW: Family = Family::ALL[0];

pub(super) fn handle(master: Arc<super::Master>, lent: Option<Lent>) -> Handle {
    Handle::new(Arc::new(client(master, lent)))
}

fn client(master: Arc<super::Master>, lent: Option<Lent>) -> Client {
    Client {
        master,
        peers: Peers::new(Settings::new(Directory::Handshake)),
        disks: Disks::new(),
        times: Times {
            lookup: LONG,
            load: LONG,
            save: LONG,
        },
        capabilities: capabilities(NEW, false),
        replicas: 1,
        told_of_few: AtomicBool::new(false),
        lent,
        process: Process::this(),
    }
}

fn one_key() -> Keys {
    let mut keys = Keys::new();
    keys.push(b"a");
    keys
}

/// Ends when a test says so.
struct Server {
    ends: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl alive::Server for Server {
    fn move_on(&self, _: Instant) -> crate::error::Result<u64> {
        Ok(1 << 34)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.ends.send(());
        let _ = self.go_on.lock().unwrap().recv_timeout(LONG);
    }
}

#[test]
fn calls_do_not_wait_for_the_end_of_the_client() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            match request.function == Ping::function_id() {
                true => line.say(
                    request.number,
                    NEW,
                    &Answer::Ok(Pong { view: 0, status: 1 }),
                ),
                false => line.say(request.number, NEW, &Answer::Ok(())),
            }
        }
    });
    let master = Arc::new(connect(&stand_in).unwrap());
    let (ends, is_ending) = mpsc::channel();
    let (let_go, go_on) = mpsc::channel();
    let server = Server {
        ends,
        go_on: Mutex::new(go_on),
    };
    let memory = Memory {
        name: "127.0.0.1:7".to_owned(),
        endpoint: "127.0.0.1:7".to_owned(),
        base: 1 << 33,
        size: 1 << 24,
    };
    let lent = Lent::begin(
        Arc::clone(&master),
        Uuid(3, 4),
        memory,
        Box::new(server),
        soon(),
    );
    let handle = Arc::new(handle(master, Some(lent.unwrap())));
    let closing = {
        let handle = Arc::clone(&handle);
        thread::spawn(move || handle.close())
    };
    is_ending.recv_timeout(LONG).unwrap();
    let (answer, answered) = mpsc::channel();
    let asking = {
        let handle = Arc::clone(&handle);
        thread::spawn(move || {
            let mut out = Vec::new();
            handle.exist(&one_key(), &mut out);
            let _ = answer.send(out);
        })
    };
    // Less than the server waits for.
    let found = answered.recv_timeout(LONG / 4);
    let _ = let_go.send(());
    closing.join().unwrap().unwrap();
    asking.join().unwrap();
    assert_eq!(found, Ok(vec![Presence::Unknown(code::CLOSED)]));
}

/// A master that gives memory in so many places, at which nobody is, and says when it was given back.
fn generous(places: usize) -> (StandIn, mpsc::Receiver<()>) {
    let (revoked, is_revoked) = mpsc::channel();
    let revoked = Mutex::new(revoked);
    let stand_in = StandIn::new(move |mut line, _| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            if request.function == PutStart::function_id() {
                let buffer = Buffer {
                    size: 4,
                    address: 1 << 33,
                    protocol: Text(b"tcp"),
                    // Nobody is there.
                    endpoint: Text(b"127.0.0.1:1"),
                };
                let place = Place::Memory(InMemory { buffer });
                let replica = Replica {
                    place,
                    ..Replica::default()
                };
                let replicas = vec![replica; places];
                line.say(request.number, NEW, &vec![Answer::Ok(replicas)]);
            } else {
                assert_eq!(request.function, PutRevoke::function_id());
                line.say(request.number, NEW, &vec![Answer::Ok(())]);
                revoked.lock().unwrap().send(()).unwrap();
            }
        }
    });
    (stand_in, is_revoked)
}

#[test]
fn fewer_places_than_were_asked_for_are_told_of() {
    for (places, asked, is_told) in [(1, 1, false), (1, 2, true), (2, 2, false), (2, 3, true)] {
        let (stand_in, is_revoked) = generous(places);
        let mut client = client(Arc::new(connect(&stand_in).unwrap()), None);
        client.replicas = asked;
        let client = Arc::new(client);
        put_one(&Handle::new(Arc::clone(&client)));
        is_revoked.recv_timeout(LONG).unwrap();
        let told = client.told_of_few.load(Ordering::Relaxed);
        assert_eq!(told, is_told, "{places} of {asked}");
    }
}

/// Nobody asks for that many, and each would be written.
#[test]
fn memory_in_more_places_than_anybody_asks_for_is_given_back() {
    let (stand_in, is_revoked) = generous(MOST_REPLICAS + 1);
    let handle = handle(Arc::new(connect(&stand_in).unwrap()), None);
    let unreachable = PutOutcome::Failed(code::UNREACHABLE_MEMORY);
    assert_eq!(put_one(&handle), unreachable);
    is_revoked.recv_timeout(LONG).unwrap();
}

fn put_one(handle: &Handle) -> PutOutcome {
    let mut sources = [Source::from(&[7; 4][..])];
    let mut out = Vec::new();
    handle.put(
        &one_key(),
        Pieces::one_each(&mut sources),
        &PutOptions::default(),
        &mut out,
    );
    assert_eq!(out.len(), 1);
    out[0]
}

/// An error whose number is that of success.
#[test]
fn what_the_master_calls_an_error_is_none_of_our_successes() {
    let stand_in = StandIn::new(|mut line, _| {
        line.introduce(NEW);
        while let Some(request) = line.request() {
            let number = request.number;
            if request.function == PutStart::function_id() {
                let refused: Answer<Vec<Replica<'_>>> = Err(0);
                line.say(number, NEW, &vec![refused]);
            } else {
                line.say(number, NEW, &vec![Answer::<()>::Err(0)]);
            }
        }
    });
    let handle = handle(Arc::new(connect(&stand_in).unwrap()), None);
    assert_eq!(put_one(&handle), PutOutcome::Failed(code::BAD_ANSWER));
    let mut out = Vec::new();
    handle.remove(&one_key(), false, &mut out);
    assert_eq!(out, [RemoveOutcome::Failed(code::BAD_ANSWER)]);
}
