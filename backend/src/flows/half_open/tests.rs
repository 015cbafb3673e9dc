//! Which connections are deleted, in a table that the tests fill.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
};

use netlink::conntrack::{ConntrackZone, Tuple};
use proto::model::Protocol;

use super::*;
use crate::{
    flows::testing::TestFlows,
    testing::{ServiceBuilder, StateBuilder, mk_key, mk_state},
};

const ONE: &str = "10.244.1.1:8080";
const GONE: &str = "10.244.1.2:8080";
const NODE_PORT: &str = "192.168.1.1:30080";

/// Connections, the port of whose client is their number.
#[derive(Default)]
struct Table {
    flows: RefCell<Vec<Flow>>,
    /// How often some were deleted: each time opens a socket.
    deletions: Cell<usize>,
}

impl Table {
    fn add(&self, to: &str, answered_by: &str) {
        let (to, answered_by): (SocketAddr, SocketAddr) = (to.parse().unwrap(), answered_by.parse().unwrap());
        let mut flows = self.flows.borrow_mut();
        let number = flows.len() as u16 + 1;
        let client: IpAddr = if to.is_ipv4() { "10.9.9.9".parse() } else { "fd00:9::9".parse() }.unwrap();
        let client = SocketAddr::new(client, number);
        flows.push(Flow {
            protocol: Protocol::Tcp,
            original: Tuple { source: client, destination: to },
            reply: Tuple { source: answered_by, destination: client },
            id: u32::from(number),
            zone: ConntrackZone::Both(0),
            is_established: false,
            is_half_open: true,
        });
    }

    /// The SYN of a connection is answered.
    fn answer(&self, number: u32) {
        let mut flows = self.flows.borrow_mut();
        flows.iter_mut().filter(|flow| flow.id == number).for_each(|flow| flow.is_half_open = false);
    }

    /// The numbers of those that exist.
    fn numbers(&self) -> Vec<u32> {
        self.flows.borrow().iter().map(|flow| flow.id).collect()
    }
}

impl FlowTable for Table {
    fn addresses(&self) -> netlink::Result<HashSet<IpAddr>> {
        Ok(["192.168.1.1".parse().unwrap(), "192.168.7.7".parse().unwrap()].into())
    }

    fn visit(&self, _: IpFamily, _: Protocol, _: &mut dyn FnMut(Flow) -> netlink::Result<()>) -> netlink::Result<()> {
        unreachable!("answered connections are not listed")
    }

    fn visit_half_open(
        &self,
        family: IpFamily,
        visit: &mut dyn FnMut(Flow) -> netlink::Result<()>,
    ) -> netlink::Result<()> {
        let flows = self.flows.borrow().clone();
        let is_listed = |flow: &Flow| flow.is_half_open && flow.original.source.is_ipv4() == (family == IpFamily::V4);
        flows.into_iter().filter(is_listed).try_for_each(visit)
    }

    fn delete(&self, _: &[Flow]) -> netlink::Result<usize> {
        unreachable!("connections may have been answered")
    }

    fn delete_unchanged(&self, flows: &[Flow]) -> netlink::Result<usize> {
        self.deletions.set(self.deletions.get() + 1);
        let before = self.flows.borrow().len();
        self.flows.borrow_mut().retain(|flow| !flows.contains(flow));
        Ok(before - self.flows.borrow().len())
    }
}

fn web(endpoints: &'static [&'static str]) -> StateBuilder {
    mk_state().service("default/web", move |web| {
        let web = web.port(80).cluster_ip("10.96.0.1").cluster_ip("fd00:96::1").external_ip("198.51.100.1");
        web.node_port(30080).endpoints(endpoints.iter().copied())
    })
}

/// What follows when these endpoints have departed from this service port, and that is programmed.
fn programmed(state: &NodeState, key: &str, departed: &[&str]) -> Option<HalfOpenPorts> {
    let mut pending = TestFlows::new(state);
    commit(&mut pending, key, departed);
    finish(&mut pending, &[])
}

fn commit(pending: &mut TestFlows, key: &str, departed: &[&str]) {
    let endpoint = |text: &&str| {
        let endpoint = endpoint_at(text.parse().unwrap()).unwrap();
        Endpoint { terminating: true, ..endpoint }
    };
    // The kernel has it as it was.
    pending.report(&[mk_key(key)]);
    pending.add_half_open([(mk_key(key), departed.iter().map(endpoint).collect())].into());
}

fn finish(pending: &mut TestFlows, failed: &[ServicePortKey]) -> Option<HalfOpenPorts> {
    pending.report(failed);
    pending.take_half_open()
}

