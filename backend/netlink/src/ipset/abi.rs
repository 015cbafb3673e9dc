//! Numbers of `linux/netfilter/ipset/ip_set.h`.

/// `NFNL_SUBSYS_IPSET`, in the high byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 6 << 8;

/// `IPSET_PROTOCOL`: from Linux 4.18 on.
pub(super) const PROTOCOL: u8 = 7;

/// `enum ipset_cmd`.
pub(super) mod cmd {
    constants! { u16:
        CREATE = 2, DESTROY = 3, LIST = 7, ADD = 9, DELETE = 10, TEST = 11,
    }
}

/// Attributes of a command (`IPSET_ATTR_*`).
pub(super) mod attr {
    constants! { u16:
        PROTOCOL = 1, SETNAME = 2, TYPENAME = 3, REVISION = 4, FAMILY = 5, FLAGS = 6, DATA = 7, ADT = 8, LINENO = 9,
    }
}

/// Attributes of a set (`IPSET_ATTR_*` in `IPSET_ATTR_DATA` of a creation or a list).
pub(super) mod create {
    constants! { u16: TIMEOUT = 6, CADT_FLAGS = 8, HASHSIZE = 18, MAXELEM = 19, ELEMENTS = 24 }
}

/// `IPSET_FLAG_WITH_SKBINFO`.
pub(super) const WITH_SKBINFO: u32 = 1 << 6;

/// Attributes of an entry (`IPSET_ATTR_*` in `IPSET_ATTR_DATA`).
pub(super) mod data {
    constants! { u16: IP = 1, CIDR = 3, PORT = 4, PROTO = 7, IP2 = 20, CIDR2 = 21, SKBMARK = 27 }
}

/// `IPSET_ATTR_IPADDR_IPV4`, `IPSET_ATTR_IPADDR_IPV6`.
pub(super) const IPV4: u16 = 1;
pub(super) const IPV6: u16 = 2;

/// `IPSET_FLAG_LIST_HEADER`: sets without their entries.
pub(super) const HEADERS_ONLY: u32 = 1 << 2;
/// `NLA_F_NET_BYTEORDER`, required in the type of numbers of several bytes.
pub(super) const NET_BYTEORDER: u16 = 0x4000;
/// `IPSET_ERR_EXIST`; in the reply to a test: the entry is not in the set.
pub(super) const EXIST: i32 = 4103;
/// `IPSET_ERR_TYPE_SPECIFIC`: the first error number of set types; in the reply to a test: the set's type cannot
/// contain the entry.
pub(super) const TYPE_SPECIFIC: i32 = 4352;
/// `IPSET_ERR_BUSY`: a rule or another set refers to the set.
pub(super) const BUSY: i32 = 4100;
