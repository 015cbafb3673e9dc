//! The verdicts of each kind of VIP, and the names of chains.

use std::num::{NonZeroU16, NonZeroU32};

use backend::{
    ServicePortState,
    dataplane::{DataplaneOptions, DrainedPorts, EffectiveOptions, LocalDetector, Masquerade, Vip, VipKind, vips},
    testing::{ServiceBuilder, mk_state},
};
use netlink::nft::Expr;
use proto::model::{IpFamily, PerFamily};
use ring::digest::{SHA256, digest};

use super::*;
use crate::element::{Affinity, Element, Map, PoolChain, PoolChainKind, SourceGroupId};

fn service(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> ServicePortState {
    mk_state().service("default/web", build).build().service_ports().values().next().unwrap().clone()
}

/// All elements but endpoints, as `map VIP -> data`.
fn dispatches(service: &ServicePortState, masquerade: Masquerade) -> Vec<String> {
    let mut elements = Vec::new();
    let desired = desired(service, IpFamily::V4, masquerade, |_| true, &[], Affinity::buckets(1));
    desired.inspect(|desired| desired.elements(&mut elements));
    assert!(elements.is_sorted());
    elements.iter().filter_map(line).collect()
}

fn line(element: &Element) -> Option<String> {
    use crate::element::{ElementData, Verdict};
    let to = match element.data {
        ElementData::Endpoint(..) => return None,
        ElementData::PoolKey(vip) => format!("= {vip}"),
        ElementData::Source(group) => format!("{group}"),
        ElementData::None => "-".to_owned(),
        ElementData::Member(address, port) => format!("{address}:{port}"),
        ElementData::Verdict(Verdict::Sources(_)) => "sources".to_owned(),
        ElementData::Verdict(verdict) => verdict.chain().unwrap_or_else(|| "drop".to_owned()),
    };
    Some(format!("{} {} {to}", element.map.name(), element.vip))
}

/// A table of another version with the same name is adopted: only a new name keeps the old table until the new one is
/// complete.
#[test]
fn a_layout_has_a_number() {
    const LAYOUT: (&str, &str) = ("fairlead1", "ad5f8ac3cb5aa1f2");
    let local_detector = LocalDetector::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let options = DataplaneOptions { local_detector, ..DataplaneOptions::default() };
    let (node, cluster) = (proto::model::NodeInfo::unknown("node"), proto::model::ClusterInfo::default());
    let effective = options.effective(&node);
    let mut layout = String::new();
    for family in IpFamily::ALL {
        layout += &format!("{:?}", base(family, &options, &node, &cluster));
        for affinity in [None, Some(Affinity { timeout: NonZeroU32::MIN, buckets: NonZeroU32::MIN })] {
            for (kind, prefix) in PoolChainKind::ALL {
                let rules = [1, 2].map(|count| PoolChain { kind, count, affinity }.rules(family, &effective));
                layout += &format!("{prefix} {rules:?}");
            }
        }
        let prefixes = [PerFamily { v4: "192.0.2.0/24", v6: "fd00::/16" }[family].parse().unwrap()];
        let group = SourceGroup { id: SourceGroupId::of(&prefixes), prefixes: prefixes.into() };
        layout += &format!("{:?}", group.rules(family));
    }
    let hash = digest(&SHA256, layout.as_bytes());
    let hash: String = hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(
        (backend::NFT_TABLE, &*hash),
        LAYOUT,
        "increment LAYOUT, the number in `NFT_TABLE`, and write both here"
    );
}

#[test]
fn tables_of_the_user_are_not_ours() {
    for name in ["fairlead", "fairlead-standby", "fairlead1", "fairlead2", "fairlead10"] {
        assert!(is_own_table(name), "{name}");
    }
    for name in
        ["fairlead-foo", "fairlead-resets", "fairlead1-foo", "fairlead01", "fairlead0", "fairleads", "my-fairlead"]
    {
        assert!(!is_own_table(name), "{name}");
    }
}

const TWO: [&str; 2] = ["10.244.1.1:80", "10.244.2.1:80"];
const LOCAL: [&str; 1] = ["10.244.1.1:80"];

#[test]
fn cluster_ips_follow_the_internal_policy() {
    let cluster = service(|web| web.cluster_ip("10.96.0.1").endpoints(TWO).local_endpoints(LOCAL).external_local());
    assert_eq!(dispatches(&cluster, Masquerade::UnlessPod), ["vips 10.96.0.1:80/tcp cluster-ip-pool-2"]);
    assert_eq!(dispatches(&cluster, Masquerade::Always), ["vips 10.96.0.1:80/tcp cluster-ip-pool-2"]);
    assert_eq!(dispatches(&cluster, Masquerade::Never), ["vips 10.96.0.1:80/tcp pool-2"]);
    let local = service(|web| web.cluster_ip("10.96.0.1").endpoints(TWO).local_endpoints(LOCAL).internal_local());
    assert_eq!(dispatches(&local, Masquerade::UnlessPod), ["vips 10.96.0.1:80/tcp cluster-ip-local-pool-1"]);
    assert_eq!(dispatches(&local, Masquerade::Never), ["vips 10.96.0.1:80/tcp local-pool-1"]);
}

#[test]
fn external_policy_cluster_masquerades() {
    let web = service(|web| {
        let web = web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").load_balancer_ip("198.51.100.1");
        web.node_port(30080).endpoints(TWO).internal_local()
    });
    assert_eq!(
        dispatches(&web, Masquerade::Never),
        [
            "vips 10.96.0.1:80/tcp drop",
            "aliases 198.51.100.1:80/tcp = 10.96.0.1:80/tcp",
            "vips 198.51.100.1:80/tcp masq-alias-pool-2",
            "aliases 203.0.113.1:80/tcp = 10.96.0.1:80/tcp",
            "vips 203.0.113.1:80/tcp masq-alias-pool-2",
            "nodeport-aliases node port 30080/tcp = 10.96.0.1:80/tcp",
            "nodeports node port 30080/tcp masq-nodeport-alias-pool-2",
        ]
    );
}

#[test]
fn external_policy_local_depends_on_the_source_class() {
    let web = |local: &'static [&'static str]| {
        service(move |web| {
            let web = web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").node_port(30080).external_local();
            web.endpoints(TWO).local_endpoints(local.iter().copied())
        })
    };
    assert_eq!(
        dispatches(&web(&LOCAL), Masquerade::UnlessPod),
        [
            "vips 10.96.0.1:80/tcp cluster-ip-pool-2",
            "aliases 203.0.113.1:80/tcp = 10.96.0.1:80/tcp",
            "policy-local-vips 203.0.113.1:80/tcp -",
            "cluster-vips 203.0.113.1:80/tcp alias-pool-2",
            "local-vips 203.0.113.1:80/tcp alias-local-pool-1",
            "nodeport-aliases node port 30080/tcp = 10.96.0.1:80/tcp",
            "policy-local-nodeports node port 30080/tcp -",
            "cluster-nodeports node port 30080/tcp nodeport-alias-pool-2",
            "local-nodeports node port 30080/tcp nodeport-alias-local-pool-1",
        ]
    );
    let no_local = dispatches(&web(&[]), Masquerade::UnlessPod);
    assert!(no_local.contains(&"local-vips 203.0.113.1:80/tcp drop".to_owned()), "{no_local:?}");
    assert!(no_local.contains(&"cluster-vips 203.0.113.1:80/tcp alias-pool-2".to_owned()), "{no_local:?}");
}

