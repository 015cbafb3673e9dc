//! By its virtual servers. In this mode it makes no difference where a connection comes from.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use netlink::ipvs::VirtualServerKey;

use super::{Outcome, Served, To, Way};
use crate::{
    Family,
    ipvs::{OnNodePort, destinations},
};

pub(super) fn read() -> Result<BTreeMap<Way, Served>> {
    let mut ways = BTreeMap::new();
    for (service, on_node_port, endpoints) in destinations()? {
        // kube-proxy makes none for marks.
        let VirtualServerKey::Address(protocol, address) = service else { continue };
        let to = match on_node_port {
            // There is one for each address of the node, and all are alike.
            OnNodePort::Yes => To::NodePort(address.port()),
            OnNodePort::No => To::Vip(address.ip(), address.port()),
        };
        let way = Way { family: Family::of(address.ip()), to, protocol: protocol.number() };
        let endpoints: BTreeSet<_> = endpoints.into_iter().collect();
        // The kernel says that nobody is there.
        ways.insert(way, Served::everywhere("ipvs", None, Outcome::of(endpoints, Outcome::Reject)));
    }
    Ok(ways)
}
