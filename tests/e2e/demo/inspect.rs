//! What the frontend knows of the nodes, what it sends to one, and what that kernel does with a packet.

use anyhow::{Context as _, Result, ensure};
use fairlead_e2e::{IpFamily, plan};

use crate::{
    kernel,
    reach::{PORT, load_balancer_ip},
    scene::{DEADLINE, Scene},
    show::Show,
};

/// Which node has programmed what.
pub(crate) fn status(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("Has every node programmed the cluster's Services?");
    let address = scene.address();
    let wait = format!("{}s", DEADLINE.as_secs());

    show.command("node-a", &format!("fairlead status --frontend {address}"));
    let arguments = ["status", "--frontend", &address, "--wait", &wait];
    let status = scene.cluster.node('a').netns.output(scene.program()?, &arguments);

    show.text(&status);
    ensure!(status.contains("node-a") && status.contains("node-b"), "a node is missing:\n{status}");
    Ok(())
}

/// What the kernel of a node does with a packet that nobody sends.
pub(crate) fn trace(show: &mut Show, scene: &Scene) -> Result<()> {
    show.step("What does the kernel of node-a do with a packet? (none is sent)");
    let source = plan::OUTSIDE.v4.to_string();
    let destination = format!("{}:{PORT}", load_balancer_ip(IpFamily::V4));
    let arguments = ["trace", &source, &destination];
    let command = format!("fairlead {}", arguments.join(" "));

    show.command("node-a", &command);
    let trace = scene.cluster.node('a').netns.output(scene.program()?, &arguments);
    let verdict = trace.lines().last().context("the trace is empty")?;

    show.result(verdict);
    show.detail("node-a", &command, &trace)?;
    ensure!(verdict.starts_with("sent to one of 3 endpoints"), "the packet is not sent to a pod: {verdict}");
    Ok(())
}

/// Adds to the details what node-a was sent, and its kernel objects.
pub(crate) fn describe_node(show: &mut Show, scene: &Scene) -> Result<()> {
    let node = &scene.cluster.node('a').netns;
    let arguments = ["services", "--frontend", &scene.address(), "--node", "node-a"];
    let services = node.output(scene.program()?, &arguments);

    for name in ["default/web:http/tcp", "default/local-only/tcp", "default/empty/tcp"] {
        ensure!(services.contains(name), "{name} is missing");
    }
    show.detail("node-a", &format!("fairlead {}", arguments.join(" ")), &services)?;
    kernel::describe(show, scene.backend, node)
}
