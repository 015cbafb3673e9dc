//! What is asked while a packet goes: elements of sets one by one, for a large cluster has many; addresses; routes.

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
use servers::Servers;
pub use servers::VirtualServer;

/// What a set or map holds under a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The key, in a set.
    Key,
    /// A map's value.
    Value(Vec<u8>),
    /// A map's verdict.
    Verdict(Verdict<'static>),
}

/// The kernel, as far as a packet meets it besides its rules.
pub trait Kernel {
    /// The element of a set of nf_tables that has this key, or a range that it is in.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn element(&mut self, table: &Table, set: &str, key: &[u8]) -> Result<Option<Found>>;

    /// A set of ipset, without its entries.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn ipset(&mut self, name: &str) -> Result<Option<ipset::Ipset>>;

    /// Whether an entry is in a set of ipset, or in a range that is.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn ipset_has(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<bool>;

    /// The mark that a set of ipset gives what this entry stands for; `Some(0)` where it has no marks.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn ipset_mark(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<Option<u32>>;

    /// The virtual server of IPVS that is known by this.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn virtual_server(&mut self, known_by: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>>;

    /// Where a virtual server sends a client that it remembers; port 0 where it remembers none.
    ///
    /// # Errors
    /// When the kernel does not answer.
    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>>;

    /// Whether an address is one of this node's.
    fn is_local(&self, address: IpAddr) -> bool;

    /// Through which interface packets to an address leave.
    fn interface_towards(&self, address: IpAddr) -> Option<String>;

    /// Which of its addresses the node takes for packets to another.
    fn source_towards(&self, address: IpAddr) -> Option<IpAddr>;

    /// Whether iptables' `recent` has the address in the list of this name.
    fn remembers(&self, list: &str, address: IpAddr) -> bool;
}

/// The kernel of this network namespace, read when it is asked.
#[derive(Debug)]
pub struct Live {
    nft: NftHandle,
    ipset: ipset::IpsetHandle,
    /// Once they have been asked for.
    sets: Option<Vec<ipset::Ipset>>,
    /// Of the sets whose marks have been asked for.
    entries: HashMap<String, Vec<ipset::IpsetEntry>>,
    /// Once one has been asked for.
    servers: Option<Servers>,
    own: HashSet<IpAddr>,
}

// === impl Live ===

impl Live {
    /// Opens sockets, and lists addresses.
    ///
    /// # Errors
    /// When the kernel does not answer.
    pub fn open() -> Result<Self> {
        Ok(Self {
            nft: NftHandle::open().context("open nf_tables")?,
            ipset: ipset::IpsetHandle::open().context("open ipset")?,
            sets: None,
            entries: HashMap::new(),
            servers: None,
            own: rtnl::addresses().context("list this node's addresses")?,
        })
    }

    /// The socket, to read rules with.
    pub(crate) fn nft(&mut self) -> &mut NftHandle {
        &mut self.nft
    }
}

impl Kernel for Live {
    fn element(&mut self, table: &Table, set: &str, key: &[u8]) -> Result<Option<Found>> {
        let mut found = None;
        let asked = self.nft.get_elements(table, set, [key], |element| {
            found = Some(match element.data {
                ElementData::None => Found::Key,
                ElementData::Value(value) => Found::Value(value.to_vec()),
                ElementData::Verdict(verdict) => Found::Verdict(verdict.into_owned()),
            });
        });
        match asked {
            Err(error) if error.is_not_found() => Ok(None),
            asked => {
                asked.with_context(|| format!("look into set {set} of table {} {}", table.family, table.name))?;
                Ok(found)
            }
        }
    }

    fn ipset(&mut self, name: &str) -> Result<Option<ipset::Ipset>> {
        let sets = match &mut self.sets {
            Some(sets) => sets,
            sets => sets.insert(self.ipset.sets().context("list sets of ipset")?),
        };
        Ok(sets.iter().find(|set| set.name == name).cloned())
    }

    fn ipset_has(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<bool> {
        self.ipset.contains(name, entry).with_context(|| format!("look into set {name} of ipset"))
    }

    fn ipset_mark(&mut self, name: &str, entry: &ipset::IpsetEntry) -> Result<Option<u32>> {
        // The kernel does not say what one entry has: the whole set is listed.
        if !self.entries.contains_key(name) {
            let listed = self.ipset.entries(name).with_context(|| format!("list set {name} of ipset"))?;
            self.entries.insert(name.to_owned(), listed);
        }
        let entries = self.entries.get(name).map_or(&[][..], |entries| entries);
        Ok(find(entries, entry).map(|entry| entry.mark.unwrap_or(0)))
    }

    fn virtual_server(&mut self, known_by: &ipvs::VirtualServerKey) -> Result<Option<VirtualServer>> {
        let servers = match &mut self.servers {
            Some(servers) => servers,
            servers => servers.insert(Servers::read()?),
        };
        servers.get(known_by)
    }

    fn persistent(&mut self, server: &ipvs::VirtualServerKey, client: IpAddr) -> Result<Option<SocketAddr>> {
        servers::persistent(server, client)
    }

    fn is_local(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.own.contains(&address)
    }

    fn interface_towards(&self, address: IpAddr) -> Option<String> {
        Some(rtnl::route_to(address).ok()??.link)
    }

    fn source_towards(&self, address: IpAddr) -> Option<IpAddr> {
        rtnl::route_to(address).ok()??.source
    }

    fn remembers(&self, list: &str, address: IpAddr) -> bool {
        let listed = fs::read_to_string(format!("/proc/thread-self/net/xt_recent/{list}"));
        listed.is_ok_and(|listed| is_listed(&listed, address))
    }
}

/// Whether an address is in what `xt_recent` prints.
fn is_listed(listed: &str, address: IpAddr) -> bool {
    let sources = listed.lines().filter_map(|line| line.strip_prefix("src=")?.split(' ').next());
    sources.filter_map(|source| source.parse::<IpAddr>().ok()).any(|source| source == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_found_in_the_kernels_list() {
        let listed = "src=10.244.1.7 ttl: 64 last_seen: 4301 oldest_pkt: 1 4301\n\
            src=fd00:0000:0000:0000:0000:0000:0000:0001 ttl: 64 last_seen: 1 oldest_pkt: 1 1\n";
        assert!(is_listed(listed, "10.244.1.7".parse().unwrap()));
        assert!(is_listed(listed, "fd00::1".parse().unwrap()));
        assert!(!is_listed(listed, "10.244.1.70".parse().unwrap()));
    }
}