#[test]
fn a_service_port_without_endpoints_is_rejected() {
    let web = service(|web| {
        web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").node_port(30080).external_local().internal_local()
    });
    assert_eq!(
        dispatches(&web, Masquerade::UnlessPod),
        ["vips 10.96.0.1:80/tcp reject", "vips 203.0.113.1:80/tcp reject", "nodeports node port 30080/tcp reject",]
    );
    let elsewhere = service(|web| web.cluster_ip("10.96.0.1").any_endpoints(IpFamily::V4));
    assert_eq!(dispatches(&elsewhere, Masquerade::UnlessPod), ["vips 10.96.0.1:80/tcp drop"]);
}

#[test]
fn a_duplicate_address_is_one_vip() {
    let web = service(|web| {
        web.cluster_ip("10.96.0.1").external_ip("10.96.0.1").external_ip("203.0.113.1").load_balancer_ip("203.0.113.1")
    });
    let kinds: Vec<_> = vips(&web.port, IpFamily::V4).into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(kinds, [VipKind::ClusterIp, VipKind::External]);
}

#[test]
fn a_restricted_vip_has_additional_elements() {
    let lb = |policy_local: bool| {
        service(|lb| {
            let lb = lb.cluster_ip("10.96.0.1").load_balancer_ip("203.0.113.1").external_ip("203.0.113.2");
            let lb = lb.node_port(30080).source_range("10.0.0.0/8").source_range("11.0.0.0/8").endpoints(TWO);
            if policy_local { lb.external_local() } else { lb }
        })
    };
    let of_lb = |lines: Vec<String>| -> Vec<String> {
        lines.into_iter().filter(|line| line.contains("restricted") || line.contains("sources")).collect()
    };
    let restricted = ["restricted-vips 203.0.113.1:80/tcp sources"];
    assert_eq!(of_lb(dispatches(&lb(false), Masquerade::UnlessPod)), restricted);
    assert_eq!(of_lb(dispatches(&lb(true), Masquerade::UnlessPod)), restricted);
    let none = service(|lb| lb.load_balancer_ip("203.0.113.1").source_range("10.0.0.0/8"));
    assert_eq!(
        dispatches(&none, Masquerade::UnlessPod),
        ["vips 203.0.113.1:80/tcp reject".to_owned(), restricted[0].to_owned()]
    );
}

