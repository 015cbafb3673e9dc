//! What follows from commits and what is programmed, in any order.

mod histories;

use std::{net::Ipv4Addr, time::Duration};

use proto::model::IpFamily;

use super::*;
use crate::{
    backend::Work,
    dataplane::Vip,
    flows::testing::TestFlows,
    testing::{mk_key, mk_state},
};

const ONE: &str = "10.244.1.1:8080";
const GONE: &str = "10.244.1.2:8080";

/// A Service whose other endpoint is gone, if it is not one of these.
fn web(endpoints: &[&str]) -> NodeState {
    let state = mk_state().service("default/web", |web| {
        let web = web.port(80).cluster_ip("10.96.0.1").endpoints(endpoints.iter().copied());
        if endpoints.contains(&GONE) { web } else { web.gone_endpoints([GONE]) }
    });
    state.build()
}

/// Records the commit after the newest one.
fn commit(pending: &mut PendingFlows, before: &NodeState, state: &NodeState) -> Recorded {
    let departed = before.diff(state).filter_map(|change| change.departed()).collect();
    pending.committed(Some(departed), &Changes::between(before, state), state)
}

#[test]
fn nothing_is_reset_before_the_departure_is_programmed_and_confirmed() {
    let (both, one) = (web(&[ONE, GONE]), web(&[ONE]));
    let mut pending = TestFlows::new(&both);
    pending.set_confirmed(false);
    assert_eq!(commit(&mut pending, &both, &one), Recorded::NotDue, "not confirmed");
    pending.hand(&one);
    pending.report(&[]);
    assert_eq!(pending.next_reset(), None);
    assert_eq!(pending.set_confirmed(true), Recorded::Due);
    assert!(pending.next_reset().is_some());
    let mut due = pending.due_resets(Instant::now() + Duration::from_secs(10));
    pending.retain_due(&mut due);
    assert_eq!(due.ports[0].open.len(), 1);
    pending.set_confirmed(false);
    pending.retain_due(&mut due);
    assert!(pending.next_reset().is_none() && due.ports.is_empty());

    let mut pending = TestFlows::new(&both);
    commit(&mut pending, &both, &one);
    assert!(pending.due_resets(Instant::now() + Duration::from_secs(10)).ports.is_empty(), "not handed");
    pending.hand(&one);
    assert!(pending.next_reset().is_none(), "not programmed");
    pending.report(&[mk_key("default/web")]);
    assert!(pending.next_reset().is_none(), "rejected");
    assert!(pending.take_half_open().is_none(), "rejected");
    pending.report(&[mk_key("default/other")]);
    assert!(pending.next_reset().is_some(), "although others are not programmed yet");
    assert!(pending.take_half_open().is_some());
}

#[test]
fn resets_wait_for_their_own_service_port() {
    let state = |endpoints: &[&str]| {
        let services = [("default/a", "10.96.0.1"), ("default/b", "10.96.0.2")];
        let services = services.iter().fold(mk_state(), |state, (name, vip)| {
            state.service(name, |one| {
                let one = one.port(80).cluster_ip(vip).endpoints(endpoints.iter().copied());
                if endpoints.contains(&GONE) { one } else { one.gone_endpoints([GONE]) }
            })
        });
        services.build()
    };
    let before = state(&[ONE, GONE]);
    let after = state(&[ONE]);
    let later = Instant::now() + Duration::from_secs(10);
    let keys = |due: &Due| due.ports.iter().map(|port| port.key.clone()).collect::<Vec<_>>();
    let mut pending = TestFlows::new(&before);
    commit(&mut pending, &before, &after);
    pending.hand(&after);

    pending.report(&[mk_key("default/a")]);
    let due = pending.due_resets(later);
    assert_eq!(keys(&due), [mk_key("default/b")]);
    pending.departed.passed(&due, later);
    assert_eq!(pending.next_reset(), None);

    pending.report(&[]);
    assert!(pending.next_reset().is_some());
    assert_eq!(keys(&pending.due_resets(later)), [mk_key("default/a")]);
}

/// A torn write may have left the VIP in the kernel, and a reconcile removes it at its end.
#[test]
fn withdrawn_vips_are_kept_until_reconcile_ends() {
    let dns = |external_ips: &[&str]| {
        let dns = |dns: crate::testing::ServiceBuilder| {
            let dns = dns.port(53).cluster_ip("10.96.0.10");
            external_ips.iter().fold(dns, |dns, ip| dns.external_ip(ip))
        };
        mk_state().service("default/dns/udp", dns).build()
    };
    let mut pending = TestFlows::new(&dns(&["198.51.100.1"]));
    pending.hand(&dns(&[]));
    pending.report_unfinished(Work::Reconcile, BTreeSet::new());
    assert_eq!(pending.take_udp().unwrap().len(), 1);
    assert!(!pending.is_udp_due());

    pending.report(&[]);
    assert_eq!(pending.take_udp().unwrap().len(), 1, "a client may have sent a packet meanwhile");
    pending.report_of(Work::Reconcile, &[]);
    assert_eq!(pending.take_udp().unwrap().len(), 0);
}

/// A call programs an earlier state than the one that is committed meanwhile.
#[test]
fn a_departure_is_programmed_with_the_state_that_lacks_the_endpoint() {
    let (none, both, one) = (mk_state().build(), web(&[ONE, GONE]), web(&[ONE]));
    let mut pending = TestFlows::new(&none);
    commit(&mut pending, &none, &both);
    pending.hand(&both);
    commit(&mut pending, &both, &one);
    pending.report(&[]);
    assert!(pending.take_half_open().is_none_or(|half_open| half_open.ports[&mk_key("default/web")].is_empty()));
    let in_10_s = Instant::now() + Duration::from_secs(10);
    assert!(pending.due_resets(in_10_s).ports.is_empty());
    pending.hand(&one);
    pending.report(&[]);
    assert_eq!(pending.due_resets(in_10_s).ports.len(), 1);
    let half_open = pending.take_half_open().unwrap();
    assert_eq!(half_open.ports[&mk_key("default/web")].len(), 1);
    assert!(pending.take_half_open().is_none(), "once");
}

