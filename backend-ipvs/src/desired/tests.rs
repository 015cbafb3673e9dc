//! The rows of the table in `docs/protocol.md` as marks and virtual servers, and the rules as iptables prints them.

use std::{
    collections::{BTreeMap, HashSet},
    num::NonZeroU16,
};

use backend::{
    dataplane::{DataplaneOptions, DrainedPorts, LocalDetector},
    testing::{ServiceBuilder, StateBuilder, mk_key, mk_state},
};
use iptables::Table;
use netlink::ipvs::{self, PERSISTENT, SCHED_FALLBACK, SCHED_PORT};
use proto::model::IpFamily;

use super::{service::MAX_SOURCE_ENTRIES, *};
use crate::{
    mark::Mark,
    object::{Object, Value},
    set::{SetContent, SetId},
    settings::Settings,
};

const ID: u32 = 5;

/// The marking set entries, and the virtual servers with the number of their destinations.
fn marks_and_servers(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder) -> (Vec<String>, Vec<String>) {
    let state = mk_state()
        .service("default/web", |web| build(web.cluster_ip("10.96.0.1").external_ip("198.51.100.1").node_port(30_080)))
        .build();
    let settings = Settings::default();
    let elsewhere = HashSet::new();
    let node_ports = state.node().primary_address(IpFamily::V4).into_iter().collect::<Vec<_>>();
    let context = Context {
        settings: &settings,
        node: &state.node().addresses,
        elsewhere: &elsewhere,
        node_ports: &node_ports,
        excess: Excess::default(),
    };
    let service = state.service_port(&mk_key("default/web")).unwrap();
    let desired = desired(service, context, ID, |_, _| true);
    let mut marks = Vec::new();
    let mut servers = BTreeMap::<String, usize>::new();
    for (object, value) in &desired.objects {
        match (object, value) {
            // A node port has two entries, 0.0.0.0/1 and 128.0.0.0/1; the second is skipped.
            (Object::SetEntry(set, entry), Value::Mark(mark))
                if set.content != SetContent::Addresses
                    && (entry.prefix.is_none() || entry.ip.unwrap().is_unspecified()) =>
            {
                marks.push(format!("{} {} {}", set.name(), entry.port.unwrap(), describe(*mark)));
            }
            (Object::Destination(server, _), _) => {
                let name = match server {
                    ipvs::VirtualServerKey::FwMark(_, raw) => describe(Mark::from_raw(*raw).unwrap()),
                    ipvs::VirtualServerKey::Address(..) => server.to_string(),
                };
                *servers.entry(name).or_default() += 1;
            }
            _ => {}
        }
    }
    marks.sort();
    (marks, servers.into_iter().map(|(name, count)| format!("{name} x{count}")).collect())
}

fn describe(mark: Mark) -> String {
    match (mark, mark.id(), mark.raw() & 3) {
        (Mark::DROP, ..) => "drop".to_owned(),
        (Mark::REJECT, ..) => "reject".to_owned(),
        (Mark::CLUSTER_IP, ..) => "cluster-ip".to_owned(),
        (Mark::HEALTH_CHECK, ..) => "health-check".to_owned(),
        (_, id, variant) => {
            format!("{} {}", ["?", "external", "inside", "local"][variant as usize], id.map_or("by address", |_| ""))
                .trim()
                .to_owned()
        }
    }
}

const ENDPOINTS: [&str; 2] = ["10.244.1.1:80", "10.244.2.1:80"];
const LOCAL_ENDPOINTS: [&str; 1] = ["10.244.1.1:80"];

#[test]
fn policy_cluster_has_one_virtual_server_for_all_external_vips() {
    let (marks, servers) = marks_and_servers(|web| web.endpoints(ENDPOINTS));
    assert_eq!(
        marks,
        ["FAIRLEAD-NODE-PORTS 30080 external", "FAIRLEAD-VIPS 80 cluster-ip", "FAIRLEAD-VIPS 80 external"]
    );
    assert_eq!(servers, ["external x2", "tcp 10.96.0.1:80 x2"]);
}

#[test]
fn policy_local_sends_traffic_from_inside_the_cluster_to_all_endpoints() {
    let (marks, servers) =
        marks_and_servers(|web| web.endpoints(ENDPOINTS).local_endpoints(LOCAL_ENDPOINTS).external_local());
    let expected = [
        "FAIRLEAD-NODE-PORTS 30080 local",
        "FAIRLEAD-NODE-PORTS-INSIDE 30080 inside",
        "FAIRLEAD-VIPS 80 cluster-ip",
        "FAIRLEAD-VIPS 80 local",
        "FAIRLEAD-VIPS-INSIDE 80 inside",
    ];
    assert_eq!(marks, expected);
    assert_eq!(servers, ["inside x2", "local x1", "tcp 10.96.0.1:80 x2"]);
}

