//! IPVS: it selects an endpoint after filter INPUT for packets that are received, and before filter OUTPUT for packets
//! that this node sends.
//!
//! ```text
//!   mark, or protocol, address and port ─▶ virtual server ─▶ persistent client: the same destination
//!                                                         ├▶ a destination that accepts new connections (weight > 0)
//!                                                         └▶ none: rejected
//! ```

use std::net::SocketAddr;

use anyhow::Result;
use netlink::{
    ipvs::{Destination, PERSISTENT, VirtualServerKey},
    nft::Hook,
};
use proto::model::IpFamily;

use crate::{
    kernel::VirtualServer,
    outcome::{IpvsSelection, PacketVerdict},
    traversal::{ChainVerdict, Traversal},
};

/// Shown as the chain.
pub(crate) const NAME: &str = "IPVS";
/// `IP_VS_CONN_F_FWD_MASK`; 0 is address translation (`IP_VS_CONN_F_MASQ`).
const FORWARDING: u32 = 0x7;

/// The priority of IPVS at a hook: `ip_vs_ops4` of `net/netfilter/ipvs/ip_vs_core.c`.
pub(crate) fn priority(hook: Hook) -> Option<i32> {
    match hook {
        Hook::Input => Some(99),
        Hook::Output => Some(-98),
        _ => None,
    }
}

/// Lets a virtual server handle the packet, if there is one for it.
pub(crate) fn schedule(traversal: &mut Traversal<'_>) -> Result<ChainVerdict> {
    if traversal.path.scheduled.is_some() {
        return Ok(ChainVerdict::Accept);
    }
    let Some((key, server)) = find(traversal)? else { return Ok(ChainVerdict::Accept) };

    let name = name(&key);
    let scheduler = server.scheduling.scheduler.to_string();
    let rule = format!("virtual server {name}, scheduler {scheduler}");
    let (available, unavailable): (Vec<_>, Vec<_>) = server.destinations.iter().partition(|to| accepts_new(to));
    let note = unavailable_note(&unavailable);
    if available.is_empty() {
        let with = match traversal.packet.family() {
            IpFamily::V4 => "ICMP port unreachable",
            IpFamily::V6 => "ICMPv6 port unreachable",
        };
        let action = format!("rejected with {with}: no destination accepts new connections{note}");
        traversal.step(NAME.to_owned(), rule, action);
        let reason = format!("virtual server {name} has no destination that accepts new connections");
        return Ok(ChainVerdict::Ended(PacketVerdict::Rejected { with: with.to_owned(), reason }));
    }

    let is_persistent = server.scheduling.flags & PERSISTENT != 0;
    let persistent = if is_persistent { persistent(traversal, &key, &available)? } else { None };
    let destination = match persistent {
        Some(destination) => destination,
        None => available[traversal.choices.choose(&probabilities(&scheduler, &available))],
    };
    if destination.forwarding & FORWARDING != 0 {
        let address = destination.address;
        traversal
            .unknown(format!("{address} uses a forwarding method other than masquerading, which is not evaluated"));
    }

    let scheduled = IpvsSelection { server: name, scheduler, is_persistent: persistent.is_some() };
    // A persistent virtual server for a mark does not translate ports (`ip_vs_sched_persist`).
    let keeps_port = is_persistent && matches!(key, VirtualServerKey::FwMark(..));
    let port = destination.address.port();
    traversal.translate(Some(destination.address.ip()), if port == 0 || keeps_port { None } else { Some(port) });
    let to = traversal.packet.destination;
    let of = if available.len() > 1 { format!(" of {}", available.len()) } else { String::new() };
    traversal.step(NAME.to_owned(), rule, format!("destination {to}{of}, {scheduled}{note}"));
    traversal.path.scheduled = Some(scheduled);
    // A packet to this node continues to the local process.
    Ok(if traversal.kernel.is_local(to.ip()) { ChainVerdict::Accept } else { ChainVerdict::SentByIpvs })
}

/// The virtual server for the packet: first by mark, then by address.
fn find(traversal: &mut Traversal<'_>) -> Result<Option<(VirtualServerKey, VirtualServer)>> {
    let packet = &traversal.packet;
    let mut keys = Vec::new();
    if traversal.mark != 0 {
        keys.push(VirtualServerKey::FwMark(packet.family(), traversal.mark));
    }
    keys.push(VirtualServerKey::Address(packet.protocol, packet.destination));
    keys.push(VirtualServerKey::Address(packet.protocol, SocketAddr::new(packet.destination.ip(), 0)));

    for key in keys {
        if let Some(server) = traversal.kernel.virtual_server(&key)? {
            return Ok(Some((key, server)));
        }
    }
    Ok(None)
}

/// The destination that the client has used before, if it is still available.
fn persistent<'a>(
    traversal: &mut Traversal<'_>,
    key: &VirtualServerKey,
    available: &[&'a Destination],
) -> Result<Option<&'a Destination>> {
    let Some(address) = traversal.kernel.persistent(key, traversal.packet.source.ip())? else { return Ok(None) };
    // The entry of a virtual server without a port has no port.
    let has_port = |port: u16| address.port() == 0 || port == address.port();
    let mut same_ip = available.iter().filter(|to| to.address.ip() == address.ip());
    Ok(same_ip.find(|to| has_port(to.address.port())).copied())
}

/// The probability of each destination: by weight if the scheduler is the weighted round robin, otherwise equal.
fn probabilities(scheduler: &str, available: &[&Destination]) -> Vec<f64> {
    let share = |to: &&Destination| if scheduler == "wrr" { f64::from(to.weight) } else { 1.0 };
    let total: f64 = available.iter().map(share).sum();
    available.iter().map(|to| share(to) / total).collect()
}

fn accepts_new(destination: &Destination) -> bool {
    let Destination { weight, upper_threshold, active, inactive, .. } = *destination;
    weight > 0 && (upper_threshold == 0 || active.saturating_add(inactive) < upper_threshold)
}

/// Names the destinations that accept no new connections; empty when there are none.
fn unavailable_note(destinations: &[&Destination]) -> String {
    if destinations.is_empty() {
        return String::new();
    }
    let described: Vec<_> = destinations.iter().map(|destination| describe_unavailable(destination)).collect();
    format!("; no new connections to {}", described.join(", "))
}

fn describe_unavailable(Destination { address, weight, upper_threshold, .. }: &Destination) -> String {
    if *weight == 0 {
        return format!("{address} (weight 0)");
    }
    format!("{address} (upper threshold of {upper_threshold} connections reached)")
}

fn name(service: &VirtualServerKey) -> String {
    match service {
        VirtualServerKey::Address(..) => service.to_string(),
        VirtualServerKey::FwMark(_, mark) => format!("mark {mark:#x}"),
    }
}

#[cfg(test)]
mod tests;
