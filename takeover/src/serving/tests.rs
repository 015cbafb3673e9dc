//! Rules as kube-proxy 1.36 writes them, loaded into a kernel and read back.

use netlink::testing::in_netns;

use super::*;
use crate::testing::{all, run};

/// nftables mode: `web` with a node port and policy Local, `sticky` with session affinity, `idle` without endpoints.
const NFT: &str = include_str!("testing/kube-proxy.nft");

fn lines(ways: &BTreeMap<Way, Served>) -> Vec<String> {
    let line = |(way, served): (&Way, &Served)| {
        let Served { mode, service, inside, outside } = served;
        let service = service.as_deref().unwrap_or("?");
        format!("{mode} {service} {way}: {inside} | {outside}")
    };
    ways.iter().map(line).collect()
}

fn found() -> Vec<String> {
    lines(&Serving::find().unwrap().ways)
}

#[test]
fn chains_of_iptables_are_followed_in_both_families_and_variants() {
    for variant in ["nft", "legacy"] {
        in_netns(move || {
            for (family, tool) in Family::BOTH.into_iter().zip(["iptables", "ip6tables"]) {
                run(&format!("{tool}-{variant}-restore"), &[], &all(family));
            }
            let expected = [
                "iptables default/web:http 10.96.0.10:80/tcp: 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080 10.244.2.6:8080",
                "iptables default/idle:http 10.96.0.11:80/tcp: refused | refused",
                "iptables default/web:http 192.0.2.10:80/tcp: 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080",
                "iptables default/web:http node port 30080/tcp (ipv4): 10.244.1.5:8080 10.244.2.6:8080 | 10.244.1.5:8080",
                "iptables default/idle:http node port 30099/tcp (ipv4): refused | refused",
            ];
            let found = found();
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
            "nftables ? 10.96.0.11:80/tcp: refused | refused".to_owned(),
            "nftables default/sticky 10.96.0.12:443/tcp: 10.244.1.7:8443 10.244.2.7:8443 | 10.244.1.7:8443 10.244.2.7:8443"
                .to_owned(),
            format!("nftables default/web:http 192.0.2.10:80/tcp: {both} | 10.244.1.5:8080"),
            format!("nftables default/web:http node port 30080/tcp (ipv4): {both} | 10.244.1.5:8080"),
            "nftables ? node port 30099/tcp (ipv4): refused | refused".to_owned(),
        ];
        assert_eq!(found(), expected);
    });
}

#[test]
fn without_rules_there_is_nothing_and_chains_of_fairleads_are_its_own() {
    in_netns(|| {
        assert_eq!(found(), [""; 0]);
        run("iptables-nft-restore", &[], &all(Family::V4));
        run("iptables-nft", &["-N", "FAIRLEAD-REJECT"], "");
        assert_eq!(found(), [""; 0]);
    });
}
