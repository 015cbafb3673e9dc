//! Cluster IPs: pools, affinity, the internal policy, masquerading.

use backend::dataplane::Vip;

use super::*;

/// Besides kube-proxy's rules, each cluster IP has a rule that rejects ports that no service port has.
#[test]
fn cluster_ip() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").cluster_ip("fd00:172:30::41");
        web.endpoints(["10.180.0.1:80", "10.180.0.2:80", "[fd00:10:180::1]:80"])
    });
    assert_written(
        &web,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
nat -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-LXVODXWDISEETFEF -s 10.180.0.2/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-LXVODXWDISEETFEF -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.2:80
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -j KUBE-SEP-LXVODXWDISEETFEF
"#,
    );
    assert_written(
        &web,
        IpFamily::V6,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d fd00:172:30::41/128 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
nat -A KUBE-SERVICES -d fd00:172:30::41/128 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-OGYCNMB4EMRUSJ6N -s fd00:10:180::1/128 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-OGYCNMB4EMRUSJ6N -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination [fd00:10:180::1]:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O ! -s fd00:10::/32 -d fd00:172:30::41/128 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> [fd00:10:180::1]:80" -j KUBE-SEP-OGYCNMB4EMRUSJ6N
"#,
    );
}

#[test]
fn each_protocol_has_its_own_chains_and_its_own_match() {
    for (protocol, svc, sep) in
        [("udp", "OJWW7NSBVZTDHXNW", "67HLLFBKFCOQZRQN"), ("sctp", "GFCIFIA5VTFSTMSM", "RFW33Y6OHVBQ4W3M")]
    {
        let dns = named(&format!("ns1/svc1:p80/{protocol}"), |dns| {
            dns.cluster_ip("172.30.0.41").endpoints(["10.180.0.1:80"])
        });
        assert_lines(
            &with("-p ", written(&dns, IpFamily::V4, &pods())),
            &format!(
                r#"
nat -A KUBE-SERVICES -d 172.30.0.41/32 -p {protocol} -m comment --comment "ns1/svc1:p80 cluster IP" -m {protocol} --dport 80 -j KUBE-SVC-{svc}
nat -A KUBE-SEP-{sep} -p {protocol} -m comment --comment "ns1/svc1:p80" -m {protocol} -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVC-{svc} ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p {protocol} -m comment --comment "ns1/svc1:p80 cluster IP" -m {protocol} --dport 80 -j KUBE-MARK-MASQ
"#
            ),
        );
    }
}

/// With probability 1/3, else 1/2, else always.
#[test]
fn endpoints_are_equally_likely() {
    let web =
        service(|web| web.cluster_ip("172.30.0.41").endpoints(["10.180.0.1:80", "10.180.0.2:80", "10.180.0.3:80"]));
    assert_lines(
        &with(" -> ", written(&web, IpFamily::V4, &pods())),
        r#"
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.33333333349 -j KUBE-SEP-SXIVWICOYRO3J4NJ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-LXVODXWDISEETFEF
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.3:80" -j KUBE-SEP-ICDUIKC33SFI6ZPR
"#,
    );
}

#[test]
fn affinity_remembers_clients_by_endpoint() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").cluster_ip("fd00:172:30::41").affinity(10_800);
        web.endpoints(["10.180.0.1:80", "10.180.0.2:80", "[fd00:10:180::1]:80"])
    });
    assert_lines(
        &written(&web, IpFamily::V4, &DataplaneOptions::default())[2..],
        r#"
nat -A KUBE-SEP-LXVODXWDISEETFEF -s 10.180.0.2/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-LXVODXWDISEETFEF -p tcp -m comment --comment "ns1/svc1:p80" -m recent --set --name KUBE-SEP-LXVODXWDISEETFEF --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.180.0.2:80
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m recent --set --name KUBE-SEP-SXIVWICOYRO3J4NJ --mask 255.255.255.255 --rsource -m tcp -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-SXIVWICOYRO3J4NJ --mask 255.255.255.255 --rsource -j KUBE-SEP-SXIVWICOYRO3J4NJ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-LXVODXWDISEETFEF --mask 255.255.255.255 --rsource -j KUBE-SEP-LXVODXWDISEETFEF
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -j KUBE-SEP-LXVODXWDISEETFEF
"#,
    );
    assert_lines(
        &with("-m recent", written(&web, IpFamily::V6, &pods())),
        r#"
nat -A KUBE-SEP-OGYCNMB4EMRUSJ6N -p tcp -m comment --comment "ns1/svc1:p80" -m recent --set --name KUBE-SEP-OGYCNMB4EMRUSJ6N --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -m tcp -j DNAT --to-destination [fd00:10:180::1]:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> [fd00:10:180::1]:80" -m recent --rcheck --seconds 10800 --reap --name KUBE-SEP-OGYCNMB4EMRUSJ6N --mask ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff --rsource -j KUBE-SEP-OGYCNMB4EMRUSJ6N
"#,
    );
}

