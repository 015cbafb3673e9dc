//! The addresses of the network namespace's interfaces.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    net::IpAddr,
};

use nix::{ifaddrs::getifaddrs, sys::socket::SockaddrStorage};

/// All addresses that the interfaces have now, loopback and link-local ones too.
pub fn own() -> io::Result<HashSet<IpAddr>> {
    let addresses = getifaddrs()?.filter_map(|interface| interface.address);
    Ok(addresses.filter_map(|address| ip(&address)).collect())
}

/// The same by the name of the interface. Those without an address are there too.
pub fn by_interface() -> io::Result<BTreeMap<String, HashSet<IpAddr>>> {
    let mut interfaces = BTreeMap::<_, HashSet<_>>::new();
    for interface in getifaddrs()? {
        let addresses = interfaces.entry(interface.interface_name).or_default();
        addresses.extend(interface.address.and_then(|address| ip(&address)));
    }
    Ok(interfaces)
}

/// Interfaces have link-layer addresses as well.
fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = address.as_sockaddr_in().map(|v4| IpAddr::V4(v4.ip()));
    v4.or_else(|| address.as_sockaddr_in6().map(|v6| IpAddr::V6(v6.ip())))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::testing::in_netns;

    #[test]
    fn what_is_added_is_there_at_once() {
        in_netns(|| {
            assert!(by_interface().unwrap()["lo"].is_empty());
            let [v4, v6] = ["172.31.0.1", "fd00:172:31::1"];
            for address in [v4, v6] {
                assert!(!own().unwrap().contains(&address.parse().unwrap()));
                let add = ["address", "add", address, "dev", "lo"];
                assert!(Command::new("ip").args(add).status().unwrap().success());
                assert!(own().unwrap().contains(&address.parse().unwrap()));
                assert!(by_interface().unwrap()["lo"].contains(&address.parse().unwrap()));
            }
        });
    }
}
