//! IPVS chooses an endpoint without a rule: behind filter INPUT of what arrives, in front of filter OUTPUT of what this node sends.
//!
//! ```text
//!   mark, or protocol, address and port ─▶ virtual server ─▶ a client that it remembers: the same destination
//!                                                         ├▶ one of those that take new connections (weight > 0)
//!                                                         └▶ none: refused
//! ```

use std::net::SocketAddr;

use anyhow::Result;
use netlink::AddressFamily;
use netlink::{
    ipvs::{Destination, IpvsProtocol as Served, PERSISTENT, VirtualServerKey},
    nft::Hook,
};

use crate::{
    flow::{Decision, Flow},
    kernel::VirtualServer,
    outcome::{Choice, Scheduled},
    packet::{Packet, Protocol},
};

/// What stands for a chain.
pub(crate) const PLACE: &str = "IPVS";
/// `IP_VS_CONN_F_FWD_MASK`; 0 of these bits is translation.
const FORWARDING: u32 = 0x7;

/// When IPVS is asked at a hook, relative to chains: `ip_vs_ops4` of `net/netfilter/ipvs/ip_vs_core.c`.
pub(crate) fn priority(hook: Hook) -> Option<i32> {
    match hook {
        Hook::Input => Some(99),
        Hook::Output => Some(-98),
        _ => None,
    }
}

/// Gives the packet to a virtual server, if there is one for it.
pub(crate) fn schedule(flow: &mut Flow<'_>) -> Result<Decision> {
    if flow.scheduled.is_some() {
        return Ok(Decision::Accept);
    }
    let Some((known_by, server)) = find(flow)? else { return Ok(Decision::Accept) };
    let name = name(&known_by);
    let scheduler = server.scheduling.scheduler.to_string();
    let rule = format!("virtual server {name}, scheduler {scheduler}");
    let (able, full): (Vec<_>, Vec<_>) = server.destinations.iter().partition(|it| takes_new(it));
    let unable = unable(&full);
    if able.is_empty() {
        let with = match flow.packet.is_v4() {
            true => "ICMP port unreachable",
            false => "ICMPv6 port unreachable",
        };
        let does = format!("refused with {with}: it has no destination for new connections{unable}");
        flow.step(PLACE.to_owned(), rule, does);
        let why = format!("virtual server {name} has no destination for new connections");
        return Ok(Decision::Refuse { with: with.to_owned(), why });
    }
    let is_persistent = server.scheduling.flags & PERSISTENT != 0;
    let remembered = if is_persistent { remembered(flow, &known_by, &able)? } else { None };
    let (destination, choice) = match remembered {
        Some(destination) => (destination, Choice::Remembered),
        None => {
            let (choice, shares) = shares(&scheduler, &able);
            (able[flow.choices.choose(&shares)], choice)
        }
    };
    if destination.forwarding & FORWARDING != 0 {
        flow.unknown(format!("{} is not reached by translation, which alone is followed", destination.address));
    }
    let affinity_seconds = is_persistent.then_some(server.scheduling.timeout);
    let scheduled = Scheduled { server: name, scheduler, choice, affinity_seconds };
    let to = SocketAddr::new(destination.address.ip(), port(&known_by, destination, &flow.packet, is_persistent));
    flow.translate(Some(to.ip()), Some(to.port()));
    let of = if able.len() > 1 { format!(" of {}", able.len()) } else { String::new() };
    flow.step(PLACE.to_owned(), rule, format!("destination {to}{of}, {scheduled}{unable}"));
    flow.scheduled = Some(scheduled);
    // What goes to this node itself stays on its way.
    Ok(if flow.kernel.is_local(to.ip()) { Decision::Accept } else { Decision::Sent })
}

/// The virtual server that takes it: that of its mark comes first.
fn find(flow: &mut Flow<'_>) -> Result<Option<(VirtualServerKey, VirtualServer)>> {
    let packet = &flow.packet;
    let (family, protocol) =
        (if packet.is_v4() { AddressFamily::V4 } else { AddressFamily::V6 }, served(packet.protocol));
    let any_port = SocketAddr::new(packet.destination.ip(), 0);
    let by_mark = (flow.mark != 0).then_some(VirtualServerKey::FwMark(family, flow.mark));
    let by_address = [packet.destination, any_port].map(|address| VirtualServerKey::Address(protocol, address));
    for known_by in by_mark.into_iter().chain(by_address) {
        if let Some(server) = flow.kernel.virtual_server(&known_by)? {
            return Ok(Some((known_by, server)));
        }
    }
    Ok(None)
}

/// Where a client is sent that is remembered, if that is still there.
fn remembered<'a>(
    flow: &mut Flow<'_>,
    known_by: &VirtualServerKey,
    able: &[&'a Destination],
) -> Result<Option<&'a Destination>> {
    let Some(address) = flow.kernel.persistent(known_by, flow.packet.source.ip())? else { return Ok(None) };
    // A virtual server without a port remembers none.
    let is_it = |destination: &&&Destination| {
        let known = destination.address;
        known.ip() == address.ip() && (address.port() == 0 || known.port() == address.port())
    };
    Ok(able.iter().find(is_it).copied())
}

/// How one is chosen, and how likely each is. Of a scheduler that looks at connections or clients nobody can say: equal shares stand for that.
fn shares(scheduler: &str, able: &[&Destination]) -> (Choice, Vec<f64>) {
    let equal = vec![1.0 / able.len() as f64; able.len()];
    match scheduler {
        "rr" => (Choice::InTurn, equal),
        "wrr" => {
            let total: f64 = able.iter().map(|destination| f64::from(destination.weight)).sum();
            let by_weight = able.iter().map(|destination| f64::from(destination.weight) / total);
            (Choice::InTurn, by_weight.collect())
        }
        "sh" | "mh" => (Choice::ByClient, equal),
        _ => (Choice::ByScheduler, equal),
    }
}

/// One that remembers its clients, and is known by a mark, leaves ports as they are (`ip_vs_sched_persist`).
fn port(known_by: &VirtualServerKey, destination: &Destination, packet: &Packet, is_persistent: bool) -> u16 {
    let keeps = is_persistent && matches!(known_by, VirtualServerKey::FwMark(..));
    match destination.address.port() {
        port if port != 0 && !keeps => port,
        _ => packet.destination.port(),
    }
}

fn takes_new(destination: &Destination) -> bool {
    let Destination { weight, upper_threshold, active, inactive, .. } = *destination;
    weight > 0 && (upper_threshold == 0 || active.saturating_add(inactive) < upper_threshold)
}

/// Those that get no new connections, in words; nothing if there are none.
fn unable(destinations: &[&Destination]) -> String {
    let word = |it: &&Destination| match it.weight {
        0 => format!("{} (weight 0)", it.address),
        _ => format!("{} (has its {} connections)", it.address, it.upper_threshold),
    };
    match destinations {
        [] => String::new(),
        some => format!("; no new ones go to {}", some.iter().map(word).collect::<Vec<_>>().join(", ")),
    }
}

fn name(service: &VirtualServerKey) -> String {
    match service {
        VirtualServerKey::Address(..) => service.to_string(),
        VirtualServerKey::FwMark(_, mark) => format!("mark {mark:#x}"),
    }
}

fn served(protocol: Protocol) -> Served {
    match protocol {
        Protocol::Tcp => Served::Tcp,
        Protocol::Udp => Served::Udp,
        Protocol::Sctp => Served::Sctp,
    }
}

#[cfg(test)]
mod tests;
