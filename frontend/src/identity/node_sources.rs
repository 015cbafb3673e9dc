//! The addresses that nodes connect from: those in the status of Nodes, and those of clients that were identified.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use runtime::ClientSource;

use crate::object::NodeChanges;

/// How many sources of identified clients are remembered: three times the number of nodes in the largest clusters.
const MAX_REMEMBERED: usize = 16_384;

#[derive(Debug, Default)]
pub(crate) struct NodeSources {
    nodes: BTreeMap<Arc<str>, Vec<IpAddr>>,
    /// The same addresses, each with the Node that has it.
    addresses: BTreeSet<(IpAddr, Arc<str>)>,
    /// Sources of identified clients, with the number of the last one.
    remembered: BTreeMap<ClientSource, u64>,
    identified: u64,
}

impl NodeSources {
    /// Records that nodes were changed, added to or removed from the cluster.
    pub(crate) fn update_nodes(&mut self, changes: &NodeChanges) {
        for (name, node) in changes {
            for address in self.nodes.remove(name).into_iter().flatten() {
                self.addresses.remove(&(address, name.clone()));
            }

            if let Some(node) = node.as_ref().filter(|node| !node.addresses.is_empty()) {
                self.addresses.extend(node.addresses.iter().map(|address| (*address, name.clone())));
                self.nodes.insert(name.clone(), node.addresses.clone());
            }
        }
    }

    /// Remembers the source of a client that was identified. Beyond the bound, the source that was seen longest ago is
    /// forgotten.
    pub(crate) fn remember(&mut self, address: IpAddr) {
        let Self { remembered, identified, .. } = self;
        *identified += 1;
        remembered.insert(ClientSource::from(address), *identified);

        // The search is linear, and only needed beyond the bound.
        if remembered.len() > MAX_REMEMBERED
            && let Some((&oldest, _)) = remembered.iter().min_by_key(|(_, number)| **number)
        {
            remembered.remove(&oldest);
        }
    }

    /// Whether nodes connect from this address.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        let next = self.addresses.range((canonical, Arc::<str>::default())..).next();
        next.is_some_and(|(found, _)| *found == canonical) || self.remembered.contains_key(&ClientSource::from(address))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use proto::model::NodeInfo;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn change(name: &str, addresses: &[&str]) -> (Arc<str>, Option<Arc<NodeInfo>>) {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        let node = NodeInfo { name: name.into(), addresses, pod_cidrs: Vec::new(), zone: "".into(), eligible: true };
        (name.into(), Some(Arc::new(node)))
    }

    #[test]
    fn addresses_of_nodes_are_sources_of_nodes() {
        let mut sources = NodeSources::default();
        sources.update_nodes(&vec![change("a", &["192.0.2.1", "2001:db8::1"]), change("b", &["192.0.2.1"])]);
        assert!(sources.contains(ip("192.0.2.1")) && sources.contains(ip("::ffff:192.0.2.1")));
        assert!(sources.contains(ip("2001:db8::1")) && !sources.contains(ip("2001:db8::2")));
        sources.update_nodes(&vec![change("a", &["192.0.2.3"])]);
        assert!(sources.contains(ip("192.0.2.1")), "b still has it");
        sources.update_nodes(&vec![("b".into(), None)]);
        assert!(!sources.contains(ip("192.0.2.1")) && sources.contains(ip("192.0.2.3")));
    }

    #[test]
    fn sources_of_identified_clients_are_remembered_up_to_a_bound() {
        let mut sources = NodeSources::default();
        let address = |number: usize| IpAddr::from(Ipv4Addr::from_bits(0x0a00_0000 + number as u32));
        sources.remember(address(0));
        for number in 0..MAX_REMEMBERED {
            sources.remember(address(number));
        }
        assert!((0..MAX_REMEMBERED).all(|number| sources.contains(address(number))));
        sources.remember(address(0));
        sources.remember(address(MAX_REMEMBERED));
        assert!(sources.contains(address(0)) && !sources.contains(address(1)));
        assert_eq!(sources.remembered.len(), MAX_REMEMBERED);
    }
}
