//! Evaluates the rules in this node's kernel for a packet that opens a connection, and reports each step.
//!
//! ```text
//!   nf_tables ──netlink──▶ nft ──────┐
//!   iptables-save ───────▶ iptables ─┴▶ Table ─▶ hooks: the chains of each hook in order of priority, and IPVS
//!                                                │ reads Kernel: set elements, addresses, clients, virtual servers
//!   Packet ─────────────────────────────────────▶│
//!                                                ▼
//!                               Trace: each path that it may take, with its probability, steps and verdict
//! ```
//!
//! Rules are not changed, and no packet is sent. Where a rule chooses at random, each outcome is evaluated (`choices`).
//! An unknown condition is reported and treated as not matching.

mod choices;
mod hooks;
mod ipset;
mod iptables;
mod ipvs;
pub mod kernel;
mod nft;
mod outcome;
mod packet;
mod table;
#[cfg(test)]
mod testing;
mod traversal;

pub use hooks::{NodeRules, trace};
pub use kernel::{Kernel, LiveKernel, VirtualServer};
pub use outcome::{
    IpvsSelection, PacketVerdict, Path, PathSummary, PossibleEndpoint, SourceTranslation, Trace, TraceStep,
};
pub use packet::{Packet, PacketOrigin};