/// Without a cluster IP the first VIP is the key, and if that is a node port, the unspecified address.
#[test]
fn the_key_of_a_pool_is_an_owned_vip() {
    let web = |cluster_ip: bool| {
        service(|web| {
            let web = web.external_ip("203.0.113.2").load_balancer_ip("203.0.113.1").endpoints(TWO);
            if cluster_ip { web.cluster_ip("10.96.0.1").node_port(30080) } else { web }
        })
    };
    let keys = |service: &ServicePortState, owned: &dyn Fn(&Vip) -> bool| -> Vec<String> {
        let desired = desired(service, IpFamily::V4, Masquerade::Never, owned, &[], Affinity::buckets(1)).unwrap();
        let mut elements = Vec::new();
        desired.elements(&mut elements);
        assert!(elements.is_sorted());
        let endpoints = elements.iter().filter(|element| element.map == Map::Endpoints);
        endpoints.map(|element| element.vip.to_string()).collect()
    };
    assert_eq!(keys(&web(true), &|_| true), ["10.96.0.1:80/tcp"; 2]);
    assert_eq!(keys(&web(false), &|_| true), ["203.0.113.1:80/tcp"; 2]);
    let is_node_port = |vip: &Vip| matches!(vip, Vip::NodePort { .. });
    assert_eq!(keys(&web(true), &|vip| *vip != vips(&web(true).port, IpFamily::V4)[0].0), ["203.0.113.1:80/tcp"; 2]);
    assert_eq!(keys(&web(true), &is_node_port), ["0.0.0.0:30080/tcp"; 2]);
}

#[test]
fn a_family_without_cluster_ip_has_no_node_port() {
    let web = service(|web| web.cluster_ip("10.96.0.1").node_port(30080).external_ip("fd00::1"));
    assert_eq!(vips(&web.port, IpFamily::V4).len(), 2);
    assert_eq!(vips(&web.port, IpFamily::V6).len(), 1);
}

#[test]
fn hairpin_and_cluster_ip_elements_do_not_depend_on_the_policy() {
    let web = service(|web| web.cluster_ip("10.96.0.1").endpoints(TWO).terminating_endpoints(LOCAL));
    let desired = desired(&web, IpFamily::V4, Masquerade::Never, |_| true, &[], Affinity::buckets(1)).unwrap();
    let mut shared = Vec::new();
    desired.shared(&mut shared);
    assert!(shared.iter().all(|element| element.map.is_shared()));
    let lines: Vec<_> = shared.iter().filter_map(line).collect();
    assert_eq!(lines, ["hairpin 10.244.1.1:80/tcp -", "cluster-ips 10.96.0.1 -"]);
}

