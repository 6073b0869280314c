//! Owners that a metadata server knows.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::stand_in::StandIn;
use super::{later, read_until, settings};
use crate::device::memory::Target;
use crate::error::Kind;
use crate::store::code;
use crate::store::wire::segment::{self, Segment};
use crate::store::wire::transfer::frame::Version;
use crate::store::wire::transfer::{Directory, Peers, ReadJob, Settings, announce, http};

type Entries = Arc<Mutex<HashMap<String, String>>>;

/// A stand-in of a metadata server; its URL.
fn directory(entries: &Entries) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/metadata", listener.local_addr().unwrap());
    let entries = Arc::clone(entries);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.push(byte[0]);
            }
            let asked = String::from_utf8(asked).unwrap();
            let (method, rest) = asked.split_once(" /metadata?key=").unwrap();
            let (key, rest) = rest.split_once(' ').unwrap();
            let mut entries = entries.lock().unwrap();
            let found = entries.get(key).cloned();
            let fine = |text: &str| {
                format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                    text.len()
                )
            };
            let answer = match (method, found) {
                // Like Mooncake's own.
                ("PUT", Some(_)) if key.contains("rpc_meta") => {
                    "HTTP/1.1 400 Bad Request\r\n\r\nDuplicate rpc_meta key not allowed".to_owned()
                }
                ("PUT", _) => {
                    let (_, length) = rest.split_once("Content-Length: ").unwrap();
                    let length = length.split('\r').next().unwrap().parse().unwrap();
                    let mut value = vec![0; length];
                    stream.read_exact(&mut value).unwrap();
                    let value = String::from_utf8(value).unwrap();
                    entries.insert(key.to_owned(), value);
                    fine("metadata updated")
                }
                (_, None) => "HTTP/1.1 404 Not Found\r\n\r\nmetadata not found".to_owned(),
                ("DELETE", Some(_)) => {
                    entries.remove(key);
                    fine("metadata deleted")
                }
                (_, Some(text)) if text.starts_with("HTTP/") => text,
                (_, Some(text)) => fine(&text),
            };
            drop(entries);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

#[test]
fn a_name_is_looked_up_at_the_metadata_server() {
    let stand_in = StandIn::honest(Version::Two);
    let entries = Entries::default();
    let server = http::Server::parse(&directory(&entries)).unwrap();
    let new = || {
        Peers::new(Settings {
            directory: Directory::Http(server.clone()),
            ..settings()
        })
    };
    let peers = new();
    let read = |peers: &Peers| read_until(peers, "node 1", &[0, 9], 9, later()).0;
    let set = |key: &str, text: &str| {
        let key = format!("mooncake%2F{key}%2Fnode%201");
        entries.lock().unwrap().insert(key, text.to_owned());
    };
    assert_eq!(read(&peers), [Err(code::UNREACHABLE); 2], "nobody knows it");
    let description = stand_in.shared.description.lock().unwrap().clone();
    let description = String::from_utf8(description).unwrap();
    set("ram", &description);
    assert_eq!(
        read(&peers),
        [Err(code::UNREACHABLE); 2],
        "its host is not known"
    );
    set("rpc_meta", "{}");
    assert_eq!(read(&peers), [Err(code::BAD_ANSWER); 2]);
    set(
        "rpc_meta",
        r#"{"ip_or_host_name":"127.0.0.1","rpc_port":1}"#,
    );
    assert_eq!(read(&peers), [Ok(()); 2]);
    // One entry may be enough.
    set(
        "rpc_meta",
        "HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
    );
    set(
        "ram",
        &description.replace('}', ",\"tcp_data_host\":\"127.0.0.1\"}"),
    );
    assert_eq!(read(&new()), [Ok(()); 2]);
    set("ram", "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n");
    assert_eq!(read(&new()), [Err(code::UNREACHABLE); 2]);
    set("ram", "HTTP/1.1 200 OK\r\n\r\n[]");
    assert_eq!(read(&new()), [Err(code::BAD_ANSWER); 2]);
    assert_eq!(read(&peers), [Ok(()); 2], "it has met the owner before");
    assert_eq!(stand_in.handshakes(), 0);
}

#[test]
fn a_segment_is_found_while_it_is_announced() {
    let entries = Entries::default();
    let server = http::Server::parse(&directory(&entries)).unwrap();
    let segment = Segment::open(&segment::Settings {
        bind: "127.0.0.1".parse().unwrap(),
        host: "127.0.0.1".to_owned(),
        size: 1 << 20,
        limits: segment::Limits::default(),
    });
    let segment = segment.unwrap();
    // One of the same name, which is gone and could not say so.
    for _ in 0..2 {
        announce::publish(&server, &segment, later()).unwrap();
    }
    let peers = Peers::new(Settings {
        directory: Directory::Http(server.clone()),
        ..settings()
    });
    let mut page = [1; 9];
    let mut read = |peers: &Peers| {
        let mut pieces = [Target::from(&mut page[..])];
        let address = segment.base();
        let mut jobs = [ReadJob::new(segment.endpoint(), address, 9, &mut pieces)];
        peers.read(&mut jobs, later());
        jobs[0].outcome
    };
    assert_eq!(read(&peers), Ok(()));
    assert_eq!(entries.lock().unwrap().len(), 2);
    for _ in 0..2 {
        announce::withdraw(&server, segment.endpoint(), later()).unwrap();
    }
    assert!(entries.lock().unwrap().is_empty());
    peers.close();
    assert_eq!(read(&peers), Err(code::UNREACHABLE));
}

#[test]
fn a_metadata_server_that_is_none_is_named() {
    let closed = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = format!("http://{}/metadata", closed.local_addr().unwrap());
    drop(closed);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let still = format!("http://{}/metadata", silent.local_addr().unwrap());
    let soon = || Instant::now() + Duration::from_millis(50);
    for (url, deadline, reason) in [
        (&gone, later(), "refused"),
        (&still, soon(), "not answered in time"),
        (
            &"http://no-such-host.invalid/".to_owned(),
            later(),
            "no address",
        ),
    ] {
        let server = http::Server::parse(url).unwrap();
        let error = announce::withdraw(&server, "name", deadline).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolFailed);
        assert!(error.message().contains(reason), "{error}");
        assert!(error.message().contains(&server.authority), "{error}");
    }
}
