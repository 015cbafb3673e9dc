//! Conflicts: the first service port in key order owns a VIP, and the next one takes over when it is removed.

use crate::testing::{mk_key, mk_state};

use super::*;

fn port(key: &str, ips: &[&str]) -> ServicePort {
    let state =
        mk_state().service(key, |service| ips.iter().fold(service, |service, ip| service.external_ip(ip))).build();
    state.service_ports().values().next().unwrap().port.clone()
}

fn owner(ownership: &VipOwnership, port: &ServicePort) -> Option<String> {
    let (family, vip) = all_vips(port).next().unwrap();
    ownership.owner(family, &vip).map(|key| key.name.to_string())
}

/// Returns the owners that it displaces.
fn claim(ownership: &mut VipOwnership, port: &ServicePort) -> Vec<ServicePortKey> {
    let mut changes = OwnershipChanges::default();
    ownership.claim(port, &mut changes);
    changes.service_ports.into_iter().collect()
}

/// Returns the next owners.
fn release(ownership: &mut VipOwnership, port: &ServicePort) -> Vec<ServicePortKey> {
    let mut changes = OwnershipChanges::default();
    ownership.release(port, &mut changes);
    changes.service_ports.into_iter().collect()
}

#[test]
fn first_in_key_order_owns_a_vip_in_any_order_of_arrival() {
    let (a, b, c) = (port("x/a", &["203.0.113.1"]), port("x/b", &["203.0.113.1"]), port("x/c", &["203.0.113.1"]));
    let mut ownership = VipOwnership::default();
    assert_eq!(claim(&mut ownership, &b), []);
    assert_eq!(claim(&mut ownership, &c), []);
    assert_eq!(claim(&mut ownership, &a), [mk_key("x/b")]);
    assert_eq!(owner(&ownership, &a).as_deref(), Some("a"));
    let failures: Vec<_> = ownership.failures().collect();
    assert_eq!(failures.len(), 2);
    assert_eq!(failures[0].key, mk_key("x/b"));
    assert_eq!(failures[0].reason, "203.0.113.1:80/tcp belongs to x/a/tcp");
    assert!(!failures[0].retryable);

    assert_eq!(release(&mut ownership, &a), [mk_key("x/b")]);
    assert_eq!(owner(&ownership, &a).as_deref(), Some("b"));
    assert_eq!(ownership.failures().count(), 1);
    assert_eq!(release(&mut ownership, &c), []);
    assert_eq!(ownership.failures().count(), 0);
    assert_eq!(release(&mut ownership, &b), []);
    assert_eq!(owner(&ownership, &a), None);
}

#[test]
fn a_service_port_keeps_its_uncontested_vips() {
    let (a, b) = (port("x/a", &["203.0.113.1"]), port("x/b", &["203.0.113.1", "203.0.113.2"]));
    let mut ownership = VipOwnership::default();
    claim(&mut ownership, &a);
    claim(&mut ownership, &b);
    let [contested, own] = all_vips(&b).collect::<Vec<_>>()[..] else { panic!("two VIPs") };
    assert!(!ownership.owns(&b.key, contested.0, &contested.1) && ownership.owns(&b.key, own.0, &own.1));
    assert!(ownership.owner(contested.0, &contested.1).is_some());
}