#[test]
fn a_vip_without_endpoints_has_the_mark_drop_or_reject() {
    let (marks, servers) = marks_and_servers(|web| web.endpoints(ENDPOINTS).external_local().internal_local());
    let expected = [
        "FAIRLEAD-NODE-PORTS 30080 drop",
        "FAIRLEAD-NODE-PORTS-INSIDE 30080 inside",
        "FAIRLEAD-VIPS 80 drop",
        "FAIRLEAD-VIPS 80 drop",
        "FAIRLEAD-VIPS-INSIDE 80 inside",
    ];
    assert_eq!(marks, expected);
    assert_eq!(servers, ["inside x2"]);
    let (marks, servers) = marks_and_servers(|web| web.external_local());
    assert!(marks.iter().all(|mark| mark.ends_with("reject")), "{marks:?}");
    assert_eq!(servers, [""; 0]);
}

#[test]
fn probes_are_accepted_at_addresses_of_the_node_and_load_balancer_ips() {
    let with = |port: Option<u16>| {
        marks_and_servers(|web| {
            let web = web.endpoints(ENDPOINTS).external_local().load_balancer_ip("203.0.113.7");
            let web = web.load_balancer_ip("203.0.113.8").load_balancer_ip("fd00:113::7");
            port.into_iter().fold(web, |web, port| web.health_check_node_port(port))
        })
    };
    let ((marks, servers), (before, same_servers)) = (with(Some(32_000)), with(None));
    let added: Vec<_> = marks.into_iter().filter(|mark| !before.contains(mark)).collect();
    // The Service has no cluster IP in IPv6, so the port is not served there.
    let at_ips = "FAIRLEAD-VIPS 32000 health-check";
    assert_eq!(added, ["FAIRLEAD-NODE-PORTS 32000 health-check", at_ips, at_ips]);
    assert_eq!(servers, same_servers);
}

#[test]
fn a_service_with_affinity_has_virtual_servers_by_address() {
    let (marks, servers) = marks_and_servers(|web| web.endpoints(ENDPOINTS).affinity(60));
    assert!(marks.contains(&"FAIRLEAD-NODE-PORTS 30080 external by address".to_owned()), "{marks:?}");
    assert_eq!(servers, ["tcp 10.96.0.1:80 x2", "tcp 192.168.1.1:30080 x2", "tcp 198.51.100.1:80 x2"]);
}

#[test]
fn scheduler_is_that_of_the_option() {
    let schedulings = |default: &str, build: fn(ServiceBuilder) -> ServiceBuilder| {
        let state = mk_state()
            .service("default/web", |web| build(web.cluster_ip("10.96.0.1").node_port(30_080).endpoints(ENDPOINTS)))
            .build();
        let settings = Settings { scheduler: default.parse().unwrap(), ..Settings::default() };
        let elsewhere = HashSet::new();
        let context = Context {
            settings: &settings,
            node: &[],
            elsewhere: &elsewhere,
            node_ports: &[],
            excess: Excess::default(),
        };
        let desired = desired(state.service_port(&mk_key("default/web")).unwrap(), context, ID, |_, _| true);
        let of = |(_, value): &(Object, Value)| match value {
            Value::Scheduling(scheduling) => Some((scheduling.scheduler.to_string(), scheduling.flags)),
            _ => None,
        };
        desired.objects.iter().filter_map(of).collect::<Vec<_>>()
    };
    // One virtual server for the cluster IP and one for the mark of the node port.
    let both = |name: &str, flags| vec![(name.to_owned(), flags); 2];
    assert_eq!(schedulings("rr", |web| web), both("rr", 0));
    assert_eq!(schedulings("sh:port", |web| web), both("sh", SCHED_FALLBACK | SCHED_PORT));
    assert_eq!(schedulings("wlc", |web| web), both("wlc", 0));
    assert_eq!(schedulings("mh:fallback,port", |web| web), both("mh", SCHED_FALLBACK | SCHED_PORT));
    // With affinity a node port has virtual servers at the node's addresses; this node has none.
    let sticky = schedulings("sh:fallback", |web| web.affinity(60));
    assert_eq!(sticky, [("sh".to_owned(), SCHED_FALLBACK | PERSISTENT)]);
}

