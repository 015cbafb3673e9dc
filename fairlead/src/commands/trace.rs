//! `fairlead trace`: what the rules in this node's kernel do with a packet, step by step.

use anyhow::{Result, ensure};
use serde::Serialize;
use trace::{Kernel as _, LiveKernel, NodeRules, Packet, PacketOrigin, Trace};

use crate::{
    cli::{Origin, TraceArgs},
    print,
};

/// What `-o json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// One sentence for each thing that may happen.
    summary: Vec<String>,
    #[serde(flatten)]
    trace: Trace,
}

/// Reads the rules, follows the packet, prints.
pub(crate) async fn run(args: TraceArgs) -> Result<()> {
    let report = follow(&args).await?;
    print::value(args.output, &report, || report.text())
}

async fn follow(args: &TraceArgs) -> Result<Report> {
    let (source, destination) = (args.source, args.destination);
    ensure!(
        source.is_ipv4() == destination.is_ipv4(),
        "{source} and {destination} are not of one family: no packet has both"
    );
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
    Ok(Report { summary, trace })
}

impl Report {
    /// For people: the steps of one way for each thing that may happen, and what happens.
    fn text(&self) -> String {
        let packet = &self.trace.packet;
        let mut text = match &packet.origin {
            PacketOrigin::Node => format!("{packet}, from this node\n"),
            PacketOrigin::Interface(name) if name.is_empty() => format!("{packet}, from somewhere\n"),
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
