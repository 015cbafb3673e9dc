//! Which flows are stale: a table, and random histories compared with a plain search.

use netlink::conntrack::{ConntrackZone, Tuple};

use super::*;
use crate::testing::{History, StateBuilder, mk_key, mk_state};

fn flow(to: &str, answered_by: &str) -> Flow {
    let (to, answered_by): (SocketAddr, SocketAddr) = (to.parse().unwrap(), answered_by.parse().unwrap());
    let client: IpAddr = if to.is_ipv4() { "10.244.9.9".parse() } else { "fd00:244:9::9".parse() }.unwrap();
    let client = SocketAddr::new(client, 4000);
    Flow {
        protocol: Protocol::Udp,
        original: Tuple { source: client, destination: to },
        reply: Tuple { source: answered_by, destination: client },
        id: 1,
        zone: ConntrackZone::Both(0),
        is_established: false,
        is_half_open: false,
    }
}

fn of_state(state: &NodeState) -> PerFamily<UdpVips> {
    UdpVips::of(state, &state.node().addresses, &BTreeSet::new(), &WithdrawnVips::new())
}

/// The VIPs that the service port of one state loses if it is that of another one.
fn withdrawn(before: &NodeState, after: &NodeState) -> WithdrawnVips {
    let [before, after] = [before, after].map(|state| state.service_ports().values().next());
    let key = &mk_key("kube-system/dns/udp");
    lost_vips(&ServicePortChange { key, before, after }).into_iter().map(|vip| (vip, key.clone())).collect()
}

fn is_stale(vips: &PerFamily<UdpVips>, flow: &Flow) -> bool {
    vips[IpFamily::of(&flow.original.destination.ip())].is_stale(flow)
}

/// A node at 192.168.1.1 and fd00:1::1.
fn dns() -> StateBuilder {
    mk_state().service("kube-system/dns/udp", |dns| {
        dns.port(53)
            .cluster_ip("10.96.0.10")
            .cluster_ip("fd00:96::a")
            .external_ip("198.51.100.1")
            .load_balancer_ip("192.0.2.1")
            .node_port(30053)
            .endpoints(["10.244.1.5:5353", "[fd00:244:1::5]:5353"])
            .terminating_endpoints(["10.244.1.6:5353"])
            .established_endpoints(["10.244.2.1:5353"])
    })
}

#[test]
fn flows_to_endpoints_of_the_vip_are_live_and_all_others_stale() {
    let state = dns()
        .service("default/same-ip/udp", |web| web.port(54).cluster_ip("10.96.0.10").endpoints(["10.244.1.7:54"]))
        .service("default/web", |web| {
            web.port(80).cluster_ip("10.96.0.1").node_port(30080).endpoints(["10.244.1.8:80"])
        })
        .build();
    let vips = of_state(&state);
    for vip in ["10.96.0.10:53", "198.51.100.1:53", "192.0.2.1:53", "192.168.1.1:30053"] {
        assert!(!is_stale(&vips, &flow(vip, "10.244.1.5:5353")), "{vip}: an endpoint");
        assert!(!is_stale(&vips, &flow(vip, "10.244.1.6:5353")), "{vip}: a local terminating endpoint");
        assert!(!is_stale(&vips, &flow(vip, "10.244.2.1:5353")), "{vip}: an endpoint for established flows");
        assert!(is_stale(&vips, &flow(vip, "10.244.1.4:5353")), "{vip}: another address");
        assert!(is_stale(&vips, &flow(vip, "10.244.1.5:53")), "{vip}: another port");
        assert!(is_stale(&vips, &flow(vip, "10.244.1.7:54")), "{vip}: an endpoint of another Service");
        assert!(is_stale(&vips, &flow(vip, vip)), "{vip}: older than the VIP");
    }
    for vip in ["[fd00:96::a]:53", "[fd00:1::1]:30053"] {
        assert!(!is_stale(&vips, &flow(vip, "[fd00:244:1::5]:5353")), "{vip}: an endpoint");
        assert!(is_stale(&vips, &flow(vip, "[fd00:244:1::6]:5353")), "{vip}: another address");
    }
    let none_of_ours = [
        ("10.96.0.10:55", "10.96.0.10:55"),
        ("10.96.0.1:80", "10.244.1.4:80"),
        ("192.168.1.1:30080", "10.244.1.4:80"),
        ("192.168.1.2:30053", "10.244.1.4:5353"),
        ("10.244.2.2:30053", "10.244.2.2:30053"),
        ("10.244.1.4:5353", "10.244.1.4:5353"),
    ];
    for (to, answered_by) in none_of_ours {
        assert!(!is_stale(&vips, &flow(to, answered_by)), "{to}");
    }
}

