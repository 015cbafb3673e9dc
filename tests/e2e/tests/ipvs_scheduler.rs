//! The annotation for the IPVS scheduler of a Service, in user-mode-linux, whose kernel has IPVS.

use std::{collections::BTreeSet, fs, time::Duration};

use e2e::{Backend, Cluster, Deployment, Netns, Protocol, eventually, manifests::Service, plan, uml};
use serde_json::json;

const ANNOTATION: &str = "fairlead.io/ipvs-scheduler";
const PORT: u16 = 80;
const TARGET_PORT: u16 = 8080;
const NODE_PORT: u16 = 30_080;
/// The file with the program by which the kernel loads modules.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of connections that the kernel counts.
const CONNECTIONS: u64 = 5;

pub(crate) fn annotation_changes_the_scheduler_in_place() {
    uml::load(&["ip_vs_wlc", "ip_vs_mh"]);
    let mut deployment = Deployment::start(Backend::Ipvs, |cluster| vec![web(cluster), service(cluster, "other", 2)]);
    let web = web(deployment.cluster());
    let node = deployment.cluster().node('a').netns.clone();
    let vip = (plan::cluster_ip(1).v4, PORT).into();
    let client = deployment.cluster().pod("pod-a-1").client();
    (0..CONNECTIONS).for_each(|_| drop(client.tcp(vip).expect("an answer")));
    // The kernel updates its statistics every two seconds.
    let is_counted = || (counted(&node) == CONNECTIONS).then_some(());
    eventually("the connections are counted", TIMEOUT, is_counted);

    // An invalid annotation and none give the default scheduler.
    for (annotations, expected) in [
        (json!({ ANNOTATION: "wlc" }), "-s wlc"),
        (json!({ ANNOTATION: "mh:port,fallback" }), "-s mh -b mh-fallback,mh-port"),
        (json!({ ANNOTATION: "mh" }), "-s mh -b mh-fallback"),
        (json!({ ANNOTATION: "best" }), "-s rr"),
        (json!({}), "-s rr"),
    ] {
        deployment.apply_changed(&web, |objects| {
            objects[0]["metadata"]["annotations"] = annotations.clone();
        });
        // In both families, at the cluster IP and for the mark of the node port.
        let (schedulers, others) = schedulers(&node);
        assert_eq!(schedulers, vec![expected; 4], "{annotations}");
        assert_eq!(others, BTreeSet::from(["-s rr".to_owned()]), "{annotations}");
        // Recreating a virtual server would reset its statistics.
        assert_eq!(counted(&node), CONNECTIONS, "{annotations}");
        assert!(client.tcp((plan::cluster_ip(2).v4, PORT).into()).is_ok(), "{annotations}");
    }
    deployment.frontend().wait_for_line(&format!("metadata.annotations[{ANNOTATION}]"), 0, TIMEOUT);
    assert!(client.tcp(vip).is_ok());
}

/// A Service whose scheduler's module cannot be loaded uses round robin until it can.
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
    let mut annotate = |scheduler: &str| {
        deployment.apply_changed(&web, |objects| {
            objects[0]["metadata"]["annotations"] = json!({ ANNOTATION: scheduler });
        });
        schedulers(&netns).0
    };
    assert_eq!(annotate("wlc"), ["-s rr"; 4]);
    assert!(client.tcp(vip).is_ok());
    fs::write(MODPROBE, loader).expect("a kernel with modules");
    assert_eq!(annotate("sed"), ["-s sed"; 4]);
    assert_eq!(annotate("wlc"), ["-s wlc"; 4]);
    let backend = deployment.backend(deployment.cluster().node('a'));
    backend.wait_for_line("the kernel has no scheduler wlc", 0, TIMEOUT);
}

/// The Service with the annotation.
fn web(cluster: &Cluster) -> Service {
    service(cluster, "web", 1).node_port(NODE_PORT)
}

fn service(cluster: &Cluster, name: &str, number: u8) -> Service {
    let service = Service::new(name).cluster_ip(plan::cluster_ip(number));
    service.port(Protocol::Tcp, PORT, TARGET_PORT).pods(cluster.pods())
}

/// The schedulers of the virtual servers of `web`, and of all others, as printed by `ipvsadm`.
#[track_caller]
fn schedulers(node: &Netns) -> (Vec<String>, BTreeSet<String>) {
    let saved = node.output("ipvsadm", &["-Sn"]);
    let servers = saved.lines().filter(|line| line.starts_with("-A "));
    let vip = plan::cluster_ip(1);
    let its = ["-A -f ".to_owned(), format!("-A -t {}:{PORT} ", vip.v4), format!("-A -t [{}]:{PORT} ", vip.v6)];
    let is_its = |line: &&str| its.iter().any(|start| line.starts_with(start));
    let (its, others): (Vec<_>, Vec<_>) = servers.partition(is_its);
    let scheduler = |line: &str| line.find("-s ").map_or("", |at| &line[at..]).trim().to_owned();
    (its.into_iter().map(scheduler).collect(), others.into_iter().map(scheduler).collect())
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
