//! Rules loaded by nft into a kernel and evaluated: the forms that proxies use, and set lookups.

use std::{
    io::Write as _,
    process::{Command, Stdio},
};

use ::iptables::{Program, Ruleset, Variant};
use netlink::testing::in_netns;
use proto::model::{IpFamily, Protocol};

use super::read;
use crate::{LiveKernel, NodeRules, Packet, PacketOrigin, PacketVerdict, Path, trace};

/// Rules similar to kube-proxy's nftables mode, and a firewall.
const RULES: &str = r#"
table ip proxy {
  map service-ips {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.10 . tcp . 80 : goto service-web, 10.96.0.11 . tcp . 80 : goto external-web }
  }
  map no-endpoints {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.9 . tcp . 80 : goto reject-chain, 10.96.0.8 . tcp . 80 : drop }
  }
  map firewall {
    type ipv4_addr . inet_proto . inet_service : verdict
    elements = { 10.96.0.11 . tcp . 80 : goto firewall-web }
  }
  set ranges {
    type ipv4_addr . inet_service . ipv4_addr
    flags interval
    elements = { 10.96.0.10 . 53 . 192.0.2.0-192.0.2.127 }
  }
  set marked {
    type mark . ipv4_addr
    flags interval
    elements = { 1-5 . 203.0.113.200-203.0.113.210 }
  }
  chain early {
    type filter hook prerouting priority -110; policy accept;
    ct state new ip daddr . meta l4proto . th dport vmap @firewall
    ip daddr 10.96.0.10 meta l4proto udp ip daddr . th dport . ip saddr != @ranges drop comment "not in a range"
    ip saddr 203.0.113.200/31 meta mark set 2
    meta mark . ip saddr @marked drop comment "marked, and from there"
  }
  chain nat-prerouting {
    type nat hook prerouting priority dstnat; policy accept;
    jump services
  }
  chain filter-forward {
    type filter hook forward priority -1; policy accept;
    ct state new ip daddr . meta l4proto . th dport vmap @no-endpoints
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    meta mark & 0x4000 == 0 return
    meta mark set meta mark xor 0x4000
    masquerade fully-random comment "marked"
  }
  chain services {
    ip daddr . meta l4proto . th dport vmap @service-ips
  }
  chain reject-chain {
    reject comment "no endpoints"
  }
  chain firewall-web {
    ip saddr != { 192.0.2.0/24, 198.51.100.7 } drop comment "not allowed"
  }
  chain external-web {
    meta mark set meta mark or 0x4000 comment "from outside"; goto service-web
  }
  chain service-web {
    ip daddr 10.96.0.10 tcp dport 80 ip saddr != 10.244.0.0/16 meta mark set meta mark or 0x4000 comment "no pod"
    meta l4proto tcp dnat to numgen random mod 2 map { 0 : 10.244.1.1 . 8080, 1 : 10.244.1.2 . 8080 }
  }
}
table inet firewall {
  chain forward {
    type filter hook forward priority 10; policy drop;
    iifname "eth0" limit rate 1/second accept
    iifname "cali*" accept
    ip daddr 10.244.1.1 accept
    ip daddr 10.244.1.2 counter accept
  }
}
"#;

fn load(ruleset: &str) {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    nft.stdin.take().unwrap().write_all(ruleset.as_bytes()).unwrap();
    assert!(nft.wait().unwrap().success());
}

/// Evaluates packets: source, input interface, destination, protocol.
fn evaluate(cases: &'static [(&str, &str, &str, Protocol)]) -> Vec<Vec<Path>> {
    evaluate_in(RULES, cases)
}

/// As [`evaluate`], with other rules.
fn evaluate_in(ruleset: &'static str, cases: &'static [(&str, &str, &str, Protocol)]) -> Vec<Vec<Path>> {
    in_netns(move || {
        load(ruleset);
        let mut kernel = LiveKernel::open().unwrap();
        let rules = NodeRules(read(&mut kernel, &[]).unwrap());
        let paths = cases.iter().map(|(source, interface, destination, protocol)| {
            let packet = Packet {
                source: format!("{source}:40000").parse().unwrap(),
                destination: destination.parse().unwrap(),
                protocol: *protocol,
                origin: PacketOrigin::Interface((*interface).to_owned()),
            };
            trace(&rules, &packet, &mut kernel).unwrap().paths
        });
        paths.collect()
    })
}

fn only(paths: &[Path]) -> &PacketVerdict {
    assert_eq!(paths.len(), 1, "{paths:?}");
    &paths[0].verdict
}

fn dropped(reason: &str) -> PacketVerdict {
    PacketVerdict::Dropped { reason: reason.to_owned() }
}

