//! Owners that a metadata server knows.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use super::stand_in::StandIn;
use super::{later, read_until, settings};
use crate::store::code;
use crate::store::wire::transfer::frame::Version;
use crate::store::wire::transfer::{Directory, Peers, Settings, http};

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
            let (_, key) = asked.split_once("/metadata?key=").unwrap();
            let key = key.split(' ').next().unwrap();
            let entry = entries.lock().unwrap().get(key).cloned();
            let answer = match entry {
                Some(text) if text.starts_with("HTTP/") => text,
                Some(text) => format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{text}",
                    text.len()
                ),
                None => "HTTP/1.1 404 Not Found\r\n\r\nmetadata not found".to_owned(),
            };
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
