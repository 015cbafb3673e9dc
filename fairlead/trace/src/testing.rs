//! For tests: a fake kernel.

use std::{
    collections::{HashMap, HashSet},
    net::{IpAddr, SocketAddr},
};

use ::iptables::{Program, SavedRules, Variant};
use anyhow::Result;
use netlink::{ipset, ipvs, nft::Table};
use proto::model::IpFamily;

use crate::{
    NodeRules,
    ipset::find,
    iptables,
    kernel::{Kernel, SetElement, VirtualServer},
};

/// Returns what the test has put in.
#[derive(Debug, Default)]
pub(crate) struct FakeKernel {
    pub(crate) own: HashSet<IpAddr>,
    pub(crate) recent: HashSet<(String, IpAddr)>,
    pub(crate) sets: Vec<(ipset::Ipset, Vec<ipset::IpsetEntry>)>,
    pub(crate) servers: HashMap<ipvs::VirtualServerKey, VirtualServer>,
    pub(crate) persistent: HashMap<(ipvs::VirtualServerKey, IpAddr), SocketAddr>,
}

impl FakeKernel {
    /// A node with these addresses.
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
    fn element(&mut self, _: &Table, _: &str, _: &[u8]) -> Result<Option<SetElement>> {
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

    fn virtual_server(&mut self, key: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>> {
        Ok(self.servers.get(key).cloned())
    }

    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>> {
        Ok(self.persistent.get(&(*server, client)).copied())
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    fn output_interface(&self, address: IpAddr) -> Option<String> {
        Some(if self.is_local(address) { "lo" } else { "eth0" }.to_owned())
    }

    fn source_address(&self, address: IpAddr) -> Option<IpAddr> {
        self.own.iter().copied().filter(|own| own.is_ipv4() == address.is_ipv4()).min()
    }

    fn is_in_recent_list(&self, list: &str, address: IpAddr) -> bool {
        self.recent.contains(&(list.to_owned(), address))
    }
}

/// The tables in the output of `iptables-save`.
pub(crate) fn tables(variant: Variant, saved: &str) -> NodeRules {
    let program = Program::new(IpFamily::V4, variant);
    let (program, ruleset) = iptables::read(&SavedRules { program, text: saved.to_owned() }).unwrap();
    NodeRules(iptables::tables(program, ruleset).collect())
}
