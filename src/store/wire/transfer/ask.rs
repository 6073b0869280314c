//! Finding out how an owner is reached: its own handshake, or a metadata server.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::PollFlags;

use super::Directory;
use super::dial::{self, Exchange};
use super::http::{self, Answer, Server};
use super::owner::{self, Description};
use crate::store::code;

/// How an owner is reached.
#[derive(Debug)]
pub(super) struct Owner {
    /// Where its data port may be, best first.
    pub addresses: Vec<SocketAddr>,
    /// What it says of itself.
    pub description: Description,
}

/// A search for an owner.
#[derive(Debug)]
pub(super) struct Ask {
    exchange: Exchange,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Handshake,
    Description { server: Server, name: String },
    Contact(Description),
}

/// What a step of a search came to.
pub(super) enum Told {
    /// Nothing yet.
    Waiting,
    /// The end of it, or the code of its failure.
    End(Result<Owner, i32>),
}

impl Ask {
    /// Begins to ask for an owner. Blocks for the names' server where a name must be resolved, until the deadline at most.
    /// Errors: a code of the store.
    pub fn begin(directory: &Directory, endpoint: &str, deadline: Instant) -> Result<Self, i32> {
        match directory {
            Directory::Handshake => {
                let question = owner::handshake(owner::DESCRIBE, "{}\n");
                let most = owner::MOST + owner::LENGTH;
                Ok(Self {
                    exchange: start(endpoint, question, most, deadline)?,
                    stage: Stage::Handshake,
                })
            }
            Directory::Http(server) => Ok(Self {
                exchange: get(server, "ram", endpoint, deadline)?,
                stage: Stage::Description {
                    server: server.clone(),
                    name: endpoint.to_owned(),
                },
            }),
        }
    }

    /// The socket, and what to wait for.
    pub fn wants(&self) -> (BorrowedFd<'_>, PollFlags) {
        self.exchange.wants()
    }

    /// To be called when the socket is ready. Blocks as [`begin`](Self::begin).
    pub fn step(&mut self, deadline: Instant) -> Told {
        let address = self.exchange.address();
        let (bytes, is_end) = match self.exchange.step() {
            Ok(answer) => answer,
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                return Told::End(Err(code::BAD_ANSWER));
            }
            Err(_) => return Told::End(Err(code::UNREACHABLE)),
        };
        let text = match &self.stage {
            Stage::Handshake => match owner::answer(bytes) {
                Ok(Some((owner::DESCRIBE, text))) => text,
                Ok(None) if is_end => return Told::End(Err(code::UNREACHABLE)),
                Ok(None) => return Told::Waiting,
                Ok(Some(_)) | Err(()) => return Told::End(Err(code::BAD_ANSWER)),
            },
            Stage::Description { .. } | Stage::Contact(_) => match http::answer(bytes, is_end) {
                Answer::Whole(200, text) => text,
                Answer::Partial => return Told::Waiting,
                // No such owner is known, or the server cannot say.
                Answer::Whole(..) => return Told::End(Err(code::UNREACHABLE)),
                Answer::Bad => return Told::End(Err(code::BAD_ANSWER)),
            },
        };
        match &mut self.stage {
            Stage::Handshake => {
                let Some(description) = Description::parse(text) else {
                    return Told::End(Err(code::BAD_ANSWER));
                };
                let mut addresses = Vec::new();
                // It may listen for data on another network; if that is out of reach, where it answered.
                for host in description.host.into_iter().chain([address.ip()]) {
                    let mut data = address;
                    if host != address.ip() {
                        data = SocketAddr::new(host, 0);
                    }
                    data.set_port(description.port);
                    if !addresses.contains(&data) {
                        addresses.push(data);
                    }
                }
                Told::End(Ok(Owner {
                    addresses,
                    description,
                }))
            }
            Stage::Description { server, name } => {
                let Some(description) = Description::parse(text) else {
                    return Told::End(Err(code::BAD_ANSWER));
                };
                if let Some(host) = description.host {
                    return Told::End(Ok(Owner {
                        addresses: vec![SocketAddr::new(host, description.port)],
                        description,
                    }));
                }
                match get(server, "rpc_meta", name, deadline) {
                    Ok(exchange) => self.exchange = exchange,
                    Err(code) => return Told::End(Err(code)),
                }
                self.stage = Stage::Contact(description);
                Told::Waiting
            }
            Stage::Contact(description) => {
                let Some((host, _)) = owner::contact(text) else {
                    return Told::End(Err(code::BAD_ANSWER));
                };
                let host = match host.parse::<std::net::Ipv6Addr>() {
                    Ok(address) => format!("[{address}]"),
                    Err(_) => host,
                };
                Told::End(Ok(Owner {
                    addresses: dial::resolve(&format!("{host}:{}", description.port), deadline),
                    description: description.clone(),
                }))
            }
        }
    }
}

fn get(server: &Server, what: &str, name: &str, deadline: Instant) -> Result<Exchange, i32> {
    let question = server.get(&format!("mooncake/{what}/{name}"));
    start(&server.authority, question, http::MOST, deadline)
}

fn start(
    endpoint: &str,
    question: Vec<u8>,
    most: usize,
    deadline: Instant,
) -> Result<Exchange, i32> {
    let addresses = dial::resolve(endpoint, deadline);
    Exchange::begin(addresses, question, most).map_err(|_| code::UNREACHABLE)
}
