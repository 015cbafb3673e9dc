//! Service ports and their keys.

use std::{
    net::IpAddr,
    num::{NonZeroU16, NonZeroU32},
};

use bytes::Bytes;

use super::{
    InvalidMessage, each,
    enums::WireEnum as _,
    pack::{addresses, pack_address, unpack_address},
    required, sorted, within,
};
use crate::{
    model::{IpFamily, PerFamily, Protocol, ServicePort, ServicePortKey, TrafficPolicy},
    v1,
};

/// The mandatory key of a service port.
pub(super) fn required_key(wire: Option<v1::ServicePortKey>) -> Result<ServicePortKey, InvalidMessage> {
    required(wire, "key")?.try_into().map_err(within("key"))
}

fn port(value: u32, field: &str) -> Result<NonZeroU16, InvalidMessage> {
    let port = u16::try_from(value).ok().and_then(NonZeroU16::new);
    port.ok_or_else(|| InvalidMessage::new(field, format!("{value} is not a port (1 to 65535)")))
}

fn optional_port(value: u32, field: &str) -> Result<Option<NonZeroU16>, InvalidMessage> {
    if value == 0 { Ok(None) } else { port(value, field).map(Some) }
}

fn cluster_ips(wire: &[Bytes]) -> Result<PerFamily<Option<IpAddr>>, InvalidMessage> {
    let mut cluster_ips = PerFamily::<Option<IpAddr>>::default();
    for (at, bytes) in wire.iter().enumerate() {
        let field = format!("cluster_ips[{at}]");
        let ip = unpack_address(bytes, &field)?;
        let family = IpFamily::of(&ip);
        if cluster_ips[family].replace(ip).is_some() {
            return Err(InvalidMessage::new(field, format!("{ip} is the second {family} address")));
        }
    }
    Ok(cluster_ips)
}

impl From<&ServicePortKey> for v1::ServicePortKey {
    fn from(key: &ServicePortKey) -> Self {
        Self {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            port_name: key.port_name.to_string(),
            protocol: key.protocol.to_wire(),
        }
    }
}

impl TryFrom<v1::ServicePortKey> for ServicePortKey {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePortKey) -> Result<Self, InvalidMessage> {
        let protocol = Protocol::from_wire(wire.protocol, "protocol")?;
        for (field, value) in [("namespace", &wire.namespace), ("name", &wire.name)] {
            if value.is_empty() {
                return Err(InvalidMessage::new(field, "is empty"));
            }
        }
        Ok(Self::new(wire.namespace, wire.name, wire.port_name, protocol))
    }
}

impl From<&ServicePort> for v1::ServicePort {
    fn from(port: &ServicePort) -> Self {
        Self {
            key: Some((&port.key).into()),
            port: port.port.get().into(),
            cluster_ips: port.cluster_ips.iter().filter_map(|(_, ip)| ip.as_ref()).map(pack_address).collect(),
            node_port: port.node_port.map_or(0, |port| port.get().into()),
            external_ips: port.external_ips.iter().map(pack_address).collect(),
            load_balancer_ips: port.load_balancer_ips.iter().map(pack_address).collect(),
            source_ranges: port.source_ranges.iter().map(Into::into).collect(),
            internal_policy: port.internal_policy.to_wire(),
            external_policy: port.external_policy.to_wire(),
            affinity_seconds: port.affinity_seconds.map_or(0, Into::into),
            health_check_node_port: port.health_check_node_port.map_or(0, |port| port.get().into()),
            any_endpoints_v4: port.any_endpoints.v4,
            any_endpoints_v6: port.any_endpoints.v6,
        }
    }
}

impl TryFrom<v1::ServicePort> for ServicePort {
    type Error = InvalidMessage;

    fn try_from(wire: v1::ServicePort) -> Result<Self, InvalidMessage> {
        let policy = |value, field| TrafficPolicy::from_wire_or(TrafficPolicy::Cluster, value, field);
        Ok(Self {
            key: required_key(wire.key)?,
            port: port(wire.port, "port")?,
            cluster_ips: cluster_ips(&wire.cluster_ips)?,
            node_port: optional_port(wire.node_port, "node_port")?,
            external_ips: sorted(addresses(&wire.external_ips, "external_ips")?),
            load_balancer_ips: sorted(addresses(&wire.load_balancer_ips, "load_balancer_ips")?),
            source_ranges: sorted(each(&wire.source_ranges, "source_ranges")?),
            internal_policy: policy(wire.internal_policy, "internal_policy")?,
            external_policy: policy(wire.external_policy, "external_policy")?,
            affinity_seconds: NonZeroU32::new(wire.affinity_seconds),
            health_check_node_port: optional_port(wire.health_check_node_port, "health_check_node_port")?,
            any_endpoints: PerFamily { v4: wire.any_endpoints_v4, v6: wire.any_endpoints_v6 },
        })
    }
}
