//! As much of HTTP/1.1 as a metadata server needs: one request per connection, and its whole answer.

use std::fmt::Write as _;

/// Most bytes of an answer, its head included.
pub const MOST: usize = 1 << 20;
/// Most bytes of an answer's head.
const MOST_HEAD: usize = 16 << 10;

/// Where a metadata server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    /// `host:port`.
    pub authority: String,
    /// The path of its one resource.
    pub path: String,
}

/// The bytes of an answer so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// More must come.
    Partial,
    /// Whole, with this status and body.
    Whole(u16, &'a [u8]),
    /// No answer of such a server.
    Bad,
}

impl Server {
    /// Reads `http://host[:port][/path]`; `None` for anything else.
    pub fn parse(url: &str) -> Option<Self> {
        let rest = url.strip_prefix("http://")?;
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, "/"),
        };
        let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if authority.is_empty() || !is_plain(rest) || rest.contains(['?', '#', '@']) {
            return None;
        }
        let has_port = authority
            .rsplit_once(':')
            .is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
        let port = if has_port { "" } else { ":80" };
        Some(Self {
            authority: format!("{authority}{port}"),
            path: path.to_owned(),
        })
    }

    /// The request for a key's value.
    pub fn get(&self, key: &str) -> Vec<u8> {
        self.request("GET", key, None)
    }

    /// The request that gives a key a value.
    pub fn put(&self, key: &str, value: &str) -> Vec<u8> {
        self.request("PUT", key, Some(value))
    }

    /// The request that takes a key and its value away.
    pub fn delete(&self, key: &str) -> Vec<u8> {
        self.request("DELETE", key, None)
    }

    fn request(&self, method: &str, key: &str, value: Option<&str>) -> Vec<u8> {
        let mut text = format!("{method} {}?key=", self.path);
        for byte in key.bytes() {
            if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
                text.push(char::from(byte));
            } else {
                // Writing to a text does not fail.
                let _ = write!(text, "%{byte:02X}");
            }
        }
        let _ = write!(
            text,
            " HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n",
            self.authority
        );
        if let Some(value) = value {
            let length = value.len();
            let _ = write!(
                text,
                "Content-Type: application/json\r\nContent-Length: {length}\r\n"
            );
        }
        text.push_str("\r\n");
        text.push_str(value.unwrap_or_default());
        text.into_bytes()
    }
}

/// Looks at what has arrived. `is_end`: nothing more will.
pub fn answer(bytes: &[u8], is_end: bool) -> Answer<'_> {
    let unfinished = if is_end { Answer::Bad } else { Answer::Partial };
    let head_limit = bytes.get(..MOST_HEAD).unwrap_or(bytes);
    let Some(head) = head_limit.windows(4).position(|it| it == b"\r\n\r\n") else {
        return if bytes.len() < MOST_HEAD {
            unfinished
        } else {
            Answer::Bad
        };
    };
    let (head, rest) = bytes.split_at(head);
    let body = rest.get(4..).unwrap_or_default();
    let Ok(head) = std::str::from_utf8(head) else {
        return Answer::Bad;
    };
    let mut lines = head.split("\r\n");
    let status = lines.next().and_then(|line| {
        let mut words = line.split(' ');
        words.next().filter(|word| word.starts_with("HTTP/1."))?;
        words.next()?.parse::<u16>().ok()
    });
    let Some(status) = status else {
        return Answer::Bad;
    };
    let mut length = None;
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            return Answer::Bad;
        };
        if name.eq_ignore_ascii_case("content-length") {
            match value.trim().parse::<usize>() {
                Ok(value) if value <= MOST && length.is_none_or(|it| it == value) => {
                    length = Some(value);
                }
                _ => return Answer::Bad,
            }
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            // No server of Mooncake's sends its short values in chunks.
            return Answer::Bad;
        }
    }
    match length {
        Some(length) => match body.get(..length) {
            Some(body) => Answer::Whole(status, body),
            None => unfinished,
        },
        None if is_end => Answer::Whole(status, body),
        None => Answer::Partial,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn servers_by_their_urls() {
        for (url, authority, path) in [
            ("http://meta:8080/metadata", "meta:8080", "/metadata"),
            ("http://meta", "meta:80", "/"),
            ("http://[::1]/a/b", "[::1]:80", "/a/b"),
            ("http://[::1]:9/a", "[::1]:9", "/a"),
        ] {
            let server = Server::parse(url).unwrap();
            assert_eq!((&*server.authority, &*server.path), (authority, path));
        }
        for url in [
            "",
            "P2PHANDSHAKE",
            "https://meta/",
            "http://",
            "http:///x",
            "http://a b/",
            "http://a/?key=1",
            "http://a/\r\nb",
        ] {
            assert_eq!(Server::parse(url), None, "{url}");
        }
    }

    #[test]
    fn a_key_is_escaped() {
        let server = Server::parse("http://meta:8080/metadata").unwrap();
        let text = String::from_utf8(server.get("mooncake/ram/a:1 \r\n")).unwrap();
        assert_eq!(
            text,
            "GET /metadata?key=mooncake%2Fram%2Fa%3A1%20%0D%0A HTTP/1.1\r\nHost: meta:8080\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn a_value_stands_behind_its_length() {
        let server = Server::parse("http://meta").unwrap();
        let text = String::from_utf8(server.put("a", "{}\n")).unwrap();
        assert_eq!(
            text,
            "PUT /?key=a HTTP/1.1\r\nHost: meta:80\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 3\r\n\r\n{}\n"
        );
        let text = String::from_utf8(server.delete("a")).unwrap();
        assert_eq!(
            text,
            "DELETE /?key=a HTTP/1.1\r\nHost: meta:80\r\nConnection: close\r\n\r\n"
        );
    }

    #[test]
    fn answers() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\n{}";
        for end in 0..whole.len() {
            assert_eq!(answer(&whole[..end], false), Answer::Partial, "{end}");
            assert_eq!(answer(&whole[..end], true), Answer::Bad, "{end}");
        }
        assert_eq!(answer(whole, false), Answer::Whole(200, b"{}"));
        let open = b"HTTP/1.0 404 Not Found\r\n\r\nno";
        assert_eq!(answer(open, false), Answer::Partial);
        assert_eq!(answer(open, true), Answer::Whole(404, b"no"));
        for bad in [
            &b"HTTP/2 200\r\n\r\n"[..],
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/1.1 200\r\nno colon\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: 9999999999999\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
            b"HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"HTTP/1.1 200\r\nX: \xFF\r\n\r\n",
        ] {
            assert_eq!(answer(bad, false), Answer::Bad, "{bad:?}");
        }
        assert_eq!(answer(&vec![b'a'; MOST_HEAD], false), Answer::Bad);
    }

    proptest! {
        #[test]
        fn any_bytes_are_some_answer(bytes: Vec<u8>, is_end: bool, head in 0..4_usize) {
            let heads = ["", "HTTP/1.1 ", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n"];
            let mut whole = heads[head].as_bytes().to_vec();
            whole.extend(bytes);
            if let Answer::Whole(_, body) = answer(&whole, is_end) {
                prop_assert!(body.len() <= whole.len());
            }
        }
    }
}