#[test]
fn a_pod_reaches_both_endpoints_with_its_own_address() {
    let paths = evaluate(&[("10.244.1.9", "cali7", "10.96.0.10:80", Protocol::Tcp)]).remove(0);
    let seen: Vec<_> = paths.iter().map(|path| (path.endpoint.unwrap().to_string(), path.probability)).collect();
    assert_eq!(seen, [("10.244.1.1:8080".to_owned(), 0.5), ("10.244.1.2:8080".to_owned(), 0.5)]);
    assert!(paths.iter().all(|path| path.verdict == PacketVerdict::Delivered && path.masquerade.is_none()));
    let steps: Vec<_> =
        paths[0].steps.iter().map(|step| (step.hook, step.chain.as_str(), step.action.as_str())).collect();
    let expected = [
        ("prerouting", "ip proxy early", "no rule matches, policy accept"),
        ("prerouting", "ip proxy nat-prerouting", "jump services"),
        ("prerouting", "ip proxy services", "10.96.0.10 . tcp . 80 is in @service-ips; goto service-web"),
        (
            "prerouting",
            "ip proxy service-web",
            "random choice of 2; the anonymous set maps 0 to 10.244.1.1 . 8080; \
             destination translated to 10.244.1.1:8080",
        ),
        ("forward", "ip proxy filter-forward", "no rule matches, policy accept"),
        ("forward", "inet firewall forward", "accept"),
        ("postrouting", "ip proxy postrouting", "return"),
    ];
    assert_eq!(steps, expected);
}

#[test]
fn clients_that_are_not_pods_are_masqueraded() {
    let paths = evaluate(&[
        ("192.0.2.1", "cali7", "10.96.0.10:80", Protocol::Tcp),
        ("198.51.100.7", "cali7", "10.96.0.11:80", Protocol::Tcp),
    ]);
    let reasons = paths.iter().map(|paths| paths[0].masquerade.as_ref().unwrap().reason.as_str());
    assert_eq!(reasons.collect::<Vec<_>>(), ["no pod", "from outside"]);
}

#[test]
fn the_verdict_has_the_reason_of_the_rule() {
    let paths = evaluate(&[
        ("203.0.113.1", "cali7", "10.96.0.11:80", Protocol::Tcp),
        ("10.244.1.9", "cali7", "10.96.0.9:80", Protocol::Tcp),
        ("10.244.1.9", "cali7", "10.96.0.8:80", Protocol::Tcp),
        ("192.0.2.128", "cali7", "10.96.0.10:53", Protocol::Udp),
        ("192.0.2.127", "cali7", "10.96.0.10:53", Protocol::Udp),
        ("192.0.2.1", "veth1", "203.0.113.9:443", Protocol::Tcp),
        ("203.0.113.201", "veth1", "10.244.1.1:443", Protocol::Tcp),
        ("203.0.113.202", "veth1", "10.244.1.1:443", Protocol::Tcp),
    ]);
    assert_eq!(*only(&paths[0]), dropped("not allowed"));
    let with = "ICMP port unreachable".to_owned();
    assert_eq!(*only(&paths[1]), PacketVerdict::Rejected { with, reason: "no endpoints".to_owned() });
    assert_eq!(*only(&paths[2]), dropped("ip proxy filter-forward"));
    assert_eq!(*only(&paths[3]), dropped("not in a range"));
    assert_eq!((only(&paths[4]), paths[4][0].endpoint), (&PacketVerdict::Delivered, None));
    assert_eq!(*only(&paths[5]), dropped("the policy of inet firewall forward"));
    assert_eq!(*only(&paths[6]), dropped("marked, and from there"));
    assert_eq!(*only(&paths[7]), PacketVerdict::Delivered);
}

#[test]
fn an_unknown_expression_is_reported_and_does_not_match() {
    let paths = evaluate(&[("192.0.2.1", "eth0", "203.0.113.9:443", Protocol::Tcp)]).remove(0);
    assert_eq!(*only(&paths), dropped("the policy of inet firewall forward"));
    assert!(paths[0].unknown[0].contains("inet firewall forward (limit)"), "{:?}", paths[0].unknown);
}

#[test]
fn an_element_for_all_other_keys_is_found() {
    const FIREWALL: &str = "table ip firewall {
        chain forward {
            type filter hook forward priority 0; policy accept;
            ip daddr vmap { 10.0.0.1 : accept, * : drop }
        }
    }";
    let paths = evaluate_in(
        FIREWALL,
        &[("192.0.2.1", "eth0", "10.0.0.1:80", Protocol::Tcp), ("192.0.2.1", "eth0", "10.0.0.2:80", Protocol::Tcp)],
    );
    assert_eq!(*only(&paths[0]), PacketVerdict::Delivered);
    assert_eq!(*only(&paths[1]), dropped("ip firewall forward"));
}

