//! Numbers of `linux/netfilter/nfnetlink_conntrack.h`.

/// `NFNL_SUBSYS_CTNETLINK`, in the high byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 1 << 8;

/// `enum cntl_msg_types`.
pub(super) mod msg {
    pub(crate) const GET: u16 = 1;
    pub(crate) const DELETE: u16 = 2;
}

/// Length of `struct nfgenmsg`, behind every message's header.
pub(super) const NFGENMSG: usize = 4;

/// `enum ctattr_type`.
pub(super) const TUPLE_ORIG: u16 = 1;
pub(super) const TUPLE_REPLY: u16 = 2;
pub(super) const ID: u16 = 12;
pub(super) const ZONE: u16 = 18;
pub(super) const FILTER: u16 = 25;

/// `enum ctattr_tuple`.
pub(super) mod tuple {
    pub(crate) const IP: u16 = 1;
    pub(crate) const PROTO: u16 = 2;
    pub(crate) const ZONE: u16 = 3;
}

/// `enum ctattr_ip`.
pub(super) mod ip {
    pub(crate) const V4_SRC: u16 = 1;
    pub(crate) const V4_DST: u16 = 2;
    pub(crate) const V6_SRC: u16 = 3;
    pub(crate) const V6_DST: u16 = 4;
}

/// `enum ctattr_l4proto`.
pub(super) mod proto {
    pub(crate) const NUM: u16 = 1;
    pub(crate) const SRC_PORT: u16 = 2;
    pub(crate) const DST_PORT: u16 = 3;
}

/// `enum ctattr_filter`, and the bit of its flags that says "of this protocol" (`CTA_PROTO_NUM` in `CTA_FILTER_FLAG`).
pub(super) mod filter {
    pub(crate) const ORIG_FLAGS: u16 = 1;
    pub(crate) const REPLY_FLAGS: u16 = 2;
    pub(crate) const PROTO_NUM: u32 = 1 << 3;
}

/// `IPPROTO_UDP`.
pub(super) const UDP: u8 = 17;
