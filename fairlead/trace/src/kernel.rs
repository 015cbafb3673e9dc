//! What a trace reads while it evaluates rules: elements of sets (one by one, because a large cluster has many),
//! addresses, routes.

mod servers;

use std::{
    collections::{HashMap, HashSet},
    fs,
    net::{IpAddr, SocketAddr},
};

use anyhow::{Context as _, Result};
use netlink::{
    ipset, ipvs,
    nft::{ElementData, NftHandle, Table, Verdict},
    rtnl,
};

use crate::ipset::find;
pub use servers::VirtualServer;

/// How often an element is requested while other processes change the ruleset.
const ATTEMPTS: u32 = 10;

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetElement {
    /// Of a set.
    Key,
    /// The value in a map.
    Value(Vec<u8>),
    /// The verdict in a map.
    Verdict(Verdict<'static>),
}

/// The state of the kernel that rules refer to. An error means that it cannot be read.
pub trait Kernel {
    /// The element of a set of nf_tables that contains this key.
    fn element(&mut self, table: &Table, set: &str, key: &[u8]) -> Result<Option<SetElement>>;

    /// An ipset, without its entries.
    fn ipset(&mut self, name: &str) -> Result<Option<ipset::Ipset>>;

    /// Whether an ipset contains an entry.
    fn ipset_has(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<bool>;

    /// The mark of an entry of an ipset; `Some(0)` when the entry has none.
    fn ipset_mark(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<Option<u32>>;

    /// The virtual server of IPVS with this key.
    fn virtual_server(&mut self, key: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>>;

    /// The destination to which a persistent virtual server sends a client; port 0 when its destinations have none.
    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>>;

    /// Whether an address belongs to this node.
    fn is_local(&self, address: IpAddr) -> bool;

    /// The output interface for an address.
    fn output_interface(&self, address: IpAddr) -> Option<String>;

    /// The source address that the kernel selects for packets to an address.
    fn source_address(&self, address: IpAddr) -> Option<IpAddr>;

    /// Whether a list of the iptables match `recent` contains the address.
    fn is_in_recent_list(&self, list: &str, address: IpAddr) -> bool;
}

/// The kernel of this network namespace.
#[derive(Debug)]
pub struct LiveKernel {
    pub(crate) nft: NftHandle,
    ipset: ipset::IpsetHandle,
    /// Read at first use.
    sets: Option<Vec<ipset::Ipset>>,
    /// The entries of sets whose marks were read.
    entries: HashMap<String, Vec<ipset::IpsetEntry>>,
    /// `None`: its module is not loaded.
    ipvs: Option<ipvs::IpvsHandle>,
    /// Read at first use, without destinations.
    servers: Option<Vec<(ipvs::VirtualServerKey, ipvs::Scheduling)>>,
    own: HashSet<IpAddr>,
}

impl LiveKernel {
    /// Opens sockets, and lists addresses.
    ///
    /// # Errors
    /// When the kernel cannot be read.
    pub fn open() -> Result<Self> {
        Ok(Self {
            nft: NftHandle::open().context("open nf_tables")?,
            ipset: ipset::IpsetHandle::open().context("open ipset")?,
            sets: None,
            entries: HashMap::new(),
            // Opening IPVS would load its module.
            ipvs: if ipvs::is_loaded() { ipvs::IpvsHandle::open().context("open IPVS")? } else { None },
            servers: None,
            own: rtnl::addresses().context("list this node's addresses")?,
        })
    }

    /// The element of a set of nf_tables with this key.
    fn get(&mut self, table: &Table, set: &str, key: &[u8]) -> netlink::Result<Option<SetElement>> {
        let mut attempts = 1;
        loop {
            let mut found = None;
            let result = self.nft.get_elements(table, set, [key], |element| {
                found = Some(match element.data {
                    ElementData::None => SetElement::Key,
                    ElementData::Value(value) => SetElement::Value(value.to_vec()),
                    ElementData::Verdict(verdict) => SetElement::Verdict(verdict.into_owned()),
                });
            });
            match result {
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) if error.is_interrupted() && attempts < ATTEMPTS => attempts += 1,
                result => return result.map(|()| found),
            }
        }
    }
}

impl Kernel for LiveKernel {
    fn element(&mut self, table: &Table, set: &str, key: &[u8]) -> Result<Option<SetElement>> {
        let what = || format!("read set {set} of table {} {}", table.family, table.name);
        if let Some(element) = self.get(table, set, key).with_context(what)? {
            return Ok(Some(element));
        }
        // The element for all other keys.
        match self.get(table, set, &[]) {
            // Kernels before 5.13 have no such element.
            Err(error) if error.is_invalid() || error.is_unsupported() => Ok(None),
            found => found.with_context(what),
        }
    }

    fn ipset(&mut self, name: &str) -> Result<Option<ipset::Ipset>> {
        let sets = match &mut self.sets {
            Some(sets) => sets,
            sets => sets.insert(self.ipset.sets().context("list ipsets")?),
        };
        Ok(sets.iter().find(|set| set.name == name).cloned())
    }

    fn ipset_has(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<bool> {
        self.ipset.contains(name, entry).with_context(|| format!("read ipset {name}"))
    }

    fn ipset_mark(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<Option<u32>> {
        // The kernel does not return the mark of a single entry, so the set is listed.
        if !self.entries.contains_key(name) {
            let listed = self.ipset.entries(name).with_context(|| format!("list ipset {name}"))?;
            self.entries.insert(name.to_owned(), listed);
        }
        let entries = self.entries.get(name).map_or(&[][..], |entries| entries);
        Ok(find(entries, entry).map(|entry| entry.mark.unwrap_or(0)))
    }

    fn virtual_server(&mut self, key: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>> {
        let Some(handle) = &mut self.ipvs else { return Ok(None) };
        let servers = match &mut self.servers {
            Some(servers) => servers,
            servers => servers.insert(handle.schedulings().context("list virtual servers")?),
        };
        let Some((_, scheduling)) = servers.iter().find(|(server, _)| server == key) else { return Ok(None) };
        let destinations = handle.destinations(key).with_context(|| format!("list the destinations of {key}"))?;
        Ok(Some(VirtualServer { scheduling: scheduling.clone(), destinations }))
    }

    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>> {
        servers::persistent(server, client)
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    fn output_interface(&self, address: IpAddr) -> Option<String> {
        Some(rtnl::route_to(address).ok()??.link)
    }

    fn source_address(&self, address: IpAddr) -> Option<IpAddr> {
        rtnl::route_to(address).ok()??.source
    }

    fn is_in_recent_list(&self, list: &str, address: IpAddr) -> bool {
        let listed = fs::read_to_string(format!("/proc/thread-self/net/xt_recent/{list}"));
        listed.is_ok_and(|listed| is_listed(&listed, address))
    }
}

/// Whether a list printed by `xt_recent` contains an address.
fn is_listed(listed: &str, address: IpAddr) -> bool {
    let sources = listed.lines().filter_map(|line| line.strip_prefix("src=")?.split(' ').next());
    sources.filter_map(|source| source.parse::<IpAddr>().ok()).any(|source| source == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_found_in_the_list_of_xt_recent() {
        let listed = "src=10.244.1.7 ttl: 64 last_seen: 4301 oldest_pkt: 1 4301\n\
            src=fd00:0000:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 1 oldest_pkt: 1 1\n";
        assert!(is_listed(listed, "10.244.1.7".parse().unwrap()));
        assert!(is_listed(listed, "fd00::1".parse().unwrap()));
        assert!(!is_listed(listed, "10.244.1.70".parse().unwrap()));
    }
}
