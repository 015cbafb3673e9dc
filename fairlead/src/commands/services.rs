//! `fairlead services`: the service ports of a node's view, or the IPVS virtual servers in this node's kernel.

mod kernel;

use std::{collections::BTreeSet, fmt::Display};

use anyhow::Result;
use backend::{NodeState, ServicePortState};
use proto::model::{IpFamily, PoolClass, ServicePort, TrafficPolicy};
use serde_json::{Value, json};

use super::view;
use crate::{cli::ServicesArgs, print, table::TextTable, takeover::ConnectionVerdict};

/// Prints the virtual servers of the kernel, or the first state that the frontend commits.
pub(crate) async fn run(args: ServicesArgs) -> Result<()> {
    let ServicesArgs { kernel, namespace, view: args } = args;
    if kernel {
        return kernel::run(args.output).await;
    }

    let node = args.node_name()?;
    let mut state = view::committed(&args.frontend, &node).await?;
    if let Some(namespace) = namespace.namespace {
        keep_namespace(&mut state, &namespace);
    }

    if state.node().is_unknown() {
        print::error(format_args!(
            "{node}: no Node object of this name is known, or it is empty: check --node; the list shows what any node \
             would be sent"
        ));
    }
    print::value(args.output, &to_json(&state), || {
        let rows = state.service_ports().values().map(row);
        TextTable::of(&["SERVICE PORT", "VIPS", "POLICY", "ENDPOINTS", "LOCAL"], rows)
    })
}

/// Removes the service ports of other namespaces.
fn keep_namespace(state: &mut NodeState, namespace: &str) {
    let keys = state.service_ports().keys().filter(|key| *key.namespace != *namespace);
    for key in keys.cloned().collect::<Vec<_>>() {
        state.set_service_port(&key, None);
    }
}

/// The service ports of a state with their pools.
pub(crate) fn to_json(state: &NodeState) -> Vec<Value> {
    let mut list = Vec::new();
    for ServicePortState { port, cluster, local, established, gone } in state.service_ports().values() {
        list.push(json!({
            "service_port": port, "cluster": cluster, "local": local, "established": established, "gone": gone,
        }));
    }
    list
}

fn row(service: &ServicePortState) -> [String; 5] {
    let port = &service.port;
    let [cluster, local] = [PoolClass::Cluster, PoolClass::Local]
        .map(|class| IpFamily::ALL.into_iter().map(|family| service.pool(class, family).len()).sum::<usize>());
    [port.key.to_string(), vips(port).join(" "), policy(port), cluster.to_string(), local.to_string()]
}

/// The VIPs as ADDRESS:PORT: cluster IPs first, the node port (`*:PORT`) last.
pub(crate) fn vips(port: &ServicePort) -> Vec<String> {
    let cluster_ips = port.cluster_ips.iter().filter_map(|(_, ip)| ip.as_ref());
    let ips = cluster_ips.chain(&port.external_ips).chain(&port.load_balancer_ips);
    let mut vips: Vec<_> = ips.map(|ip| std::net::SocketAddr::new(*ip, port.port.get()).to_string()).collect();
    vips.extend(port.node_port.map(|number| format!("*:{number}")));
    vips
}

/// `INTERNAL/EXTERNAL` traffic policy, or only the internal one if the Service has no external VIP.
pub(crate) fn policy(port: &ServicePort) -> String {
    let internal = policy_name(port.internal_policy);
    if port.externally_accessible() {
        format!("{internal}/{}", policy_name(port.external_policy))
    } else {
        internal.to_owned()
    }
}

fn policy_name(policy: TrafficPolicy) -> &'static str {
    match policy {
        TrafficPolicy::Cluster => "Cluster",
        TrafficPolicy::Local => "Local",
    }
}

/// What happens to connections for which a pool of the service port is used, by the table of docs/protocol.md.
pub(crate) fn verdict(service: &ServicePortState, class: PoolClass, family: IpFamily) -> ConnectionVerdict {
    let pool = service.pool(class, family).iter();
    let endpoints: BTreeSet<_> = pool.map(|endpoint| (endpoint.address, endpoint.port.get()).into()).collect();
    match (endpoints.is_empty(), service.port.any_endpoints[family]) {
        (false, _) => ConnectionVerdict::Endpoints(endpoints),
        (true, true) => ConnectionVerdict::Drop,
        (true, false) => ConnectionVerdict::Reject,
    }
}

/// The elements, separated by spaces.
pub(crate) fn join<T: Display>(elements: impl IntoIterator<Item = T>) -> String {
    elements.into_iter().map(|element| element.to_string()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use proto::model::{NodeInfo, Protocol, ServicePortKey};

    use super::*;

    #[test]
    fn service_ports_of_other_namespaces_are_left_out() {
        let mut state = NodeState::new(NodeInfo::unknown("node-a"));
        for namespace in ["default", "shop"] {
            let key = ServicePortKey::new(namespace, "web", "", Protocol::Tcp);
            let port = ServicePort::new(key.clone(), NonZeroU16::new(80).unwrap());
            state.set_service_port(&key, Some(ServicePortState::new(port)));
        }
        keep_namespace(&mut state, "shop");
        let left: Vec<_> = state.service_ports().keys().map(ToString::to_string).collect();
        assert_eq!(left, ["shop/web/tcp"]);
    }

    #[test]
    fn a_row_lists_vips_and_policies() {
        let key = ServicePortKey::new("default", "web", "", Protocol::Udp);
        let mut port = ServicePort::new(key, NonZeroU16::new(53).unwrap());
        port.cluster_ips.v4 = Some([10, 96, 0, 10].into());
        port.cluster_ips.v6 = Some("fd00::a".parse().unwrap());
        assert_eq!(
            row(&ServicePortState::new(port.clone())),
            ["default/web/udp", "10.96.0.10:53 [fd00::a]:53", "Cluster", "0", "0"]
        );
        port.node_port = NonZeroU16::new(30053);
        port.external_policy = TrafficPolicy::Local;
        assert_eq!(row(&ServicePortState::new(port))[1..3], ["10.96.0.10:53 [fd00::a]:53 *:30053", "Cluster/Local"]);
    }
}
