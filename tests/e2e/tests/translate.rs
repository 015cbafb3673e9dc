//! The test tools, checked with a few hand-written rules: clients observe translation, masquerade and hairpin,
//! background traffic counts losses and resets, and the monitor reports every change of rules.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use e2e::{Cluster, DEADLINE, Failure, IpFamily, Node, Pod, Protocol, StreamReport, patience, plan, tools};

const TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of requests that should be dropped.
const SHORT: Duration = Duration::from_millis(100);
const INTERVAL: Duration = Duration::from_millis(15);

/// Adds rules on `node` that translate port 80 of the first VIP of each range to `pod`, with masquerade of the pod's
/// traffic to itself.
fn translate(node: &Node, pod: &Pod) {
    let vips = |family| {
        [plan::cluster_ip(1), plan::load_balancer_ip(1), plan::external_ip(1)]
            .map(|vip| vip.ip(family).to_string())
            .join(", ")
    };
    let table = |keyword: &str, family| {
        let ip = pod.address.ip(family);
        let endpoint = SocketAddr::new(ip, 8080);
        format!(
            "table {keyword} by-hand\n\
             delete table {keyword} by-hand\n\
             table {keyword} by-hand {{\n\
               chain services {{\n\
                 {keyword} daddr {{ {vips} }} meta l4proto {{ tcp, udp, sctp }} th dport 80 dnat to {endpoint}\n\
               }}\n\
               chain prerouting {{ type nat hook prerouting priority dstnat; jump services; }}\n\
               chain output {{ type nat hook output priority -100; jump services; }}\n\
               chain postrouting {{ type nat hook postrouting priority srcnat;\n\
                 {keyword} saddr {ip} {keyword} daddr {ip} masquerade\n\
               }}\n\
             }}\n",
            vips = vips(family),
        )
    };
    tools::nft(&node.netns, &(table("ip", IpFamily::V4) + &table("ip6", IpFamily::V6)));
}

fn vip(family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(1).ip(family), 80)
}

#[test]
fn vip_reaches_a_pod_from_everywhere() {
    let cluster = Cluster::start();
    let target = cluster.pod("pod-b-1");
    // The node of the pod: without masquerade, answers to outside bypass the other one.
    cluster.route_vips_through(cluster.node('b'));
    cluster.nodes().iter().for_each(|node| translate(node, target));
    let clients = [
        ("outside", cluster.client(), Some(plan::OUTSIDE)),
        ("pod on the same node", cluster.pod("pod-b-2").client(), Some(cluster.pod("pod-b-2").address)),
        ("pod on the other node", cluster.pod("pod-a-1").client(), Some(cluster.pod("pod-a-1").address)),
        ("node", cluster.node('a').client(), Some(cluster.node('a').address)),
        // Masqueraded to the gateway.
        ("hairpin", target.client(), Some(plan::gateway(2))),
    ];
    for (name, client, source) in &clients {
        for family in IpFamily::ALL {
            for protocol in Protocol::ALL {
                let reply = client.ask(protocol, vip(family));
                let reply = reply.unwrap_or_else(|error| panic!("{name} over {protocol} {family}: {error}"));
                let endpoint = SocketAddr::new(target.address.ip(family), 8080);
                let source = source.map(|source| source.ip(family));
                assert_eq!(
                    (reply.pod.as_str(), Some(reply.seen_source.ip()), reply.endpoint),
                    ("pod-b-1", source, endpoint),
                    "{name} over {protocol}"
                );
            }
        }
    }
}

#[test]
fn hairpin_needs_masquerade() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let (node, pod) = (cluster.node('a'), cluster.pod("pod-a-1"));
    translate(node, pod);
    tools::nft(&node.netns, "flush chain ip by-hand postrouting\n");
    assert_eq!(pod.client().with_deadline(SHORT).udp(vip(IpFamily::V4)), Err(Failure::TimedOut));
    assert_eq!(pod.client().udp(vip(IpFamily::V6)).map(|reply| reply.pod).as_deref(), Ok("pod-a-1"));
}

