//! Letting others find a segment at a metadata server, where the pool uses one.

use std::time::Instant;

use rustix::event::{PollFd, Timespec};
use serde_json::json;

use super::dial::{self, Exchange};
use super::http::{self, Answer, Server};
use crate::error::{Error, Kind, Result, bail};
use crate::store::wire::segment::Segment;

/// Describes a segment at a metadata server, in place of another one of its name.
///
/// Blocks: until the deadline at most. Errors: `PoolFailed`.
pub fn publish(server: &Server, segment: &Segment, deadline: Instant) -> Result<()> {
    let name = segment.endpoint();
    // An entry of this kind is never replaced.
    withdraw(server, name, deadline)?;
    let (host, port) = name.rsplit_once(':').unwrap_or((name, ""));
    let contact = json!({
        "ip_or_host_name": host.trim_matches(['[', ']']),
        "rpc_port": port.parse::<u16>().unwrap_or(0),
    });
    for (what, value) in [
        ("rpc_meta", contact.to_string()),
        ("ram", segment.description()),
    ] {
        let question = server.put(&key(what, name), &value);
        match ask(server, question, deadline)? {
            200 => {}
            status => bail!(
                PoolFailed,
                "the metadata server at {} answers {status} to the description of {name}",
                server.authority
            ),
        }
    }
    Ok(())
}

/// Takes a segment's description away; without one there is nothing to do.
///
/// Blocks and errors: as [`publish`].
pub fn withdraw(server: &Server, name: &str, deadline: Instant) -> Result<()> {
    for what in ["ram", "rpc_meta"] {
        let question = server.delete(&key(what, name));
        match ask(server, question, deadline)? {
            200 | 404 => {}
            status => bail!(
                PoolFailed,
                "the metadata server at {} answers {status} when {name} is taken away",
                server.authority
            ),
        }
    }
    Ok(())
}

fn key(what: &str, name: &str) -> String {
    format!("mooncake/{what}/{name}")
}

/// The status of an answer.
fn ask(server: &Server, question: Vec<u8>, deadline: Instant) -> Result<u16> {
    let failed = |why: &dyn std::fmt::Display| {
        let text = format!("the metadata server at {}: {why}", server.authority);
        Error::new(Kind::PoolFailed, text)
    };
    let addresses = dial::resolve(&server.authority, deadline);
    if addresses.is_empty() {
        return Err(failed(&"its name has no address"));
    }
    let exchange = Exchange::begin(addresses, question, http::MOST);
    let mut exchange = exchange.map_err(|error| failed(&error))?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed(&"it has not answered in time"));
        }
        let (socket, wants) = exchange.wants();
        let mut polled = [PollFd::from_borrowed_fd(socket, wants)];
        let wait = Timespec::try_from(left).ok();
        // Interrupted: time is looked at again.
        if !matches!(rustix::event::poll(&mut polled, wait.as_ref()), Ok(1..)) {
            continue;
        }
        let (bytes, is_end) = exchange.step().map_err(|error| failed(&error))?;
        match http::answer(bytes, is_end) {
            Answer::Whole(status, _) => return Ok(status),
            Answer::Partial => {}
            Answer::Bad => return Err(failed(&"it has sent what is no answer")),
        }
    }
}
