//! Others change what the backend has programmed: it is put right soon, and everything of theirs stays as it is.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::expect::assert_pods;
use crate::cluster::Cluster;
use crate::deployment::{Backend, Deployment, PATIENCE};
use crate::manifests::Service;
use crate::plan::{self, Family};
use crate::wire::Protocol;

const PORT: u16 = 80;
/// From the change to its repair, on a machine that has nothing else to do it is a fifth of this.
const REPAIR: Duration = Duration::from_secs(1);
/// So much longer a busy machine may take.
const BUSY: Duration = Duration::from_secs(4);

// === the cases ===

/// Somebody removes everything that the backend has programmed, five times.
pub fn a_flushed_table_is_repaired(backend: Backend) {
    let deployment = Deployment::start(backend, web);
    let node = &deployment.cluster().nodes()[0];
    let agent = deployment.agent(node);
    for time in 1..=2 {
        let mark = agent.mark();
        let begun = Instant::now();
        backend.flush(&node.netns);
        agent.wait_for("the repair", mark, PATIENCE, |line| backend.programmed(line).is_some());
        let took = begun.elapsed();
        assert!(took < REPAIR + BUSY, "repaired after {took:?}");
        assert_answers(&deployment);
        let said = agent.lines_since(mark);
        let said = said.iter().filter(|line| line.contains("WARN") && line.contains("somebody else changed"));
        assert_eq!(said.count(), 1, "flush {time}");
    }
}

/// What others do to rules of their own is none of the backend's business.
pub fn rules_of_others_are_left_alone(backend: Backend) {
    let deployment = Deployment::start(backend, web);
    let node = &deployment.cluster().nodes()[0];
    let agent = deployment.agent(node);
    let mark = agent.mark();
    let others = backend.rules_of_others(&node.netns);
    // Later than any repair.
    std::thread::sleep(2 * REPAIR);
    assert_eq!(agent.lines_since(mark), Vec::<String>::new());
    assert_eq!(backend.list_others(&node.netns), others);
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
    for family in Family::BOTH {
        for protocol in Protocol::ALL {
            let vip = SocketAddr::new(plan::cluster_ip(1).ip(family), PORT);
            assert_pods(&client, protocol, vip, &["pod-a-1", "pod-b-2"]);
        }
    }
}