#[test]
fn an_endpoint_that_returns_before_it_is_programmed_has_not_departed() {
    let (both, one) = (web(&[ONE, GONE]), web(&[ONE]));
    let mut pending = TestFlows::new(&both);
    commit(&mut pending, &both, &one);
    commit(&mut pending, &one, &both);
    pending.hand(&both);
    pending.report(&[]);
    assert!(pending.next_reset().is_none());
    assert!(pending.take_half_open().is_none());
}

/// The kernel may hang.
#[test]
fn what_waits_until_it_is_programmed_has_a_bound() {
    let mut pending = TestFlows::new(&mk_state().build());
    let endpoint = |port: u16| Endpoint::new("10.244.1.2".parse().unwrap(), port.try_into().unwrap());
    let all: Vec<_> = (1..=1024).map(endpoint).collect();
    for n in 0..64 {
        pending.add_half_open([(mk_key(&format!("ns-{n}/web")), all.clone())].into());
    }
    assert_eq!(pending.half_open.values().map(BTreeSet::len).sum::<usize>(), MAX_WAITING);
}

/// The Services of a tenant change all the time, and are not programmed yet.
#[test]
fn namespaces_with_many_departed_endpoints_leave_room_to_others() {
    let (both, one) = (web(&[ONE, GONE]), web(&[ONE]));
    let mut pending = TestFlows::new(&both);
    let endpoint = |port: u16| Endpoint::new("10.244.1.2".parse().unwrap(), port.try_into().unwrap());
    let all: Vec<_> = (1..=1024).map(endpoint).collect();
    for n in 0..64 {
        pending.add_half_open([(mk_key(&format!("evil-{}/web-{n}", n % 4)), all.clone())].into());
    }
    assert_eq!(pending.half_open.values().map(BTreeSet::len).sum::<usize>(), MAX_WAITING);
    pending.hand(&one);
    pending.report(&[]);
    assert_eq!(pending.take_half_open().unwrap().ports[&mk_key("default/web")].len(), 1);
    assert_eq!(pending.overflows.record("evil-0".into()), None, "it has a line");
    assert_eq!(pending.overflows.record("default".into()), Some(1));
}

#[test]
fn namespaces_with_many_withdrawn_vips_leave_room_to_others() {
    const NAMESPACES: u8 = 4;
    let evil = |namespace: u8| mk_key(&format!("evil-{namespace}/dns/udp"));
    let vips = |namespace: u8| {
        let key = evil(namespace);
        (0..MAX_WITHDRAWN).map(move |n| {
            let [high, low] = u16::try_from(n).unwrap().to_be_bytes();
            let address = Ipv4Addr::new(11, namespace, high, low).into();
            let vip = Vip::AddressPort { address, port: 53, protocol: Protocol::Udp };
            ((IpFamily::V4, vip), key.clone())
        })
    };
    let none = mk_state().build();
    let dns = mk_state().service("default/dns/udp", |dns| dns.port(53).cluster_ip("10.96.0.10")).build();
    let mut pending = TestFlows::new(&dns);
    (0..NAMESPACES).for_each(|namespace| pending.add_withdrawn(vips(namespace)));
    assert!(pending.withdrawn.len() < MAX_WITHDRAWN);
    // The victim's Service is deleted, while those of the tenant are not programmed.
    pending.hand(&none);
    let unfinished: Vec<_> = (0..NAMESPACES).map(evil).collect();
    pending.report(&unfinished);
    let taken = pending.take_udp().unwrap();
    assert_eq!(taken.values().collect::<Vec<_>>(), [&mk_key("default/dns/udp")]);
    // Nor does a cleanup that fails forget it.
    pending.put_back_udp(taken);
    assert_eq!(pending.take_udp().unwrap().len(), 1);
    assert_eq!(pending.overflows.record("evil-0".into()), None, "it has a line");
    assert_eq!(pending.overflows.record("default".into()), Some(1));

    // What is taken leaves its room to others, and a namespace may take all of it.
    let first = |pending: &PendingFlows| pending.withdrawn.values().filter(|key| **key == evil(0)).count();
    let share = first(&pending);
    assert_eq!(share, KEPT_WITHDRAWN / usize::from(NAMESPACES));
    pending.report(&[]);
    assert!(pending.take_udp().unwrap().len() > share && pending.withdrawn.is_empty());
    (0..2).for_each(|_| pending.add_withdrawn(vips(0)));
    assert_eq!(first(&pending), MAX_WITHDRAWN);
}

/// A Service gains and loses the VIP during a cleanup that fails, and the kernel may still have it.
#[test]
fn a_vip_that_is_withdrawn_again_belongs_to_its_last_owner() {
    let dns = |name| mk_state().service(name, |dns| dns.port(53).cluster_ip("10.96.0.10")).build();
    let (none, first, second) = (mk_state().build(), dns("default/a/udp"), dns("default/b/udp"));
    let mut pending = TestFlows::new(&first);
    pending.hand(&none);
    pending.report(&[]);
    let taken = pending.take_udp().unwrap();
    pending.hand(&second);
    pending.hand(&none);
    pending.put_back_udp(taken);
    assert!(pending.take_udp().unwrap().is_empty(), "its loss is not programmed");
    pending.report(&[]);
    assert_eq!(pending.take_udp().unwrap().into_values().collect::<Vec<_>>(), [mk_key("default/b/udp")]);
}
