//! Conflicts: the first in key order wins, and hands over when it goes.

use crate::testing::{mk_key, mk_state};

use super::*;

fn port(key: &str, ips: &[&str]) -> ServicePort {
    let state =
        mk_state().service(key, |service| ips.iter().fold(service, |service, ip| service.external_ip(ip))).build();
    state.services().values().next().unwrap().port.clone()
}

fn held(port: &ServicePort) -> Vec<(IpFamily, Front)> {
    let of = |family| fronts(port, family).into_iter().map(move |(front, _)| (family, front));
    IpFamily::ALL.into_iter().flat_map(of).collect()
}

fn owner(claims: &Claims, port: &ServicePort) -> Option<String> {
    let (family, front) = held(port)[0];
    claims.owners[family].get(&front).map(|key| key.name.to_string())
}

#[test]
fn the_first_in_key_order_has_it_whoever_comes_first() {
    let (a, b, c) = (port("x/a", &["203.0.113.1"]), port("x/b", &["203.0.113.1"]), port("x/c", &["203.0.113.1"]));
    let mut claims = Claims::default();
    assert_eq!(claims.claim(&b), []);
    assert_eq!(claims.claim(&c), []);
    assert_eq!(claims.claim(&a), [mk_key("x/b")]);
    assert_eq!(owner(&claims, &a).as_deref(), Some("a"));
    let failures: Vec<_> = claims.failures().collect();
    assert_eq!(failures.len(), 2);
    assert_eq!(failures[0].key, mk_key("x/b"));
    assert_eq!(failures[0].reason, "203.0.113.1:80/tcp belongs to x/a/tcp");
    assert!(!failures[0].retryable);

    assert_eq!(claims.release(&a.key, held(&a)), [mk_key("x/b")]);
    assert_eq!(owner(&claims, &a).as_deref(), Some("b"));
    assert_eq!(claims.failures().count(), 1);
    assert_eq!(claims.release(&c.key, held(&c)), []);
    assert_eq!(claims.failures().count(), 0);
    assert_eq!(claims.release(&b.key, held(&b)), []);
    assert_eq!(owner(&claims, &a), None);
}

#[test]
fn only_what_is_contested_is_lost() {
    let (a, b) = (port("x/a", &["203.0.113.1"]), port("x/b", &["203.0.113.1", "203.0.113.2"]));
    let mut claims = Claims::default();
    claims.claim(&a);
    claims.claim(&b);
    let [one, two] = held(&b)[..] else { panic!("two fronts") };
    assert!(!claims.owns(&b.key, one.0, &one.1) && claims.owns(&b.key, two.0, &two.1));
    assert!(claims.is_owned(one.0, &one.1));
}
