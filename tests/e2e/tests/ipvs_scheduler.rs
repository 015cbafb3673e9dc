//! `--ipvs-scheduler`, in user-mode-linux, whose kernel has IPVS.

use std::{fs, time::Duration};

use e2e::{Backend, Cluster, Deployment, Netns, Protocol, eventually, manifests::Service, plan, uml};

const FLAG: &str = "--ipvs-scheduler";
const PORT: u16 = 80;
const TARGET_PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;
/// The file with the program by which the kernel loads modules.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of connections that the kernel counts.
const CONNECTIONS: u64 = 5;

pub(crate) fn restart_with_another_scheduler_changes_it_in_place() {
    uml::load(&["ip_vs_wlc", "ip_vs_mh"]);
    let mut deployment = Deployment::start(Backend::Ipvs, |cluster| vec![web(cluster)]);
    let node = deployment.cluster().node('a').netns.clone();
    let vip = (plan::cluster_ip(1).v4, PORT).into();
    let client = deployment.cluster().pod("pod-a-1").client();
    (0..CONNECTIONS).for_each(|_| drop(client.tcp(vip).expect("an answer")));
    // The kernel updates its statistics every two seconds.
    let is_counted = || (counted(&node) == CONNECTIONS).then_some(());
    eventually("the connections are counted", TIMEOUT, is_counted);

    for (scheduler, expected) in [
        ("wlc", "-s wlc"),
        ("mh:port,fallback", "-s mh -b mh-fallback,mh-port"),
        ("mh", "-s mh -b mh-fallback"),
        ("rr", "-s rr"),
    ] {
        deployment.restart_backends_with(&[FLAG, scheduler]);

        // In both families, at the cluster IP and for the mark of the node port.
        assert_eq!(schedulers(&node), vec![expected; 4], "{scheduler}");
        // Recreating a virtual server would reset its statistics.
        assert_eq!(counted(&node), CONNECTIONS, "{scheduler}");
    }
    assert!(client.tcp(vip).is_ok());
}

/// Services whose scheduler's module cannot be loaded use round robin until it can.
pub(crate) fn missing_scheduler_is_replaced_by_round_robin() {
    uml::load(&[]);
    let mut deployment = Deployment::start(Backend::Ipvs, |cluster| vec![web(cluster)]);
    let web = web(deployment.cluster());
    let netns = deployment.cluster().node('a').netns.clone();
    let vip = (plan::cluster_ip(1).v4, PORT).into();
    let client = deployment.cluster().pod("pod-a-1").client();

    // Prevents the kernel from loading modules.
    let loader = fs::read_to_string(MODPROBE).expect("a path");
    fs::write(MODPROBE, "/bin/false").expect("a kernel with modules");
    deployment.restart_backends_with(&[FLAG, "wlc"]);
    assert_eq!(schedulers(&netns), ["-s rr"; 4]);
    assert!(client.tcp(vip).is_ok());
    let backend = deployment.backend(deployment.cluster().node('a'));
    backend.wait_for_line("the kernel has no scheduler wlc", 0, TIMEOUT);

    fs::write(MODPROBE, loader).expect("a kernel with modules");
    deployment.apply_changed(&web, |objects| {
        objects[0]["spec"]["sessionAffinity"] = "ClientIP".into();
    });
    deployment.apply_changed(&web, |_| {});
    assert_eq!(schedulers(&netns), ["-s wlc"; 4]);
}

/// A Service with a node port.
fn web(cluster: &Cluster) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1));
    service.port(Protocol::Tcp, PORT, TARGET_PORT).node_port(NODE_PORT).pods(cluster.pods())
}

/// The schedulers of all virtual servers, as printed by `ipvsadm`.
#[track_caller]
fn schedulers(node: &Netns) -> Vec<String> {
    let saved = node.output("ipvsadm", &["-Sn"]);
    let servers = saved.lines().filter(|line| line.starts_with("-A "));
    servers.map(|line| line.find("-s ").map_or("", |at| &line[at..]).trim().to_owned()).collect()
}

/// The number of connections to the virtual server at the cluster IP of `web`.
#[track_caller]
fn counted(node: &Netns) -> u64 {
    let stats = node.output("ipvsadm", &["-Ln", "--stats", "--exact"]);
    let server = format!("{}:{PORT}", plan::cluster_ip(1).v4);
    let row = stats.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|words| words.get(1) == Some(&server.as_str()));
    row.and_then(|words| words.get(2)?.parse().ok()).expect("a virtual server")
}
