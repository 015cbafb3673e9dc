//! The main routing table, as the kernel lists it: which interface leads to an address. Other tables and their rules are not known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// Routes, the best match first.
#[derive(Clone, Debug, Default)]
pub(super) struct Routes(Vec<Route>);

#[derive(Clone, Debug)]
struct Route {
    to: IpNet,
    metric: u32,
    interface: String,
}

/// `RTF_UP`, `RTF_REJECT` of `linux/route.h`.
const UP: u32 = 0x1;
const REJECT: u32 = 0x200;

impl Routes {
    /// Reads `/proc/net/route` and `/proc/net/ipv6_route`. Lines that cannot be read are left out.
    pub(super) fn parse(v4: &str, v6: &str) -> Self {
        let mut routes: Vec<_> = v4.lines().skip(1).filter_map(parse_v4).collect();
        routes.extend(v6.lines().filter_map(parse_v6));
        routes.sort_by_key(|route| (u8::MAX - route.to.prefix_len(), route.metric));
        Self(routes)
    }

    /// The interface that leads to an address.
    pub(super) fn interface(&self, address: IpAddr) -> Option<&str> {
        let route = self.0.iter().find(|route| route.to.contains(&address))?;
        Some(&route.interface)
    }
}

/// `Iface Destination Gateway Flags RefCnt Use Metric Mask ...`: addresses in hexadecimal, as they are in memory.
fn parse_v4(line: &str) -> Option<Route> {
    let words: Vec<_> = line.split_whitespace().collect();
    let address = |word: &str| Some(Ipv4Addr::from(u32::from_str_radix(word, 16).ok()?.to_ne_bytes()));
    let flags = u32::from_str_radix(words.get(3)?, 16).ok()?;
    let to = Ipv4Net::with_netmask(address(words.get(1)?)?, address(words.get(7)?)?).ok()?;
    let route = Route { to: to.into(), metric: words.get(6)?.parse().ok()?, interface: words.first()?.to_string() };
    (flags & UP != 0 && flags & REJECT == 0).then_some(route)
}

/// `destination length source length gateway metric refcount use flags interface`, all in hexadecimal.
fn parse_v6(line: &str) -> Option<Route> {
    let words: Vec<_> = line.split_whitespace().collect();
    let number = |at: usize| u32::from_str_radix(words.get(at)?, 16).ok();
    let address = Ipv6Addr::from(u128::from_str_radix(words.first()?, 16).ok()?);
    let to = Ipv6Net::new(address, u8::try_from(number(1)?).ok()?).ok()?;
    let flags = number(8)?;
    let route = Route { to: to.into(), metric: number(5)?, interface: words.get(9)?.to_string() };
    (flags & UP != 0 && flags & REJECT == 0).then_some(route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_leads() {
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n\
            eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
            cbr0\t0001F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        let v6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            fe800000000000000000000000000001 00000400 00000001 00000000 00000003 eth0\n\
            fd000000000000000000000000000000 40 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 00000100 00000001 00000000 00000001 cbr0\n\
            00000000000000000000000000000000 00 00000000000000000000000000000000 00 \
            00000000000000000000000000000000 ffffffff 00000001 00000000 00200200 lo\n";
        let routes = Routes::parse(v4, v6);
        let interface = |address: &str| routes.interface(address.parse().unwrap());
        assert_eq!(interface("10.244.1.9"), Some("cbr0"));
        assert_eq!(interface("10.244.2.9"), Some("eth0"));
        assert_eq!(interface("fd00::1:1"), Some("cbr0"));
        assert_eq!(interface("2001:db8::1"), Some("eth0"));
        assert_eq!(Routes::default().interface(Ipv4Addr::LOCALHOST.into()), None);
    }
}
