//! `host:port`, checked for its form only: nothing is resolved here.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Checks `host:port`. The error is the rest of a sentence that begins with the value.
pub(super) fn check_host_port(text: &str) -> Result<(), String> {
    let (host, port) = text
        .rsplit_once(':')
        .ok_or("is not host:port: the port is missing")?;
    if host.contains(':') && !host.starts_with('[') {
        return Err("is not host:port: an IPv6 address stands in brackets".to_owned());
    }
    check_host(host)?;
    check_port(port)
}

/// Checks a host name or address, with or without a port.
pub(super) fn check_host_maybe_port(text: &str) -> Result<(), String> {
    // A bare IPv6 address cannot be mistaken here, since its port is optional.
    if text.parse::<Ipv6Addr>().is_ok() || (text.starts_with('[') && text.ends_with(']')) {
        return check_host(text);
    }
    if text.contains(':') {
        check_host_port(text)
    } else {
        check_host(text)
    }
}

fn check_port(port: &str) -> Result<(), String> {
    // `parse` alone would take "+5".
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(number) if digits && number > 0 => Ok(()),
        _ => Err("has no port from 1 to 65535".to_owned()),
    }
}

fn check_host(host: &str) -> Result<(), String> {
    if host.is_empty() {
        return Err("has an empty host".to_owned());
    }
    if host.parse::<Ipv6Addr>().is_ok() {
        return Ok(());
    }
    if let Some(inner) = host.strip_prefix('[') {
        let Some(inner) = inner.strip_suffix(']') else {
            return Err("has an unclosed bracket".to_owned());
        };
        let (address, zone) = match inner.split_once('%') {
            Some((address, zone)) => (address, Some(zone)),
            None => (inner, None),
        };
        let zone_fits = zone.is_none_or(|zone| !zone.is_empty() && zone.bytes().all(is_name_byte));
        return if address.parse::<Ipv6Addr>().is_ok() && zone_fits {
            Ok(())
        } else {
            Err("has no IPv6 address in its brackets".to_owned())
        };
    }
    // Digits and dots are an address, never a name: 10.0.0 is a slip, not a host.
    if host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.')
    {
        return match host.parse::<Ipv4Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err("has a host that is no IPv4 address".to_owned()),
        };
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    let fits = name.len() <= 253
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|byte| is_name_byte(byte) && byte != b'.')
                && !label.starts_with('-')
                && !label.ends_with('-')
        });
    if fits {
        Ok(())
    } else {
        Err("has a host that is neither a name nor an address".to_owned())
    }
}

/// Underscores are no part of a DNS host name, but container networks use them.
fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.')
}

#[cfg(test)]
mod tests {
    use super::{check_host_maybe_port, check_host_port};

    #[test]
    fn host_and_port() {
        for good in [
            "master:50051",
            "kv_master-0.pool.svc.:1",
            "10.0.0.1:65535",
            "[::1]:50051",
            "[fe80::1%eth0]:50051",
        ] {
            assert_eq!(check_host_port(good), Ok(()), "{good}");
            assert_eq!(check_host_maybe_port(good), Ok(()), "{good}");
        }
        for (bad, reason) in [
            ("", "port is missing"),
            ("master", "port is missing"),
            (":50051", "empty host"),
            ("master:", "no port"),
            ("master:0", "no port"),
            ("master:65536", "no port"),
            ("master:+5", "no port"),
            ("master:-5", "no port"),
            ("master: 5", "no port"),
            ("::1:50051", "brackets"),
            ("http://master:50051", "brackets"),
            ("[::1]", "bracket"),
            ("[::1:50051", "bracket"),
            ("[10.0.0.1]:50051", "no IPv6"),
            ("[fe80::1%]:50051", "no IPv6"),
            ("10.0.0:50051", "no IPv4"),
            ("10.0.0.256:50051", "no IPv4"),
            ("mas ter:50051", "neither"),
            (" master:50051", "neither"),
            ("-master:50051", "neither"),
            ("a..b:50051", "neither"),
            ("mäster:50051", "neither"),
        ] {
            let refusal = check_host_port(bad).expect_err(bad);
            assert!(refusal.contains(reason), "{bad:?}: {refusal}");
        }
    }

    #[test]
    fn host_alone() {
        for good in ["node-7", "10.0.0.1", "::1", "[::1]", "fe80::1:2"] {
            assert_eq!(check_host_maybe_port(good), Ok(()), "{good}");
        }
        for bad in ["", "node 7", "10.0.0", "node:", "[]"] {
            assert!(check_host_maybe_port(bad).is_err(), "{bad:?}");
        }
    }
}
