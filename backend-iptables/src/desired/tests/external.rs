//! External IPs, load-balancer IPs and node ports: policies, source ranges, health checks, no endpoints.

use super::*;

const TWO: [&str; 2] = ["10.180.0.1:80", "10.180.0.2:80"];
const HERE: [&str; 1] = ["10.180.0.1:80"];

/// The lines and chains of external traffic only.
fn external(service: &ServicePortState, family: IpFamily) -> Vec<String> {
    let internal = ["FAIRLEAD-CLUSTER-IPS", "cluster IP", "KUBE-SEP-", "-A KUBE-SVC-", "-A KUBE-SVL-"];
    let lines = written(service, family, &pods()).into_iter();
    lines.filter(|line| !internal.iter().any(|word| line.contains(word))).collect()
}

#[test]
fn external_ip() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").external_ip("203.0.113.1").external_ip("fd00:203::1");
        web.endpoints(["10.180.0.1:80", "[fd00:10:180::1]:80"])
    });
    assert_written(
        &web,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
nat -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ
"#,
    );
    // No cluster IP in this family.
    assert_written(
        &web,
        IpFamily::V6,
        r#"
nat -A KUBE-SERVICES -d fd00:203::1/128 -p tcp -m comment --comment "ns1/svc1:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-OGYCNMB4EMRUSJ6N -s fd00:10:180::1/128 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-OGYCNMB4EMRUSJ6N -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination [fd00:10:180::1]:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> [fd00:10:180::1]:80" -j KUBE-SEP-OGYCNMB4EMRUSJ6N
"#,
    );
}

#[test]
fn node_port() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").cluster_ip("fd00:172:30::41").node_port(30080);
        web.endpoints(["10.180.0.1:80", "[fd00:10:180::1]:80"])
    });
    for family in IpFamily::ALL {
        assert_lines(
            &external(&web, family),
            r#"
nat -A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80" -m tcp --dport 30080 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
"#,
        );
    }
}

#[test]
fn load_balancer_ip() {
    let web = service(|web| web.load_balancer_ip("203.0.113.1").endpoints(HERE));
    assert_lines(
        &external(&web, IpFamily::V4),
        r#"
nat -A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
"#,
    );
}

/// The ranges apply to load-balancer IPs only, by family; a range of all addresses is no restriction. Where the node's
/// address is allowed (192.168.1.1), the load balancer's address is too: it is the source of the node's own packets.
#[test]
fn source_ranges() {
    let web = |ranges: &[&str]| {
        service(|web| {
            let web = web.load_balancer_ip("203.0.113.1").load_balancer_ip("fd00:203::1");
            let web = web.external_ip("203.0.113.2").endpoints(["10.180.0.1:80", "[fd00:10:180::1]:80"]);
            ranges.iter().fold(web, |web, range| web.source_range(range))
        })
    };
    assert_lines(
        &external(&web(&["198.51.100.0/25", "192.168.1.0/24", "fd00:198::/64"]), IpFamily::V4),
        r#"
filter -A KUBE-PROXY-FIREWALL -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 traffic not accepted by KUBE-FW-XPGD46QRK7WJZT7O" -m tcp --dport 80 -j DROP
nat -A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-XPGD46QRK7WJZT7O
nat -A KUBE-SERVICES -d 203.0.113.2/32 -p tcp -m comment --comment "ns1/svc1:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -s 192.168.1.0/24 -m comment --comment "ns1/svc1:p80 loadbalancer IP" -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -s 198.51.100.0/25 -m comment --comment "ns1/svc1:p80 loadbalancer IP" -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -s 203.0.113.1/32 -d 203.0.113.1/32 -m comment --comment "ns1/svc1:p80 loadbalancer IP" -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -m comment --comment "other traffic to ns1/svc1:p80 will be dropped by KUBE-PROXY-FIREWALL"
"#,
    );
    let v6 = r#"
filter -A KUBE-PROXY-FIREWALL -d fd00:203::1/128 -p tcp -m comment --comment "ns1/svc1:p80 traffic not accepted by KUBE-FW-XPGD46QRK7WJZT7O" -m tcp --dport 80 -j DROP
nat -A KUBE-SERVICES -d fd00:203::1/128 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-FW-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade traffic for ns1/svc1:p80 external destinations" -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -s fd00:198::/64 -m comment --comment "ns1/svc1:p80 loadbalancer IP" -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-FW-XPGD46QRK7WJZT7O -m comment --comment "other traffic to ns1/svc1:p80 will be dropped by KUBE-PROXY-FIREWALL"
"#;
    assert_lines(&external(&web(&["198.51.100.0/25", "fd00:198::/64"]), IpFamily::V6), v6);
    for open in [&["198.51.100.0/25"][..], &["fd00:198::/64", "::/0"]] {
        let lines = external(&web(open), IpFamily::V6);
        assert_eq!(with("KUBE-FW-", lines), [""; 0], "{open:?}");
    }
}

/// kube-proxy rejects all clients. Here clients outside the ranges are dropped, as when there are endpoints.
#[test]
fn source_ranges_without_endpoints() {
    let web =
        service(|web| web.cluster_ip("172.30.0.41").load_balancer_ip("203.0.113.1").source_range("198.51.100.0/25"));
    assert_lines(
        &external(&web, IpFamily::V4),
        r#"
filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter -A KUBE-PROXY-FIREWALL -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 traffic not accepted by KUBE-FW-XPGD46QRK7WJZT7O" -m tcp --dport 80 -j KUBE-FW-XPGD46QRK7WJZT7O
filter -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter -A KUBE-FW-XPGD46QRK7WJZT7O -s 198.51.100.0/25 -j RETURN
filter -A KUBE-FW-XPGD46QRK7WJZT7O -j DROP
"#,
    );
}