/// Other chains lead to the same pools, and the members of the pools are elements too.
#[test]
fn affinity_applies_to_every_kind_of_vip() {
    let web = |local: bool| {
        service(|web| {
            let web = web.cluster_ip("10.96.0.1").external_ip("203.0.113.1").node_port(30080).affinity(60);
            let web = web.endpoints(TWO).local_endpoints(LOCAL);
            if local { web.internal_local().external_local() } else { web }
        })
    };
    assert_eq!(
        dispatches(&web(false), Masquerade::UnlessPod),
        [
            "live 10.96.0.1:80/tcp 10.244.1.1:80",
            "live 10.96.0.1:80/tcp 10.244.2.1:80",
            "vips 10.96.0.1:80/tcp affine-cluster-ip-pool-2-60s",
            "aliases 203.0.113.1:80/tcp = 10.96.0.1:80/tcp",
            "vips 203.0.113.1:80/tcp affine-masq-alias-pool-2-60s",
            "nodeport-aliases node port 30080/tcp = 10.96.0.1:80/tcp",
            "nodeports node port 30080/tcp affine-masq-nodeport-alias-pool-2-60s",
        ]
    );
    assert_eq!(
        dispatches(&web(true), Masquerade::UnlessPod),
        [
            "live 10.96.0.1:80/tcp 10.244.1.1:80",
            "live 10.96.0.1:80/tcp 10.244.2.1:80",
            "local-live 10.96.0.1:80/tcp 10.244.1.1:80",
            "vips 10.96.0.1:80/tcp affine-cluster-ip-local-pool-1-60s",
            "aliases 203.0.113.1:80/tcp = 10.96.0.1:80/tcp",
            "policy-local-vips 203.0.113.1:80/tcp -",
            "cluster-vips 203.0.113.1:80/tcp affine-alias-pool-2-60s",
            "local-vips 203.0.113.1:80/tcp affine-alias-local-pool-1-60s",
            "nodeport-aliases node port 30080/tcp = 10.96.0.1:80/tcp",
            "policy-local-nodeports node port 30080/tcp -",
            "cluster-nodeports node port 30080/tcp affine-nodeport-alias-pool-2-60s",
            "local-nodeports node port 30080/tcp affine-nodeport-alias-local-pool-1-60s",
        ]
    );
    let none = service(|web| web.cluster_ip("10.96.0.1").affinity(60));
    assert_eq!(dispatches(&none, Masquerade::UnlessPod), ["vips 10.96.0.1:80/tcp reject"]);
}

#[test]
fn affine_chains_lead_to_plain_ones() {
    let path =
        |name: &str| -> Vec<String> { PoolChain::parse(name).unwrap().path().map(|chain| chain.to_string()).collect() };
    let [masq, affine, plain] = ["affine-masq-alias-pool-2-60s", "affine-alias-pool-2-60s", "alias-pool-2"];
    assert_eq!(path(masq), [masq, affine, plain]);
    let rules = PoolChain::parse(affine).unwrap().rules(IpFamily::V4, &effective(LocalDetector::None));
    assert_eq!(rules.len(), 3);
    assert!(rules[2].to_string().starts_with("goto alias-pool-2 "), "{}", rules[2]);
}

#[test]
fn maps_are_indexed_by_their_order() {
    assert!(Map::ALL.is_sorted());
    assert!((0..).zip(Map::ALL).all(|(index, map)| map as usize == index));
}

#[test]
fn the_metric_of_stored_clients_counts_this_map() {
    assert_eq!(Map::AffineClients.name(), backend::NFT_CLIENTS);
}

fn effective(local_detector: LocalDetector) -> EffectiveOptions {
    let node = mk_state().build().node().clone();
    DataplaneOptions { local_detector, ..DataplaneOptions::default() }.effective(&node)
}

