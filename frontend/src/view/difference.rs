//! What differs between two views of a service port, for people.

use std::{collections::BTreeSet, net::SocketAddr};

use proto::model::{Endpoint, IpFamily, Pool, ServicePort, TrafficPolicy};

use super::ServicePortView;

/// How many endpoints, VIPs or other values of a kind are named. The others are counted.
const MAX_NAMED: usize = 4;

/// The VIPs of a service port, each with its port, except the node port.
pub(crate) fn vip_addresses(port: &ServicePort) -> impl Iterator<Item = SocketAddr> {
    let cluster_ips = IpFamily::ALL.into_iter().filter_map(move |family| port.cluster_ips[family]);
    let ips = cluster_ips.chain(IpFamily::ALL.into_iter().flat_map(move |family| port.external_policy_ips(family)));
    ips.map(move |ip| SocketAddr::new(ip, port.port.get()))
}

/// The VIPs of a service port, each with its port; the node port last.
pub(crate) fn vips(port: &ServicePort) -> BTreeSet<String> {
    let addresses = vip_addresses(port).map(|address| address.to_string());
    addresses.chain(port.node_port.map(|number| format!("node port {number}"))).collect()
}

/// The change from one view to another; `None`: there is no such service port.
pub(crate) fn describe(before: Option<&ServicePortView>, after: Option<&ServicePortView>) -> String {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, Some(after)) => return format!("added with {} endpoints", after.endpoints()),
        (_, None) => return "removed".to_owned(),
    };
    // Most changes are only of endpoints.
    let mut parts = if before.port == after.port { Vec::new() } else { of_port(&before.port, &after.port) };
    parts.extend(endpoints(before, after));
    if parts.is_empty() { "endpoints of some nodes, zones or established flows".to_owned() } else { parts.join("; ") }
}

/// The VIPs that are added and removed, and the other changed fields with their values.
fn of_port(before: &ServicePort, after: &ServicePort) -> Vec<String> {
    let had = vips(before);
    let has = vips(after);
    let changed_vips = signed(has.difference(&had), had.difference(&has)).map(|changed| format!("VIPs {changed}"));
    changed_vips.into_iter().chain(fields(before, after)).collect()
}

/// The changed fields with their values.
fn fields(before: &ServicePort, after: &ServicePort) -> impl Iterator<Item = String> {
    let ServicePort {
        port,
        source_ranges,
        internal_policy,
        external_policy,
        affinity_seconds,
        health_check_node_port,
        // They are VIPs, the same, or follow from the endpoints.
        key: _,
        cluster_ips: _,
        node_port: _,
        external_ips: _,
        load_balancer_ips: _,
        any_endpoints: _,
    } = after;
    let policy = |policy: TrafficPolicy| format!("{policy:?}");
    let changed = [
        changed("affinity_seconds", before.affinity_seconds, *affinity_seconds, optional),
        changed("external_policy", before.external_policy, *external_policy, policy),
        changed("health_check_node_port", before.health_check_node_port, *health_check_node_port, optional),
        changed("internal_policy", before.internal_policy, *internal_policy, policy),
        changed("port", before.port, *port, |port| port.to_string()),
        changed("source_ranges", &before.source_ranges, source_ranges, |ranges| format!("{} entries", ranges.len())),
    ];
    changed.into_iter().flatten()
}

fn changed<T: PartialEq>(field: &str, before: T, after: T, text: impl Fn(T) -> String) -> Option<String> {
    if before == after {
        return None;
    }
    Some(format!("{field} {} -> {}", text(before), text(after)))
}

fn optional<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "none".to_owned(), |value| value.to_string())
}

/// The endpoints that are used in addition, or no longer: everywhere, or else by policy Local.
fn endpoints(before: &ServicePortView, after: &ServicePortView) -> Option<String> {
    let mut changes = EndpointChanges::default();
    for family in IpFamily::ALL {
        changes.compare(&before.cluster[family].default, &after.cluster[family].default);
    }
    let differs_everywhere = !changes.is_empty();
    if !differs_everywhere && before.local != after.local {
        changes.compare(&local_endpoints(before), &local_endpoints(after));
    }
    let changed = signed(changes.added.iter(), changes.removed.iter())?;

    // The endpoints that are used everywhere, if these are compared: policy Local may use others, which terminate.
    let count = if differs_everywhere { endpoints_everywhere } else { ServicePortView::endpoints };
    Some(format!("endpoints {} -> {}: {changed}", count(before), count(after)))
}

/// Endpoints that are in one of two pools only.
#[derive(Default)]
struct EndpointChanges {
    added: Vec<Endpoint>,
    removed: Vec<Endpoint>,
}

impl EndpointChanges {
    fn compare(&mut self, before: &Pool, after: &Pool) {
        let (add, remove) = before.diff(after);
        // An endpoint that both pools have only has another flag.
        self.added.extend(add.into_iter().filter(|endpoint| !before.contains(endpoint)));
        self.removed.extend(remove);
    }

    fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty()
    }
}

