//! Compares `fairlead trace` with packets: each check of a case is also traced through node-a's rules.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use trace::{Kernel as _, LiveKernel, NodeRules, Packet, PacketOrigin, PacketVerdict, Trace};

use super::{Check, Expected, check_all};
use crate::{cluster::Cluster, wire::Protocol};

/// The source port of traced packets; no case depends on it.
const SOURCE_PORT: u16 = 40_000;

/// Runs all checks whose packets arrive at node-a, and compares each with its trace.
#[track_caller]
pub(in super::super) fn check_with_trace(cluster: &Cluster, checks: &[Check]) {
    check_all(checks);
    let node = cluster.node('a');
    let packets: Vec<_> = checks
        .iter()
        .map(|check| {
            let source = SocketAddr::new(check.client.source_address_to(check.to), SOURCE_PORT);
            (check, source, check.client.is_in(&node.netns))
        })
        .collect();
    let wrong: Vec<_> = node.netns.run(|| {
        let (rules, mut kernel) = read();
        let differs = |(check, source, is_node): &(&Check, SocketAddr, bool)| {
            let interface = kernel.output_interface(source.ip()).unwrap_or_default();
            let origin = if *is_node { PacketOrigin::Node } else { PacketOrigin::Interface(interface) };
            let packet = Packet { source: *source, destination: check.to, protocol: to_trace(check.protocol), origin };
            let trace = trace::trace(&rules, &packet, &mut kernel).expect("a trace");
            let traced = expected(cluster, &trace);
            let Check { what, protocol, to, expected, .. } = check;
            (traced.as_ref() != Some(expected)).then(|| {
                let summaries = trace.summaries();
                let texts: Vec<_> = summaries.iter().map(ToString::to_string).collect();
                let steps: Vec<_> = summaries.iter().flat_map(|summary| &summary.example.steps).collect();
                format!(
                    "{what}, {protocol} {to}:\n    expected {expected}\n    trace    {}\n{steps:#?}",
                    texts.join("; ")
                )
            })
        };
        packets.iter().filter_map(differs).collect()
    });
    let count = (wrong.len(), checks.len());
    assert!(wrong.is_empty(), "{} of {} checks differ from their trace:\n{}", count.0, count.1, wrong[0]);
}

/// All rules of the namespace that this thread is in.
fn read() -> (NodeRules, LiveKernel) {
    let saved = iptables::block_on(iptables::save_all()).expect("iptables-save");
    let mut kernel = LiveKernel::open().expect("a kernel");
    let rules = NodeRules::read(&saved, &mut kernel).expect("rules");
    (rules, kernel)
}

/// The result for a client according to the trace; `None` if the trace has several results or another kind of result.
fn expected(cluster: &Cluster, trace: &Trace) -> Option<Expected> {
    let verdicts = trace.paths.iter().map(|path| match path.verdict {
        PacketVerdict::Delivered => "delivered",
        PacketVerdict::Rejected { .. } => "refused",
        PacketVerdict::Dropped { .. } => "dropped",
    });
    match verdicts.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()[..] {
        ["refused"] => Some(Expected::Refused),
        ["dropped"] => Some(Expected::Dropped),
        ["delivered"] => {
            let answer = |path: &trace::Path| -> Option<(String, IpAddr)> {
                let endpoint = path.endpoint?.ip();
                let pod = cluster.pods().find(|pod| pod.address.both().contains(&endpoint))?;
                let source = match &path.masquerade {
                    Some(translation) => translation.source?,
                    None => trace.packet.source.ip(),
                };
                Some((pod.name.clone(), source))
            };
            trace.paths.iter().map(answer).collect::<Option<_>>().map(Expected::Answers)
        }
        _ => None,
    }
}

fn to_trace(protocol: Protocol) -> proto::model::Protocol {
    match protocol {
        Protocol::Tcp => proto::model::Protocol::Tcp,
        Protocol::Udp => proto::model::Protocol::Udp,
        Protocol::Sctp => proto::model::Protocol::Sctp,
    }
}
