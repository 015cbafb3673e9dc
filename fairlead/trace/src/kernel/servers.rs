//! Virtual servers of IPVS, and their persistent clients.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use anyhow::{Context as _, Result};
use netlink::ipvs::{Destination, Scheduling, VirtualServerKey};
use proto::model::IpFamily;

/// Lists connections, and persistence templates: entries with client port 0.
const CONNECTIONS: &str = "/proc/thread-self/net/ip_vs_conn";

/// A virtual server of IPVS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VirtualServer {
    /// The scheduler and its settings.
    pub scheduling: Scheduling,
    /// The destinations.
    pub destinations: Vec<Destination>,
}

/// An entry of [`CONNECTIONS`].
struct ConnectionEntry<'a> {
    protocol: &'a str,
    client: SocketAddr,
    server: SocketAddr,
    destination: SocketAddr,
}

/// The destination to which a persistent virtual server sends a client.
pub(super) fn persistent(server: &VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>> {
    let listed = fs::read_to_string(CONNECTIONS).context("read the connections of IPVS")?;
    Ok(find(&listed, server, client))
}

/// The destination in the list of the kernel, whose numbers are hexadecimal and whose IPv6 addresses are not
/// abbreviated.
fn find(listed: &str, server: &VirtualServerKey, client: IpAddr) -> Option<SocketAddr> {
    let (protocol, at) = match server {
        VirtualServerKey::Address(protocol, address) => (protocol.to_string(), *address),
        // The mark is printed as an address.
        VirtualServerKey::FwMark(IpFamily::V4, mark) => ("IP".to_owned(), (Ipv4Addr::from(*mark), 0).into()),
        VirtualServerKey::FwMark(IpFamily::V6, mark) => {
            let [a, b, c, d] = mark.to_be_bytes().map(u16::from);
            let high = a << 8 | b;
            let low = c << 8 | d;
            ("IP".to_owned(), ([high, low, 0, 0, 0, 0, 0, 0], 0).into())
        }
    };

    let mut templates = listed.lines().filter_map(ConnectionEntry::parse).filter(|entry| entry.client.port() == 0);
    let found = templates.find(|entry| entry.protocol == protocol && entry.client.ip() == client && entry.server == at);
    found.map(|entry| entry.destination)
}

impl<'a> ConnectionEntry<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<_> = line.split_whitespace().collect();
        let &[protocol, client, client_port, server, server_port, destination, port, ..] = &words[..] else {
            return None;
        };
        Some(Self {
            protocol,
            client: socket(client, client_port)?,
            server: socket(server, server_port)?,
            destination: socket(destination, port)?,
        })
    }
}

fn socket(ip: &str, port: &str) -> Option<SocketAddr> {
    Some(SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?))
}

fn address(text: &str) -> Option<IpAddr> {
    if text.contains(':') {
        return text.parse().ok();
    }
    Some(Ipv4Addr::from(u32::from_str_radix(text, 16).ok()?).into())
}

#[cfg(test)]
mod tests {
    use proto::model::Protocol;

    use super::*;

    #[test]
    fn persistence_templates_are_entries_without_client_port() {
        let listed = "Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData\n\
            TCP 0AF40109 9C40 0A600001 0050 0AF40101 1F90 ESTABLISHED     899\n\
            TCP 0AF40109 0000 0A600001 0050 0AF40102 1F90 NONE            180\n\
            IP  0AF40109 0000 FA000011 0000 0AF40103 0000 NONE            180\n\
            UDP fd00:0010:0244:0001:0000:0000:0000:0009 0000 fd00:0010:0096:0000:0000:0000:0000:0001 0035 \
            fd00:0010:0244:0001:0000:0000:0000:0002 0035 NONE 180\n";
        let socket = |text: &str| text.parse::<SocketAddr>().unwrap();
        let v4 = "10.244.1.9".parse().unwrap();
        let tcp = |text| VirtualServerKey::Address(Protocol::Tcp, socket(text));
        assert_eq!(find(listed, &tcp("10.96.0.1:80"), v4), Some(socket("10.244.1.2:8080")));
        assert_eq!(find(listed, &tcp("10.96.0.1:81"), v4), None);
        assert_eq!(find(listed, &tcp("10.96.0.1:80"), "10.244.1.8".parse().unwrap()), None);
        let by_mark = VirtualServerKey::FwMark(IpFamily::V4, 0xfa00_0011);
        assert_eq!(find(listed, &by_mark, v4), Some(socket("10.244.1.3:0")));
        let udp = VirtualServerKey::Address(Protocol::Udp, socket("[fd00:10:96::1]:53"));
        let v6 = "fd00:10:244:1::9".parse().unwrap();
        assert_eq!(find(listed, &udp, v6), Some(socket("[fd00:10:244:1::2]:53")));
    }
}