#[test]
fn vips_are_routed_through_the_chosen_node() {
    let cluster = Cluster::builder().pods_per_node(1).start();
    let vips = [plan::cluster_ip(1), plan::load_balancer_ip(1), plan::external_ip(1)];
    let answers = || {
        let client = cluster.client();
        let vips = vips.iter().flat_map(|vip| vip.both());
        vips.map(|ip: IpAddr| client.tcp(SocketAddr::new(ip, 80)).is_ok()).collect::<Vec<_>>()
    };
    translate(cluster.node('b'), cluster.pod("pod-b-1"));
    let lost = cluster.client().with_deadline(SHORT).tcp(vip(IpFamily::V4));
    assert_eq!(lost, Err(Failure::TimedOut), "node-a translates nothing");
    cluster.route_vips_through(cluster.node('b'));
    assert_eq!(answers(), [true; 6]);
}

#[test]
fn rejected_and_dropped_are_distinguished() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let rules = "table inet by-hand {\n\
                   chain forward { type filter hook forward priority filter;\n\
                     tcp dport 1 reject with tcp reset\n\
                     udp dport 1 reject\n\
                     sctp dport 1 reject\n\
                     th dport 2 drop\n\
                     th dport 3 reject with icmpx type admin-prohibited\n\
                   }\n\
                 }\n";
    tools::nft(&cluster.node('a').netns, rules);
    for ip in cluster.pod("pod-a-1").address.both() {
        for protocol in Protocol::ALL {
            let ask_within = |deadline, port| {
                let client = cluster.client().with_deadline(deadline);
                client.ask(protocol, SocketAddr::new(ip, port)).map(|reply| reply.pod)
            };
            let ask = |port| ask_within(DEADLINE, port);
            assert_eq!(ask(1), Err(Failure::Refused), "{protocol} {ip}");
            assert_eq!(ask_within(SHORT, 2), Err(Failure::TimedOut), "{protocol} {ip}");
            assert_eq!(ask(3), Err(Failure::Unreachable), "{protocol} {ip}");
            assert_eq!(ask(8080).as_deref(), Ok("pod-a-1"), "{protocol} {ip}");
        }
    }
}

#[test]
fn requests_spread_over_the_pods() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
    let [one, two] = [1, 2].map(|number| cluster.node('a').pod(number).address.v4);
    let rules = format!(
        "table ip by-hand {{ chain prerouting {{ type nat hook prerouting priority dstnat;\n\
           ip daddr {} tcp dport 80 dnat to numgen inc mod 2 map {{ 0: {one}, 1: {two} }} : 8080\n\
         }}\n}}\n",
        plan::cluster_ip(1).v4
    );
    tools::nft(&cluster.node('a').netns, &rules);
    let expected = [("pod-a-1".to_owned(), 10), ("pod-a-2".to_owned(), 10)].into();
    assert_eq!(cluster.client().spread(Protocol::Tcp, vip(IpFamily::V4), 20), Ok(expected));
    let closed = SocketAddr::new(one.into(), 9);
    assert_eq!(cluster.client().spread(Protocol::Tcp, closed, 20), Err(Failure::Refused));
}

#[test]
fn tcp_stream_keeps_its_pod_and_new_connections_move() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(2).start();
    let (node, client) = (cluster.node('a'), cluster.client());
    translate(node, cluster.pod("pod-a-1"));
    let stream = client.stream(Protocol::Tcp, vip(IpFamily::V4), INTERVAL).expect("a stream");
    let churn = client.churn(Protocol::Tcp, vip(IpFamily::V4), 200, TIMEOUT);
    assert!(churn.wait_pod("pod-a-1", TIMEOUT));
    assert!(stream.wait_echoes(10, TIMEOUT));

    translate(node, cluster.pod("pod-a-2"));
    assert!(churn.wait_pod("pod-a-2", TIMEOUT));
    assert!(stream.wait_echoes(10, TIMEOUT));

    let (stream, churn) = (stream.finish(), churn.finish());
    assert!(stream.is_clean(), "{stream:?}");
    assert_eq!(stream.pods.keys().collect::<Vec<_>>(), ["pod-a-1"]);
    assert_eq!(churn.failures, []);
    assert_eq!(churn.attempts, churn.answered_by("pod-a-1") + churn.answered_by("pod-a-2"));
}