#[test]
fn rules_are_as_iptables_prints_them() {
    let local_detector = LocalDetector::ClusterCidr(vec!["10.244.0.0/16".parse().unwrap()]);
    let options = DataplaneOptions { local_detector, ..DataplaneOptions::default() };
    let state = mk_state().service_cidrs(["10.96.0.0/16"]).build();
    let rules = rules(IpFamily::V4, &options, state.node(), state.cluster());
    let of = |table, name: &str| {
        rules.iter().find(|chain| chain.table == table && chain.name == name).unwrap().rules.clone()
    };
    let expected = [
        "-m mark --mark 0xfa000000/0xff000000 -j RETURN",
        "-m set --match-set FAIRLEAD-RESTRICTED dst,dst -m set ! --match-set FAIRLEAD-SOURCES dst,dst,src -j DROP",
        "-j SET --map-set FAIRLEAD-ADDRESSES dst --map-mark",
        "-j SET --map-set FAIRLEAD-VIPS dst,dst --map-mark",
        "-s 10.244.0.0/16 -j SET --map-set FAIRLEAD-VIPS-INSIDE dst,dst --map-mark",
        "-m addrtype --src-type LOCAL -j SET --map-set FAIRLEAD-VIPS-INSIDE dst,dst --map-mark",
        "-d 192.168.1.1/32 -m addrtype --dst-type LOCAL -m set ! --match-set FAIRLEAD-ADDRESSES dst -j FAIRLEAD-IPVS-PORTS",
        "-m mark --mark 0xfa000000 -j DROP",
        "-m mark --mark 0xfa000000/0xff000000 -j FAIRLEAD-IPVS-MASQ",
    ];
    assert_eq!(of(Table::Mangle, "FAIRLEAD-IPVS"), expected);
    let expected = [
        "-s 10.244.0.0/16 -m mark --mark 0xfa000008 -j RETURN",
        "-m mark --mark 0xfa000008 -j CONNMARK --set-xmark 0x4000/0x4000",
        "-m mark --mark 0xfa000001/0xff000003 -j CONNMARK --set-xmark 0x4000/0x4000",
        "-m mark --mark 0xfa000002/0xff000003 -m addrtype --src-type LOCAL -j CONNMARK --set-xmark 0x4000/0x4000",
    ];
    assert_eq!(of(Table::Mangle, "FAIRLEAD-IPVS-MASQ"), expected);
    let expected = [
        "-m mark --mark 0xfa000000/0xff000000 -m set --match-set FAIRLEAD-HAIRPIN dst,dst,src \
         -j CONNMARK --set-xmark 0x4000/0x4000",
        "-m mark --mark 0xfa000000/0xff000000 -m connmark ! --mark 0x4000/0x4000 \
         -j SET --add-set FAIRLEAD-RETURNING src,dst,src --exist",
        "-m mark --mark 0xfa000000/0xff000000 -m set --match-set FAIRLEAD-RETURNING dst,dst,src \
         -j CONNMARK --set-xmark 0x4000/0x4000",
        "-m mark --mark 0xfa000000/0xff000000 -j MARK --set-xmark 0x0/0xffffffff",
    ];
    assert_eq!(of(Table::Mangle, "FAIRLEAD-IPVS-END"), expected);
    let expected = [
        "-m connmark --mark 0x4000/0x4000 -j MASQUERADE --random-fully",
        "-m set --match-set FAIRLEAD-ADDRESSES src -j SNAT --to-source 192.168.1.1",
    ];
    assert_eq!(of(Table::Nat, "FAIRLEAD-IPVS"), expected);
    let expected = ["-m mark --mark 0xfa00000c -j ACCEPT", "-m mark --mark 0xfa000004 -j FAIRLEAD-IPVS-REJECT"];
    assert_eq!(of(Table::Filter, "FAIRLEAD-IPVS"), expected);
    assert_eq!(of(Table::Filter, "FAIRLEAD-IPVS-NOBODY"), ["-d 10.96.0.0/16 -j DROP"]);
    assert!(hooks().iter().all(|hook| hook.rule.contains("FAIRLEAD-IPVS")));
}

/// The node of these states has the pod CIDRs 10.244.1.0/24 and fd00:244:1::/64.
#[test]
fn connections_of_the_node_to_the_drained_port_of_its_pods_lead_to_the_backend() {
    let of = |local_detector, port, family| {
        let drained_ports = DrainedPorts { own: NonZeroU16::new(port), health: None };
        let options = DataplaneOptions { local_detector, drained_ports, ..DataplaneOptions::default() };
        let state = mk_state().build();
        let chains = rules(family, &options, state.node(), state.cluster());
        let is_hook = |hook: &iptables::HookRule| (hook.table, hook.chain) == (Table::Nat, "OUTPUT");
        assert!(hooks().iter().any(|hook| is_hook(hook) && hook.rule == "-j FAIRLEAD-IPVS-DRAINED"));
        chains.into_iter().find(|chain| chain.name == "FAIRLEAD-IPVS-DRAINED").unwrap().rules
    };
    let to =
        |pods: &str, backend: &str| format!("{pods} -p tcp -m tcp --dport 24256 -j DNAT --to-destination {backend}");
    assert_eq!(of(LocalDetector::None, 24_256, IpFamily::V4), [to("-d 10.244.1.0/24", "127.0.0.1")]);
    assert_eq!(of(LocalDetector::None, 24_256, IpFamily::V6), [to("-d fd00:244:1::/64", "::1")]);
    assert_eq!(of(LocalDetector::None, 0, IpFamily::V4), [""; 0]);
    let prefix = LocalDetector::InterfaceNamePrefix("veth".parse().unwrap());
    assert_eq!(of(prefix, 24_256, IpFamily::V6), [to("-o veth+", "::1")]);
}

