//! The flows of the kernel.

use std::{collections::HashSet, net::IpAddr, slice};

use netlink::conntrack::{ConntrackHandle, Flow};
use proto::model::{IpFamily, Protocol};

use crate::dataplane::{IPVS_DEVICE, NodePortAddresses};

/// The function that is called with each listed flow. An error ends the list.
pub(super) type Visit<'a> = &'a mut dyn FnMut(Flow) -> netlink::Result<()>;

/// The flows of the kernel. Every call blocks.
pub(super) trait FlowTable: Send + 'static {
    /// The addresses of the node's interfaces that may serve node ports, without the VIPs of IPVS.
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>>;

    /// Calls `visit` with each flow. It may delete flows.
    fn visit(&self, family: IpFamily, protocol: Protocol, visit: Visit<'_>) -> netlink::Result<()>;

    /// Calls `visit` with each TCP connection whose SYN has not been answered.
    fn visit_half_open(&self, family: IpFamily, visit: Visit<'_>) -> netlink::Result<()>;

    /// Deletes flows. Returns how many there were.
    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize>;

    /// Deletes the flows that are still as they were listed, one by one. Returns how many there were.
    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize>;
}

/// The flows of the network namespace of the calling thread, with the addresses that serve node ports there.
#[derive(Debug)]
pub(super) struct KernelFlowTable(pub(super) NodePortAddresses);

impl FlowTable for KernelFlowTable {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        let mut addresses = netlink::rtnl::addresses_except(&[IPVS_DEVICE])?;
        // Loopback addresses may serve node ports of iptables, whatever the option says.
        addresses.retain(|address| address.is_loopback() || self.0.contain(address));
        Ok(addresses)
    }

    fn visit(&self, family: IpFamily, protocol: Protocol, visit: Visit<'_>) -> netlink::Result<()> {
        ConntrackHandle::open()?.flows(family, protocol, visit)
    }

    fn visit_half_open(&self, family: IpFamily, visit: Visit<'_>) -> netlink::Result<()> {
        ConntrackHandle::open()?.half_open(family, visit)
    }

    fn delete(&self, flows: &[Flow]) -> netlink::Result<usize> {
        if flows.is_empty() { Ok(0) } else { ConntrackHandle::open()?.delete(flows) }
    }

    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize> {
        let mut handle = ConntrackHandle::open()?;
        let mut deleted = 0;
        for flow in flows {
            if handle.find(flow)?.as_ref() == Some(flow) {
                deleted += handle.delete(slice::from_ref(flow))?;
            }
        }
        Ok(deleted)
    }
}
