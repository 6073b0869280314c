//! A stand-in of Mooncake's master: a port behind which a test's function speaks.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::store::wire::family::Family;
use crate::store::wire::messages::{Exist, Locate, PutEnd, PutRevoke, PutStart, Replica, Replicas};
use crate::store::wire::pack::{Answer, Pack, Request, pack};

/// A request as it came.
pub struct Asked {
    pub number: u32,
    pub function: u32,
    pub body: Vec<u8>,
}

/// A connection to the stand-in.
pub struct Line(TcpStream);

impl Line {
    /// The next request; `None` at the end.
    pub fn request(&mut self) -> Option<Asked> {
        let mut head = [0; 20];
        self.0.read_exact(&mut head).ok()?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        assert_eq!(head[..4], [21, 0, 0, 0]);
        assert_eq!(word(16), 0);
        let mut body = vec![0; word(12) as usize];
        self.0.read_exact(&mut body).ok()?;
        Some(Asked {
            number: word(4),
            function: word(8),
            body,
        })
    }

    /// A whole answer.
    pub fn answer(&mut self, number: u32, error: u8, body: &[u8]) {
        let mut message = vec![21, 0, error, 0];
        let length = u32::try_from(body.len()).unwrap();
        for word in [number, length, 0] {
            message.extend(word.to_le_bytes());
        }
        message.extend(body);
        self.send(&message);
    }

    /// A value as an answer.
    pub fn say<T: Pack>(&mut self, number: u32, family: Family, value: &T) {
        let mut body = Vec::new();
        pack(value, family, &mut body);
        self.answer(number, 0, &body);
    }

    /// The RPC layer's own answer.
    pub fn refuse(&mut self, number: u32, error: u8, text: &str) {
        let mut body = Vec::new();
        pack(&super::Text::from(text), Family::ALL[0], &mut body);
        self.answer(number, error, &body);
    }

    /// Any bytes. The peer may be gone.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.0.write_all(bytes);
    }

    /// Answers the questions with which a connection begins, as a master of this version.
    pub fn introduce(&mut self, family: Family) {
        loop {
            let mut are_all_taken = true;
            for _ in 0..5 {
                let Some(request) = self.request() else {
                    return;
                };
                match takes(&request, family) {
                    true => self.say_nothing(&request, family),
                    false => {
                        are_all_taken = false;
                        self.refuse(request.number, 4, "invalid rpc arg");
                    }
                }
            }
            if are_all_taken {
                return;
            }
        }
    }

    /// An empty list of the right type.
    fn say_nothing(&mut self, request: &Asked, family: Family) {
        let number = request.number;
        if request.function == PutStart::function_id() {
            self.say(number, family, &Vec::<Answer<Vec<Replica<'_>>>>::new());
        } else if request.function == Locate::function_id() {
            self.say(number, family, &Vec::<Answer<Replicas<'_>>>::new());
        } else if request.function == Exist::function_id() {
            self.say(number, family, &Vec::<Answer<bool>>::new());
        } else {
            self.say(number, family, &Vec::<Answer<()>>::new());
        }
    }

    /// Waits until the other side ends the connection.
    pub fn wait_for_end(&mut self) {
        let mut bytes = [0; 4096];
        while !matches!(self.0.read(&mut bytes), Ok(0) | Err(_)) {}
    }
}

/// Whether a request's arguments have the layout of this version.
fn takes(request: &Asked, family: Family) -> bool {
    let code = [
        (PutStart::function_id(), PutStart::code(family)),
        (PutEnd::function_id(), PutEnd::code(family)),
        (PutRevoke::function_id(), PutRevoke::code(family)),
        (Exist::function_id(), Exist::code(family)),
        (Locate::function_id(), Locate::code(family)),
    ]
    .into_iter()
    .find_map(|(function, code)| (function == request.function).then_some(code?));
    let found = request.body.first_chunk().map(|it| u32::from_le_bytes(*it));
    found.map(|found| found & !1) == code
}

/// The port. Ends with this, its connections before.
pub struct StandIn {
    pub address: SocketAddr,
    connections: Arc<AtomicUsize>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// `speak` gets each connection, with how many there were before, on a thread of its own.
    pub fn new(speak: impl Fn(Line, usize) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, ends) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let thread = {
            let (connections, ends) = (Arc::clone(&connections), Arc::clone(&ends));
            let speak = Arc::new(speak);
            thread::spawn(move || {
                let (mut threads, mut open) = (Vec::new(), Vec::new());
                while !ends.load(Ordering::SeqCst) {
                    match listener.accept() {
                        Ok((stream, _)) => {
                            stream.set_nonblocking(false).unwrap();
                            open.push(stream.try_clone().unwrap());
                            let before = connections.fetch_add(1, Ordering::SeqCst);
                            let speak = Arc::clone(&speak);
                            threads.push(thread::spawn(move || {
                                let end = stream.try_clone().unwrap();
                                speak(Line(stream), before);
                                let _ = end.shutdown(Shutdown::Both);
                            }));
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            thread::sleep(Duration::from_millis(1));
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                for stream in open {
                    let _ = stream.shutdown(Shutdown::Both);
                }
                for thread in threads {
                    thread.join().unwrap();
                }
            })
        };
        Self {
            address,
            connections,
            ends,
            thread: Some(thread),
        }
    }

    /// One that introduces itself and answers nothing more.
    pub fn honest(family: Family) -> Self {
        Self::new(move |mut line, _| {
            line.introduce(family);
            line.wait_for_end();
        })
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let ended = self.thread.take().unwrap().join();
        if !thread::panicking() {
            ended.unwrap();
        }
    }
}
