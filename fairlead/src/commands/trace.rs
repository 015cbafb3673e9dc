//! `fairlead trace`: evaluates the rules in this node's kernel for a packet, step by step.

use anyhow::{Result, ensure};
use serde::Serialize;
use trace::{Kernel as _, LiveKernel, NodeRules, Packet, PacketOrigin, Trace};

use crate::{
    cli::{Origin, TraceArgs},
    print,
};

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
    let report = trace_packet(&args).await?;
    print::value(args.output, &report, || report.text())
}

async fn trace_packet(args: &TraceArgs) -> Result<TraceReport> {
    let (source, destination) = (args.source, args.destination);
    ensure!(source.is_ipv4() == destination.is_ipv4(), "{source} and {destination} are of different IP families");
    let saved = iptables::save_all().await?;
    let mut kernel = LiveKernel::open()?;
    let rules = NodeRules::read(&saved, &mut kernel)?;
    let is_own = kernel.is_local(source.ip());
    let through = || PacketOrigin::Interface(kernel.output_interface(source.ip()).unwrap_or_default());
    let origin = match (args.from, &args.interface) {
        (_, Some(interface)) => PacketOrigin::Interface(interface.clone()),
        (Some(Origin::Node), _) => PacketOrigin::Node,
        (Some(Origin::Pod | Origin::Outside), _) => through(),
        (None, None) if is_own => PacketOrigin::Node,
        (None, None) => through(),
    };
    let packet = Packet { source, destination, protocol: args.protocol, origin };
    let trace = trace::trace(&rules, &packet, &mut kernel)?;
    let summary = trace.summaries().iter().map(ToString::to_string).collect();
    Ok(TraceReport { summary, trace })
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
