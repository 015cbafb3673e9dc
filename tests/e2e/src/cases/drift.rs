//! Drift: the backend repairs changes of its rules by other programs, and keeps the rules of other programs.

use std::net::SocketAddr;

use super::expect::assert_pods;
use crate::{
    cluster::Cluster,
    deployment::{Backend, Deployment, TIMEOUT},
    manifests::Service,
    plan::{self, IpFamily},
    wire::Protocol,
};

const PORT: u16 = 80;

// === the cases ===

/// Another program repeatedly removes everything that the backend has programmed.
pub fn removed_rules_are_restored(backend: Backend) {
    let deployment = Deployment::start(backend, web);
    let node = &deployment.cluster().nodes()[0];
    let process = deployment.backend(node);
    let begin = process.mark();
    for times in 1..=2 {
        let mark = process.mark();
        backend.flush(&node.netns);
        process.wait_for("the repair", mark, TIMEOUT, |line| backend.programmed_revision(line).is_some());
        assert_answers(&deployment);
        let lines = process.lines_since(begin);
        let warnings = lines.iter().filter(|line| line.contains("WARN") && line.contains("another process changed"));
        // Repeated drift is logged once, unless so much time has passed that it is another incident.
        let ended = lines.iter().filter(|line| line.contains("no more drift"));
        assert_eq!(warnings.count(), 1 + ended.count(), "flushed {times} times");
    }
}

/// Changes that other programs make to their own rules trigger no repair.
pub fn rules_of_other_programs_are_kept(backend: Backend) {
    let mut deployment = Deployment::start(backend, web);
    let node = &deployment.cluster().nodes()[0];
    let (netns, mark) = (node.netns.clone(), deployment.backend(node).mark());
    backend.add_foreign_objects(&netns);
    let others = || backend.foreign_objects(&netns);
    let before = others();
    deployment.wait_until_programmed();
    // A repair would precede the change and include it.
    let lines = deployment.backend(&deployment.cluster().nodes()[0]).lines_since(mark);
    assert!(lines.iter().all(|line| !line.contains("reconciled") && !line.contains("WARN")), "{lines:?}");
    assert_eq!(others(), before);
    assert_answers(&deployment);
}

// === what they share ===

fn web(cluster: &Cluster) -> Vec<Service> {
    let service = Service::new("web").cluster_ip(plan::cluster_ip(1)).port_all(PORT, 8080);
    vec![service.pods([cluster.pod("pod-a-1"), cluster.pod("pod-b-2")])]
}

#[track_caller]
fn assert_answers(deployment: &Deployment) {
    let client = deployment.cluster().pod("pod-a-3").client();
    for family in IpFamily::ALL {
        for protocol in Protocol::ALL {
            let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
            assert_pods(&client, protocol, vip, &["pod-a-1", "pod-b-2"]);
        }
    }
}
