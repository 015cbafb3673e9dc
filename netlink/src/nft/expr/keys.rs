//! The choices inside expressions, with their numbers in `linux/netfilter/nf_tables.h` and their names in nft.

use std::ops::BitOr;

/// A C enum: variants with numbers, both ways.
macro_rules! numbered {
    ($(#[$doc:meta])* $name:ident { $($(#[$var_doc:meta])* $var:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$var_doc])* $var = $number,)* }

        impl $name {
            pub(crate) const fn number(self) -> u32 {
                self as u32
            }

            pub(crate) const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some($name::$var),)*
                    _ => None,
                }
            }
        }
    };
}

numbered! {
    /// `enum nft_payload_bases`.
    PayloadBase {
        /// The Ethernet header.
        Link = 0,
        /// The IP header.
        Network = 1,
        /// The TCP, UDP or SCTP header.
        Transport = 2,
    }
}

numbered! {
    /// `enum nft_meta_keys`, as far as we use them.
    MetaKey {
        /// `meta priority`.
        Priority = 2,
        /// `meta mark`, host byte order.
        Mark = 3,
        /// `iif`: the incoming interface's number, host byte order.
        Iif = 4,
        /// `oif`: the outgoing interface's number, host byte order.
        Oif = 5,
        /// `iifname`, 16 bytes.
        Iifname = 6,
        /// `oifname`, 16 bytes.
        Oifname = 7,
        /// `meta nfproto`: 1 byte, the address family.
        Nfproto = 15,
        /// `meta l4proto`: 1 byte, the transport protocol.
        L4proto = 16,
    }
}

numbered! {
    /// `enum nft_ct_keys`, as far as we use them.
    CtKey {
        /// `ct state`: a bit set, host byte order; [`CtKey::STATE_NEW`] and so on.
        State = 0,
        /// `ct direction`.
        Direction = 1,
        /// `ct status`: a bit set, host byte order.
        Status = 2,
        /// `ct mark`.
        Mark = 3,
        /// `ct protocol`.
        Protocol = 10,
        /// `ct proto-src`: the source port of a direction.
        ProtoSrc = 11,
        /// `ct proto-dst`: the destination port of a direction.
        ProtoDst = 12,
        /// `ct ip saddr` of a direction.
        SrcIp = 19,
        /// `ct ip daddr` of a direction.
        DstIp = 20,
        /// `ct ip6 saddr` of a direction.
        SrcIp6 = 21,
        /// `ct ip6 daddr` of a direction.
        DstIp6 = 22,
    }
}

impl CtKey {
    /// `NF_CT_STATE_INVALID_BIT`.
    pub const STATE_INVALID: u32 = 1;
    /// `NF_CT_STATE_BIT(IP_CT_ESTABLISHED)`.
    pub const STATE_ESTABLISHED: u32 = 2;
    /// `NF_CT_STATE_BIT(IP_CT_RELATED)`.
    pub const STATE_RELATED: u32 = 4;
    /// `NF_CT_STATE_BIT(IP_CT_NEW)`.
    pub const STATE_NEW: u32 = 8;
}

numbered! {
    /// `enum ip_conntrack_dir`.
    CtDirection {
        /// From the peer that opened the connection.
        Original = 0,
        /// To the peer that opened the connection.
        Reply = 1,
    }
}

numbered! {
    /// `enum nft_fib_result`.
    FibResult {
        /// The outgoing interface's number.
        Oif = 1,
        /// The outgoing interface's name.
        Oifname = 2,
        /// The address's type: `RTN_LOCAL` (2) and so on, host byte order.
        AddrType = 3,
    }
}

numbered! {
    /// `enum nft_cmp_ops`.
    CmpOp {
        /// Equal.
        Eq = 0,
        /// Not equal.
        Neq = 1,
        /// Less.
        Lt = 2,
        /// Less or equal.
        Lte = 3,
        /// Greater.
        Gt = 4,
        /// Greater or equal.
        Gte = 5,
    }
}

numbered! {
    /// `enum nft_range_ops`.
    RangeOp {
        /// Inside.
        Eq = 0,
        /// Outside.
        Neq = 1,
    }
}

numbered! {
    /// When a lookup lets the rule go on: `NFT_LOOKUP_F_INV`.
    LookupMatch {
        /// When the key is in the set.
        InSet = 0,
        /// When the key is not in the set; not for maps.
        NotInSet = 1,
    }
}

numbered! {
    /// `enum nft_dynset_ops`.
    DynsetOp {
        /// Adds the element; an existing one is not changed.
        Add = 0,
        /// Adds the element, or renews the timeout of an existing one (never its data).
        Update = 1,
        /// Deletes the element.
        Delete = 2,
    }
}

numbered! {
    /// `enum nft_ng_types`.
    NumgenType {
        /// One after the other.
        Incremental = 0,
        /// At random.
        Random = 1,
    }
}

numbered! {
    /// `enum nft_nat_types`.
    NatType {
        /// The source.
        Snat = 0,
        /// The destination.
        Dnat = 1,
    }
}

/// The reply to the sender of a rejected packet: `enum nft_reject_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// An ICMP or ICMPv6 "destination unreachable" with this code, by the table's family.
    Icmp(u8),
    /// A TCP reset.
    TcpReset,
    /// One of `enum nft_reject_inet_code`; works in `inet` tables only (in an `ip` table it is taken, and sends
    /// nothing).
    Icmpx(u8),
}

impl RejectWith {
    /// ICMP code 3, port unreachable.
    pub const PORT_UNREACHABLE: RejectWith = RejectWith::Icmp(3);
    /// ICMPv6 code 4, port unreachable.
    pub const PORT_UNREACHABLE_V6: RejectWith = RejectWith::Icmp(4);
}

/// A set of flags over a number.
macro_rules! flags {
    ($(#[$doc:meta])* $name:ident { $($(#[$flag_doc:meta])* $flag:ident = $number:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            $($(#[$flag_doc])* pub const $flag: $name = $name($number);)*

            /// Whether all of `flags` are set.
            pub const fn contains(self, flags: $name) -> bool {
                self.0 & flags.0 == flags.0
            }
        }

        impl BitOr for $name {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                $name(self.0 | other.0)
            }
        }
    };
}

flags! {
    /// `NF_NAT_RANGE_*`, without those that follow from the registers given (`MAP_IPS`, `PROTO_SPECIFIED`).
    NatFlags {
        /// None: keep the port if it is free.
        NONE = 0,
        /// `random`: a port by a keyed hash.
        RANDOM = 4,
        /// `persistent`: the same address for the same client.
        PERSISTENT = 8,
        /// `fully-random`: a port at random.
        FULLY_RANDOM = 16,
    }
}

flags! {
    /// `enum nft_fib_flags`.
    FibFlags {
        /// Looks up the source address.
        SADDR = 1,
        /// Looks up the destination address.
        DADDR = 2,
        /// The packet's mark counts.
        MARK = 4,
        /// The incoming interface counts.
        IIF = 8,
        /// The outgoing interface counts.
        OIF = 16,
        /// The result is only whether there is one.
        PRESENT = 32,
    }
}
