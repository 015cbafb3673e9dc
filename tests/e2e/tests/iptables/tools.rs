//! How often iptables is run, and waiting while another process has its lock.

use std::{fs::File, time::Duration};

use e2e::{Backend, Cluster, Deployment, Monitor, manifests::Service, plan};
use nix::sys::signal::Signal;

const TIMEOUT: Duration = Duration::from_secs(20);

fn web(cluster: &Cluster) -> Service {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(80, 8080).node_port(30_080);
    service.pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-1")])
}

#[test]
fn restart_reads_each_family_once() {
    for (backend, saved) in [
        (Backend::IptablesNft, ["iptables-nft-save", "ip6tables-nft-save"]),
        (Backend::IptablesLegacy, ["iptables-legacy-save", "ip6tables-legacy-save"]),
    ] {
        let mut deployment = Deployment::start(backend, |cluster| vec![web(cluster)]);
        deployment.stop_backends(Signal::SIGKILL);
        let Monitor::Iptables(mut calls) = deployment.monitor(deployment.cluster().node('a')) else {
            panic!("{backend:?} runs programs")
        };
        deployment.start_backends();
        // A killed program may not have written its last input.
        let restored = calls.restored().into_iter().filter(|line| !Deployment::is_fence(line));
        assert_eq!(restored.collect::<Vec<_>>(), [""; 0], "{backend:?}");
        // The search for rules of other modes, which follows the first sync, does not read those of this variant.
        deployment.wait_until_programmed();
        let calls = calls.saved();
        let reads: Vec<_> = calls.iter().filter(|call| saved.contains(&call.as_str())).collect();
        // Of changes by other processes the nft variant is notified; rules of the legacy variant are polled.
        let first = if backend == Backend::IptablesNft { &reads } else { &reads[..2] };
        assert_eq!(first, &saved, "{backend:?}: {calls:?}");
    }
}

#[test]
fn waiting_for_the_lock_is_logged() {
    let deployment = Deployment::start(Backend::IptablesLegacy, |cluster| vec![web(cluster)]);
    let node = deployment.cluster().node('a');
    let backend = deployment.backend(node);
    let mark = backend.mark();
    let lock = File::open(node.netns.iptables_lock()).expect("the lock's file");
    lock.lock().expect("the lock");
    let more = Service::new("more").cluster_ip(plan::cluster_ip(2)).port_all(80, 8080);
    deployment.manifests().apply(&more.pods([deployment.cluster().pod("pod-a-2")]));
    backend.wait_for("a wait", mark, TIMEOUT, |line| line.contains("waiting for the xtables lock of another process"));
    drop(lock);
    backend.wait_for("the change", mark, TIMEOUT, |line| line.contains("applied") && line.contains("lock_wait_ms="));
}