/// The endpoints of all local pools.
fn local_endpoints(view: &ServicePortView) -> Pool {
    let pools = view.local.iter().flat_map(|(_, pools)| pools.nodes.values());
    pools.flat_map(|pool| pool.iter().copied()).collect()
}

fn endpoints_everywhere(view: &ServicePortView) -> usize {
    IpFamily::ALL.into_iter().map(|family| view.cluster[family].default.len()).sum()
}

/// What is added and removed, with signs; `None` if that is nothing.
fn signed<T: ToString>(added: impl Iterator<Item = T>, removed: impl Iterator<Item = T>) -> Option<String> {
    let mut texts =
        added.map(|one| format!("+{}", one.to_string())).chain(removed.map(|one| format!("-{}", one.to_string())));
    let named: Vec<_> = texts.by_ref().take(MAX_NAMED).collect();
    if named.is_empty() {
        return None;
    }
    let more = match texts.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(named.join(" ") + &more)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proto::model::{Endpoint, Protocol, ServicePortKey};

    use super::*;

    fn view(last: impl IntoIterator<Item = u8>) -> ServicePortView {
        let key = ServicePortKey::new("default", "web", "", Protocol::Tcp);
        let mut port = ServicePort::new(key, NonZeroU16::new(80).unwrap());
        port.cluster_ips.v4 = Some([10, 96, 0, 1].into());
        let endpoint = |last| Endpoint::new([10, 244, 0, last].into(), NonZeroU16::new(8080).unwrap());
        let mut view = ServicePortView::without_endpoints(port);
        view.cluster.v4.default = last.into_iter().map(endpoint).collect();
        view
    }

    #[test]
    fn changes_are_named_and_bounded() {
        let (one, two, ten) = (view([1]), view([1, 2]), view(1..=10));
        assert_eq!(describe(None, Some(&two)), "added with 2 endpoints");
        assert_eq!(describe(Some(&two), None), "removed");
        assert_eq!(describe(Some(&two), Some(&one)), "endpoints 2 -> 1: -10.244.0.2:8080");
        let all = describe(Some(&one), Some(&ten));
        assert!(all.starts_with("endpoints 1 -> 10: +10.244.0.2:8080 ") && all.ends_with(" and 5 more"), "{all}");
        let mut local = two.clone();
        local.port.internal_policy = TrafficPolicy::Local;
        local.port.node_port = NonZeroU16::new(30080);
        assert_eq!(describe(Some(&two), Some(&local)), "VIPs +node port 30080; internal_policy Cluster -> Local");
    }

    #[test]
    fn changed_fields_have_both_values() {
        let before = view([1]);
        let mut after = before.clone();
        after.port.port = NonZeroU16::new(81).unwrap();
        after.port.affinity_seconds = std::num::NonZeroU32::new(10);
        after.port.external_policy = TrafficPolicy::Local;
        after.port.health_check_node_port = NonZeroU16::new(30081);
        after.port.source_ranges = vec!["192.0.2.0/24".parse().unwrap()];
        after.port.any_endpoints.v4 = true;
        let expected = [
            "VIPs +10.96.0.1:81 -10.96.0.1:80",
            "affinity_seconds none -> 10",
            "external_policy Cluster -> Local",
            "health_check_node_port none -> 30081",
            "port 80 -> 81",
            "source_ranges 0 entries -> 1 entries",
        ];
        assert_eq!(describe(Some(&before), Some(&after)), expected.join("; "));
        let mut other_range = after.clone();
        other_range.port.source_ranges = vec!["192.0.2.0/25".parse().unwrap()];
        assert_eq!(describe(Some(&after), Some(&other_range)), "source_ranges 1 entries -> 1 entries");
    }

    #[test]
    fn local_endpoints_are_described_if_no_others_change() {
        let pool = |last: Vec<u8>| view(last).cluster.v4.default;
        let (mut before, mut after) = (view([]), view([]));
        before.local.v4.nodes.insert("node-a".into(), pool(vec![1, 2]));
        after.local.v4.nodes.insert("node-b".into(), pool(vec![2, 3]));
        assert_eq!(describe(Some(&before), Some(&after)), "endpoints 2 -> 2: +10.244.0.3:8080 -10.244.0.1:8080");
    }

    #[test]
    fn endpoints_that_begin_to_terminate_are_not_counted() {
        let (mut before, mut after) = (view([1, 2]), view([1]));
        let of_node = before.cluster.v4.default.clone();
        for view in [&mut before, &mut after] {
            view.local.v4.nodes.insert("node-a".into(), of_node.clone());
        }
        assert_eq!(describe(Some(&before), Some(&after)), "endpoints 2 -> 1: -10.244.0.2:8080");
    }

    #[test]
    fn vips_end_with_the_node_port() {
        let mut port = view([]).port;
        port.node_port = NonZeroU16::new(30080);
        port.external_ips = vec![[192, 0, 2, 1].into()];
        assert_eq!(vips(&port).into_iter().collect::<Vec<_>>(), ["10.96.0.1:80", "192.0.2.1:80", "node port 30080"]);
    }
}
