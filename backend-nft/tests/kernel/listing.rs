//! The tables of a small cluster as `nft list` prints them.

use std::net::Ipv6Addr;

use backend::{NodeState, testing::mk_state};
use netlink::nft::NftHandle;

use super::support::{assert_readable, nft, reconcile, run};

/// One service port of each kind.
fn state() -> NodeState {
    mk_state()
        .service("default/web", |web| {
            web.cluster_ip("10.96.0.1")
                .cluster_ip("fd00:96::1")
                .endpoints(["10.244.1.1:8080", "10.244.2.1:8080", "[fd00:244:1::1]:8080"])
                .local_endpoints(["10.244.1.1:8080", "[fd00:244:1::1]:8080"])
        })
        .service("default/lb", |lb| {
            lb.cluster_ip("10.96.0.2")
                .cluster_ip("fd00:96::2")
                .load_balancer_ip("203.0.113.1")
                .load_balancer_ip("fd00:203::1")
                .node_port(30080)
                .external_local()
                .source_range("192.0.2.0/24")
                .source_range("192.0.3.0/25")
                .source_range("192.168.1.0/24")
                .source_range("fd00:2::/64")
                .endpoints(["10.244.1.2:8080", "10.244.2.2:8080", "[fd00:244:2::2]:8080"])
                .local_endpoints(["10.244.1.2:8080"])
        })
        .service("default/dns/udp", |dns| {
            let dns = dns.port(53).cluster_ip("10.96.0.10").external_ip("203.0.113.2").node_port(30053);
            dns.internal_local().endpoints(["10.244.2.3:53"])
        })
        .service("default/sticky", |sticky| {
            let sticky = sticky.cluster_ip("10.96.0.4").cluster_ip("fd00:96::4").node_port(30081).affinity(60);
            let sticky = sticky.load_balancer_ip("203.0.113.4").external_local();
            sticky
                .endpoints(["10.244.1.4:8080", "10.244.2.4:8080", "[fd00:244:2::4]:8080"])
                .local_endpoints(["10.244.1.4:8080"])
        })
        .service("default/none", |none| none.cluster_ip("10.96.0.3"))
        .build()
}

#[test]
fn listings_do_not_change() {
    run(|| async {
        reconcile(&state()).await;
        assert_readable();
        assert_same("ip", include_str!("listing/ip.txt"));
        assert_same("ip6", include_str!("listing/ip6.txt"));
    });
}

/// Compares a listing with the file; with `UPDATE_LISTINGS` set, writes the file.
fn assert_same(family: &str, expected: &str) {
    let found = as_newer_nft(&nft(&format!("list table {family} {}", backend::NFT_TABLE)));
    if std::env::var_os("UPDATE_LISTINGS").is_some() {
        let path = format!("{}/tests/kernel/listing/{family}.txt", env!("CARGO_MANIFEST_DIR"));
        return std::fs::write(path, found).unwrap();
    }
    assert!(found == expected, "the listing differs; if this is intended, run again with UPDATE_LISTINGS=1:\n{found}");
}

/// A listing as nft 1.1 prints it. Version 1.0 does not know the types of constants in the key of a set, nor the names
/// of priorities of the hook `output`.
fn as_newer_nft(listing: &str) -> String {
    let mut newer = String::new();
    let mut rest = listing;
    while let Some((before, after)) = rest.split_once(" [invalid type]") {
        let (text, number) = before.rsplit_once("0x").unwrap();
        let number = u128::from_str_radix(number, 16).unwrap();
        let typed = u16::try_from(number).map_or_else(|_| Ipv6Addr::from(number).to_string(), |port| port.to_string());
        newer += &format!("{text}{typed}");
        rest = after;
    }
    newer += rest;
    newer
        .replace("hook output priority -110;", "hook output priority dstnat - 10;")
        .replace("hook output priority -100;", "hook output priority dstnat;")
}

#[test]
fn restart_writes_nothing() {
    run(|| async {
        assert!(reconcile(&state()).await.writes > 0);
        let mut handle = NftHandle::open().unwrap();
        let generation = handle.generation().unwrap();
        assert_eq!(reconcile(&state()).await.writes, 0);
        assert_eq!(handle.generation().unwrap(), generation, "not even an empty transaction");
    });
}
