//! Parses addresses and CIDRs of Kubernetes objects, and rejects those that no traffic may be sent to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// What an address is used for, which decides which ranges are allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressUse {
    /// A cluster IP. The cluster chooses the range, link-local addresses included.
    ClusterIp,
    /// An external or a load-balancer IP.
    External,
    /// An endpoint.
    Endpoint,
}

/// Why a string is not a usable address or CIDR.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(super) enum BadAddress {
    /// It does not parse as an address.
    #[error("{0:?}: not an IP address")]
    NotAnAddress(String),
    /// It does not parse as a CIDR.
    #[error("{0:?}: not a CIDR")]
    NotACidr(String),
    /// An IPv4 address in an IPv6 one: different programs would take it for either.
    #[error("{0}: an IPv4-mapped IPv6 address")]
    V4Mapped(IpAddr),
    /// `0.0.0.0` or `::`.
    #[error("{0}: the unspecified address")]
    Unspecified(IpAddr),
    /// Not the address of one host.
    #[error("{0}: a multicast or broadcast address")]
    Multicast(IpAddr),
    /// An address of the node itself (CVE-2020-8558, CVE-2021-25737).
    #[error("{0}: a loopback address")]
    Loopback(IpAddr),
    /// The node's own link, with the metadata service of clouds (CVE-2021-25737).
    #[error("{0}: a link-local address")]
    LinkLocal(IpAddr),
}

/// Parses an address. Leading zeros are decimal, as for the API server: `172.30.0.041` is `172.30.0.41`.
pub(super) fn address(text: &str) -> Result<IpAddr, BadAddress> {
    let address: IpAddr = sloppy_address(text).ok_or_else(|| BadAddress::NotAnAddress(text.to_owned()))?;
    if is_v4_mapped(&address) { Err(BadAddress::V4Mapped(address)) } else { Ok(address) }
}

/// Parses an address that may be used for this.
pub(super) fn usable_address(text: &str, purpose: AddressUse) -> Result<IpAddr, BadAddress> {
    let address = address(text)?;
    if address.is_unspecified() {
        Err(BadAddress::Unspecified(address))
    } else if address.is_multicast() || address == Ipv4Addr::BROADCAST {
        Err(BadAddress::Multicast(address))
    } else if address.is_loopback() {
        Err(BadAddress::Loopback(address))
    } else if purpose != AddressUse::ClusterIp && is_link_local(&address) {
        Err(BadAddress::LinkLocal(address))
    } else {
        Ok(address)
    }
}

/// Parses a CIDR, with leading zeros and surrounding white space, and clears the host bits.
pub(super) fn cidr(text: &str) -> Result<IpNet, BadAddress> {
    let bad = || BadAddress::NotACidr(text.to_owned());
    let (base, length) = text.trim().split_once('/').ok_or_else(bad)?;
    let base = sloppy_address(base).ok_or_else(bad)?;
    if is_v4_mapped(&base) {
        return Err(BadAddress::V4Mapped(base));
    }
    let length = decimal(length).ok_or_else(bad)?;
    let network = IpNet::new(base, length).map_err(|_| bad())?;
    Ok(network.trunc())
}

fn sloppy_address(text: &str) -> Option<IpAddr> {
    sloppy_v4(text).map(IpAddr::V4).or_else(|| text.parse::<Ipv6Addr>().ok().map(IpAddr::V6))
}

fn sloppy_v4(text: &str) -> Option<Ipv4Addr> {
    let octets: Vec<_> = text.split('.').map(decimal).collect::<Option<_>>()?;
    <[u8; 4]>::try_from(octets).ok().map(Ipv4Addr::from)
}

/// Digits only: `str::parse` accepts a sign as well.
fn decimal(text: &str) -> Option<u8> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn is_v4_mapped(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some())
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        for (text, expected) in [
            ("10.0.0.1", Some("10.0.0.1")),
            ("172.30.0.041", Some("172.30.0.41")),
            ("0010.000.08.09", Some("10.0.8.9")),
            ("FD00::00A", Some("fd00::a")),
            ("", None),
            ("10.0.0", None),
            ("10.0.0.1.2", None),
            ("10.0.0.256", None),
            ("10.0.0.+1", None),
            ("10.0.0.", None),
            (" 10.0.0.1", None),
            ("0x0a.0.0.1", None),
            ("fe80::1%eth0", None),
            ("name.example", None),
        ] {
            let address = address(text);
            match expected {
                Some(expected) => assert_eq!(address, Ok(expected.parse().unwrap()), "{text}"),
                None => assert_eq!(address, Err(BadAddress::NotAnAddress(text.to_owned()))),
            }
        }
    }

    #[test]
    fn usable_addresses() {
        use BadAddress::*;
        type Reason = fn(IpAddr) -> BadAddress;
        let cases: [(&str, Option<Reason>); 17] = [
            ("::ffff:10.0.0.1", Some(V4Mapped)),
            ("0.0.0.0", Some(Unspecified)),
            ("::", Some(Unspecified)),
            ("224.0.0.1", Some(Multicast)),
            ("239.255.255.255", Some(Multicast)),
            ("255.255.255.255", Some(Multicast)),
            ("ff02::1", Some(Multicast)),
            ("127.0.0.1", Some(Loopback)),
            ("127.255.0.3", Some(Loopback)),
            ("::1", Some(Loopback)),
            ("169.254.169.254", Some(LinkLocal)),
            ("fe80::1", Some(LinkLocal)),
            ("febf::1", Some(LinkLocal)),
            ("fec0::1", None),
            ("169.255.0.1", None),
            ("128.0.0.1", None),
            ("fd00::1", None),
        ];
        for purpose in [AddressUse::ClusterIp, AddressUse::External, AddressUse::Endpoint] {
            for (text, reason) in cases {
                let address = text.parse().unwrap();
                let expected = match reason.map(|reason| reason(address)) {
                    Some(LinkLocal(_)) if purpose == AddressUse::ClusterIp => Ok(address),
                    Some(reason) => Err(reason),
                    None => Ok(address),
                };
                assert_eq!(usable_address(text, purpose), expected, "{text} as {purpose:?}");
            }
        }
    }

    #[test]
    fn cidrs() {
        for (text, expected) in [
            ("10.0.0.0/8", Some("10.0.0.0/8")),
            ("203.0.113.000/025", Some("203.0.113.0/25")),
            (" 203.0.113.7/24\t", Some("203.0.113.0/24")),
            ("fd00::1/64", Some("fd00::/64")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("::/0", Some("::/0")),
            ("10.0.0.0/33", None),
            ("fd00::/129", None),
            ("10.0.0.0", None),
            ("10.0.0.0/", None),
            ("10.0.0.0/-1", None),
            ("10.0.0.0/+8", None),
            ("10.0.0/8", None),
            ("10.0.0.0/255.0.0.0", None),
        ] {
            match expected {
                Some(expected) => assert_eq!(cidr(text), Ok(expected.parse().unwrap()), "{text}"),
                None => assert_eq!(cidr(text), Err(BadAddress::NotACidr(text.to_owned()))),
            }
        }
        assert!(matches!(cidr("::ffff:10.0.0.0/104"), Err(BadAddress::V4Mapped(_))));
    }
}