fn cluster_cidr(cidrs: &[&str]) -> LocalDetector {
    LocalDetector::ClusterCidr(cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect())
}

#[test]
fn masquerading_depends_on_the_options() {
    let with = |local_detector, masquerade_all| {
        DataplaneOptions { local_detector, masquerade_all, ..DataplaneOptions::default() }.masquerade(IpFamily::V4)
    };
    assert_eq!(with(LocalDetector::None, false), Masquerade::Never);
    assert_eq!(with(cluster_cidr(&[]), false), Masquerade::Never);
    assert_eq!(with(cluster_cidr(&["fd00::/8"]), false), Masquerade::Never);
    assert_eq!(with(cluster_cidr(&["0.0.0.0/0"]), false), Masquerade::Never);
    assert_eq!(with(cluster_cidr(&["10.0.0.0/8"]), true), Masquerade::Always);
    assert_eq!(with(cluster_cidr(&["10.0.0.0/8"]), false), Masquerade::UnlessPod);
    assert_eq!(with(LocalDetector::NodeCidr, false), Masquerade::UnlessPod);
    assert_eq!(with(LocalDetector::NodeCidr, true), Masquerade::Always);
    assert_eq!(with(LocalDetector::BridgeInterface("cbr0".parse().unwrap()), false), Masquerade::UnlessPod);
}

/// A transaction takes effect between two lookups, each of which sees only the elements before it or those after it.
#[test]
fn a_vip_that_moves_while_a_packet_is_matched_is_found() {
    let state = mk_state().build();
    let base = base(IpFamily::V4, &DataplaneOptions::default(), state.node(), state.cluster());
    for (chain, maps) in
        [("services", [Map::Vips, Map::PolicyLocalVips]), ("nodeports", [Map::NodePorts, Map::PolicyLocalNodePorts])]
    {
        let exprs = base.chain(chain).unwrap().rules.iter().flat_map(|rule| &rule.exprs);
        let lookups: Vec<_> = exprs
            .filter_map(|expr| match expr {
                Expr::Lookup { set, .. } => maps.iter().find(|map| map.name() == set.as_str()),
                _ => None,
            })
            .collect();
        for (before, after) in [(maps[0], maps[1]), (maps[1], maps[0])] {
            for moved in 0..=lookups.len() {
                let (earlier, later) = lookups.split_at(moved);
                assert!(earlier.contains(&&before) || later.contains(&&after), "{chain}: {before:?}, {moved}");
            }
        }
    }
}

/// The node of these states has the pod CIDRs 10.244.1.0/24 and fd00:244:1::/64.
#[test]
fn connections_of_the_node_to_the_drained_port_of_its_pods_lead_to_the_backend() {
    let rules = |local_detector, own: Option<u16>, family| {
        let state = mk_state().build();
        let drained_ports = DrainedPorts { own: own.and_then(NonZeroU16::new), health: None };
        let options = DataplaneOptions { local_detector, drained_ports, ..DataplaneOptions::default() };
        let base = base(family, &options, state.node(), state.cluster());
        let rules = |chain: &str| base.chain(chain).unwrap().rules.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(rules("prerouting"), ["jump services"]);
        rules("output")[1..].to_vec()
    };
    let port = Some(24_256);
    let to = |pods: &str, backend: &str| {
        format!("{pods} meta l4proto tcp th dport 24256 dnat {backend} comment \"preStop of a pod: /drained\"")
    };
    let v4 = |pods: &str| to(pods, "ip to 127.0.0.1");
    let v6 = |pods: &str| to(pods, "ip6 to ::1");
    for (detector, expected_v4, expected_v6) in [
        (LocalDetector::None, v4("ip daddr 10.244.1.0/24"), v6("ip6 daddr fd00:244:1::/64")),
        (LocalDetector::NodeCidr, v4("ip daddr 10.244.1.0/24"), v6("ip6 daddr fd00:244:1::/64")),
        (cluster_cidr(&["10.0.0.0/8", "fd00::/8"]), v4("ip daddr 10.0.0.0/8"), v6("ip6 daddr fd00::/8")),
        // It contains the other nodes.
        (cluster_cidr(&["0.0.0.0/0", "::/0"]), v4("ip daddr 10.244.1.0/24"), v6("ip6 daddr fd00:244:1::/64")),
        (LocalDetector::BridgeInterface("cbr0".parse().unwrap()), v4("oifname \"cbr0\""), v6("oifname \"cbr0\"")),
        (LocalDetector::InterfaceNamePrefix("veth".parse().unwrap()), v4("oifname \"veth*\""), v6("oifname \"veth*\"")),
    ] {
        assert_eq!(rules(detector.clone(), port, IpFamily::V4), [expected_v4]);
        assert_eq!(rules(detector.clone(), port, IpFamily::V6), [expected_v6]);
        assert_eq!(rules(detector, None, IpFamily::V4), [""; 0]);
    }
}

