//! Packet marks. The first packet of a connection to a VIP gets one, which says what becomes of it: that of a virtual server, or a verdict.
//! It is gone before the packet leaves the node.
//!
//! ```text
//!   31       24 23       16 15 14 13          4 3   2 1   0
//!   1 1 1 1 1 0 1 0  id, high   0  0     id, low     proto  variant
//! ```
//!
//! Bits 14 and 15 are left alone: kubelet and kube-proxy have given them meanings.

use std::fmt;

use netlink::ipvs::IpvsProtocol;

/// A mark of ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mark(u32);

/// Which of a service port's virtual servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Variant {
    /// The cluster pool under policy Cluster: all are masqueraded.
    External = 1,
    /// The cluster pool under policy Local, for pods and for the node itself, which alone is masqueraded.
    Inside = 2,
    /// The local pool under policy Local, for all others.
    Local = 3,
}

const TAG: u32 = 0xfa00_0000;
const TAG_MASK: u32 = 0xff00_0000;
const VARIANT_MASK: u32 = 0x3;
/// There are so many numbers for service ports, from 1.
pub(crate) const MAX_ID: u32 = (1 << 18) - 1;

// === impl Mark ===

impl Mark {
    /// The packet is dropped.
    pub(crate) const DROP: Self = Self(TAG);
    /// The packet is refused.
    pub(crate) const REJECT: Self = Self(TAG | 0x4);
    /// The packet goes to the virtual server at its address, a cluster IP.
    pub(crate) const CLUSTER_IP: Self = Self(TAG | 0x8);

    /// The packet goes to the virtual server at its address, and is treated as this variant.
    pub(crate) const fn by_address(variant: Variant) -> Self {
        Self(TAG | variant as u32)
    }

    /// That of a virtual server of the service port with this number.
    pub(crate) fn new(id: u32, protocol: IpvsProtocol, variant: Variant) -> Self {
        let protocol = match protocol {
            IpvsProtocol::Tcp => 1,
            IpvsProtocol::Udp => 2,
            IpvsProtocol::Sctp => 3,
        };
        let (high, low) = (id >> 10 & 0xff, id & 0x3ff);
        Self(TAG | high << 16 | low << 4 | protocol << 2 | variant as u32)
    }

    /// `None` when it is not ours.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        (raw & TAG_MASK == TAG).then_some(Self(raw))
    }

    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// The number of the service port; `None` of a verdict.
    pub(crate) fn id(self) -> Option<u32> {
        let id = (self.0 >> 16 & 0xff) << 10 | (self.0 >> 4 & 0x3ff);
        (id != 0 && self.0 & VARIANT_MASK != 0).then_some(id)
    }

    /// What its virtual server serves.
    pub(crate) fn protocol(self) -> Option<IpvsProtocol> {
        self.id()?;
        match self.0 >> 2 & 0x3 {
            1 => Some(IpvsProtocol::Tcp),
            2 => Some(IpvsProtocol::Udp),
            3 => Some(IpvsProtocol::Sctp),
            _ => None,
        }
    }

    /// How a rule asks for this mark.
    pub(crate) fn exactly(self) -> String {
        format!("-m mark --mark {:#x}", self.0)
    }

    /// How a rule asks for any mark of ours.
    pub(crate) fn any() -> String {
        format!("{TAG:#x}/{TAG_MASK:#x}")
    }

    /// How a rule asks for the marks of a variant.
    pub(crate) fn of_variant(variant: Variant) -> String {
        format!("-m mark --mark {:#x}/{:#x}", TAG | variant as u32, TAG_MASK | VARIANT_MASK)
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DROP => f.write_str("drop"),
            Self::REJECT => f.write_str("reject"),
            Self::CLUSTER_IP => f.write_str("cluster-ip"),
            Self(raw) => write!(f, "{raw:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_say_whose_they_are() {
        for id in [1, 2, 1_023, 1_024, 77_777, MAX_ID] {
            for protocol in [IpvsProtocol::Tcp, IpvsProtocol::Udp, IpvsProtocol::Sctp] {
                for variant in [Variant::External, Variant::Inside, Variant::Local] {
                    let mark = Mark::new(id, protocol, variant);
                    assert_eq!(Mark::from_raw(mark.raw()), Some(mark));
                    assert_eq!((mark.id(), mark.protocol()), (Some(id), Some(protocol)));
                    assert_eq!(mark.raw() & 0xc000, 0, "bits of others");
                    assert_eq!(mark.raw() & VARIANT_MASK, variant as u32);
                }
            }
        }
    }

    #[test]
    fn verdicts_are_nobodys() {
        for verdict in [Mark::DROP, Mark::REJECT, Mark::CLUSTER_IP, Mark::by_address(Variant::Local)] {
            assert_eq!((verdict.id(), verdict.protocol()), (None, None));
        }
        for verdict in [Mark::DROP, Mark::REJECT, Mark::CLUSTER_IP] {
            assert_eq!(verdict.raw() & VARIANT_MASK, 0, "no rule about a variant is about it");
        }
        assert_eq!(Mark::from_raw(0x4000), None);
        assert_eq!(Mark::from_raw(7), None);
    }
}
