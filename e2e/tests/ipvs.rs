//! The takeover from kube-proxy's IPVS mode, on a kernel that has IPVS: user-mode-linux. It has no nf_tables for IPv4 and IPv6, so
//! that what stands for Fairlead's rules there is a translation in iptables; to IPVS it is the same.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use fairlead_e2e::plan::{self, Family};
use fairlead_e2e::{Cluster, Netns, Protocol, Stream, fairlead, uml};

const PATIENCE: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);
/// A node port of kube-proxy's.
const NODE_PORT: u16 = 30080;

/// What others have: virtual servers on an address of theirs, on the node's, and for a mark; a device; sets.
const OTHERS: [(&str, &[&str], &str); 3] = [
    (
        "ip",
        &["-batch", "-"],
        "link add others0 type dummy\naddress add 192.0.2.77/32 dev others0\nlink set others0 up\n",
    ),
    (
        "ipvsadm",
        &["-R"],
        "-A -t 192.0.2.77:80 -s rr\n-a -t 192.0.2.77:80 -r 10.244.1.12:8080 -m\n-A -t 172.16.0.11:30081 -s rr\n\
         -A -u 172.16.0.11:30080 -s rr\n-A -f 7 -s rr\n",
    ),
    (
        "ipset",
        &["restore"],
        "create others hash:ip\nadd others 192.0.2.77\ncreate KUBE-ROUTER-PODS hash:ip\n",
    ),
];

/// What kube-proxy has, for a service on two addresses and a node port of each family, whose pod is pod-a-1.
const KUBE_PROXYS: [(&str, &[&str], &str); 5] = [
    (
        "ip",
        &["-batch", "-"],
        "link add kube-ipvs0 type dummy\n\
         address add 10.96.0.1/32 dev kube-ipvs0\naddress add 10.96.0.2/32 dev kube-ipvs0\n\
         address add fd00:10:96::1/128 dev kube-ipvs0 nodad\n",
    ),
    (
        "ipvsadm",
        &["-R"],
        "-A -t 10.96.0.1:80 -s rr\n-a -t 10.96.0.1:80 -r 10.244.1.11:8080 -m\n\
         -A -u 10.96.0.1:80 -s rr\n-a -u 10.96.0.1:80 -r 10.244.1.11:8080 -m\n\
         -A -t 10.96.0.2:80 -s rr\n-a -t 10.96.0.2:80 -r 10.244.1.11:8080 -m\n\
         -A -t [fd00:10:96::1]:80 -s rr\n-a -t [fd00:10:96::1]:80 -r [fd00:10:244:1::11]:8080 -m\n\
         -A -t 172.16.0.11:30080 -s rr\n-a -t 172.16.0.11:30080 -r 10.244.1.11:8080 -m\n",
    ),
    (
        "ipset",
        &["restore"],
        "create KUBE-CLUSTER-IP hash:ip,port\nadd KUBE-CLUSTER-IP 10.96.0.1,tcp:80\n\
         create KUBE-LOOP-BACK hash:ip,port,ip\ncreate KUBE-NODE-PORT-TCP bitmap:port range 0-65535\n\
         add KUBE-NODE-PORT-TCP 30080\ncreate KUBE-6-CLUSTER-IP hash:ip,port family inet6\n\
         create KUBE-6-LOOP-BACK hash:ip,port,ip family inet6\n\
         create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:ip,port,net family inet6\n",
    ),
    (
        "iptables-legacy-restore",
        &["--noflush"],
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
         -A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-SERVICES -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\n\
         -A KUBE-POSTROUTING -m set --match-set KUBE-LOOP-BACK dst,dst,src -j MASQUERADE\nCOMMIT\n",
    ),
    (
        "ip6tables-legacy-restore",
        &["--noflush"],
        "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
         -A POSTROUTING -j KUBE-POSTROUTING\n\
         -A KUBE-SERVICES -m set --match-set KUBE-6-CLUSTER-IP dst,dst -j ACCEPT\n\
         -A KUBE-POSTROUTING -m set --match-set KUBE-6-LOOP-BACK dst,dst,src -j MASQUERADE\nCOMMIT\n",
    ),
];

/// New connections go to pod-a-2, before IPVS sees them.
const SUCCESSOR: [(&str, &[&str], &str); 2] = [
    (
        "iptables-legacy-restore",
        &["--noflush"],
        "*nat\n-A PREROUTING -d 10.96.0.0/16 -p tcp -j DNAT --to-destination 10.244.1.12:8080\n\
         -A PREROUTING -d 10.96.0.0/16 -p udp -j DNAT --to-destination 10.244.1.12:8080\n\
         -A PREROUTING -d 172.16.0.11 -p tcp --dport 30080 -j DNAT --to-destination 10.244.1.12:8080\nCOMMIT\n",
    ),
    (
        "ip6tables-legacy-restore",
        &["--noflush"],
        "*nat\n-A PREROUTING -d fd00:10:96::/112 -p tcp -j DNAT --to-destination [fd00:10:244:1::12]:8080\nCOMMIT\n",
    ),
];

