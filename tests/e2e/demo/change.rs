//! Changes under traffic: a pod is replaced, a backend is restarted.

use std::{
    fs,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use fairlead_e2e::{IpFamily, Protocol};

use crate::{
    kernel::{self, Notifications},
    reach::{both_families, load_balancer_ip, millis},
    scene::{DEADLINE, Scene, message},
    show::Show,
};

/// New connections per second during a change, and the time limit.
const RATE: u32 = 200;
const BOUND: Duration = Duration::from_secs(60);
/// Connections to wait for before, during and after a change.
const SOME: u64 = 50;

/// Replaces pod-b-1 by pod-b-2 in the manifest; traffic follows.
pub(crate) fn replace_pod(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("Replace pod-b-1 by pod-b-2 in the manifest, under traffic");
    let [node_a, node_b] = ['a', 'b'].map(|letter| scene.cluster.node(letter));
    let address = scene.address();
    let watch = scene.spawn(node_a, &["watch", "--frontend", &address, "--node", "node-a"], "watch.log");
    watch.wait_for_line("commit", 0, DEADLINE);
    let mark = watch.mark();
    let to = SocketAddr::new(load_balancer_ip(IpFamily::V4), 80);
    let churn = scene.cluster.client().churn(Protocol::Tcp, to, RATE, BOUND);
    ensure!(churn.wait_attempts(SOME, DEADLINE), "no traffic");

    let file = scene.manifest("web.yaml");
    show.command("outside", &format!("sed -i 's/10.244.2.11/10.244.2.12/; s/:2::11/:2::12/' {}", file.display()));
    let text = fs::read_to_string(&file).context("read web.yaml")?;
    let edited = text.replace("10.244.2.11", "10.244.2.12").replace(":2::11", ":2::12");
    ensure!(edited != text, "web.yaml does not name pod-b-1");
    let nodes = [node_a, node_b];
    let mut kernels = Vec::new();
    for node in nodes {
        kernels.push(Notifications::listen(scene.backend, &node.netns)?);
    }
    let saved = file.with_extension("new");
    fs::write(&saved, edited).context("write web.yaml")?;
    let started = Instant::now();
    fs::rename(&saved, &file).context("replace web.yaml")?;
    let mut programmed = Vec::new();
    for ((node, kernel), backend) in nodes.into_iter().zip(&mut kernels).zip(scene.backends()) {
        kernel.commit().with_context(|| node.name.clone())?;
        backend.wait_for_line(": applied", 0, DEADLINE);
        programmed.push(format!("{} after {:.1} ms", node.name, millis(started.elapsed())));
    }
    show.result(&format!("programmed: {}", programmed.join(", ")));

    show.command("node-a", &format!("fairlead watch --frontend {address} --node node-a"));
    watch.wait_for_line("commit", mark, DEADLINE);
    watch.lines_since(mark).iter().for_each(|line| show.result(line));

    let load_balancer = |family| SocketAddr::new(load_balancer_ip(family), 80);
    let spreads = both_families(&scene.cluster.client(), load_balancer, ["pod-a-1", "pod-a-2", "pod-b-2"])?;
    show.result(&format!("load balancer, {spreads}"));

    let report = churn.finish();
    show.result(&format!(
        "{} connections from outside during the change, {} lost, the slowest {:.1} ms",
        report.attempts,
        report.failures.len(),
        millis(report.slowest)
    ));
    ensure!(report.failures.is_empty(), "connections were lost: {:?}", report.failures);
    Ok(())
}

/// Restarts the backend of node-a; the kernel keeps forwarding, and nothing is written.
pub(crate) fn restart(show: &mut Show, scene: &mut Scene) -> Result<()> {
    show.step("Restart the backend of node-a, under traffic");
    let node = scene.cluster.node('a');
    let mut notifications = Notifications::listen(scene.backend, &node.netns)?;
    let before = kernel::ours(scene.backend, &node.netns);
    let to = SocketAddr::new(load_balancer_ip(IpFamily::V4), 80);
    let client = scene.cluster.client();
    let churn = client.churn(Protocol::Tcp, to, RATE, BOUND);
    let stream = client.stream(Protocol::Tcp, to, Duration::from_millis(10)).context("open a connection")?;
    ensure!(churn.wait_attempts(SOME, DEADLINE), "no traffic");

    show.command("node-a", &format!("kill {}    # and start it again", scene.first_backend().pid()));
    let status = scene.first_backend().terminate();
    ensure!(status.success(), "the backend ended with {status}");
    ensure!(churn.wait_attempts(SOME, DEADLINE), "no traffic while the backend is stopped");

    scene.restart_first_backend();
    let backend = scene.first_backend();
    let reconciled = backend.wait_for_line("reconciled", 0, DEADLINE);
    backend.wait_for_line("following a frontend", 0, DEADLINE);
    ensure!(churn.wait_attempts(SOME, DEADLINE), "no traffic after the restart");

    let (churn, stream) = (churn.finish(), stream.finish());
    let writes = notifications.so_far()?;
    let after = kernel::ours(scene.backend, &scene.cluster.node('a').netns);
    let lost = churn.failures.len();
    let sent = stream.sent;
    let unanswered = stream.lost + stream.resets;
    show.result(&format!(
        "new connections meanwhile: {}, lost: {lost}; messages on an open one: {sent}, lost: {unanswered}",
        churn.attempts
    ));
    show.result(&format!("log: {}; writes to the kernel: {}", message(&reconciled), writes.len()));
    ensure!(reconciled.contains("writes=0"), "the backend wrote at its start: {reconciled}");
    ensure!(writes.is_empty(), "the kernel was written to: {writes:?}");
    ensure!(
        !before.is_empty() && before == after,
        "the kernel has {} lines of Fairlead, {} before",
        after.len(),
        before.len()
    );
    ensure!(churn.failures.is_empty(), "connections were lost: {:?}", churn.failures);
    ensure!(stream.is_clean(), "messages on the connection were lost: {stream:?}");
    Ok(())
}
