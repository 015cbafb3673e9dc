//! What differs between two views of a service port, for people.

use std::collections::BTreeSet;

use proto::model::{IpFamily, Pool, ServicePort};
use serde_json::Value;

use super::ServicePortView;

/// How many endpoints, VIPs or other values of a kind are named. The others are counted.
const MAX_NAMED: usize = 4;
/// The fields of a service port that are described in other words, or follow from the endpoints.
const OTHER_FIELDS: [&str; 6] =
    ["key", "cluster_ips", "external_ips", "load_balancer_ips", "node_port", "any_endpoints"];

/// The VIPs of a service port, each with its port; the node port last.
pub(crate) fn vips(port: &ServicePort) -> Vec<String> {
    let cluster_ips = IpFamily::ALL.into_iter().filter_map(|family| port.cluster_ips[family]);
    let ips = cluster_ips.chain(IpFamily::ALL.into_iter().flat_map(|family| port.external_policy_ips(family)));
    let mut vips: Vec<_> = ips.map(|ip| std::net::SocketAddr::new(ip, port.port.get()).to_string()).collect();
    vips.extend(port.node_port.map(|number| format!("node port {number}")));
    vips
}

/// The change from one view to another; `None`: there is no such service port.
pub(crate) fn describe(before: Option<&ServicePortView>, after: Option<&ServicePortView>) -> String {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, Some(after)) => return format!("added with {} endpoints", after.endpoints()),
        (_, None) => return "removed".to_owned(),
    };
    let (had, has): (BTreeSet<_>, BTreeSet<_>) =
        (vips(&before.port).into_iter().collect(), vips(&after.port).into_iter().collect());
    let changed_vips = signed(has.difference(&had), had.difference(&has)).map(|changed| format!("VIPs {changed}"));
    let parts: Vec<_> =
        changed_vips.into_iter().chain(fields(&before.port, &after.port)).chain(endpoints(before, after)).collect();
    if parts.is_empty() { "endpoints of some nodes, zones or established flows".to_owned() } else { parts.join("; ") }
}

/// The changed fields with their values.
fn fields(before: &ServicePort, after: &ServicePort) -> Vec<String> {
    let (Ok(Value::Object(before)), Ok(Value::Object(after))) =
        (serde_json::to_value(before), serde_json::to_value(after))
    else {
        return Vec::new();
    };
    let text = |value: &Value| match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => format!("{} entries", values.len()),
        other => other.to_string(),
    };
    let changed = after
        .iter()
        .filter(|(field, value)| !OTHER_FIELDS.contains(&field.as_str()) && before.get(*field) != Some(*value));
    changed
        .map(|(field, value)| format!("{field} {} -> {}", text(before.get(field).unwrap_or(&Value::Null)), text(value)))
        .collect()
}

/// The endpoints that are used in addition, or no longer: everywhere, or else by policy Local.
fn endpoints(before: &ServicePortView, after: &ServicePortView) -> Option<String> {
    let everywhere = |view: &ServicePortView| -> Pool {
        view.cluster.iter().flat_map(|(_, pools)| pools.default.iter().copied()).collect()
    };
    let local = |view: &ServicePortView| -> Pool {
        let pools = view.local.values().flat_map(|pools| pools.iter().map(|(_, pool)| pool));
        pools.flat_map(|pool| pool.iter().copied()).collect()
    };
    let changed = |before: &Pool, after: &Pool| {
        let (mut add, remove) = before.diff(after);
        // Others only have another flag.
        add.retain(|endpoint| !before.contains(endpoint));
        signed(add.iter(), remove.iter())
    };
    let of_cluster = changed(&everywhere(before), &everywhere(after));
    let changed = of_cluster.or_else(|| changed(&local(before), &local(after)))?;
    Some(format!("endpoints {} -> {}: {changed}", before.endpoints(), after.endpoints()))
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

    use proto::model::{Endpoint, Protocol, ServicePortKey, TrafficPolicy};

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
    fn vips_end_with_the_node_port() {
        let mut port = view([]).port;
        port.node_port = NonZeroU16::new(30080);
        port.external_ips = vec![[192, 0, 2, 1].into()];
        assert_eq!(vips(&port), ["10.96.0.1:80", "192.0.2.1:80", "node port 30080"]);
    }
}