#[test]
fn the_takeover_from_ipvs_cuts_no_connection_and_leaves_others_alone() {
    uml::inside(|| {
        let modules = ["-a", "ip_vs", "ip_vs_rr", "dummy", "xt_set"];
        assert!(Command::new("modprobe").args(modules).status().expect("modprobe").success());
        let cluster = Cluster::builder().nodes(1).pods_per_node(3).start();
        let node = &cluster.node('a').netns;
        node.sysctls(&[("ipv4/vs/conntrack", "1"), ("ipv4/vs/expire_nodest_conn", "1")]);
        load(node, &OTHERS);
        let others = everything(node);
        load(node, &KUBE_PROXYS);

        let client = cluster.pod("pod-a-3").client();
        let start = |protocol, to| client.stream(protocol, to, INTERVAL).expect("a connection");
        let node_port = SocketAddr::new(cluster.node('a').address.v4.into(), NODE_PORT);
        let lasting = [
            start(Protocol::Tcp, vip(1, Family::V4)),
            start(Protocol::Tcp, vip(1, Family::V6)),
            start(Protocol::Tcp, node_port),
        ];
        let udp = start(Protocol::Udp, vip(1, Family::V4));
        flow(&lasting);
        flow(std::slice::from_ref(&udp));
        load(node, &SUCCESSOR);
        let before = everything(node);

        let (ended, said) = cleanup(node, &[]);
        assert!(!ended && said.contains("start a backend"), "{said}");
        let (ended, announced) = cleanup(node, &["--dry-run"]);
        assert!(ended && announced.starts_with("WOULD REMOVE FROM"), "{announced}");
        assert_eq!(everything(node), before);

        // What has connections stays, and they go on.
        let (ended, said) = cleanup(node, &["--force"]);
        assert!(ended && said.contains("note: IPVS carries 3 connections of"), "{said}");
        let rows = |text: &str| {
            let rows = text.lines().filter(|line| !line.starts_with("note:")).skip(1);
            rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(rows(&said), rows(&announced));
        for row in ["ipvs ipv4 virtual server on kube-ipvs0 2", "ipset set KUBE-CLUSTER-IP 1"] {
            assert!(rows(&said).iter().any(|other| other == row), "{row}: {said}");
        }
        let left = everything(node);
        let virtual_servers = left.lines().filter(|line| line.starts_with("-A "));
        assert_eq!(virtual_servers.count(), 4 + 3, "{left}");
        assert!(left.contains("kube-ipvs0") && left.contains("create KUBE-NODE-PORT-TCP"), "{left}");
        assert!(!left.contains("KUBE-CLUSTER-IP") && !left.contains("KUBE-SERVICES"), "{left}");
        flow(&lasting);
        let moved = udp.wait_until(PATIENCE, |report| report.pods.contains_key("pod-a-2"));
        assert!(moved, "UDP begins anew: {:?}", udp.report());
        for to in [vip(1, Family::V4), vip(2, Family::V4), vip(1, Family::V6), node_port] {
            assert_eq!(client.tcp(to).expect("an answer").pod, "pod-a-2", "{to}");
        }
        flow(&lasting);
        for stream in lasting {
            let report = stream.finish();
            assert!(report.is_clean() && report.pods.keys().eq(["pod-a-1"]), "{report:?}");
        }
        drop(udp);

        // The kernel remembers closed connections for two minutes; without its destination a virtual server has none.
        for server in ["10.96.0.1:80 -r 10.244.1.11:8080", "[fd00:10:96::1]:80 -r [fd00:10:244:1::11]:8080"] {
            node.feed("ipvsadm", &["-R"], &format!("-d -t {server}\n"));
        }
        node.feed("ipvsadm", &["-R"], "-d -t 172.16.0.11:30080 -r 10.244.1.11:8080\n");
        let (ended, said) = cleanup(node, &["--force"]);
        assert!(ended && !said.contains("note:"), "{said}");
        assert_eq!(everything(node), others);
        let (ended, said) = cleanup(node, &[]);
        assert!(ended && said == "There is nothing to remove.\n", "{said}");
    });
}

/// Feeds programs.
#[track_caller]
fn load(node: &Netns, inputs: &[(&str, &[&str], &str)]) {
    for (program, arguments, input) in inputs {
        node.feed(program, arguments, input);
    }
}

/// All that the takeover might touch, as its tools save it: without the translations, which stay, and without what counts.
fn everything(node: &Netns) -> String {
    let ipvs = node.output("ipvsadm", &["-S", "-n"]);
    let mut virtual_servers: Vec<_> = ipvs.lines().collect();
    virtual_servers.sort_unstable();
    let links = node.output("ip", &["-brief", "address", "show"]);
    let sets = node.output("ipset", &["save"]);
    let rules = ["iptables-legacy-save", "ip6tables-legacy-save"].map(|program| node.output(program, &[]));
    let names = rules.iter().flat_map(|saved| saved.lines()).filter(|line| line.contains("KUBE-"));
    let names: Vec<_> = names.map(|line| line.split('[').next().unwrap_or_default()).collect();
    format!("{}\n{links}{sets}{}", virtual_servers.join("\n"), names.join("\n"))
}

/// Runs `fairlead cleanup --of kube-proxy` on the node; whether it succeeded, and what it said.
#[track_caller]
fn cleanup(node: &Netns, arguments: &[&str]) -> (bool, String) {
    let mut command = fairlead();
    command.args(["cleanup", "--of", "kube-proxy"]).args(arguments);
    let output = match node.run(|| command.output()) {
        Ok(output) => output,
        Err(error) => panic!("fairlead: {error}"),
    };
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Data go through all of them, again.
#[track_caller]
fn flow(streams: &[Stream]) {
    for stream in streams {
        assert!(stream.wait_echoes(5, PATIENCE), "{:?}", stream.report());
    }
}

fn vip(number: u8, family: Family) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(number).ip(family), 80)
}
