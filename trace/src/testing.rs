//! For the tests of this crate: a kernel that is made up.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use ::iptables::{Program, SavedRules, Variant};
use anyhow::Result;
use netlink::{ipset, ipvs, nft::Table};
use proto::model::IpFamily;

use crate::{
    ipset::find,
    iptables,
    kernel::{Found, Kernel, VirtualServer},
};

/// What it is asked, it knows by heart.
#[derive(Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) own: HashSet<IpAddr>,
    pub(crate) remembered: HashSet<(String, IpAddr)>,
    pub(crate) sets: Vec<(ipset::Ipset, Vec<ipset::IpsetEntry>)>,
    pub(crate) servers: HashMap<ipvs::VirtualServerKey, VirtualServer>,
    pub(crate) persistent: HashMap<(ipvs::VirtualServerKey, IpAddr), SocketAddr>,
}

impl FakeKernel {
    /// With these addresses.
    pub(crate) fn with(addresses: &[&str]) -> Self {
        let own = addresses.iter().map(|address| address.parse().unwrap()).collect();
        Self { own, ..Self::default() }
    }

    fn entry(&self, name: &str, entry: &ipset::IpsetEntry) -> Option<&ipset::IpsetEntry> {
        let (_, entries) = self.sets.iter().find(|(set, _)| set.name == name)?;
        find(entries, entry)
    }
}

impl Kernel for FakeKernel {
    fn element(&mut self, _: &Table, _: &str, _: &[u8]) -> Result<Option<Found>> {
        Ok(None)
    }

    fn ipset(&mut self, name: &str) -> Result<Option<ipset::Ipset>> {
        Ok(self.sets.iter().map(|(set, _)| set).find(|set| set.name == name).cloned())
    }

    fn ipset_has(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<bool> {
        Ok(self.entry(name, entry).is_some())
    }

    fn ipset_mark(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<Option<u32>> {
        Ok(self.entry(name, entry).map(|entry| entry.mark.unwrap_or(0)))
    }

    fn virtual_server(&mut self, known_by: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>> {
        Ok(self.servers.get(known_by).cloned())
    }

    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>> {
        Ok(self.persistent.get(&(*server, client)).copied())
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

/// The tables in the output of `iptables-save`.
pub(crate) fn tables(variant: Variant, saved: &str) -> Vec<iptables::Table> {
    let program = Program::new(IpFamily::V4, variant);
    iptables::tables(&SavedRules { program, text: saved.to_owned() }).unwrap()
}
