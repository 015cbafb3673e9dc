//! Node and cluster info, and CIDRs.

use bytes::Bytes;
use ipnet::IpNet;
use std::net::IpAddr;

use super::{
    InvalidMessage, each,
    pack::{pack_address, unpack_address},
    sorted,
};
use crate::{
    model::{ClusterInfo, NodeInfo},
    v1,
};

/// Addresses in the order of the message.
pub(super) fn addresses(wire: &[Bytes], field: &str) -> Result<Vec<IpAddr>, InvalidMessage> {
    let entries = wire.iter().enumerate();
    entries.map(|(at, bytes)| unpack_address(bytes, &format!("{field}[{at}]"))).collect()
}

impl From<&IpNet> for v1::Cidr {
    fn from(range: &IpNet) -> Self {
        Self { address: pack_address(&range.addr()), prefix_length: range.prefix_len().into() }
    }
}

impl TryFrom<&v1::Cidr> for IpNet {
    type Error = InvalidMessage;

    fn try_from(wire: &v1::Cidr) -> Result<Self, InvalidMessage> {
        let address = unpack_address(&wire.address, "address")?;
        let length = u8::try_from(wire.prefix_length).ok();
        let range = length.and_then(|length| Self::new(address, length).ok()).ok_or_else(|| {
            InvalidMessage::new("prefix_length", format!("/{} is too long for {address}", wire.prefix_length))
        })?;
        Ok(range.trunc())
    }
}

impl From<&NodeInfo> for v1::NodeInfo {
    fn from(node: &NodeInfo) -> Self {
        let NodeInfo { name, addresses, pod_cidrs, zone, eligible } = node;
        Self {
            name: name.to_string(),
            addresses: addresses.iter().map(pack_address).collect(),
            pod_cidrs: pod_cidrs.iter().map(Into::into).collect(),
            zone: zone.to_string(),
            eligible: *eligible,
        }
    }
}

impl TryFrom<v1::NodeInfo> for NodeInfo {
    type Error = InvalidMessage;

    fn try_from(wire: v1::NodeInfo) -> Result<Self, InvalidMessage> {
        if wire.name.is_empty() {
            return Err(InvalidMessage::new("name", "is empty"));
        }
        Ok(Self {
            name: wire.name.into(),
            addresses: addresses(&wire.addresses, "addresses")?,
            pod_cidrs: each(&wire.pod_cidrs, "pod_cidrs")?,
            zone: wire.zone.into(),
            eligible: wire.eligible,
        })
    }
}

impl From<&ClusterInfo> for v1::ClusterInfo {
    fn from(cluster: &ClusterInfo) -> Self {
        Self { service_cidrs: cluster.service_cidrs.iter().map(Into::into).collect() }
    }
}

impl TryFrom<v1::ClusterInfo> for ClusterInfo {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ClusterInfo) -> Result<Self, InvalidMessage> {
        Ok(Self { service_cidrs: sorted(each(&wire.service_cidrs, "service_cidrs")?) })
    }
}