#[test]
fn base_chains_that_iptables_does_not_show_are_read() {
    const FILTER: &str = "table ip filter {
        chain FORWARD { type filter hook forward priority 0; policy accept; numgen inc mod 2 0 drop; }
        chain mine { type filter hook forward priority 5; policy drop; }
    }";
    in_netns(|| {
        load(FILTER);
        let mut kernel = LiveKernel::open().unwrap();
        let mut read_with = |variant, saved: &str| {
            let saved = [(Program::new(IpFamily::V4, variant), Ruleset::parse(saved).unwrap())];
            let tables = read(&mut kernel, &saved).unwrap();
            let chains = tables.iter().flat_map(|table| &table.base_chains);
            let mut names: Vec<_> = chains.map(|(name, _)| name.to_owned()).collect();
            names.sort_unstable();
            names
        };
        let incompatible = "# Table `filter' is incompatible, use 'nft' tool.\n";
        assert_eq!(read_with(Variant::Nft, incompatible), ["FORWARD", "mine"]);
        let shown = "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(read_with(Variant::Nft, shown), ["mine"]);
        assert_eq!(read_with(Variant::Legacy, shown), ["FORWARD", "mine"]);
        assert_eq!(read_with(Variant::Nft, &shown.replace("COMMIT", ":mine - [0:0]\nCOMMIT")), ["mine"]);
        assert_eq!(read_with(Variant::Nft, &shown.replace("COMMIT", ":mine DROP [0:0]\nCOMMIT")), [""; 0]);
    });
}

#[test]
fn packets_are_not_tracked_if_a_rule_says_so_early() {
    const DNS: &str = "table ip dns {
        chain early { type filter hook prerouting priority -300; ip daddr 10.96.0.10 notrack; }
        chain late { type filter hook prerouting priority -150; notrack; }
        chain nat { type nat hook prerouting priority -100; dnat to 10.244.1.1; }
        chain forward {
            type filter hook forward priority 0; policy drop;
            ct state untracked ip daddr 10.96.0.10 accept
            ct state new ip daddr 10.244.1.1 accept
        }
    }";
    let cases = &[
        ("10.244.1.9", "cali7", "10.96.0.10:53", Protocol::Udp),
        ("10.244.1.9", "cali7", "10.96.0.11:53", Protocol::Udp),
    ];
    let paths = evaluate_in(DNS, cases);
    assert_eq!((only(&paths[0]), paths[0][0].endpoint), (&PacketVerdict::Delivered, None));
    let endpoint = Some("10.244.1.1:53".parse().unwrap());
    assert_eq!((only(&paths[1]), paths[1][0].endpoint), (&PacketVerdict::Delivered, endpoint));
}

#[test]
fn translation_to_a_range_is_unknown() {
    const RANGES: &str = "table ip ranges {
        chain nat {
            type nat hook prerouting priority -100; policy accept;
            ip daddr 10.96.0.1 dnat to 10.244.1.1-10.244.1.9
            ip daddr 10.96.0.2 meta l4proto tcp dnat to 10.244.1.1:8080-8089
            ip daddr 10.96.0.3 meta l4proto tcp dnat to 10.244.1.1:8080
        }
        chain source {
            type nat hook postrouting priority 100; policy accept;
            ip daddr 10.96.0.4 snat to 192.0.2.1-192.0.2.9
        }
    }";
    let cases = &[
        ("10.244.1.9", "cali7", "10.96.0.1:80", Protocol::Tcp),
        ("10.244.1.9", "cali7", "10.96.0.2:80", Protocol::Tcp),
        ("10.244.1.9", "cali7", "10.96.0.3:80", Protocol::Tcp),
        ("10.244.1.9", "cali7", "10.96.0.4:80", Protocol::Tcp),
    ];
    let paths: Vec<_> = evaluate_in(RANGES, cases).into_iter().map(|mut paths| paths.remove(0)).collect();
    for path in &paths[..2] {
        assert_eq!(path.endpoint, None);
        assert!(path.unknown[0].contains("nat to a range"), "{:?}", path.unknown);
    }
    assert_eq!((paths[2].endpoint, paths[2].unknown.len()), (Some("10.244.1.1:8080".parse().unwrap()), 0));
    let source = paths[3].masquerade.as_ref().and_then(|to| to.source);
    assert_eq!(source, Some("192.0.2.1".parse().unwrap()));
    assert!(paths[3].unknown[0].contains("source address in a range"), "{:?}", paths[3].unknown);
}

#[test]
fn headers_that_depend_on_the_sender_are_unknown() {
    const TTL: &str = "table ip firewall {
        chain forward {
            type filter hook forward priority 0; policy accept;
            ip ttl < 2 drop
            @ll,0,8 0 drop
        }
    }";
    let paths = evaluate_in(TTL, &[("10.244.1.9", "cali7", "192.0.2.1:80", Protocol::Tcp)]).remove(0);
    assert_eq!((only(&paths), paths[0].unknown.len()), (&PacketVerdict::Delivered, 2), "{:?}", paths[0].unknown);
}

#[test]
fn the_original_direction_of_a_connection_is_that_before_translation() {
    const ORIGINAL: &str = "table ip firewall {
        chain nat { type nat hook prerouting priority -100; meta l4proto tcp dnat to 10.244.1.1:8080; }
        chain forward {
            type filter hook forward priority 0; policy drop;
            meta l4proto tcp ct original ip daddr 10.96.0.10 ct original proto-dst 80 accept
        }
    }";
    let paths = evaluate_in(ORIGINAL, &[("10.244.1.9", "cali7", "10.96.0.10:80", Protocol::Tcp)]).remove(0);
    assert_eq!(*only(&paths), PacketVerdict::Delivered);
}
