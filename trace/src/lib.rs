//! Follows a packet that opens a connection through the rules that are in this node's kernel, and says what happens to it, step by step.
//!
//! ```text
//!   nf_tables ──netlink──▶ nft::Tables ─┐
//!   iptables-save ─────▶ iptables::Tables ─┴▶ walk: hook after hook, chain after chain in the order of their priorities, IPVS between them
//!                                                │ asks Kernel: is this an element, an address of this node, a remembered client, a virtual server?
//!   Packet ─────────────────────────────────────▶│
//!                                                ▼
//!                               Trace: every way that it may take, how likely, with its steps and its end
//! ```
//!
//! Rules are read, never changed, and no packet is sent. Where a rule chooses at random, each choice is followed (`choice`). What is not
//! understood is said, and taken for what does not match.
//!
//! | module | holds |
//! |---|---|
//! | [`packet`](Packet) | the packet, as far as rules ask for it |
//! | `choice` | each way once, where there are several |
//! | `flow` | a packet on its way: what has become of it, and what it met |
//! | `walk` | the order of hooks and chains |
//! | [`nft`] | rules of nf_tables |
//! | [`iptables`] | rules as `iptables-save` prints them |
//! | `ipset` | what a rule looks for in a set |
//! | `ipvs` | which virtual server takes it, and where to |
//! | [`kernel`] | what is asked while it goes: the real kernel, or a made-up one |
//! | [`Trace`] | what came out |

mod choice;
mod flow;
mod ipset;
pub mod iptables;
mod ipvs;
pub mod kernel;
pub mod nft;
mod outcome;
mod packet;
#[cfg(test)]
mod testing;
mod walk;

pub use kernel::{Kernel, Live, VirtualServer};
pub use outcome::{Choice, Fate, Path, Scheduled, Step, Summary, Trace, Translation};
pub use packet::{Entry, Packet, Protocol};
pub use walk::{Rules, trace};