/// A pass, while whose rest this happens. Returns the connections that it deletes.
fn pass_while(ports: &HalfOpenPorts, state: &NodeState, table: &Table, meanwhile: impl FnOnce(&Table)) -> Vec<u32> {
    let before = table.numbers();
    let rest = |time: Duration| {
        assert_eq!((time, table.numbers()), (GRACE_PERIOD, before.clone()), "nothing is deleted at once");
        meanwhile(table);
        true
    };
    let count = ports.clean_up(table, &state.node().addresses, rest).unwrap();
    let after = table.numbers();
    let deleted: Vec<_> = before.into_iter().filter(|number| !after.contains(number)).collect();
    assert_eq!(deleted.len(), count);
    deleted
}

fn pass(ports: &HalfOpenPorts, state: &NodeState, table: &Table) -> Vec<u32> {
    pass_while(ports, state, table, |_| {})
}

#[test]
fn connections_to_endpoints_that_departed_are_deleted() {
    let state = web(&[ONE]).build();
    let ports = programmed(&state, "default/web", &[GONE, "[fd00:244::2]:8080"]).unwrap();
    let table = Table::default();
    for to in ["10.96.0.1:80", "198.51.100.1:80", NODE_PORT, "192.168.7.7:30080"] {
        table.add(to, GONE);
    }
    table.add("[fd00:96::1]:80", "[fd00:244::2]:8080");
    // An endpoint, one that never was one, another port, and what is no VIP.
    for (to, endpoint) in [
        ("10.96.0.1:80", ONE),
        ("10.96.0.1:80", "10.244.1.3:8080"),
        ("10.96.0.1:80", "10.244.1.2:9090"),
        ("10.96.0.2:80", GONE),
        ("192.168.9.9:30080", GONE),
    ] {
        table.add(to, endpoint);
    }
    assert_eq!(pass(&ports, &state, &table), [1, 2, 3, 4, 5]);
    assert_eq!(pass(&ports, &state, &table), [0; 0]);
}

#[test]
fn vips_of_other_services_are_no_addresses_of_a_node_port() {
    // At an interface, with the number of the node port.
    let other = |api: ServiceBuilder| api.port(30080).cluster_ip("10.96.0.2").load_balancer_ip("192.168.7.7");
    let state = web(&[ONE]).service("other/api", other).build();
    let table = Table::default();
    for to in [NODE_PORT, "192.168.7.7:30080"] {
        table.add(to, GONE);
        table.add(to, to);
    }
    assert_eq!(pass(&programmed(&state, "default/web", &[GONE]).unwrap(), &state, &table), [1, 2]);
}

#[test]
fn connections_that_are_not_translated_are_deleted() {
    let vips = ["10.96.0.1:80", "198.51.100.1:80", NODE_PORT, "[fd00:96::1]:80"];
    let table = Table::default();
    vips.iter().for_each(|vip| table.add(vip, vip));
    table.add("198.51.100.2:80", "198.51.100.2:80");
    let state = web(&[ONE]).build();
    assert_eq!(pass(&programmed(&state, "default/web", &[]).unwrap(), &state, &table), [1, 2, 3, 4]);

    // The endpoint is at the VIP, and at the node port.
    let table = Table::default();
    vips.iter().for_each(|vip| table.add(vip, vip));
    let state = web(&[ONE, "198.51.100.1:80", NODE_PORT]).build();
    assert_eq!(pass(&programmed(&state, "default/web", &[]).unwrap(), &state, &table), [1, 4]);
}

#[test]
fn what_is_answered_meanwhile_is_kept() {
    let state = web(&[ONE]).build();
    let ports = programmed(&state, "default/web", &[GONE]).unwrap();
    let table = Table::default();
    (0..3).for_each(|_| table.add("10.96.0.1:80", GONE));
    table.answer(1);
    assert_eq!(pass_while(&ports, &state, &table, |table| table.answer(2)), [3]);
    table.add("10.96.0.1:80", GONE);
    assert_eq!(ports.clean_up(&table, &[], |_| false).unwrap(), 0, "the process ends");
    assert_eq!(table.numbers(), [1, 2, 3]);
}

#[test]
fn only_programmed_changes_of_tcp_count() {
    let state = web(&[ONE]).service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10")).build();
    let mut pending = TestFlows::new(&state);
    let mut removed = TestFlows::new(&web(&[ONE, GONE]).build());
    removed.hand(&state);
    removed.hand(&mk_state().build());
    assert!(finish(&mut removed, &[]).is_none());
    commit(&mut pending, "default/web", &[GONE]);
    assert!(finish(&mut pending, &[mk_key("default/web")]).is_none());
    let table = Table::default();
    table.add("10.96.0.1:80", GONE);
    table.add("10.96.0.1:80", "10.244.1.3:8080");
    let mut before = mk_state().build();
    before.set_service_port(&mk_key("default/web"), state.service_port(&mk_key("default/web")).cloned());
    let mut udp = TestFlows::new(&before);
    udp.hand(&state);
    assert!(finish(&mut udp, &[]).is_none());
    let ports = finish(&mut pending, &[]).unwrap();
    assert!(finish(&mut pending, &[]).is_none(), "once");
    pending.put_back_half_open(ports.ports);
    commit(&mut pending, "default/web", &["10.244.1.3:8080"]);
    assert_eq!(pass(&finish(&mut pending, &[]).unwrap(), &state, &table), [1, 2], "both departed");
}