/// The cluster pool has no chain, because no rule uses it.
#[test]
fn internal_policy_local() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").internal_local();
        web.endpoints(["10.180.0.1:80", "10.180.0.2:80"]).local_endpoints(["10.180.0.1:80"])
    });
    assert_written(
        &web,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
nat -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVL-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVL-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
nat -A KUBE-SVL-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ
"#,
    );
    let elsewhere = service(|web| web.cluster_ip("172.30.0.41").internal_local().endpoints(["10.180.0.2:80"]));
    assert_written(
        &elsewhere,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
filter -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 has no local endpoints" -m tcp --dport 80 -j DROP
"#,
    );
}

/// kube-proxy rejects TCP with an ICMP message too. A reset reaches clients behind firewalls that drop ICMP.
#[test]
fn without_endpoints_a_cluster_ip_rejects() {
    let refused = |protocol: &str, family, ip: &str, words: &str| {
        let none = named(&format!("ns1/svc1:p80/{protocol}"), |none| {
            none.cluster_ip("172.30.0.41").cluster_ip("fd00:172:30::41")
        });
        assert_lines(
            &written(&none, family, &pods()),
            &format!(
                r#"
filter -A FAIRLEAD-CLUSTER-IPS -d {ip} -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
filter -A KUBE-SERVICES -d {ip} -p {protocol} -m comment --comment "ns1/svc1:p80 has no endpoints" -m {protocol} --dport 80 -j REJECT --reject-with {words}
"#
            ),
        );
    };
    let (v4, v6) = ("172.30.0.41/32", "fd00:172:30::41/128");
    refused("tcp", IpFamily::V4, v4, "tcp-reset");
    refused("udp", IpFamily::V4, v4, "icmp-port-unreachable");
    refused("sctp", IpFamily::V4, v4, "icmp-port-unreachable");
    refused("tcp", IpFamily::V6, v6, "tcp-reset");
    refused("udp", IpFamily::V6, v6, "icmp6-port-unreachable");
}

/// As kube-proxy does with each mode of local traffic detection, and with `--masquerade-all`.
#[test]
fn masquerading_of_packets_to_a_cluster_ip() {
    let web = service(|web| web.cluster_ip("172.30.0.41").endpoints(["10.180.0.1:80"]));
    let check = |options: &DataplaneOptions, expected: &[(&str, &str, &str)]| {
        let mut rules = written(&web, IpFamily::V4, options);
        rules.retain(|rule| rule.starts_with("nat -A KUBE-SVC-") && rule.contains("cluster IP"));
        let expected = expected.iter().map(|(source, interface, target)| {
            format!(
                r#"nat -A KUBE-SVC-XPGD46QRK7WJZT7O {source}-d 172.30.0.41/32 {interface}-p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j {target}"#
            )
        });
        assert_lines(&rules, &expected.collect::<Vec<_>>().join("\n"));
    };
    let only = |local_detector| DataplaneOptions { local_detector, ..DataplaneOptions::default() };
    check(&only(LocalDetector::None), &[]);
    check(&DataplaneOptions { masquerade_all: true, ..pods() }, &[("", "", "KUBE-MARK-MASQ")]);
    // The pod CIDR of the node in these tests.
    check(&only(LocalDetector::NodeCidr), &[("! -s 10.244.1.0/24 ", "", "KUBE-MARK-MASQ")]);
    let bridge = LocalDetector::BridgeInterface("cbr0".parse().unwrap());
    check(&only(bridge), &[("", "! -i cbr0 ", "KUBE-MARK-MASQ")]);
    let prefix = LocalDetector::InterfaceNamePrefix("veth".parse().unwrap());
    check(&only(prefix), &[("", "! -i veth+ ", "KUBE-MARK-MASQ")]);
    // kube-proxy supports one CIDR; "in none of several" needs a chain of its own.
    check(&within(&["10.0.0.0/8", "11.0.0.0/8"]), &[("", "", "FAIRLEAD-MASQ-OTHERS")]);
    check(&within(&["0.0.0.0/0"]), &[]);
    check(&within(&["fd00:10::/32"]), &[]);
}

/// VIPs of other service ports get no rules.
#[test]
fn only_owned_vips_get_rules() {
    let web = service(|web| web.cluster_ip("172.30.0.41").external_ip("203.0.113.1").endpoints(["10.180.0.1:80"]));
    let node = mk_state().build().node().clone();
    let effective = pods().effective(&node);
    let desired = |family, owned: &dyn Fn(&Vip) -> bool| desired(&web, family, &effective, &node.addresses, owned);
    assert_eq!(desired(IpFamily::V4, &|_| false), None);
    assert_eq!(desired(IpFamily::V6, &|_| true), None);
    let external = |front: &Vip| front.to_string() == "203.0.113.1:80/tcp";
    let Desired { vips, lines, chains } = desired(IpFamily::V4, &external).unwrap();
    assert_eq!(vips.len(), 1);
    assert!(lines.iter().all(|(_, line)| line.contains("203.0.113.1/32")), "{lines:?}");
    let rules: Vec<_> = chains.iter().flat_map(|chain| &chain.rules).collect();
    assert!(!rules.iter().any(|rule| rule.contains("cluster IP")), "{rules:?}");
}