#[test]
fn stream_counts_resets_and_losses() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let pod = cluster.pod("pod-a-1");
    let to = SocketAddr::new(pod.address.v6.into(), 8080);
    // The kernel repeats segments at intervals that double, so the stream recovers as long after the loss as that took.
    let client = cluster.client().with_deadline(patience(5 * SHORT));
    let open = |protocol| client.stream(protocol, to, INTERVAL).expect("a stream");
    let (tcp, udp) = (open(Protocol::Tcp), open(Protocol::Udp));
    assert!(tcp.wait_echoes(1, TIMEOUT) && udp.wait_echoes(1, TIMEOUT));

    let drop_all = "table inet by-hand { chain forward { type filter hook forward priority filter; policy drop; }\n}\n";
    tools::nft(&cluster.node('a').netns, drop_all);
    let lost = |report: &StreamReport| report.lost > 0;
    assert!(tcp.wait_until(TIMEOUT, lost) && udp.wait_until(TIMEOUT, lost));
    tools::nft(&cluster.node('a').netns, "delete table inet by-hand\n");
    assert!(tcp.wait_echoes(1, TIMEOUT) && udp.wait_echoes(1, TIMEOUT), "both streams recover");

    pod.stop();
    let churn = cluster.client().churn(Protocol::Tcp, to, 200, TIMEOUT);
    assert!(churn.wait_attempts(5, TIMEOUT));
    assert!(!tcp.wait_echoes(1, TIMEOUT), "the wait ends with the connection");
    assert_eq!(tcp.finish().resets, 1);
    let report = churn.finish();
    assert!(report.failures.iter().all(|(_, failure)| *failure == Failure::Refused));
    assert_eq!(report.failures.len() as u64, report.attempts);

    assert!(udp.wait_until(TIMEOUT, |report| report.resets > 0));
    pod.serve(&[8080]);
    assert!(udp.wait_echoes(1, TIMEOUT), "a UDP flow survives a restart of its server");
}

#[test]
fn conntrack_entries_are_listed() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).start();
    let (node, pod) = (cluster.node('a'), cluster.pod("pod-a-1"));
    translate(node, pod);
    for family in IpFamily::ALL {
        assert_eq!(tools::conntrack(&node.netns, family, &[]), [""; 0]);
        for (protocol, filter) in [(Protocol::Udp, "udp"), (Protocol::Sctp, "sctp")] {
            cluster.client().ask(protocol, vip(family)).expect("an answer");
            let entries = tools::conntrack(&node.netns, family, &["-p", filter]);
            let [entry] = entries.as_slice() else { panic!("{entries:?}") };
            assert!(entry.contains(&format!("dst={}", plan::cluster_ip(1).ip(family))), "{entry}");
            assert!(entry.contains(&format!("src={}", pod.address.ip(family))), "{entry}");
        }
    }
}

#[test]
fn monitor_reports_changes_only() {
    let cluster = Cluster::builder().nodes(1).pods_per_node(1).ports(&[]).start();
    let netns = &cluster.node('a').netns;
    let directory = tempfile::tempdir().expect("a directory");
    let mut monitor = tools::NftMonitor::start(netns, &directory.path().join("monitor"));
    assert_eq!(monitor.changes(), [""; 0]);
    tools::nft(netns, "add table ip by-hand\nadd set ip by-hand s { type ipv4_addr; }\n");
    assert_eq!(monitor.changes(), ["add table ip by-hand", "add set ip by-hand s { type ipv4_addr; }"]);
    assert!(tools::nft_list(netns).contains("table ip by-hand"));
    assert_eq!(monitor.changes(), [""; 0]);
    tools::nft(netns, "add element ip by-hand s { 10.0.0.1 }\n");
    assert_eq!(monitor.changes(), ["add element ip by-hand s { 10.0.0.1 }"]);
}
