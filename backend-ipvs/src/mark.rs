//! Packet marks. The first packet of a connection to a VIP gets one, which selects a virtual server or a verdict. It is
//! cleared before the packet leaves the node. A service port keeps the id in its marks while it has VIPs with marks;
//! after a restart it is read from the kernel.
//!
//! ```text
//!   31       24 23       16 15 14 13          4 3   2 1   0
//!   1 1 1 1 1 0 1 0  id, high   0  0     id, low     proto  kind
//! ```
//!
//! The number of a protocol is its place in [`Protocol::ALL`], from 1. Bits 14 and 15 are not used: kubelet and
//! kube-proxy use them.

use std::fmt;

use proto::model::Protocol;

/// A mark of this backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Mark(u32);

/// Which of the virtual servers of a service port a mark selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum MarkKind {
    /// The cluster pool under policy Cluster; every source is masqueraded.
    External = 1,
    /// The cluster pool under policy Local, for pods and for this node; only this node is masqueraded.
    Inside = 2,
    /// The local pool under policy Local, for sources outside the cluster.
    Local = 3,
}

const TAG: u32 = 0xfa00_0000;
const TAG_MASK: u32 = 0xff00_0000;
const KIND_MASK: u32 = 0x3;

/// The highest id of a service port; ids start at 1.
pub(crate) const MAX_ID: u32 = (1 << 18) - 1;

impl MarkKind {
    pub(crate) const ALL: [Self; 3] = [Self::External, Self::Inside, Self::Local];
}

// === impl Mark ===

impl Mark {
    /// The packet is dropped.
    pub(crate) const DROP: Self = Self(TAG);
    /// The packet is rejected.
    pub(crate) const REJECT: Self = Self(TAG | 0x4);
    /// The packet goes to the virtual server at its address, a cluster IP.
    pub(crate) const CLUSTER_IP: Self = Self(TAG | 0x8);
    /// The packet is a probe of a health-check node port: it is accepted, and goes to no virtual server.
    pub(crate) const HEALTH_CHECK: Self = Self(TAG | 0xc);

    /// The packet goes to the virtual server at its address, and is masqueraded like this kind.
    pub(crate) const fn by_address(kind: MarkKind) -> Self {
        Self(TAG | kind as u32)
    }

    /// The mark of a virtual server of the service port with this id.
    pub(crate) fn new(id: u32, protocol: Protocol, kind: MarkKind) -> Self {
        let protocol = (1..).zip(Protocol::ALL).find(|(_, one)| *one == protocol).map_or(0, |(number, _)| number);
        let high = id >> 10 & 0xff;
        let low = id & 0x3ff;
        Self(TAG | high << 16 | low << 4 | protocol << 2 | kind as u32)
    }

    /// `None` if it is not a mark of this backend.
    pub(crate) fn from_raw(raw: u32) -> Option<Self> {
        if raw & TAG_MASK == TAG { Some(Self(raw)) } else { None }
    }

    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    /// The id of the service port; `None` for a verdict.
    pub(crate) fn id(self) -> Option<u32> {
        let id = (self.0 >> 16 & 0xff) << 10 | (self.0 >> 4 & 0x3ff);
        (id != 0 && self.0 & KIND_MASK != 0).then_some(id)
    }

    /// The protocol of its virtual server.
    pub(crate) fn protocol(self) -> Option<Protocol> {
        self.id()?;
        let number = self.0 >> 2 & 0x3;
        (1..).zip(Protocol::ALL).find(|(of, _)| *of == number).map(|(_, protocol)| protocol)
    }

    /// The match of a rule for this mark.
    pub(crate) fn exactly(self) -> String {
        format!("-m mark --mark {:#x}", self.0)
    }

    /// The value and mask of any mark of this backend.
    pub(crate) fn any() -> String {
        format!("{TAG:#x}/{TAG_MASK:#x}")
    }

    /// The match of a rule for all marks of a kind.
    pub(crate) fn of_kind(kind: MarkKind) -> String {
        format!("-m mark --mark {:#x}/{:#x}", TAG | kind as u32, TAG_MASK | KIND_MASK)
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::DROP => f.write_str("drop"),
            Self::REJECT => f.write_str("reject"),
            Self::CLUSTER_IP => f.write_str("cluster-ip"),
            Self::HEALTH_CHECK => f.write_str("health-check"),
            Self(raw) => write!(f, "{raw:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_contains_id_protocol_and_variant() {
        for id in [1, 2, 1_023, 1_024, 77_777, MAX_ID] {
            for protocol in Protocol::ALL {
                for kind in MarkKind::ALL {
                    let mark = Mark::new(id, protocol, kind);
                    assert_eq!(Mark::from_raw(mark.raw()), Some(mark));
                    assert_eq!((mark.id(), mark.protocol()), (Some(id), Some(protocol)));
                    assert_eq!(mark.raw() & 0xc000, 0, "bits of kubelet and kube-proxy");
                    assert_eq!(mark.raw() & KIND_MASK, kind as u32);
                }
            }
        }
    }

    #[test]
    fn verdicts_have_no_id_and_no_protocol() {
        let verdicts = [Mark::DROP, Mark::REJECT, Mark::CLUSTER_IP, Mark::HEALTH_CHECK];
        for verdict in verdicts.into_iter().chain([Mark::by_address(MarkKind::Local)]) {
            assert_eq!((verdict.id(), verdict.protocol()), (None, None));
        }
        for verdict in verdicts {
            assert_eq!(verdict.raw() & KIND_MASK, 0, "no rule for a kind matches it");
        }
        assert_eq!(Mark::from_raw(0x4000), None);
        assert_eq!(Mark::from_raw(7), None);
    }
}
