//! Groups contain the same addresses as the ranges that they are made from, and equal lists are one group.

use backend::testing::{ServiceBuilder, mk_state};
use proptest::prelude::*;
use proto::model::IpFamily;

use super::*;

const VIP: &str = "203.0.113.1";

/// The group of a service on a node with these addresses.
fn group(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder, family: IpFamily, node: &[&str]) -> Option<SourceGroup> {
    let state = mk_state().service("default/lb", build).build();
    let node: Vec<IpAddr> = node.iter().map(|address| address.parse().unwrap()).collect();
    allowed(&state.service_ports().values().next().unwrap().port, family, &node)
}

/// The prefixes of a service with these ranges.
fn of(cidrs: &[&str], node: &[&str]) -> Option<Vec<String>> {
    let lb = |lb: ServiceBuilder| cidrs.iter().fold(lb.load_balancer_ip(VIP), |lb, cidr| lb.source_range(cidr));
    let group = group(lb, IpFamily::V4, node)?;
    Some(group.prefixes.iter().map(ToString::to_string).collect())
}

#[track_caller]
fn assert_prefixes(found: Option<Vec<String>>, expected: &[&str]) {
    assert_eq!(found.as_deref(), Some(&expected.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()[..]));
}

#[test]
fn overlapping_and_adjacent_ranges_are_merged() {
    assert_prefixes(of(&["10.0.1.0/24", "10.0.0.0/24"], &[]), &["10.0.0.0/23"]);
    assert_prefixes(of(&["10.0.0.7/32", "10.0.0.0/24", "10.0.0.128/25"], &[]), &["10.0.0.0/24"]);
    let three = ["10.0.2.0/24", "10.0.0.0/24", "255.255.255.255/32"];
    assert_prefixes(of(&three, &[]), &["10.0.0.0/24", "10.0.2.0/24", "255.255.255.255/32"]);
    assert_eq!(of(&["0.0.0.0/1", "128.0.0.0/1"], &[]), None);
}

#[test]
fn host_bits_are_ignored() {
    assert_prefixes(of(&["10.0.0.7/24"], &[]), &["10.0.0.0/24"]);
}

#[test]
fn each_family_has_its_own_ranges() {
    assert_eq!(of(&[], &[]), None);
    assert_eq!(of(&["fd00::/64"], &[]), None);
    assert_eq!(of(&["10.0.0.0/8", "0.0.0.0/0"], &[]), None);
    assert_prefixes(of(&["10.0.0.0/8", "::/0"], &[]), &["10.0.0.0/8"]);
}

/// All load-balancer IPs, so that they share one group.
#[test]
fn a_node_in_a_range_may_use_the_vips_as_source() {
    assert_prefixes(of(&["10.0.0.0/8"], &["192.168.1.1", "10.1.2.3"]), &["10.0.0.0/8", "203.0.113.1/32"]);
    assert_prefixes(of(&["10.0.0.0/8"], &["192.168.1.1", "fd00::1"]), &["10.0.0.0/8"]);
    assert_prefixes(of(&["203.0.113.0/32"], &["203.0.113.0"]), &["203.0.113.0/31"]);
    assert_prefixes(of(&["203.0.113.0/24"], &["203.0.113.2"]), &["203.0.113.0/24"]);
    let two = |lb: ServiceBuilder| {
        let lb = lb.load_balancer_ip(VIP).load_balancer_ip("203.0.113.9").load_balancer_ip("fd00::1");
        lb.source_range("10.0.0.0/8")
    };
    let prefixes = group(two, IpFamily::V4, &["10.0.0.1"]).unwrap().prefixes;
    assert_eq!(prefixes.len(), 3, "{prefixes:?}");
}

#[test]
fn equal_lists_are_one_group_with_a_rule_for_each_prefix_length() {
    let lb = |ranges: &'static [&'static str]| {
        let lb = |lb: ServiceBuilder| ranges.iter().fold(lb.load_balancer_ip(VIP), |lb, range| lb.source_range(range));
        group(lb, IpFamily::V4, &[]).unwrap()
    };
    let one = lb(&["10.0.0.0/8", "192.0.2.0/25", "198.51.100.0/25"]);
    assert_eq!(one, lb(&["192.0.2.7/25", "198.51.100.0/25", "10.1.0.0/16", "10.0.0.0/8"]));
    assert_ne!(one.id, lb(&["10.0.0.0/8", "192.0.2.0/25"]).id);
    assert_ne!(lb(&["10.0.0.0/8"]).id, lb(&["10.0.0.0/9"]).id);
    assert_eq!(one.rules(IpFamily::V4).len(), 3);
    assert_eq!(SourceGroupId::parse(&one.id.to_string()), Some(one.id));
    for name in ["sources-", "sources-1", "sources-+0000000000000000000000000000001", "pool-1"] {
        assert_eq!(SourceGroupId::parse(name), None, "{name}");
    }
}

/// The last addresses of a family, so that ranges touch and overlap, and the very last address is among them.
fn address(v6: bool, n: u8) -> IpAddr {
    if v6 { IpAddr::V6((u128::MAX - u128::from(n)).into()) } else { IpAddr::V4((u32::MAX - u32::from(n)).into()) }
}

proptest! {
    #[test]
    fn merging_changes_no_address(v6: bool, cidrs in prop::collection::vec((any::<u8>(), 0u8..7), 1..12)) {
        let net = |(n, bits): (u8, u8)| IpNet::new(address(v6, n), if v6 { 128 } else { 32 } - bits).unwrap().trunc();
        let cidrs: Vec<IpNet> = cidrs.into_iter().map(net).collect();
        let group = SourceGroup::new(&cidrs).unwrap();
        for address in (0..=u8::MAX).map(|n| address(v6, n)) {
            let contained = group.prefixes.iter().filter(|prefix| prefix.contains(&address)).count();
            prop_assert_eq!(contained, usize::from(cidrs.iter().any(|cidr| cidr.contains(&address))), "{}", address);
        }
        prop_assert!(group.prefixes.len() <= cidrs.len() && group.prefixes.is_sorted());
        let mut reversed = cidrs;
        reversed.reverse();
        prop_assert_eq!(SourceGroup::new(&reversed).unwrap(), group, "the order does not matter");
    }
}
