//! Numbers of `linux/netfilter/ipset/ip_set.h`.

/// `NFNL_SUBSYS_IPSET`, in the high byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 6 << 8;

/// `IPSET_PROTOCOL`: from Linux 4.18 on.
pub(super) const PROTOCOL: u8 = 7;

/// `enum ipset_cmd`.
pub(super) mod cmd {
    pub(crate) const CREATE: u16 = 2;
    pub(crate) const DESTROY: u16 = 3;
    pub(crate) const FLUSH: u16 = 4;
    pub(crate) const SWAP: u16 = 6;
    pub(crate) const LIST: u16 = 7;
    pub(crate) const ADD: u16 = 9;
    pub(crate) const DELETE: u16 = 10;
    pub(crate) const TEST: u16 = 11;
}

/// Length of `struct nfgenmsg`, behind every message's header.
pub(super) const NFGENMSG: usize = 4;

/// Attributes of a command (`IPSET_ATTR_*`).
pub(super) mod attr {
    pub(crate) const PROTOCOL: u16 = 1;
    pub(crate) const SETNAME: u16 = 2;
    pub(crate) const TYPENAME: u16 = 3;
    /// `IPSET_ATTR_SETNAME2`: the same number in another command.
    pub(crate) const SETNAME2: u16 = 3;
    pub(crate) const REVISION: u16 = 4;
    pub(crate) const FAMILY: u16 = 5;
    pub(crate) const FLAGS: u16 = 6;
    pub(crate) const DATA: u16 = 7;
    pub(crate) const ADT: u16 = 8;
    pub(crate) const LINENO: u16 = 9;
}

/// Attributes of a set (`IPSET_ATTR_*` in `IPSET_ATTR_DATA` of a creation or a list).
pub(super) mod create {
    pub(crate) const CADT_FLAGS: u16 = 8;
    pub(crate) const HASHSIZE: u16 = 18;
    pub(crate) const MAXELEM: u16 = 19;
    pub(crate) const ELEMENTS: u16 = 24;
}

/// `IPSET_FLAG_WITH_SKBINFO`.
pub(super) const WITH_SKBINFO: u32 = 1 << 6;

/// Attributes of an entry (`IPSET_ATTR_*` in `IPSET_ATTR_DATA`).
pub(super) mod data {
    pub(crate) const IP: u16 = 1;
    pub(crate) const CIDR: u16 = 3;
    pub(crate) const PORT: u16 = 4;
    pub(crate) const PROTO: u16 = 7;
    pub(crate) const IP2: u16 = 20;
    pub(crate) const CIDR2: u16 = 21;
    pub(crate) const SKBMARK: u16 = 27;
}

/// `IPSET_ATTR_IPADDR_IPV4`, `IPSET_ATTR_IPADDR_IPV6`.
pub(super) const IPV4: u16 = 1;
pub(super) const IPV6: u16 = 2;

/// `IPSET_FLAG_LIST_HEADER`: sets without their entries.
pub(super) const HEADERS_ONLY: u32 = 1 << 2;
/// `NLA_F_NET_BYTEORDER`, which numbers of several bytes must say.
pub(super) const NET_BYTEORDER: u16 = 0x4000;
/// `IPSET_ERR_EXIST`: of a test, it is not there.
pub(super) const EXIST: i32 = 4103;
/// `IPSET_ERR_TYPE_SPECIFIC`: from here on numbers are those of a set's kind; of a test, what is asked for cannot be in
/// it.
pub(super) const TYPE_SPECIFIC: i32 = 4352;
/// `IPSET_ERR_BUSY`: a rule or another set refers to the set.
pub(super) const BUSY: i32 = 4100;
