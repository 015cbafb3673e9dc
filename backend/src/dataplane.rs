//! The data-plane rules that all backends share: the operator's options, the VIPs of a service port, which service port
//! owns a VIP, and which sources may use it. Pure; each backend translates them for its part of the kernel.

mod interface_name;
mod options;
mod vip;
mod vip_ownership;

pub use interface_name::{IFNAMSIZ, InterfaceName};
pub use options::{
    DataplaneOptions, DrainedPorts, DrainedRedirect, EffectiveOptions, InvalidPackets, LocalDetector,
    LocalhostNodePorts, Masquerade, NodePortAddresses, PodMatch, loopback, service_cidrs,
};
pub(crate) use vip::all_vips;
pub use vip::{Vip, VipKind, allowed_sources, allowed_sources_of_family, vips};
pub(crate) use vip_ownership::OwnershipChanges;
pub use vip_ownership::VipOwnership;

/// The device that has the VIPs with IPVS. It has the name of kube-proxy's, because other programs on nodes know the
/// VIPs by it: Calico neither applies policies of hosts to it nor advertises its addresses.
pub const IPVS_DEVICE: &str = "kube-ipvs0";