/// Nothing else than the port of `/drained` keeps silent: load balancers need the resets of the port for health checks.
#[test]
fn kernel_sends_no_reset_from_the_drained_port() {
    let of = |own: u16| {
        let drained_ports = DrainedPorts { own: NonZeroU16::new(own), health: NonZeroU16::new(10_256) };
        let options = DataplaneOptions { drained_ports, ..DataplaneOptions::default() };
        let state = mk_state().build();
        let chains = rules(IpFamily::V4, &options, state.node(), state.cluster());
        let of = |name: &str| chains.iter().find(|chain| chain.name == name).unwrap().rules.clone();
        (of("FAIRLEAD-IPVS-SILENT"), of("FAIRLEAD-IPVS-DRAINED").len())
    };

    assert_eq!(of(24_256), (vec!["-p tcp -m tcp --sport 24256 --tcp-flags RST RST -j DROP".to_owned()], 2));
    assert_eq!(of(0), (vec![], 1));
}

/// A rule adds an entry for each source of connections that are not masqueraded.
#[test]
fn set_that_rules_write_is_bounded_and_times_out() {
    for set in SetId::all() {
        let new = set.new_set();
        let is_bounded = new.max_entries <= 1 << 16 && new.timeout.is_some_and(|seconds| seconds <= 10);
        assert_eq!(is_bounded, set.is_written_by_rules(), "{new:?}");
    }
    assert_eq!(SetId::all().filter(|set| set.is_written_by_rules()).count(), 2);
}

#[test]
fn load_balancer_ips_with_too_many_source_ranges_are_closed() {
    const { assert!(2 * 50_000 <= MAX_SOURCE_ENTRIES, "two load-balancer IPs of the largest Service are open") };
    let elsewhere = HashSet::new();
    let settings = Settings::default();
    for (ports, vips, ranges, open) in [(1u16, 25u16, 4_096u16, 24), (4, 64, 100, 64)] {
        let port = |state: StateBuilder, number: u16| {
            state.service(&format!("default/web:port-{number:03}"), |port| {
                let port = port.port(1000 + number).endpoints(["10.244.1.1:80"]);
                let port = (1..=vips).fold(port, |port, n| port.load_balancer_ip(&format!("198.51.100.{n}")));
                (0..ranges).fold(port, |port, n| port.source_range(&format!("11.{}.{}.0/25", n / 256, n % 256)))
            })
        };
        let state = (0..ports).fold(mk_state(), port).build();
        let service_ports = state.service_ports();
        let excess = excess(service_ports.values(), &[], &[]);
        let context = Context { settings: &settings, node: &[], elsewhere: &elsewhere, node_ports: &[], excess };
        let desired = service_ports.values().map(|port| desired(port, context, ID, |_, _| true)).collect::<Vec<_>>();
        let count = |content| {
            let of_content = |object: &Object| matches!(object, Object::SetEntry(set, _) if set.content == content);
            let objects = desired.iter().flat_map(|desired| &desired.objects);
            objects.filter(|(object, _)| of_content(object)).count()
        };
        let (ports, vips) = (usize::from(ports), usize::from(vips));
        let at = format!("{ports} ports, {vips} VIPs, {ranges} ranges");
        assert_eq!(count(SetContent::Sources), ports * open * usize::from(ranges), "{at}");
        assert!(count(SetContent::Sources) <= MAX_SOURCE_ENTRIES);
        // A restricted VIP without ranges is closed.
        assert_eq!(count(SetContent::Restricted), ports * vips, "{at}");
        for desired in &desired {
            let start = format!("spec.loadBalancerSourceRanges: all but {open} load-balancer IPs of each IP family");
            let is_reported = desired.degraded.as_ref().is_some_and(|reason| reason.starts_with(&start));
            assert_eq!(is_reported, open < vips, "{at}: {:?}", desired.degraded);
        }
    }
}
