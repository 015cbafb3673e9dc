//! Taking over where kube-proxy's iptables mode has been: what it has written stays where it is, and only the difference is written.

use std::collections::BTreeSet;

use backend::{
    Backend, NodeState,
    dataplane::{DataplaneOptions, NodePortAddresses},
    testing::mk_state,
};
use backend_iptables::Iptables;
use iptables::Variant;

use super::support::{options, run, saved, tool};

/// What kube-proxy 1.36 has in nat and filter for [`state`], for IPv4; written by hand from its source's rules.
const KUBE_PROXYS: &str = include_str!("takeover/kube-proxy.rules");

/// What Fairlead does otherwise: TCP is refused by a reset, and packets without a known connection are nobody's; and what nobody uses.
const GONE: [&str; 4] = [
    "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
    "-A KUBE-SERVICES -d 10.96.0.3/32 -p tcp -m comment --comment \"ns3/idle:p80 has no endpoints\" -m tcp --dport 80 -j REJECT \
     --reject-with icmp-port-unreachable",
    ":KUBE-SEP-AAAAAAAAAAAAAAAA -",
    "-A KUBE-SEP-AAAAAAAAAAAAAAAA -p tcp -m comment --comment \"ns1/svc1:p80\" -m tcp -j DNAT --to-destination 10.180.0.9:80",
];
/// The chains of single services.
const PER_SERVICE: [&str; 5] =
    ["-A KUBE-SVC-", "-A KUBE-SEP-", "-A KUBE-EXT-", "-A KUBE-FW-", "-A KUBE-SERVICES -d 10.96.0.1/32"];
/// Lines of both families: for IPv6 there is nothing before.
const WRITES: usize = 63;

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

/// As kube-proxy is by default: node ports at all addresses.
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
            let taken = backend.reconcile(&state()).await.unwrap();
            assert_eq!(taken.failures, []);
            let after = saved(variant);
            let gone: BTreeSet<&str> = before.iter().filter(|line| !after.contains(line)).map(|line| &**line).collect();
            assert_eq!(gone, BTreeSet::from(GONE), "{variant}");
            let of_services = |line: &&String| PER_SERVICE.iter().any(|prefix| line.starts_with(prefix));
            let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).filter(of_services).collect();
            assert_eq!(new, [""; 0], "{variant}");
            assert_eq!(taken.writes, WRITES, "{variant}");
            assert_eq!(like_kube_proxy(variant).reconcile(&state()).await.unwrap().writes, 0);
        });
    }
}
