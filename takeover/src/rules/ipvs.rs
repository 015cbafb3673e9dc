//! In IPVS mode: virtual servers. This mode does not distinguish where a connection comes from.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use netlink::ipvs::VirtualServerKey;
use proto::model::IpFamily;

use super::{ConnectionVerdict, VipAddress, VipKey, VipRules};
use crate::ipvs::{ServerKind, destinations};

pub(super) fn read() -> Result<BTreeMap<VipKey, VipRules>> {
    let mut vips = BTreeMap::new();
    for (service, kind, endpoints) in destinations()? {
        // kube-proxy creates none for marks.
        let VirtualServerKey::Address(protocol, address) = service else { continue };
        let vip = match kind {
            // There is one for each address of the node, all with the same endpoints.
            ServerKind::NodePort => VipAddress::NodePort(address.port()),
            ServerKind::OnDevice => VipAddress::Ip(address.ip(), address.port()),
        };
        let key = VipKey { family: IpFamily::of(&address.ip()), address: vip, protocol: protocol.number() };
        let endpoints: BTreeSet<_> = endpoints.into_iter().collect();
        // The kernel rejects connections to a virtual server without destinations.
        let verdict = ConnectionVerdict::of(endpoints, ConnectionVerdict::Reject);
        vips.insert(key, VipRules::everywhere("ipvs", None, verdict));
    }
    Ok(vips)
}
