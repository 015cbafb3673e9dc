//! The enums and flags of expressions, with their numbers in `linux/netfilter/nf_tables.h` and their names in nft.

numbered! {
    /// `enum nft_payload_bases`.
    PayloadBase {
        /// The Ethernet header.
        Link = 0 "ll",
        /// The IP header.
        Network = 1 "nh",
        /// The TCP, UDP or SCTP header.
        Transport = 2 "th",
    }
}

numbered! {
    /// `enum nft_meta_keys`, as far as this crate supports them.
    MetaKey {
        /// `meta priority`.
        Priority = 2 "meta priority",
        /// `meta mark`, host byte order.
        Mark = 3 "meta mark",
        /// `iif`: the incoming interface's number, host byte order.
        Iif = 4 "iif",
        /// `oif`: the outgoing interface's number, host byte order.
        Oif = 5 "oif",
        /// `iifname`, 16 bytes.
        Iifname = 6 "iifname",
        /// `oifname`, 16 bytes.
        Oifname = 7 "oifname",
        /// `meta nfproto`: 1 byte, the address family.
        Nfproto = 15 "meta nfproto",
        /// `meta l4proto`: 1 byte, the transport protocol.
        L4proto = 16 "meta l4proto",
    }
}

numbered! {
    /// `enum nft_ct_keys`, as far as this crate supports them.
    CtKey {
        /// `ct state`: a bit set, host byte order; [`CtKey::STATE_NEW`] and so on.
        State = 0 "state",
        /// `ct direction`.
        Direction = 1 "direction",
        /// `ct status`: a bit set, host byte order.
        Status = 2 "status",
        /// `ct mark`.
        Mark = 3 "mark",
        /// `ct protocol`.
        Protocol = 10 "protocol",
        /// `ct proto-src`: the source port of a direction.
        ProtoSrc = 11 "proto-src",
        /// `ct proto-dst`: the destination port of a direction.
        ProtoDst = 12 "proto-dst",
        /// `ct ip saddr` of a direction.
        SrcIp = 19 "ip saddr",
        /// `ct ip daddr` of a direction.
        DstIp = 20 "ip daddr",
        /// `ct ip6 saddr` of a direction.
        SrcIp6 = 21 "ip6 saddr",
        /// `ct ip6 daddr` of a direction.
        DstIp6 = 22 "ip6 daddr",
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
    /// `IPS_DST_NAT`: the destination is translated.
    pub const STATUS_DNAT: u32 = 1 << 5;
}

numbered! {
    /// `enum ip_conntrack_dir`.
    CtDirection {
        /// From the peer that opened the connection.
        Original = 0 "original ",
        /// To the peer that opened the connection.
        Reply = 1 "reply ",
    }
}

numbered! {
    /// `enum nft_fib_result`.
    FibResult {
        /// The outgoing interface's number.
        Oif = 1 "oif",
        /// The outgoing interface's name.
        Oifname = 2 "oifname",
        /// The address's type: `RTN_LOCAL` (2) and so on, host byte order.
        AddrType = 3 "type",
    }
}

numbered! {
    /// `enum nft_cmp_ops`.
    CmpOp {
        /// Equal.
        Eq = 0 "",
        /// Not equal.
        Neq = 1 "!= ",
        /// Less.
        Lt = 2 "< ",
        /// Less or equal.
        Lte = 3 "<= ",
        /// Greater.
        Gt = 4 "> ",
        /// Greater or equal.
        Gte = 5 ">= ",
    }
}

numbered! {
    /// `enum nft_range_ops`.
    RangeOp {
        /// Inside the range.
        Eq = 0 "",
        /// Outside the range.
        Neq = 1 "!= ",
    }
}

numbered! {
    /// Whether a rule continues after a hit or a miss of a lookup: `NFT_LOOKUP_F_INV`.
    LookupMatch {
        /// The key is in the set.
        InSet = 0,
        /// The key is not in the set; not for maps.
        NotInSet = 1,
    }
}

numbered! {
    /// `enum nft_dynset_ops`.
    DynsetOp {
        /// Adds the element; an existing one stays unchanged.
        Add = 0 "add",
        /// Adds the element, or renews the timeout of an existing one (never its data).
        Update = 1 "update",
        /// Deletes the element.
        Delete = 2 "delete",
    }
}

numbered! {
    /// `enum nft_ng_types`.
    NumgenType {
        /// Sequential numbers.
        Incremental = 0 "inc",
        /// Random numbers.
        Random = 1 "random",
    }
}

numbered! {
    /// `enum nft_nat_types`.
    NatType {
        /// Source NAT.
        Snat = 0 "snat",
        /// Destination NAT.
        Dnat = 1 "dnat",
    }
}

/// The reply to the sender of a rejected packet: `enum nft_reject_types`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// An ICMP or ICMPv6 "destination unreachable" with this code, by the table's family.
    Icmp(u8),
    /// A TCP reset.
    TcpReset,
    /// One of `enum nft_reject_inet_code`; works in `inet` tables only (an `ip` table accepts it, and sends
    /// nothing).
    Icmpx(u8),
}

impl RejectWith {
    /// ICMP code 3, port unreachable.
    pub const PORT_UNREACHABLE: RejectWith = RejectWith::Icmp(3);
    /// ICMPv6 code 4, port unreachable.
    pub const PORT_UNREACHABLE_V6: RejectWith = RejectWith::Icmp(4);
}

flags! {
    /// `NF_NAT_RANGE_*`, without those that the registers imply (`MAP_IPS`, `PROTO_SPECIFIED`).
    NatFlags {
        /// Keeps the port if it is free.
        pub NONE = 0,
        /// `random`: selects the port by a keyed hash.
        pub RANDOM = 4 "random",
        /// `fully-random`: selects a random port.
        pub FULLY_RANDOM = 16 "fully-random",
        /// `persistent`: the same address for the same client.
        pub PERSISTENT = 8 "persistent",
    }
}

flags! {
    /// `enum nft_fib_flags`.
    FibFlags {
        /// Looks up the source address.
        pub SADDR = 1 "saddr",
        /// Looks up the destination address.
        pub DADDR = 2 "daddr",
        /// Considers the packet's mark.
        pub MARK = 4 "mark",
        /// Considers the incoming interface.
        pub IIF = 8 "iif",
        /// Considers the outgoing interface.
        pub OIF = 16 "oif",
        /// The result is whether there is a route.
        pub PRESENT = 32,
    }
}
