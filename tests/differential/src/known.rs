//! The differences of kube-proxy from Fairlead that docs/semantics.md describes.

use iptables::Variant;

use crate::{
    cluster::Cluster,
    proxy::{Mode, Program, ProxyKind},
    question::{Answer, Outcome, Question, Source, VipKind},
};

// The first sentences of rows of docs/semantics.md.
const OTHER_PORT: &str = "A port of a cluster IP that no Service has is rejected.";
const UNALLOCATED: &str = "Packets to an unallocated address of the service CIDRs are dropped.";
const OTHER_PROXY: &str = "Cluster IPs of Services that are labelled for another proxy \
                           (`service.kubernetes.io/service-proxy-name`) are not dropped.";
const NO_ENDPOINT: &str = "Without any endpoint: rejected, for each VIP kind and source class.";
const SOURCE_RANGES: &str =
    "Without endpoints, packets from outside the ranges are still dropped; others are rejected.";
const LOOPBACK: &str = "Node ports do not answer on loopback";
const DUPLICATE: &str = "Duplicate address and port: the entry that is not terminating counts; of two such entries, \
                         always the same one.";
const HAIRPIN: &str = "Hairpin: a pod reaches itself through each VIP kind and policy, with the node as source";

/// The row of docs/semantics.md that describes why the answer of a proxy differs from the expected one.
pub(crate) fn difference(
    proxy: ProxyKind,
    cluster: &Cluster,
    question: &Question,
    expected: &Answer,
    answer: &Answer,
) -> Option<&'static str> {
    if proxy.program == Program::Fairlead {
        return None;
    }
    let is_iptables = proxy.mode == Mode::Iptables(Variant::Nft);
    let service = question.service.map(|index| &cluster.services[index]);
    if service.is_some_and(|service| service.has_live_duplicates(question.family())) {
        return Some(DUPLICATE);
    }
    let is_local = service.is_some_and(|service| service.is_local(question.source_ip()));
    if !is_iptables && !is_local && *answer == expected.without_hairpin(question.source_ip()) {
        return Some(HAIRPIN);
    }
    let is_external = matches!(question.kind, VipKind::ExternalIp | VipKind::LoadBalancerIp | VipKind::NodePort);
    let (expected, answer) = (expected.only()?, answer.only()?);
    if !is_iptables {
        let is_foreign = service.is_some_and(|service| service.is_foreign);
        let is_dropped = (expected, answer) == (Outcome::Untranslated, Outcome::Dropped);
        return (question.kind == VipKind::ClusterIp && is_foreign && is_dropped).then_some(OTHER_PROXY);
    }
    match (question.kind, expected, answer) {
        // A packet that follows its route is dropped outside of the cluster.
        (VipKind::ClusterIp, Outcome::Rejected, Outcome::Untranslated | Outcome::Dropped) => Some(OTHER_PORT),
        (VipKind::Unallocated, Outcome::Dropped, Outcome::Untranslated) => Some(UNALLOCATED),
        (VipKind::Loopback, Outcome::Untranslated, Outcome::Rejected | Outcome::Dropped) => Some(LOOPBACK),
        (VipKind::LoadBalancerIp, Outcome::Dropped, Outcome::Rejected) => Some(SOURCE_RANGES),
        (_, Outcome::Rejected | Outcome::Dropped, Outcome::Untranslated | Outcome::Dropped)
            if is_external && question.source == Source::Node =>
        {
            Some(NO_ENDPOINT)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_a_row_of_the_documentation() {
        let rows = include_str!("../../../docs/semantics.md");
        for row in [OTHER_PORT, UNALLOCATED, OTHER_PROXY, NO_ENDPOINT, SOURCE_RANGES, LOOPBACK, DUPLICATE, HAIRPIN] {
            assert!(rows.contains(&format!("\n| {row}")), "{row}");
        }
    }
}
