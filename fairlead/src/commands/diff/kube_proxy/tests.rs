//! Tests with rules of kube-proxy that are built in memory.

use backend::testing::mk_state;
use proto::model::Protocol;

use super::*;

fn endpoints(list: &[&str]) -> ConnectionVerdict {
    ConnectionVerdict::Endpoints(list.iter().map(|endpoint| endpoint.parse().unwrap()).collect())
}

fn vip(address: &str) -> VipKey {
    let address: SocketAddr = address.parse().unwrap();
    let vip = Vip::AddressPort { address: address.ip(), port: address.port(), protocol: Protocol::Tcp };
    VipKey { family: IpFamily::V4, vip }
}

fn node_port(port: u16) -> VipKey {
    VipKey { family: IpFamily::V4, vip: Vip::NodePort { port, protocol: Protocol::Tcp } }
}

fn served(mode: Mode, inside: ConnectionVerdict, outside: ConnectionVerdict) -> VipRules {
    VipRules { mode, service: None, internal: inside, external: outside }
}

/// A Service with a local and a remote endpoint and a node port under policy Local, one with only remote endpoints, and
/// one without endpoints.
fn state() -> NodeState {
    mk_state()
        .node_addresses(["172.16.0.11"])
        .service("default/web", |web| {
            web.cluster_ip("10.96.0.10")
                .node_port(30080)
                .external_local()
                .endpoints(["10.244.1.1:8080", "10.244.2.1:8080"])
                .local_endpoints(["10.244.1.1:8080"])
        })
        .service("default/remote", |remote| {
            remote.cluster_ip("10.96.0.11").internal_local().any_endpoints(IpFamily::V4)
        })
        .service("default/idle", |idle| idle.cluster_ip("10.96.0.12"))
        .build()
}

fn equal_vips(mode: Mode) -> BTreeMap<VipKey, VipRules> {
    let both = || endpoints(&["10.244.1.1:8080", "10.244.2.1:8080"]);
    BTreeMap::from([
        (vip("10.96.0.10:80"), served(mode, both(), both())),
        (node_port(30080), served(mode, both(), endpoints(&["10.244.1.1:8080"]))),
        (vip("10.96.0.11:80"), served(mode, ConnectionVerdict::Drop, ConnectionVerdict::Drop)),
        (vip("10.96.0.12:80"), served(mode, ConnectionVerdict::Reject, ConnectionVerdict::Reject)),
    ])
}

#[test]
fn equal_rules_have_no_differences() {
    let report = KubeProxyReport::new(&state(), equal_vips(Mode::Nftables));
    assert!(report.is_as_documented(), "{}", report.text());
    assert_eq!((report.equal, report.documented.len()), (4, 0));
    assert_eq!(report.notes, [NOT_COMPARED]);
    assert!(report.text().contains("note: not compared: the addresses at which node ports answer, "));
}

#[test]
fn nothing_is_compared_without_rules() {
    let report = KubeProxyReport::new(&state(), KubeProxyRules::new());
    assert!(report.is_as_documented());
    assert_eq!(report.text(), "kube-proxy has no rules on this node that serve a VIP\n");
}

#[test]
fn differences_name_endpoints_of_one_side_only() {
    let mut vips = equal_vips(Mode::Nftables);
    let fewer = endpoints(&["10.244.1.1:8080", "10.244.3.1:8080"]);
    vips.insert(vip("10.96.0.10:80"), served(Mode::Nftables, fewer.clone(), fewer));
    vips.remove(&vip("10.96.0.12:80"));
    vips.insert(vip("10.96.0.99:80"), served(Mode::Nftables, ConnectionVerdict::Reject, ConnectionVerdict::Reject));
    let report = KubeProxyReport::new(&state(), vips);
    let cells: Vec<_> = report.differences.iter().map(VipDifference::cells).collect();
    let expected = [
        [
            "default/web/tcp",
            "10.96.0.10:80/tcp",
            "everywhere",
            "1 in both, and 10.244.3.1:8080",
            "1 in both, and 10.244.2.1:8080",
        ],
        ["", "10.96.0.99:80/tcp", "everywhere", "rejected", "not served"],
        ["default/idle/tcp", "10.96.0.12:80/tcp", "everywhere", "not served", "rejected"],
    ];
    assert_eq!(cells, expected);
    assert!(!report.is_as_documented());
}

#[test]
fn documented_differences_are_kept_apart() {
    let mut vips = equal_vips(Mode::Ipvs);
    let local = endpoints(&["10.244.1.1:8080"]);
    vips.insert(node_port(30080), served(Mode::Ipvs, local.clone(), local));
    let remote = endpoints(&["10.244.2.9:8080"]);
    vips.insert(vip("10.96.0.11:80"), served(Mode::Ipvs, remote.clone(), remote.clone()));
    vips.insert(vip("172.16.0.11:443"), served(Mode::Ipvs, remote.clone(), remote));
    let report = KubeProxyReport::new(&state(), vips);
    assert!(report.is_as_documented(), "{}", report.text());
    let reasons: Vec<_> = report.documented.iter().map(|difference| (&*difference.vip, difference.why)).collect();
    let expected = [
        ("10.96.0.11:80/tcp", Some(IPVS_LOCAL)),
        ("172.16.0.11:443/tcp", Some(ADDRESS_IN_USE)),
        ("node port 30080/tcp (IPv4)", Some(IPVS_LOCAL)),
    ];
    assert_eq!(reasons, expected);
    // Only documented for mode ipvs.
    let mut vips = equal_vips(Mode::Nftables);
    let local = endpoints(&["10.244.1.1:8080"]);
    vips.insert(node_port(30080), served(Mode::Nftables, local.clone(), local));
    assert!(!KubeProxyReport::new(&state(), vips).is_as_documented());
}