#[test]
fn an_endpoint_that_has_returned_is_one() {
    let state = web(&[ONE, GONE]).build();
    let table = Table::default();
    table.add("10.96.0.1:80", GONE);
    let ports =
        HalfOpenPorts { state: state.clone(), ..programmed(&web(&[ONE]).build(), "default/web", &[GONE]).unwrap() };
    assert_eq!(pass(&ports, &state, &table), [0; 0]);
}

#[test]
fn what_is_remembered_and_deleted_has_a_bound() {
    const MAX: usize = PassLimit::ALL;
    const MAX_OF_NAMESPACE: usize = PassLimit::OF_NAMESPACE;
    let all: Vec<_> = (1..2 * MAX_DEPARTED).map(|port| format!("10.244.1.2:{port}")).collect();
    let all: Vec<_> = all.iter().map(String::as_str).collect();
    let state = web(&[ONE]).build();
    let mut pending = TestFlows::new(&state);
    commit(&mut pending, "default/web", &all);
    assert!(finish(&mut pending, &[mk_key("default/web")]).is_none());
    commit(&mut pending, "default/web", &[GONE]);
    let ports = finish(&mut pending, &[]).unwrap();
    assert_eq!(ports.ports[&mk_key("default/web")].len(), MAX_DEPARTED);
    // Those of another namespace are deleted, too.
    let other = |n: usize| format!("10.96.1.{n}:80");
    let namespaces = MAX / MAX_OF_NAMESPACE + 1;
    let state = (1..namespaces).fold(web(&[ONE]), |state, n| {
        state.service(&format!("ns-{n}/web"), |web| web.port(80).cluster_ip(other(n).trim_end_matches(":80")))
    });
    let state = state.build();
    let mut pending = TestFlows::new(&state);
    pending.put_back_half_open(ports.ports);
    (1..namespaces).for_each(|n| commit(&mut pending, &format!("ns-{n}/web"), &["10.244.1.2:7"]));
    let ports = finish(&mut pending, &[]).unwrap();
    let table = Table::default();
    (0..MAX_OF_NAMESPACE + 2).for_each(|_| table.add("10.96.0.1:80", "10.244.1.2:7"));
    table.add(&other(1), "10.244.1.2:7");
    assert_eq!(pass(&ports, &state, &table).len(), MAX_OF_NAMESPACE + 1);
    assert_eq!(table.deletions.get(), 1);
    for n in 1..namespaces {
        (0..MAX_OF_NAMESPACE).for_each(|_| table.add(&other(n), "10.244.1.2:7"));
    }
    assert_eq!(pass(&ports, &state, &table).len(), MAX);
}

#[test]
fn endpoints_that_return_have_not_departed() {
    let mut pending = TestFlows::new(&web(&[ONE]).build());
    commit(&mut pending, "default/web", &[GONE]);
    let table = Table::default();
    table.add("10.96.0.1:80", GONE);
    let returned = web(&[ONE, GONE]).build();
    let ports = finish(&mut pending, &[]).unwrap();
    pending.put_back_half_open(ports.ports);
    pending.hand(&returned);
    assert_eq!(pass(&finish(&mut pending, &[]).unwrap(), &returned, &table), [0; 0]);
}

/// Most changes add endpoints, or let some terminate that keep their flows.
#[test]
fn changes_that_mislead_no_connection_list_none() {
    let mut pending = TestFlows::new(&mk_state().build());
    let mut lists = |after: NodeState, failed: &[ServicePortKey]| {
        pending.hand(&after);
        finish(&mut pending, failed).is_some()
    };
    let (one, two) = (|| web(&[ONE]).build(), || web(&[ONE, GONE]).build());
    assert!(lists(two(), &[]), "a new service port");
    assert!(lists(one(), &[]), "an endpoint less");
    assert!(!lists(two(), &[]), "an endpoint more");
    assert!(lists(one(), &[]), "an endpoint less again");
    let more = |endpoints: &[&str]| {
        let state = mk_state().service("default/web", |web| {
            web.cluster_ip("10.96.0.1").load_balancer_ip("192.0.2.1").endpoints(endpoints.iter().copied())
        });
        state.build()
    };
    assert!(lists(more(&[ONE]), &[]), "another VIP");
    assert!(!lists(more(&[ONE, GONE]), &[]), "no other VIP");
    assert!(!lists(mk_state().build(), &[]), "removed");
    assert!(lists(more(&[ONE, GONE]), &[]), "added again");
    assert!(!lists(more(&[ONE]), &[mk_key("default/web")]), "an endpoint less, not programmed");
    assert!(lists(more(&[ONE]), &[]), "programmed");
}