#[test]
fn without_endpoints_every_flow_is_stale() {
    let state = mk_state()
        .service("default/empty/udp", |empty| empty.port(53).cluster_ip("10.96.0.10").node_port(30053))
        .build();
    let vips = of_state(&state);
    assert!(is_stale(&vips, &flow("10.96.0.10:53", "10.244.1.5:53")));
    assert!(is_stale(&vips, &flow("192.168.1.1:30053", "10.244.1.5:53")));
    assert!(!vips.v4.is_empty());
}

#[test]
fn node_port_of_a_single_stack_service_concerns_one_family() {
    let state = mk_state()
        .service("default/v4/udp", |v4| v4.port(53).cluster_ip("10.96.0.10").node_port(30053))
        .service("default/v6/udp", |v6| v6.port(53).cluster_ip("fd00:96::a").node_port(30054))
        .build();
    let vips = of_state(&state);
    for (to, expected) in [
        ("192.168.1.1:30053", true),
        ("[fd00:1::1]:30053", false),
        ("192.168.1.1:30054", false),
        ("[fd00:1::1]:30054", true),
    ] {
        assert_eq!(is_stale(&vips, &flow(to, to)), expected, "{to}");
    }
}

#[test]
fn translated_flows_to_vips_that_were_withdrawn_are_stale() {
    let before = dns().build();
    let owner = |other: &'static str| {
        mk_state()
            .service("default/other/udp", |it| it.port(53).external_ip(other).endpoints(["10.244.1.9:53"]))
            .build()
    };
    for now in [mk_state().build(), owner("198.51.100.2"), owner("198.51.100.1")] {
        let withdrawn = withdrawn(&before, &now);
        assert_eq!(withdrawn.len(), if now == owner("198.51.100.1") { 5 } else { 6 });
        let vips = UdpVips::of(&now, &now.node().addresses, &BTreeSet::new(), &withdrawn);
        for vip in ["10.96.0.10:53", "192.0.2.1:53", "192.168.1.1:30053"] {
            assert!(is_stale(&vips, &flow(vip, "10.244.1.5:5353")), "{vip}: translated");
            assert!(!is_stale(&vips, &flow(vip, vip)), "{vip}: to the address itself");
        }
        for (to, answered_by) in [("10.96.0.10:54", "10.244.1.5:54"), ("192.168.1.2:30053", "10.244.1.5:5353")] {
            assert!(!is_stale(&vips, &flow(to, answered_by)), "{to}: no VIP");
        }
    }
    let now = owner("198.51.100.1");
    let vips = UdpVips::of(&now, &now.node().addresses, &BTreeSet::new(), &withdrawn(&before, &mk_state().build()));
    assert!(is_stale(&vips, &flow("198.51.100.1:53", "10.244.1.5:5353")), "an endpoint of the one before");
    assert!(!is_stale(&vips, &flow("198.51.100.1:53", "10.244.1.9:53")), "an endpoint of the owner");
    assert!(is_stale(&vips, &flow("198.51.100.1:53", "198.51.100.1:53")), "older than the VIP of the owner");
}

/// A Service gets a VIP that another one had, and changes again before the cleanup.
#[test]
fn flows_to_a_service_port_that_is_being_programmed_are_live() {
    let state = dns().build();
    let withdrawn = withdrawn(&state, &mk_state().build());
    let except = [mk_key("kube-system/dns/udp")].into();
    let vips = UdpVips::of(&state, &state.node().addresses, &except, &withdrawn);
    for vip in ["10.96.0.10:53", "198.51.100.1:53", "192.168.1.1:30053"] {
        for answered_by in ["10.244.1.5:5353", "10.244.1.4:5353", vip] {
            assert!(!is_stale(&vips, &flow(vip, answered_by)), "{vip}: {answered_by}");
        }
    }
}

/// The external IP is an address of the node, whose node port has the same number.
#[test]
fn live_flows_of_a_node_port_survive_the_end_of_an_external_ip() {
    let (of_node_port, of_external_ip) = ("10.244.1.5:5353", "10.244.1.9:53");
    let exposed = mk_state().service("default/other/udp", |other| {
        other.port(30053).external_ip("192.168.1.1").external_ip("198.51.100.1").endpoints([of_external_ip])
    });
    let (exposed, dns) = (exposed.build(), dns().build());
    let without = |gone: &NodeState, state: &NodeState| {
        UdpVips::of(state, &state.node().addresses, &BTreeSet::new(), &withdrawn(gone, &mk_state().build()))
    };
    let vips = without(&exposed, &dns);
    assert!(!is_stale(&vips, &flow("192.168.1.1:30053", of_node_port)));
    assert!(is_stale(&vips, &flow("192.168.1.1:30053", of_external_ip)), "an endpoint of the one before");
    assert!(is_stale(&vips, &flow("192.168.1.1:30053", "192.168.1.1:30053")), "older than the node port");
    assert!(is_stale(&vips, &flow("198.51.100.1:30053", of_node_port)), "no address of the node");
    assert!(!is_stale(&vips, &flow("198.51.100.1:30053", "198.51.100.1:30053")), "to the address itself");

    // The other way round.
    let vips = without(&dns, &exposed);
    assert!(!is_stale(&vips, &flow("192.168.1.1:30053", of_external_ip)));
    assert!(is_stale(&vips, &flow("192.168.1.1:30053", of_node_port)));
}

