//! The way to the master, and the name under which others reach this process.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::{Duration, Instant};

use crate::error::{Error, Kind, Result, bail};

/// Connects to the master, to see that it is there, and answers the address of ours that leads to it.
///
/// Blocks: for the names' server, then until `patience` has passed. Errors: `PoolFailed`.
pub(super) fn reach(master: &str, patience: Duration) -> Result<IpAddr> {
    let failed = |why: &dyn std::fmt::Display| {
        let text = format!("the master at \"{master}\" cannot be reached: {why}");
        Error::new(Kind::PoolFailed, text)
    };
    let addresses = resolve(master, None).map_err(|error| failed(&error))?;
    let deadline = Instant::now() + patience;
    let mut last = failed(&"its name has no address");
    for address in addresses {
        let left = deadline.saturating_duration_since(Instant::now());
        // No time at all is no argument of the call.
        let left = left.max(Duration::from_millis(1));
        let connected = TcpStream::connect_timeout(&address, left);
        match connected.and_then(|stream| stream.local_addr()) {
            Ok(local) => return Ok(local.ip().to_canonical()),
            Err(error) => last = failed(&format_args!("{address}: {error}")),
        }
    }
    Err(last)
}

/// The address under which others reach this process, where the operator names none. `route`: ours
/// that leads to the master.
pub(in crate::store) fn own(master: &str, route: IpAddr) -> IpAddr {
    if !route.is_loopback() {
        return route;
    }
    let home = match route {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    };
    let host = host_and_port(master).0;
    let is_home = host.parse::<IpAddr>().is_ok() || host == "localhost" || host == "ip6-localhost";
    if is_home {
        // The whole pool is on this machine.
        return home;
    }
    // A name of this machine that its hosts file puts on the loopback interface (127.0.1.1 on
    // Debian): others know it under a real address.
    outward().unwrap_or(home)
}

/// The address that the way to the rest of the world leaves from; nothing is sent.
fn outward() -> Option<IpAddr> {
    // Set aside for documents, so that it is nobody's.
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(elsewhere).ok()?;
    let own = socket.local_addr().ok()?.ip();
    (!own.is_loopback() && !own.is_unspecified()).then_some(own)
}

/// Refuses a name for this process that nobody else could use.
///
/// Blocks: for the names' server. Errors: `PoolRefused`.
pub(in crate::store) fn check_own(name: &str, route: IpAddr) -> Result<()> {
    let addresses = match resolve(name, Some(0)) {
        Ok(addresses) => addresses,
        Err(error) => bail!(
            PoolRefused,
            "local_hostname = \"{name}\" cannot be resolved, so that others would not find this server: {error}"
        ),
    };
    if let Some(first) = addresses.first()
        && !route.is_loopback()
        && addresses.iter().all(|address| address.ip().is_loopback())
    {
        bail!(
            PoolRefused,
            "local_hostname = \"{name}\" is {} here, which is no address for others, and the master is on another machine; leave it out for {route}",
            first.ip()
        );
    }
    Ok(())
}

/// `port` stands for the one that a text without port does not have.
pub(in crate::store) fn resolve(text: &str, port: Option<u16>) -> std::io::Result<Vec<SocketAddr>> {
    let (host, own_port) = host_and_port(text);
    let port = own_port.or(port).unwrap_or(0);
    Ok((host, port).to_socket_addrs()?.collect())
}

/// The parts of `host`, `host:port` or `[address]:port`, whose form the configuration has checked.
pub(in crate::store) fn host_and_port(text: &str) -> (&str, Option<u16>) {
    let (host, port) = match text.rsplit_once(':') {
        // An address alone has more of them.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().ok())
        }
        _ => (text, None),
    };
    let inner = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    (inner.unwrap_or(host), port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const PATIENCE: Duration = Duration::from_secs(5);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_master_that_listens_is_reached_from_the_address_that_leads_to_it() {
        let master = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = master.local_addr().unwrap().to_string();
        assert_eq!(reach(&address, PATIENCE).unwrap(), ip("127.0.0.1"));
    }

    #[test]
    fn a_master_that_does_not_is_named_with_the_reason() {
        let gone = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = gone.local_addr().unwrap().to_string();
        drop(gone);
        let error = reach(&address, PATIENCE).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolFailed);
        let start = format!("the master at \"{address}\" cannot be reached: {address}: ");
        assert!(error.message().starts_with(&start), "{error}");
        assert!(error.message().contains("refused"), "{error}");
        let error = reach("no-such-host.invalid:1", PATIENCE).unwrap_err();
        assert!(
            error.message().contains("no-such-host.invalid:1"),
            "{error}"
        );
    }

    #[test]
    fn the_own_address_is_one_that_others_can_use() {
        assert_eq!(own("10.0.0.1:50051", ip("10.0.0.7")), ip("10.0.0.7"));
        assert_eq!(own("master:50051", ip("10.0.0.7")), ip("10.0.0.7"));
        for master in ["127.0.0.1:50051", "127.0.1.1:50051", "localhost:50051"] {
            assert_eq!(own(master, ip("127.0.1.1")), ip("127.0.0.1"), "{master}");
        }
        assert_eq!(own("[::1]:50051", ip("::1")), ip("::1"));
        // Through the hosts file: another address if this machine has one.
        let found = own("this-machine:50051", ip("127.0.1.1"));
        assert_eq!(found, outward().unwrap_or(ip("127.0.0.1")));
    }

    #[test]
    fn a_name_that_leads_nowhere_is_refused() {
        let away = ip("10.0.0.7");
        for (name, route) in [
            ("127.0.0.1", ip("127.0.0.1")),
            ("localhost:7000", ip("127.0.0.1")),
            ("10.9.9.9", away),
            ("[fd00::7]:7000", away),
        ] {
            check_own(name, route).unwrap();
        }
        let error = check_own("127.0.1.1", away).unwrap_err();
        assert_eq!(error.kind(), Kind::PoolRefused);
        for part in [
            "local_hostname = \"127.0.1.1\"",
            "leave it out for 10.0.0.7",
        ] {
            assert!(error.message().contains(part), "{error}");
        }
        let error = check_own("no-such-host.invalid", away).unwrap_err();
        assert!(error.message().contains("cannot be resolved"), "{error}");
    }

    #[test]
    fn hosts_and_ports() {
        for (text, host, port) in [
            ("master:50051", "master", Some(50051)),
            ("[::1]:1", "::1", Some(1)),
            ("[fe80::1%eth0]:1", "fe80::1%eth0", Some(1)),
            ("[::1]", "::1", None),
            ("fe80::1:2", "fe80::1:2", None),
            ("node-7", "node-7", None),
        ] {
            assert_eq!(host_and_port(text), (host, port), "{text}");
        }
    }
}
