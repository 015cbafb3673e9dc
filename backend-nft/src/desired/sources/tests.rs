//! Merged ranges contain the same addresses, each once.

use backend::testing::{ServiceBuilder, mk_state};
use proptest::prelude::*;
use proto::model::IpFamily;

use super::*;

const VIP: &str = "203.0.113.1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The allowed sources as `first-last`, of a service with this load-balancer IP, on a node with these addresses.
fn ranges(build: impl FnOnce(ServiceBuilder) -> ServiceBuilder, vip: &str, node: &[&str]) -> Option<Vec<String>> {
    let state = mk_state().service("default/lb", build).build();
    let node: Vec<IpAddr> = node.iter().map(|address| ip(address)).collect();
    let allowed = allowed(&state.service_ports().values().next().unwrap().port, ip(vip), &node)?;
    Some(allowed.iter().map(|range| format!("{}-{}", range.first, range.last)).collect())
}

fn of(cidrs: &[&str], node: &[&str]) -> Option<Vec<String>> {
    ranges(|lb| cidrs.iter().fold(lb.load_balancer_ip(VIP), |lb, cidr| lb.source_range(cidr)), VIP, node)
}

#[track_caller]
fn assert_ranges(found: Option<Vec<String>>, expected: &[&str]) {
    assert_eq!(found.as_deref(), Some(&expected.iter().map(|&text| text.to_owned()).collect::<Vec<_>>()[..]));
}

#[test]
fn overlapping_and_adjacent_ranges_are_merged() {
    assert_ranges(of(&["10.0.1.0/24", "10.0.0.0/24"], &[]), &["10.0.0.0-10.0.1.255"]);
    assert_ranges(of(&["10.0.0.7/32", "10.0.0.0/24", "10.0.0.128/25"], &[]), &["10.0.0.0-10.0.0.255"]);
    assert_ranges(
        of(&["10.0.2.0/24", "10.0.0.0/24", "255.255.255.255/32"], &[]),
        &["10.0.0.0-10.0.0.255", "10.0.2.0-10.0.2.255", "255.255.255.255-255.255.255.255"],
    );
    assert_ranges(of(&["0.0.0.0/1", "128.0.0.0/1"], &[]), &["0.0.0.0-255.255.255.255"]);
}

#[test]
fn host_bits_are_ignored() {
    assert_ranges(of(&["10.0.0.7/24"], &[]), &["10.0.0.0-10.0.0.255"]);
}

#[test]
fn each_family_has_its_own_ranges() {
    assert_eq!(of(&[], &[]), None);
    assert_eq!(of(&["fd00::/64"], &[]), None);
    assert_eq!(of(&["10.0.0.0/8", "0.0.0.0/0"], &[]), None);
    assert_ranges(of(&["10.0.0.0/8", "::/0"], &[]), &["10.0.0.0-10.255.255.255"]);
    let six = |lb: ServiceBuilder| lb.load_balancer_ip("fd00::1").source_range("fd00:2::/64").source_range("0.0.0.0/0");
    assert_ranges(ranges(six, "fd00::1", &[]), &["fd00:2::-fd00:2::ffff:ffff:ffff:ffff"]);
}

#[test]
fn only_load_balancer_ips_are_restricted() {
    let lb = |lb: ServiceBuilder| {
        let lb = lb.cluster_ip("10.96.0.1").external_ip("203.0.113.2").load_balancer_ip(VIP);
        lb.source_range("10.0.0.0/8")
    };
    assert_eq!(ranges(lb, "10.96.0.1", &[]), None);
    assert_eq!(ranges(lb, "203.0.113.2", &[]), None);
    assert!(ranges(lb, VIP, &[]).is_some());
    let same = |service: ServiceBuilder| lb(service).external_ip(VIP);
    assert!(ranges(same, VIP, &[]).is_some());
}

#[test]
fn a_node_in_a_range_may_use_the_vip_as_source() {
    let with_vip = ["10.0.0.0-10.255.255.255", "203.0.113.1-203.0.113.1"];
    assert_ranges(of(&["10.0.0.0/8"], &["192.168.1.1", "10.1.2.3"]), &with_vip);
    assert_ranges(of(&["10.0.0.0/8"], &["192.168.1.1", "fd00::1"]), &with_vip[..1]);
    // The VIP is next to a range, and in a range.
    assert_ranges(of(&["203.0.113.2/32"], &["203.0.113.2"]), &["203.0.113.1-203.0.113.2"]);
    assert_ranges(of(&["203.0.113.0/24"], &["203.0.113.2"]), &["203.0.113.0-203.0.113.255"]);
}

/// The last addresses of a family, so that ranges touch and overlap, and the very last address is among them.
fn address(family: IpFamily, n: u8) -> IpAddr {
    match family {
        IpFamily::V4 => IpAddr::V4((u32::MAX - u32::from(n)).into()),
        IpFamily::V6 => IpAddr::V6((u128::MAX - u128::from(n)).into()),
    }
}

proptest! {
    #[test]
    fn merging_changes_no_address(
        v6: bool,
        bounds in prop::collection::vec((any::<u8>(), 0u8..24), 0..12),
    ) {
        let family = if v6 { IpFamily::V6 } else { IpFamily::V4 };
        let ranges: Vec<AddressRange> = bounds
            .iter()
            .map(|(end, len)| AddressRange {
                first: address(family, end.saturating_add(*len)),
                last: address(family, *end),
            })
            .collect();
        let merged = merged(ranges.clone());
        let contains = |ranges: &[AddressRange], address| {
            ranges.iter().any(|range| range.first <= address && address <= range.last)
        };
        for address in (0..=u8::MAX).map(|n| address(family, n)) {
            prop_assert_eq!(contains(&ranges, address), contains(&merged, address), "{}", address);
        }
        // There is at least one address between two ranges.
        for pair in merged.windows(2) {
            prop_assert!(successor(pair[0].last).is_some_and(|next| next < pair[1].first), "{:?}", pair);
        }
        let mut reversed = ranges;
        reversed.reverse();
        prop_assert_eq!(super::merged(reversed), merged, "the order does not matter");
    }
}
