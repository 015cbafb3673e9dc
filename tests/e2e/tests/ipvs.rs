//! Takeover from kube-proxy's IPVS mode, and the list of draining endpoints, in user-mode-linux, whose kernel has IPVS.
//! Since that kernel has no nf_tables for IPv4 and IPv6, DNAT rules in iptables replace those of the nftables backend
//! in the takeover.

use std::{
    net::{SocketAddr, TcpStream},
    time::{Duration, UNIX_EPOCH},
};

use e2e::{
    Backend, Cluster, Deployment, Netns, Protocol, Stream, eventually, fairlead,
    manifests::Service,
    plan::{self, IpFamily},
    uml,
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use socket2::SockRef;

const TIMEOUT: Duration = Duration::from_secs(30);
const INTERVAL: Duration = Duration::from_millis(20);
/// A node port that kube-proxy serves.
const NODE_PORT: u16 = 30080;

/// Objects that belong to neither kube-proxy nor Fairlead: a device, virtual servers on its address, on the node's and
/// for a mark, and sets.
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
    ("ipset", &["restore"], "create others hash:ip\nadd others 192.0.2.77\ncreate KUBE-ROUTER-PODS hash:ip\n"),
];

/// The objects of kube-proxy for Services with the endpoint pod-a-1, at cluster IPs of both families and a node port.
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

/// DNAT of new connections to pod-a-2, before IPVS handles them.
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

