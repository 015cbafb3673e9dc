//! For the tests of this crate: a kernel that is made up.

use std::{collections::HashSet, net::IpAddr};

use anyhow::Result;
use netlink::nft::Table;

use crate::kernel::{Found, Kernel};

/// What it is asked, it knows by heart.
#[derive(Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) own: HashSet<IpAddr>,
    pub(crate) remembered: HashSet<(String, IpAddr)>,
}

impl FakeKernel {
    /// With these addresses.
    pub(crate) fn with(addresses: &[&str]) -> Self {
        let own = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Self { own, ..Self::default() }
    }
}

impl Kernel for FakeKernel {
    fn element(&mut self, _: &Table, _: &str, _: &[u8]) -> Result<Option<Found>> {
        Ok(None)
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    fn interface_towards(&self, address: IpAddr) -> Option<String> {
        Some(if self.is_local(address) { "lo" } else { "eth0" }.to_owned())
    }

    fn source_towards(&self, address: IpAddr) -> Option<IpAddr> {
        self.own.iter().copied().filter(|own| own.is_ipv4() == address.is_ipv4()).min()
    }

    fn remembers(&self, list: &str, address: IpAddr) -> bool {
        self.remembered.contains(&(list.to_owned(), address))
    }
}
