//! What all backends have in common: what an operator decides about traffic, what leads to a service port, who owns that, and who
//! may use it. Pure; how it gets into a kernel is each backend's own.

mod claims;
mod front;
mod interface;
mod options;
mod sources;
mod urgent;

pub use claims::Claims;
pub use front::{Front, VipClass, fronts};
pub use interface::{BadInterface, Interface, NAME_BYTES};
pub use options::{LocalPods, LocalhostNodePorts, Masquerade, NodePortAddresses, Options, Pods, Traffic, of_family};
pub use sources::allowed_sources;
pub use urgent::is_urgent;
