//! `fairlead trace`: evaluates the rules in this node's kernel for a packet, step by step.

use anyhow::{Context as _, Result, ensure};
use iptables::SavedRules;
use serde::Serialize;
use tokio::task::spawn_blocking;
use trace::{Kernel as _, LiveKernel, NodeRules, Packet, PacketOrigin, Trace};

use crate::{cli::TraceArgs, print};

/// The result of a trace.
#[derive(Debug, Serialize)]
struct TraceReport {
    /// A sentence for each possible outcome.
    summary: Vec<String>,
    #[serde(flatten)]
    trace: Trace,
}

/// Traces a packet, and prints the steps.
pub(crate) async fn run(args: TraceArgs) -> Result<()> {
    let TraceArgs { source, destination, output, .. } = args;
    ensure!(source.is_ipv4() == destination.is_ipv4(), "{source} and {destination} are of different IP families");
    let saved = iptables::save_all().await?;
    // A signal ends the command meanwhile.
    let trace = spawn_blocking(move || trace_packet(args, &saved)).await.context("the trace was cancelled")??;
    let report = TraceReport { summary: trace.summaries().iter().map(ToString::to_string).collect(), trace };
    print::value(output, &report, || report.text())
}

/// Traces a packet through these rules and the rules of nf_tables.
fn trace_packet(args: TraceArgs, saved: &[SavedRules]) -> Result<Trace> {
    let TraceArgs { source, destination, protocol, interface, .. } = args;
    let mut kernel = LiveKernel::open()?;
    let rules = NodeRules::read(saved, &mut kernel)?;
    let origin = match interface {
        Some(interface) => PacketOrigin::Interface(interface),
        None if kernel.is_local(source.ip()) => PacketOrigin::Node,
        None => PacketOrigin::Interface(kernel.output_interface(source.ip()).unwrap_or_default()),
    };
    let packet = Packet { source, destination, protocol, origin };
    trace::trace(&rules, &packet, &mut kernel)
}

impl TraceReport {
    /// The steps to each possible outcome, and the outcome.
    fn text(&self) -> String {
        let packet = &self.trace.packet;
        let mut text = match &packet.origin {
            PacketOrigin::Node => format!("{packet}, from this node\n"),
            PacketOrigin::Interface(name) if name.is_empty() => format!("{packet}, through an unknown interface\n"),
            PacketOrigin::Interface(name) => format!("{packet}, through {name}\n"),
        };
        for summary in self.trace.summaries() {
            text += "\n";
            for step in &summary.example.steps {
                text += &format!("{:<12} {}\n", step.hook, step.chain);
                if !step.rule.is_empty() {
                    text += &format!("{:13}{}\n", "", step.rule);
                }
                text += &format!("{:13}=> {}\n", "", step.action);
            }
            text += &format!("\n{summary}\n");
            for unknown in &summary.example.unknown {
                text += &format!("unknown: {unknown}\n");
            }
        }
        text
    }
}
