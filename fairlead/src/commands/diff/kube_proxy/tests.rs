//! Made-up rules of kube-proxy's against a state.

use backend::testing::mk_state;

use super::*;

fn endpoints(list: &[&str]) -> ConnectionVerdict {
    ConnectionVerdict::Endpoints(list.iter().map(|endpoint| endpoint.parse().unwrap()).collect())
}

fn vip(address: &str) -> VipKey {
    let address: SocketAddr = address.parse().unwrap();
    VipKey { family: IpFamily::V4, address: VipAddress::Ip(address.ip(), address.port()), protocol: 6 }
}

fn node_port(port: u16) -> VipKey {
    VipKey { family: IpFamily::V4, address: VipAddress::NodePort(port), protocol: 6 }
}

fn served(mode: &'static str, inside: ConnectionVerdict, outside: ConnectionVerdict) -> VipRules {
    VipRules { mode, service: None, internal: inside, external: outside }
}

/// A Service with an endpoint here and one elsewhere, a node port under policy Local; one whose endpoints are elsewhere; one without.
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
        .service("default/there", |there| there.cluster_ip("10.96.0.11").internal_local().any_endpoints(IpFamily::V4))
        .service("default/idle", |idle| idle.cluster_ip("10.96.0.12"))
        .build()
}

fn right(mode: &'static str) -> BTreeMap<VipKey, VipRules> {
    let both = || endpoints(&["10.244.1.1:8080", "10.244.2.1:8080"]);
    BTreeMap::from([
        (vip("10.96.0.10:80"), served(mode, both(), both())),
        (node_port(30080), served(mode, both(), endpoints(&["10.244.1.1:8080"]))),
        (vip("10.96.0.11:80"), served(mode, ConnectionVerdict::Drop, ConnectionVerdict::Drop)),
        (vip("10.96.0.12:80"), served(mode, ConnectionVerdict::Reject, ConnectionVerdict::Reject)),
    ])
}

#[test]
fn what_is_the_same_is_no_difference() {
    let report = Report::new(&state(), KubeProxyRules { vips: right("nftables") });
    assert!(report.is_as_meant(), "{}", report.text());
    assert_eq!((report.alike, report.meant.len()), (4, 0));
    assert_eq!(report.notes, [NOT_COMPARED]);
    assert_eq!(Report::new(&state(), KubeProxyRules { vips: right("iptables") }).notes, [NOT_COMPARED, ALL_ADDRESSES]);
}

#[test]
fn without_rules_there_is_nothing_to_compare() {
    let report = Report::new(&state(), KubeProxyRules::default());
    assert!(report.is_as_meant());
    assert_eq!(report.text(), "There are no rules of kube-proxy's here that serve anything.\n");
}

#[test]
fn differences_name_what_only_one_of_the_two_has() {
    let mut ways = right("nftables");
    let fewer = endpoints(&["10.244.1.1:8080", "10.244.3.1:8080"]);
    ways.insert(vip("10.96.0.10:80"), served("nftables", fewer.clone(), fewer));
    ways.remove(&vip("10.96.0.12:80"));
    ways.insert(vip("10.96.0.99:80"), served("nftables", ConnectionVerdict::Reject, ConnectionVerdict::Reject));
    let report = Report::new(&state(), KubeProxyRules { vips: ways });
    let cells: Vec<_> = report.differences.iter().map(Line::cells).collect();
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
    assert!(!report.is_as_meant());
}

#[test]
fn what_is_known_to_differ_is_told_apart() {
    let mut ways = right("ipvs");
    let here = endpoints(&["10.244.1.1:8080"]);
    ways.insert(node_port(30080), served("ipvs", here.clone(), here));
    let elsewhere = endpoints(&["10.244.2.9:8080"]);
    ways.insert(vip("10.96.0.11:80"), served("ipvs", elsewhere.clone(), elsewhere.clone()));
    ways.insert(vip("172.16.0.11:443"), served("ipvs", elsewhere.clone(), elsewhere));
    let report = Report::new(&state(), KubeProxyRules { vips: ways });
    assert!(report.is_as_meant(), "{}", report.text());
    let whys: Vec<_> = report.meant.iter().map(|line| (&*line.way, line.why)).collect();
    let expected = [
        ("10.96.0.11:80/tcp", Some(IPVS_LOCAL)),
        ("172.16.0.11:443/tcp", Some(SOMEBODYS)),
        ("node port 30080/tcp (IPv4)", Some(IPVS_LOCAL)),
    ];
    assert_eq!(whys, expected);
    // The same is none in another mode.
    let mut ways = right("nftables");
    let here = endpoints(&["10.244.1.1:8080"]);
    ways.insert(node_port(30080), served("nftables", here.clone(), here));
    assert!(!Report::new(&state(), KubeProxyRules { vips: ways }).is_as_meant());
}