/// Hooks of the release before, and those of this one.
#[test]
fn both_ports_lead_to_the_backend() {
    let state = mk_state().build();
    let drained_ports = DrainedPorts { own: NonZeroU16::new(24_256), health: NonZeroU16::new(10_256) };
    let options = DataplaneOptions { drained_ports, ..DataplaneOptions::default() };

    let base = base(IpFamily::V4, &options, state.node(), state.cluster());

    let rules = base.chain("output").unwrap().rules[1..].iter().map(ToString::to_string);
    let ports = rules.map(|rule| rule.split(' ').skip_while(|word| *word != "dport").nth(1).unwrap().to_owned());
    assert_eq!(ports.collect::<Vec<_>>(), ["24256", "10256"]);
}

/// Nothing else than the port of `/drained` keeps silent: load balancers need the resets of the port for health checks.
#[test]
fn kernel_sends_no_reset_from_the_drained_port() {
    let drops = |own: u16, family| {
        let state = mk_state().build();
        let drained_ports = DrainedPorts { own: NonZeroU16::new(own), health: NonZeroU16::new(10_256) };
        let options = DataplaneOptions { drained_ports, ..DataplaneOptions::default() };
        let base = base(family, &options, state.node(), state.cluster());
        let rules = base.chain("output-check").unwrap().rules[1..].iter().map(ToString::to_string);
        rules.collect::<Vec<_>>()
    };

    for family in IpFamily::ALL {
        let expected = "meta l4proto tcp th sport 24256 @th,104,8 & 0x04 != 0x00 drop \
                        comment \"preStop waits until a backend listens\"";
        assert_eq!(drops(24_256, family), [expected]);
        assert_eq!(drops(0, family), [""; 0]);
    }
}

/// The node of these states has the pod CIDR 10.244.1.0/24.
#[test]
fn pods_are_matched_by_the_local_detector() {
    let rules = |local_detector, family| {
        let rules = PoolChain::parse("cluster-ip-pool-2").unwrap().rules(family, &effective(local_detector));
        let lines: Vec<String> = rules.iter().map(|rule| rule.to_string()).collect();
        lines.join("; ")
    };
    let jump = "goto pool-2";
    let marking = |of: &str| {
        format!("{of} meta mark set meta mark | 0x00004000 comment \"masquerade, unless from a pod\"; {jump}")
    };
    assert_eq!(rules(LocalDetector::None, IpFamily::V4), jump);
    let pods = cluster_cidr(&["10.0.0.7/8", "10.0.0.0/8", "11.0.0.0/8"]);
    assert_eq!(rules(pods.clone(), IpFamily::V4), marking("ip saddr != 10.0.0.0/8 ip saddr != 11.0.0.0/8"));
    assert_eq!(rules(pods, IpFamily::V6), jump);
    assert_eq!(rules(LocalDetector::NodeCidr, IpFamily::V4), marking("ip saddr != 10.244.1.0/24"));
    let bridge = LocalDetector::BridgeInterface("cbr0".parse().unwrap());
    assert_eq!(rules(bridge, IpFamily::V6), marking("iifname != \"cbr0\""));
    let prefix = LocalDetector::InterfaceNamePrefix("veth".parse().unwrap());
    assert_eq!(rules(prefix, IpFamily::V4), marking("iifname != \"veth*\""));
}
