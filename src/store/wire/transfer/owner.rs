//! What the owner of lent memory says of itself: where its data port is and which addresses it lends.

use std::net::IpAddr;

use serde_json::Value;

use super::frame::Version;

/// Most bytes of a description. Mooncake's own have some hundred per lent range.
pub const MOST: usize = 1 << 20;
/// Kind of a handshake that asks for a description.
pub const DESCRIBE: u8 = 1;
/// In front of a handshake: its length.
pub const LENGTH: usize = 8;

/// An owner's description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// Where its data port is, when it says so; otherwise the host of its handshake.
    pub host: Option<IpAddr>,
    /// The port of the data protocol.
    pub port: u16,
    /// The version of the data protocol.
    pub version: Version,
    /// Lent ranges as first address and the one behind the last, in order, touching ones joined; none when it
    /// does not say.
    pub ranges: Vec<(u64, u64)>,
}

impl Description {
    /// Reads a description's JSON; `None` when it is none of a TCP owner.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(text).ok()?;
        let port = value.get("tcp_data_port")?.as_u64()?;
        let version = match value.get("tcp_proto_version") {
            None | Some(Value::Null) => 1,
            Some(version) => version.as_u64()?,
        };
        let host = value.get("tcp_data_host").and_then(Value::as_str);
        let host = host.and_then(|host| host.parse::<IpAddr>().ok());
        Some(Self {
            host: host.filter(|host| !host.is_unspecified()),
            port: u16::try_from(port).ok().filter(|&port| port > 0)?,
            version: match version {
                0 => return None,
                1 => Version::One,
                // A later one is expected to understand what the flag of this one asks for.
                _ => Version::Two,
            },
            ranges: ranges(&value)?,
        })
    }

    /// Whether the owner lends all these bytes, as far as it says.
    pub fn lends(&self, address: u64, size: u64) -> bool {
        let Some(end) = address.checked_add(size) else {
            return false;
        };
        let behind = self.ranges.partition_point(|range| range.0 <= address);
        let range = behind.checked_sub(1).and_then(|at| self.ranges.get(at));
        self.ranges.is_empty() || range.is_some_and(|range| end <= range.1)
    }
}

fn ranges(value: &Value) -> Option<Vec<(u64, u64)>> {
    let Some(buffers) = value.get("buffers") else {
        return Some(Vec::new());
    };
    let mut ranges = Vec::new();
    for buffer in buffers.as_array()? {
        let start = buffer.get("addr")?.as_u64()?;
        let length = buffer.get("length")?.as_u64()?;
        if length > 0 {
            ranges.push((start, start.checked_add(length)?));
        }
    }
    ranges.sort_unstable();
    ranges.dedup_by(|next, before| {
        let joins = next.0 <= before.1;
        if joins {
            before.1 = before.1.max(next.1);
        }
        joins
    });
    Some(ranges)
}

/// The bytes of a handshake: its length without these 8 bytes, its kind, a text.
pub fn handshake(kind: u8, text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u64 + 1).to_le_bytes().to_vec();
    bytes.push(kind);
    bytes.extend(text.as_bytes());
    bytes
}

/// A handshake's answer as far as it has arrived: `Ok(None)` while more must come, then kind and text.
#[allow(
    clippy::result_unit_err,
    reason = "there is nothing to say about bytes that are no handshake"
)]
pub fn answer(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, ()> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| ())?;
    if length == 0 || length > MOST {
        return Err(());
    }
    let whole = rest.get(..length).and_then(<[u8]>::split_first);
    Ok(whole.map(|(kind, text)| (*kind, text)))
}