#[test]
fn an_endpoint_at_the_vip_itself_is_one() {
    let state = mk_state()
        .service("default/host/udp", |host| host.port(53).external_ip("192.168.1.1").endpoints(["192.168.1.1:53"]));
    assert!(!is_stale(&of_state(&state.build()), &flow("192.168.1.1:53", "192.168.1.1:53")));
}

#[test]
fn first_of_two_service_ports_with_a_vip_owns_it() {
    let state = mk_state()
        .service("default/b/udp", |b| {
            let b = b.port(53).cluster_ip("10.96.0.2").external_ip("192.0.2.1").node_port(30053);
            b.endpoints(["10.244.1.2:1"])
        })
        .service("default/a/udp", |a| {
            let a = a.port(53).cluster_ip("10.96.0.1").external_ip("192.0.2.1").node_port(30053);
            a.endpoints(["10.244.1.1:1"])
        })
        .build();
    let vips = of_state(&state);
    for vip in ["192.0.2.1:53", "192.168.1.1:30053"] {
        assert!(!is_stale(&vips, &flow(vip, "10.244.1.1:1")));
        assert!(is_stale(&vips, &flow(vip, "10.244.1.2:1")));
    }
}

/// Whether a flow is stale, found by a search through the whole state.
fn stale_by_search(state: &NodeState, flow: &Flow) -> bool {
    let (to, from) = (flow.original.destination, flow.reply.source);
    let claims = |service: &ServicePortState| {
        let port = &service.port;
        let ips = port.cluster_ips.iter().filter_map(|(_, ip)| ip.as_ref());
        let is_vip = ips
            .chain(&port.external_ips)
            .chain(&port.load_balancer_ips)
            .any(|ip| SocketAddr::new(*ip, port.port.get()) == to);
        let is_served = port.cluster_ips[IpFamily::of(&to.ip())].is_some();
        let at_node = is_served && state.node().addresses.contains(&to.ip());
        is_vip || at_node && port.node_port.is_some_and(|port| port.get() == to.port())
    };
    let serves = |service: &ServicePortState| {
        let of_family = |family| [&service.cluster[family], &service.local[family], &service.established[family]];
        let pools = IpFamily::ALL.map(of_family);
        let mut endpoints = pools.into_iter().flatten().flat_map(|pool| pool.iter());
        endpoints.any(|endpoint| SocketAddr::new(endpoint.address, endpoint.port.get()) == from)
    };
    let udp = state.service_ports().values().filter(|service| service.port.key.protocol == Protocol::Udp);
    let mut claiming = udp.filter(|service| claims(service)).peekable();
    claiming.peek().is_some() && !claiming.any(serves)
}

/// All VIPs of the state, of all protocols, and a node port at each address of the node.
fn all_vips(state: &NodeState) -> Vec<SocketAddr> {
    let mut list = Vec::new();
    for ServicePortState { port, .. } in state.service_ports().values() {
        let ips = port.cluster_ips.iter().filter_map(|(_, ip)| ip.as_ref());
        let ips = ips.chain(&port.external_ips).chain(&port.load_balancer_ips);
        list.extend(ips.map(|ip| SocketAddr::new(*ip, port.port.get())));
        let node_port = port.node_port.map_or(1, |port| port.get());
        list.extend(state.node().addresses.iter().map(|ip| SocketAddr::new(*ip, node_port)));
    }
    list
}

#[test]
fn lookup_agrees_with_a_search_in_random_histories() {
    let (mut stale, mut live) = (0, 0);
    for seed in 0..20 {
        let mut history = History::new(seed);
        for _ in 0..20 {
            history.step();
            let state = history.state();
            let vips = of_state(state);
            let all_vips = all_vips(state);
            let all_pools = state
                .service_ports()
                .values()
                .flat_map(|service| IpFamily::ALL.into_iter().flat_map(|family| allowed(service, family).to_vec()));
            let mut sources: Vec<_> = all_pools.chain(all_vips.clone()).collect();
            sources.sort_unstable();
            sources.dedup();
            for to in all_vips {
                for from in sources.iter().filter(|from| from.is_ipv4() == to.is_ipv4()) {
                    let flow = flow(&to.to_string(), &from.to_string());
                    let expected = stale_by_search(state, &flow);
                    assert_eq!(is_stale(&vips, &flow), expected, "seed {seed}: {flow:?}");
                    *(if expected { &mut stale } else { &mut live }) += 1;
                }
            }
        }
    }
    assert!(stale > 500 && live > 1000, "{stale} stale, {live} live");
}
