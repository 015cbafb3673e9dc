//! Taking over from kube-proxy's iptables mode: its rules are kept, and only the difference is written.

use backend::testing::ProgramAll as _;
use std::collections::BTreeSet;

use backend::{
    NodeState,
    dataplane::{DataplaneOptions, NodePortAddresses},
    testing::mk_state,
};
use backend_iptables::Iptables;
use iptables::Variant;

use super::support::{options, run, saved, tool};

/// The rules of kube-proxy 1.36 in nat and filter for [`state`], for IPv4.
const KUBE_PROXYS: &str = include_str!("takeover/kube-proxy.rules");

/// The rules that Fairlead replaces: TCP is rejected with a reset, and an unused chain is deleted.
const REMOVED: [&str; 3] = [
    "-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m comment --comment \"ns3/idle:p80 has no endpoints\" -m tcp --dport 80 -j REJECT \
     --reject-with icmp-port-unreachable",
    ":KUBE-SEP-AAAAAAAAAAAAAAAA -",
    "-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment \"ns1/svc1:p80\" -m tcp -j DNAT --to-destination 10.180.0.9:80",
];
/// The chains of single services.
const PER_SERVICE: [&str; 5] =
    ["-A KUBE-SVC-", "-A KUBE-SEP-", "-A KUBE-EXT-", "-A KUBE-FW-", "-A KUBE-SERVICES -d 10.96.0.1/32"];
/// Lines of both families; IPv6 has no rules before.
const WRITES: usize = 62;

fn state() -> NodeState {
    mk_state()
        .service("ns1/svc1:p80", |web| {
            web.cluster_ip("10.96.0.1")
                .node_port(30080)
                .endpoints(["10.180.0.1:80", "10.180.0.2:80"])
                .local_endpoints(["10.180.0.1:80"])
        })
        .service("ns2/svc2:p80", |sticky| {
            sticky
                .cluster_ip("10.96.0.2")
                .affinity(10800)
                .load_balancer_ip("203.0.113.1")
                .source_range("192.0.2.0/24")
                .endpoints(["10.180.0.3:80"])
        })
        .service("ns3/idle:p80", |idle| idle.cluster_ip("10.96.0.3"))
        .build()
}

/// With node ports at all addresses, the default of kube-proxy.
fn like_kube_proxy(variant: Variant) -> Iptables {
    let all = ["0.0.0.0/0", "::/0"].map(|cidr| cidr.parse().unwrap()).to_vec();
    backend_iptables::open(
        DataplaneOptions { nodeport_addresses: NodePortAddresses::Cidrs(all), ..options() },
        Some(variant),
    )
}

#[test]
fn only_the_difference_is_written() {
    for variant in Variant::ALL {
        run(move || async move {
            tool(&format!("iptables-{variant}-restore --noflush"), KUBE_PROXYS);
            let before = saved(variant);
            let mut backend = like_kube_proxy(variant);
            let report = backend.reconcile_all(&state()).await.unwrap();
            assert_eq!(report.failures, []);
            let after = saved(variant);
            let removed: BTreeSet<&str> =
                before.iter().filter(|line| !after.contains(line)).map(|line| &**line).collect();
            assert_eq!(removed, BTreeSet::from(REMOVED), "{variant}");
            let of_services = |line: &&String| PER_SERVICE.iter().any(|prefix| line.starts_with(prefix));
            let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).filter(of_services).collect();
            assert_eq!(new, [""; 0], "{variant}");
            assert_eq!(report.writes, WRITES, "{variant}");
            assert_eq!(like_kube_proxy(variant).reconcile_all(&state()).await.unwrap().writes, 0);
        });
    }
}
