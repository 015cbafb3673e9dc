//! Rules as kube-proxy 1.36 writes them, loaded into a kernel and read back.

use ::iptables::block_on;
use netlink::testing::in_netns;

use super::*;
use crate::takeover::testing::{all, run};

/// nftables mode: `web` with a node port and policy Local, `sticky` with session affinity, `idle` without endpoints.
const NFT: &str = include_str!("testing/kube-proxy.nft");

/// One line per VIP: `MODE SERVICE VIP: INTERNAL | EXTERNAL`.
fn read_all() -> Vec<String> {
    let line = |(vip, rules): (VipKey, VipRules)| {
        let VipRules { mode, service, internal, external } = rules;
        format!("{} {} {vip}: {internal} | {external}", mode.name(), service.as_deref().unwrap_or("?"))
    };
    block_on(kube_proxy_rules()).unwrap().into_iter().map(line).collect()
}

#[test]
fn chains_of_iptables_are_followed_in_both_families_and_variants() {
    for variant in ["nft", "legacy"] {
        in_netns(move || {
            for (family, tool) in IpFamily::ALL.into_iter().zip(["iptables", "ip6tables"]) {
                run(&format!("{tool}-{variant}-restore"), &[], all(family));
            }
            let expected = [
                "iptables default/web:http 10.96.0.10:80/tcp: 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080 10.244.2.6:8080",
                "iptables default/idle:http 10.96.0.11:80/tcp: rejected | rejected",
                "iptables default/web:http 192.0.2.10:80/tcp: 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080",
                "iptables default/web:http node port 30080/tcp (IPv4): 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080",
                "iptables default/idle:http node port 30099/tcp (IPv4): rejected | rejected",
            ];
            let found = read_all();
            assert_eq!(found[..5], expected);
            assert_eq!(found.len(), 10);
            let of_v6 = "[fd00:10:96::a]:80/tcp: [fd00:10:244:1::5]:8080 [fd00:10:244:2::6]:8080";
            assert!(found[5..].iter().any(|line| line.contains(of_v6)), "{found:#?}");
        });
    }
}

#[test]
fn maps_and_chains_of_nftables_are_followed() {
    in_netns(|| {
        run("nft", &["-f", "-"], NFT);
        let both = "10.244.1.5:8080 10.244.2.6:8080";
        let expected = [
            format!("nftables default/web:http 10.96.0.10:80/tcp: {both} | {both}"),
            "nftables ? 10.96.0.11:80/tcp: rejected | rejected".to_owned(),
            "nftables default/sticky 10.96.0.12:443/tcp: 10.244.1.7:8443 10.244.2.7:8443 | 10.244.1.7:8443 10.244.2.7:8443"
                .to_owned(),
            format!("nftables default/web:http 192.0.2.10:80/tcp: {both} | 10.244.1.5:8080"),
            format!("nftables default/web:http node port 30080/tcp (IPv4): {both} | 10.244.1.5:8080"),
            "nftables ? node port 30099/tcp (IPv4): rejected | rejected".to_owned(),
        ];
        assert_eq!(read_all(), expected);
    });
}

#[test]
fn chains_adopted_by_fairlead_are_not_read() {
    in_netns(|| {
        assert_eq!(read_all(), [""; 0]);
        run("iptables-nft-restore", &[], all(IpFamily::V4));
        run("iptables-nft", &["-N", "FAIRLEAD-REJECT"], "");
        assert_eq!(read_all(), [""; 0]);
    });
}