/// Host and port from a metadata server's entry on how to reach an owner.
pub fn contact(text: &[u8]) -> Option<(String, u16)> {
    let value: Value = serde_json::from_slice(text).ok()?;
    let host = value.get("ip_or_host_name")?.as_str()?;
    let port = value.get("rpc_port")?.as_u64()?;
    Some((host.to_owned(), u16::try_from(port).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REAL: &str = r#"{"buffers":[{"addr":140001041567808,"length":1048576,"name":"127.0.0.1:15257"},{"addr":139998636539904,"length":268435456,"name":"127.0.0.1:15257"}],"name":"127.0.0.1:15257","protocol":"tcp","rdma_server_name":"","tcp_data_host":"127.0.0.1","tcp_data_port":15619,"tcp_proto_version":2,"timestamp":"2026-12-02 00:21:33.146143"}"#;

    #[test]
    fn what_an_owner_of_0_3_13_says() {
        let owner = Description::parse(REAL.as_bytes()).unwrap();
        assert_eq!(owner.host, Some("127.0.0.1".parse().unwrap()));
        assert_eq!((owner.port, owner.version), (15619, Version::Two));
        assert!(owner.lends(139_998_636_539_904, 268_435_456));
        assert!(!owner.lends(139_998_636_539_904, 268_435_457));
        assert!(!owner.lends(139_998_636_539_903, 2));
        assert!(owner.lends(140_001_041_567_809, 1));
        assert!(!owner.lends(u64::MAX, 2));
    }

    #[test]
    fn sparse_and_strange_descriptions() {
        let sparse = Description::parse(br#"{"tcp_data_port": 7}"#).unwrap();
        assert_eq!((sparse.host, sparse.version), (None, Version::One));
        assert!(sparse.lends(5, 5), "it does not say what it lends");
        let touching = br#"{"tcp_data_port": 7, "tcp_data_host": "0.0.0.0", "tcp_proto_version": 3,
            "buffers": [{"addr": 20, "length": 10}, {"addr": 10, "length": 10}, {"addr": 50, "length": 0}]}"#;
        let touching = Description::parse(touching).unwrap();
        assert_eq!((touching.host, touching.version), (None, Version::Two));
        assert_eq!(touching.ranges, [(10, 30)]);
        for bad in [
            "",
            "[]",
            "{}",
            r#"{"tcp_data_port": 0}"#,
            r#"{"tcp_data_port": 65536}"#,
            r#"{"tcp_data_port": -1}"#,
            r#"{"tcp_data_port": "7"}"#,
            r#"{"tcp_data_port": 7, "tcp_proto_version": 0}"#,
            r#"{"tcp_data_port": 7, "tcp_proto_version": "2"}"#,
            r#"{"tcp_data_port": 7, "buffers": 1}"#,
            r#"{"tcp_data_port": 7, "buffers": [{"addr": 1}]}"#,
            r#"{"tcp_data_port": 7, "buffers": [{"addr": 18446744073709551615, "length": 2}]}"#,
        ] {
            assert_eq!(Description::parse(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn handshakes() {
        let whole = handshake(DESCRIBE, "{}");
        assert_eq!(whole, *b"\x03\0\0\0\0\0\0\0\x01{}");
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end]), Ok(None));
        }
        assert_eq!(answer(&whole), Ok(Some((1, &b"{}"[..]))));
        assert_eq!(answer(&[0; 8]), Err(()));
        assert_eq!(answer(&[0xFF; 8]), Err(()));
        assert_eq!(answer(&(MOST as u64 + 1).to_le_bytes()), Err(()));
    }

    #[test]
    fn a_contact() {
        let text = br#"{"ip_or_host_name":"node-1","rpc_port":16726}"#;
        assert_eq!(contact(text), Some(("node-1".to_owned(), 16726)));
        assert_eq!(
            contact(br#"{"ip_or_host_name":"a","rpc_port":65536}"#),
            None
        );
        assert_eq!(contact(b"null"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_answer(bytes: Vec<u8>, length in 0..40_u64) {
            let _ = answer(&bytes);
            let _ = Description::parse(&bytes);
            let _ = contact(&bytes);
            let mut framed = length.to_le_bytes().to_vec();
            framed.extend(&bytes);
            if let Ok(Some((_, text))) = answer(&framed) {
                prop_assert_eq!(text.len() as u64 + 1, length);
            }
        }

        #[test]
        fn lent_is_what_some_range_holds(
            buffers in proptest::collection::vec((0..60_u64, 0..20_u64), 0..6),
            address in 0..80_u64, size in 1..20_u64,
        ) {
            let list: Vec<String> = buffers.iter()
                .map(|(addr, length)| format!(r#"{{"addr":{addr},"length":{length}}}"#))
                .collect();
            let text = format!(r#"{{"tcp_data_port":1,"buffers":[{}]}}"#, list.join(","));
            let owner = Description::parse(text.as_bytes()).unwrap();
            let is_lent = |byte: u64| buffers.iter().any(|(addr, length)| (*addr..addr + length).contains(&byte));
            let says_nothing = buffers.iter().all(|(_, length)| *length == 0);
            prop_assert_eq!(owner.lends(address, size), says_nothing || (address..address + size).all(is_lent));
        }
    }
}
