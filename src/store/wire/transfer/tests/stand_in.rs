//! Owners of memory that are none: they listen on the loopback interface and do what a test says.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::store::wire::transfer::frame::{Operation, REQUEST, Request, Status, Version};
use crate::store::wire::transfer::owner;

/// The first address of the memory of a stand-in.
pub const BASE: u64 = 0x10_0000;

/// What tests see of a stand-in.
pub struct Shared {
    pub memory: Mutex<Vec<u8>>,
    /// What it answers to a handshake.
    pub description: Mutex<Vec<u8>>,
    pub handshakes: AtomicUsize,
    pub connections: AtomicUsize,
    pub requests: AtomicUsize,
}

/// Bytes that a stand-in lends.
pub const MEMORY: u64 = 8 << 20;

/// A stand-in of an owner.
#[derive(Clone)]
pub struct StandIn {
    pub endpoint: String,
    pub shared: Arc<Shared>,
}

impl StandIn {
    /// One that serves every connection like that, given the connection's number. The handshake listener stays,
    /// like all threads, until the test process ends.
    pub fn new(serve: impl Fn(TcpStream, &Shared, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = listener.local_addr().unwrap().to_string();
        let shared = Arc::new(Shared {
            // Differs also from what is a round number of bytes away.
            memory: Mutex::new(
                (0..MEMORY)
                    .map(|at| (((at * 31) >> 3) ^ ((at >> 11) * 7)) as u8)
                    .collect(),
            ),
            description: Mutex::default(),
            handshakes: AtomicUsize::new(0),
            connections: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
        });
        let stand_in = Self { endpoint, shared };
        stand_in.serve_data(serve);
        let shared = Arc::clone(&stand_in.shared);
        thread::spawn(move || {
            for stream in listener.incoming() {
                shared.handshakes.fetch_add(1, Ordering::SeqCst);
                let _ = answer_handshake(stream.unwrap(), &shared);
            }
        });
        stand_in
    }

    /// One that serves as it should.
    pub fn honest(version: Version) -> Self {
        let stand_in = Self::new(|stream, shared, _| {
            let _ = serve(stream, shared);
        });
        if version == Version::One {
            let mut description = stand_in.shared.description.lock().unwrap();
            let text = String::from_utf8(description.clone()).unwrap();
            *description = text.replace("_version\":2", "_version\":1").into_bytes();
        }
        stand_in
    }

    /// Listens for data on another port from now on.
    pub fn serve_data(&self, serve: impl Fn(TcpStream, &Shared, usize) + Send + Sync + 'static) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        self.describe(listener.local_addr().unwrap().port());
        let (shared, serve) = (Arc::clone(&self.shared), Arc::new(serve));
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, serve) = (Arc::clone(&shared), Arc::clone(&serve));
                thread::spawn(move || {
                    let number = shared.connections.fetch_add(1, Ordering::SeqCst);
                    serve(stream.unwrap(), &shared, number);
                });
            }
        });
    }

    fn describe(&self, port: u16) {
        let text = format!("{{\"tcp_data_port\":{port},\"tcp_proto_version\":2}}\n");
        *self.shared.description.lock().unwrap() = text.into_bytes();
    }

    /// Lets it say that it lends this many bytes from [`BASE`] on.
    pub fn lend(&self, length: u64) {
        let mut description = self.shared.description.lock().unwrap();
        let text = String::from_utf8(description.clone()).unwrap();
        let more = format!(",\"buffers\":[{{\"addr\":{BASE},\"length\":{length}}}]}}");
        *description = text.replace('}', &more).into_bytes();
    }

    /// A copy of its memory.
    pub fn bytes(&self, from: usize, size: usize) -> Vec<u8> {
        self.shared.memory.lock().unwrap()[from..from + size].to_vec()
    }

    pub fn handshakes(&self) -> usize {
        self.shared.handshakes.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

fn answer_handshake(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let mut asked = vec![0; u64::from_le_bytes(length) as usize];
    stream.read_exact(&mut asked)?;
    assert_eq!(asked[0], owner::DESCRIBE);
    let description = shared.description.lock().unwrap().clone();
    // Bytes that begin like that are the whole answer.
    if let Some(raw) = description.strip_prefix(b"raw:") {
        return stream.write_all(raw);
    }
    let text = String::from_utf8(description).unwrap();
    stream.write_all(&owner::handshake(owner::DESCRIBE, &text))
}

/// The next request.
pub fn request(stream: &mut TcpStream, shared: &Shared) -> std::io::Result<Request> {
    let mut bytes = [0; REQUEST];
    stream.read_exact(&mut bytes)?;
    shared.requests.fetch_add(1, Ordering::SeqCst);
    Ok(Request::decode(&bytes).unwrap())
}

/// Serves a connection as it should.
pub fn serve(mut stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    loop {
        let request = request(&mut stream, shared)?;
        answer(&mut stream, shared, request)?;
    }
}

/// Serves one request as it should.
pub fn answer(stream: &mut TcpStream, shared: &Shared, request: Request) -> std::io::Result<()> {
    let is_two = request.version == Version::Two;
    let size = request.size as usize;
    let from = request.address.checked_sub(BASE).map(|it| it as usize);
    let held = shared.memory.lock().unwrap().len();
    let from = from.filter(|from| from.checked_add(size).is_some_and(|end| end <= held));
    let Some(from) = from else {
        if is_two {
            stream.write_all(&Status::Rejected.encode())?;
            // The status would be lost if this ended with requests unread.
            stream.shutdown(Shutdown::Write)?;
            std::io::copy(stream, &mut std::io::sink())?;
        }
        return Err(std::io::ErrorKind::InvalidInput.into());
    };
    match request.operation {
        Operation::Read => {
            let bytes = shared.memory.lock().unwrap()[from..from + size].to_vec();
            if is_two {
                stream.write_all(&Status::Fine.encode())?;
            }
            stream.write_all(&bytes)
        }
        Operation::Write => {
            let mut bytes = vec![0; size];
            stream.read_exact(&mut bytes)?;
            shared.memory.lock().unwrap()[from..from + size].copy_from_slice(&bytes);
            if is_two {
                stream.write_all(&Status::Fine.encode())?;
            }
            Ok(())
        }
    }
}
