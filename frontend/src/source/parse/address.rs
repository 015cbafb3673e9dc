//! Parses addresses and CIDRs of Kubernetes objects, and rejects those that no traffic may be sent to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Parses an address. Leading zeros are decimal, as for the API server: `172.30.0.041` is `172.30.0.41`.
pub(super) fn address(text: &str) -> Result<IpAddr, String> {
    not_mapped(sloppy_address(text).ok_or_else(|| format!("{text:?}: not an IP address"))?)
}

/// Parses a cluster IP. The cluster chooses the range, link-local addresses included.
pub(super) fn cluster_ip(text: &str) -> Result<IpAddr, String> {
    let address = address(text)?;
    if address.is_unspecified() {
        Err(format!("{address}: the unspecified address"))
    } else if address.is_multicast() || address == Ipv4Addr::BROADCAST {
        Err(format!("{address}: a multicast or broadcast address"))
    } else if address.is_loopback() {
        // An address of the node itself (CVE-2020-8558, CVE-2021-25737).
        Err(format!("{address}: a loopback address"))
    } else {
        Ok(address)
    }
}

/// Parses an external IP, a load-balancer IP, or the address of an endpoint.
pub(super) fn usable_address(text: &str) -> Result<IpAddr, String> {
    let address = cluster_ip(text)?;
    let is_link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    // The node's own link, with the metadata service of clouds (CVE-2021-25737).
    if is_link_local { Err(format!("{address}: a link-local address")) } else { Ok(address) }
}

/// Parses a CIDR, with leading zeros and surrounding white space, and clears the host bits.
pub(super) fn cidr(text: &str) -> Result<IpNet, String> {
    let bad = || format!("{text:?}: not a CIDR");
    let (base, length) = text.trim().split_once('/').ok_or_else(bad)?;
    let base = not_mapped(sloppy_address(base).ok_or_else(bad)?)?;

    let network = IpNet::new(base, decimal(length).ok_or_else(bad)?).map_err(|_| bad())?;
    Ok(network.trunc())
}

/// Rejects an IPv4 address in an IPv6 one: different programs would take it for either.
fn not_mapped(address: IpAddr) -> Result<IpAddr, String> {
    match address {
        IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some() => Err(format!("{address}: an IPv4-mapped IPv6 address")),
        _ => Ok(address),
    }
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
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use std::fmt::Display;

    use super::*;

    /// Checks each text: the result that is written beside it, or an error with the reason.
    fn assert_parses<T: Display>(parse: fn(&str) -> Result<T, String>, reason: &str, cases: &[(&str, Option<&str>)]) {
        for (text, expected) in cases {
            let expected = expected.map(str::to_owned).ok_or_else(|| format!("{text:?}: {reason}"));
            assert_eq!(parse(text).map(|parsed| parsed.to_string()), expected, "{text}");
        }
    }

    #[test]
    fn addresses() {
        let cases = [
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
        ];
        assert_parses(address, "not an IP address", &cases);
    }

    #[test]
    fn usable_addresses() {
        for (text, reason) in [
            ("::ffff:10.0.0.1", "an IPv4-mapped IPv6 address"),
            ("0.0.0.0", "the unspecified address"),
            ("::", "the unspecified address"),
            ("224.0.0.1", "a multicast or broadcast address"),
            ("239.255.255.255", "a multicast or broadcast address"),
            ("255.255.255.255", "a multicast or broadcast address"),
            ("ff02::1", "a multicast or broadcast address"),
            ("127.0.0.1", "a loopback address"),
            ("127.255.0.3", "a loopback address"),
            ("::1", "a loopback address"),
            ("169.254.169.254", "a link-local address"),
            ("fe80::1", "a link-local address"),
            ("febf::1", "a link-local address"),
            ("fec0::1", ""),
            ("169.255.0.1", ""),
            ("128.0.0.1", ""),
            ("fd00::1", ""),
        ] {
            let address = text.parse().unwrap();
            let expected = if reason.is_empty() { Ok(address) } else { Err(format!("{address}: {reason}")) };
            assert_eq!(usable_address(text), expected, "{text}");
            let as_cluster_ip = if reason == "a link-local address" { Ok(address) } else { expected };
            assert_eq!(cluster_ip(text), as_cluster_ip, "{text}");
        }
    }

    #[test]
    fn cidrs() {
        let cases = [
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
        ];
        assert_parses(cidr, "not a CIDR", &cases);
        assert_eq!(cidr("::ffff:10.0.0.0/104").unwrap_err(), "::ffff:10.0.0.0: an IPv4-mapped IPv6 address");
    }
}