pub(crate) fn takeover_from_ipvs_keeps_connections_and_foreign_objects() {
    uml::load(&[]);
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
        start(Protocol::Tcp, vip(1, IpFamily::V4)),
        start(Protocol::Tcp, vip(1, IpFamily::V6)),
        start(Protocol::Tcp, node_port),
    ];
    let udp = start(Protocol::Udp, vip(1, IpFamily::V4));
    flow(&lasting);
    flow(std::slice::from_ref(&udp));
    load(node, &SUCCESSOR);
    let before = everything(node);

    let (succeeded, output) = cleanup(node, &[]);
    assert!(!succeeded && output.contains("start a backend"), "{output}");
    let (succeeded, announced) = cleanup(node, &["--dry-run"]);
    assert!(succeeded && announced.starts_with("WOULD REMOVE FROM"), "{announced}");
    assert_eq!(everything(node), before);

    // Virtual servers with connections stay, and their connections continue.
    let (succeeded, output) = cleanup(node, &["--force"]);
    assert!(succeeded && output.contains("note: IPVS has 3 connections to"), "{output}");
    let rows = |text: &str| {
        let rows = text.lines().filter(|line| !line.starts_with("note:")).skip(1);
        rows.map(|row| row.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(rows(&output), rows(&announced));
    for row in ["ipvs IPv4 virtual server on kube-ipvs0 2", "ipset set KUBE-CLUSTER-IP 1"] {
        assert!(rows(&output).iter().any(|other| other == row), "{row}: {output}");
    }
    let left = everything(node);
    let virtual_servers = left.lines().filter(|line| line.starts_with("-A "));
    assert_eq!(virtual_servers.count(), 4 + 3, "{left}");
    assert!(left.contains("kube-ipvs0") && left.contains("create KUBE-NODE-PORT-TCP"), "{left}");
    assert!(!left.contains("KUBE-CLUSTER-IP") && !left.contains("KUBE-SERVICES"), "{left}");
    flow(&lasting);
    let moved = udp.wait_until(TIMEOUT, |report| report.pods.contains_key("pod-a-2"));
    assert!(moved, "UDP flows restart: {:?}", udp.report());
    for to in [vip(1, IpFamily::V4), vip(2, IpFamily::V4), vip(1, IpFamily::V6), node_port] {
        assert_eq!(client.tcp(to).expect("an answer").pod, "pod-a-2", "{to}");
    }
    flow(&lasting);
    for stream in lasting {
        let report = stream.finish();
        assert!(report.is_clean() && report.pods.keys().eq(["pod-a-1"]), "{report:?}");
    }
    drop(udp);

    // The kernel keeps closed connections for two minutes, but a virtual server without destinations has none.
    for server in ["10.96.0.1:80 -r 10.244.1.11:8080", "[fd00:10:96::1]:80 -r [fd00:10:244:1::11]:8080"] {
        node.run_with_input("ipvsadm", &["-R"], &format!("-d -t {server}\n"));
    }
    node.run_with_input("ipvsadm", &["-R"], "-d -t 172.16.0.11:30080 -r 10.244.1.11:8080\n");
    let (succeeded, output) = cleanup(node, &["--force"]);
    assert!(succeeded && !output.contains("note:"), "{output}");
    assert_eq!(everything(node), others);
    let (succeeded, output) = cleanup(node, &[]);
    assert!(succeeded && output == "nothing to remove\n", "{output}");
}

/// The backend adopts kube-proxy's device with its connections. Each cleanup leaves what belongs to the other.
pub(crate) fn backend_adopts_the_device_of_kube_proxy() {
    uml::load(&[]);
    let web = |cluster: &Cluster| {
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080);
        service.pods([cluster.pod("pod-a-1")])
    };
    let builder = Deployment::builder(Backend::Ipvs).cluster(Cluster::builder().nodes(1).pods_per_node(3));
    let mut deployment = builder.start(|cluster| vec![web(cluster)]);
    let node = deployment.cluster().node('a').netns.clone();
    let state = deployment.state(deployment.cluster().node('a'));
    let remove = ["cleanup", "--backend", "ipvs", "--state-dir", state.to_str().expect("a path in UTF-8")];
    deployment.stop_backends(Signal::SIGTERM);
    let (succeeded, output) = run(&node, &remove);
    assert!(succeeded && output.contains("device kube-ipvs0"), "{output}");
    assert!(!node.output("ip", &["link"]).contains("ipvs0"));

    load(&node, &KUBE_PROXYS);
    let client = deployment.cluster().pod("pod-a-3").client();
    let lasting = [client.stream(Protocol::Tcp, vip(1, IpFamily::V4), INTERVAL).expect("a connection")];
    flow(&lasting);
    deployment.start_backends();
    deployment.wait_until_programmed();
    flow(&lasting);
    let addresses = node.output("ip", &["-brief", "address", "show"]);
    assert!(addresses.contains("kube-ipvs0") && addresses.contains("10.96.0.1/32"), "{addresses}");
    eventually("addresses of no Service are removed", TIMEOUT, || {
        let addresses = node.output("ip", &["-brief", "address", "show"]);
        (!addresses.contains("10.96.0.2/32")).then_some(())
    });

    // kube-proxy's rules and sets go, and the device stays.
    let (succeeded, output) = cleanup(&node, &[]);
    assert!(succeeded && output.contains("set KUBE-CLUSTER-IP") && !output.contains("device"), "{output}");
    flow(&lasting);
    assert_eq!(client.tcp(vip(1, IpFamily::V4)).expect("an answer").pod, "pod-a-1");
    for stream in lasting {
        assert!(stream.finish().is_clean());
    }

    // The way back: kube-proxy has written its sets, and uses the device.
    node.run_with_input("ipset", &["restore"], "create KUBE-CLUSTER-IP hash:ip,port\n");
    deployment.stop_backends(Signal::SIGTERM);
    let (succeeded, output) = run(&node, &remove);
    assert!(succeeded, "{output}");
    assert!(node.output("ip", &["link"]).contains("kube-ipvs0"));
    assert!(node.output("ipvsadm", &["-S", "-n"]).contains("-A -t 10.96.0.1:80"));
}