#[test]
fn external_policy_local() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").load_balancer_ip("203.0.113.1").node_port(30080);
        let web = web.external_local().health_check_node_port(32000);
        web.endpoints(TWO).local_endpoints(HERE)
    });
    assert_written(
        &web,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
filter -A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1 health check node port" -m tcp --dport 32000 -j ACCEPT
nat -A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80" -m tcp --dport 30080 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 loadbalancer IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -s 10.0.0.0/8 -m comment --comment "pod traffic for ns1/svc1:p80 external destinations" -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "route LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVL-XPGD46QRK7WJZT7O
nat -A KUBE-SEP-LXVODXWDISEETFEF -s 10.180.0.2/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-LXVODXWDISEETFEF -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.2:80
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -s 10.180.0.1/32 -m comment --comment "ns1/svc1:p80" -j KUBE-MARK-MASQ
nat -A KUBE-SEP-SXIVWICOYRO3J4NJ -p tcp -m comment --comment "ns1/svc1:p80" -m tcp -j DNAT --to-destination 10.180.0.1:80
nat -A KUBE-SVC-XPGD46QRK7WJZT7O ! -s 10.0.0.0/8 -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 cluster IP" -m tcp --dport 80 -j KUBE-MARK-MASQ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -m statistic --mode random --probability 0.50000000000 -j KUBE-SEP-SXIVWICOYRO3J4NJ
nat -A KUBE-SVC-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.2:80" -j KUBE-SEP-LXVODXWDISEETFEF
nat -A KUBE-SVL-XPGD46QRK7WJZT7O -m comment --comment "ns1/svc1:p80 -> 10.180.0.1:80" -j KUBE-SEP-SXIVWICOYRO3J4NJ
"#,
    );
}

/// Pods and the node reach endpoints on other nodes; other packets are dropped, because endpoints exist elsewhere.
/// kube-proxy matches node ports without endpoints at all addresses of the node; here they are served at some only, so
/// they have their own chain.
#[test]
fn external_policy_local_without_local_endpoints() {
    let web = service(|web| {
        let web = web.cluster_ip("fd00:172:30::41").external_ip("fd00:203::1").node_port(30080);
        web.external_local().endpoints(["[fd00:10:180::1]:80"])
    });
    assert_lines(
        &external(&web, IpFamily::V6),
        r#"
filter -A FAIRLEAD-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80 has no local endpoints" -m tcp --dport 30080 -j DROP
filter -A KUBE-EXTERNAL-SERVICES -d fd00:203::1/128 -p tcp -m comment --comment "ns1/svc1:p80 has no local endpoints" -m tcp --dport 80 -j DROP
nat -A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80" -m tcp --dport 30080 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-SERVICES -d fd00:203::1/128 -p tcp -m comment --comment "ns1/svc1:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -s fd00:10::/32 -m comment --comment "pod traffic for ns1/svc1:p80 external destinations" -j KUBE-SVC-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "route LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-SVC-XPGD46QRK7WJZT7O
"#,
    );
}

/// The only endpoints are local and terminating: the cluster pool, which pods and the node use, is empty.
#[test]
fn external_policy_local_with_terminating_local_endpoints_only() {
    let web = service(|web| web.external_ip("203.0.113.1").external_local().terminating_endpoints(HERE));
    assert_lines(
        &external(&web, IpFamily::V4),
        r#"
filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 has no local endpoints" -m tcp --dport 80 -j DROP
nat -A KUBE-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 external IP" -m tcp --dport 80 -j KUBE-EXT-XPGD46QRK7WJZT7O
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -s 10.0.0.0/8 -m comment --comment "pod traffic for ns1/svc1:p80 external destinations" -j RETURN
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "masquerade LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j KUBE-MARK-MASQ
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -m comment --comment "route LOCAL traffic for ns1/svc1:p80 external destinations" -m addrtype --src-type LOCAL -j RETURN
nat -A KUBE-EXT-XPGD46QRK7WJZT7O -j KUBE-SVL-XPGD46QRK7WJZT7O
"#,
    );
}

/// The health check is accepted all the same.
#[test]
fn without_endpoints_all_vips_reject() {
    let web = service(|web| {
        let web = web.cluster_ip("172.30.0.41").external_ip("203.0.113.2").load_balancer_ip("203.0.113.1");
        web.node_port(30080).external_local().health_check_node_port(32000)
    });
    assert_written(
        &web,
        IpFamily::V4,
        r#"
filter -A FAIRLEAD-CLUSTER-IPS -d 172.30.0.41/32 -m comment --comment "ns1/svc1 has no such port" -j FAIRLEAD-REJECT
filter -A FAIRLEAD-NODEPORTS -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 30080 -j REJECT --reject-with tcp-reset
filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.1/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter -A KUBE-EXTERNAL-SERVICES -d 203.0.113.2/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
filter -A KUBE-NODEPORTS -p tcp -m comment --comment "ns1/svc1 health check node port" -m tcp --dport 32000 -j ACCEPT
filter -A KUBE-SERVICES -d 172.30.0.41/32 -p tcp -m comment --comment "ns1/svc1:p80 has no endpoints" -m tcp --dport 80 -j REJECT --reject-with tcp-reset
"#,
    );
}