/// A removed endpoint is listed with its connections until the last one has ended.
pub(crate) fn draining_endpoints_are_listed() {
    uml::load(&[]);
    let web = |cluster: &Cluster, pod: &str| {
        let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port(Protocol::Tcp, 80, 8080);
        service.node_port(NODE_PORT).pods([cluster.pod(pod)])
    };
    let builder = Deployment::builder(Backend::Ipvs).argument("--ipvs-drain-timeout=10m");
    let mut deployment =
        builder.cluster(Cluster::builder().nodes(1).pods_per_node(3)).start(|cluster| vec![web(cluster, "pod-a-1")]);
    let node = deployment.cluster().node('a').netns.clone();
    let client = deployment.cluster().pod("pod-a-3").netns.clone();
    let connection = client.run(|| TcpStream::connect(vip(1, IpFamily::V4))).expect("a connection");
    let destination = |address: &str| {
        let listed = listed(&node);
        let server = listed.iter().find(|server| server["address"] == "10.96.0.1:80");
        let destinations = server.and_then(|server| server["destinations"].as_array());
        destinations?.iter().find(|destination| destination["address"] == address).cloned()
    };
    let serving = json!({
        "address": "10.244.1.11:8080", "weight": 1, "active": 1, "inactive": 0, "draining_until_micros": null,
    });
    eventually("it is listed", TIMEOUT, || (destination("10.244.1.11:8080")? == serving).then_some(()));
    let marked = |server: &Value| server["mark"].is_string() && server["vips"] == json!(["*:30080"]);
    assert!(listed(&node).iter().any(marked), "{:#?}", listed(&node));

    let moved = web(deployment.cluster(), "pod-a-2");
    deployment.apply(&moved);
    let draining = destination("10.244.1.11:8080").expect("it drains");
    assert_eq!((&draining["weight"], &draining["active"]), (&json!(0), &json!(1)));
    let until = Duration::from_micros(draining["draining_until_micros"].as_u64().expect("a time"));
    let left = until.saturating_sub(UNIX_EPOCH.elapsed().expect("the time")).as_secs();
    assert!((500..=600).contains(&left), "{draining}");
    assert_eq!(destination("10.244.1.12:8080").expect("the new endpoint")["weight"], 1);
    let (succeeded, table) = run(&node, &["services", "--kernel"]);
    assert!(succeeded && table.contains("draining until "), "{table}");

    // The kernel keeps a connection for ten seconds after a reset, but for two minutes after a regular close.
    SockRef::from(&connection).set_linger(Some(Duration::ZERO)).expect("a reset at the end");
    drop(connection);
    eventually("it is gone", 2 * TIMEOUT, || destination("10.244.1.11:8080").is_none().then_some(()));
    assert!(destination("10.244.1.12:8080").is_some());
    let (succeeded, output) = run(deployment.cluster().outside(), &["services", "--kernel"]);
    assert!(succeeded && output.starts_with("This kernel has no IPVS virtual servers of Fairlead"), "{output}");
}

/// The JSON output of `fairlead services --kernel` on a node.
#[track_caller]
fn listed(node: &Netns) -> Vec<Value> {
    let (succeeded, output) = run(node, &["services", "--kernel", "-o", "json"]);
    match serde_json::from_str(&output) {
        Ok(listed) if succeeded => listed,
        listed => panic!("{listed:?} of {output}"),
    }
}

/// Runs programs with their inputs.
#[track_caller]
fn load(node: &Netns, inputs: &[(&str, &[&str], &str)]) {
    for (program, arguments, input) in inputs {
        node.run_with_input(program, arguments, input);
    }
}

/// All objects that the takeover may change, without counters. Of the rules only kube-proxy's are included.
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

/// Runs `fairlead cleanup --of kube-proxy` on the node; returns whether it succeeded, and its output.
#[track_caller]
fn cleanup(node: &Netns, arguments: &[&str]) -> (bool, String) {
    run(node, &[&["cleanup", "--of", "kube-proxy"], arguments].concat())
}

/// Runs `fairlead` on the node; returns whether it succeeded, and its output.
#[track_caller]
fn run(node: &Netns, arguments: &[&str]) -> (bool, String) {
    let mut command = fairlead();
    command.args(arguments);
    let output = match node.run(|| command.output()) {
        Ok(output) => output,
        Err(error) => panic!("fairlead: {error}"),
    };
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Waits until messages are echoed on all streams.
#[track_caller]
fn flow(streams: &[Stream]) {
    for stream in streams {
        assert!(stream.wait_echoes(5, TIMEOUT), "{:?}", stream.report());
    }
}

fn vip(number: u8, family: IpFamily) -> SocketAddr {
    SocketAddr::new(plan::cluster_ip(number).ip(family), 80)
}
