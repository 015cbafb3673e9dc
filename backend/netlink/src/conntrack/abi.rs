//! Numbers of `linux/netfilter/nfnetlink_conntrack.h`.

/// `NFNL_SUBSYS_CTNETLINK`, in the high byte of a message's type.
pub(super) const SUBSYSTEM: u16 = 1 << 8;

/// `enum cntl_msg_types`.
pub(crate) mod msg {
    constants! { u16: GET = 1, DELETE = 2 }
}

// `enum ctattr_type`.
constants! { u16: TUPLE_ORIG = 1, TUPLE_REPLY = 2, STATUS = 3, PROTOINFO = 4, COUNTERS_ORIG = 9, COUNTERS_REPLY = 10 }
constants! { u16: ID = 12, ZONE = 18, FILTER = 25, STATUS_MASK = 26 }

/// `enum ctattr_tuple`.
pub(super) mod tuple {
    constants! { u16: IP = 1, PROTO = 2, ZONE = 3 }
}

/// `enum ctattr_ip`.
pub(super) mod ip {
    constants! { u16: V4_SRC = 1, V4_DST = 2, V6_SRC = 3, V6_DST = 4 }
}

/// `enum ctattr_l4proto`.
pub(super) mod proto {
    constants! { u16: NUM = 1, SRC_PORT = 2, DST_PORT = 3 }
}

/// `enum ctattr_filter`, and the bit of its flags that selects the protocol (`CTA_PROTO_NUM` in `CTA_FILTER_FLAG`).
pub(super) mod filter {
    constants! { u16: ORIG_FLAGS = 1, REPLY_FLAGS = 2 }
    constants! { u32: PROTO_NUM = 1 << 3 }
}

/// `enum ctattr_counters`.
pub(super) mod counters {
    constants! { u16: PACKETS = 1, BYTES = 2 }
}

/// `enum ctattr_protoinfo`, with `enum ctattr_protoinfo_tcp` and `enum ctattr_protoinfo_sctp` in it.
pub(super) mod protoinfo {
    constants! { u16: TCP = 1, TCP_STATE = 1, SCTP = 3, SCTP_STATE = 1 }
}

/// `enum tcp_conntrack`: a connection begins, is open, closes (from 4 on), or is closed (`TIME_WAIT` and `CLOSE`).
/// `SYN_SENT2`: both peers have sent a SYN.
pub(super) mod tcp_state {
    constants! { u8: SYN_SENT = 1, ESTABLISHED = 3, TIME_WAIT = 7, CLOSE = 8, SYN_SENT2 = 9 }
}

/// `enum sctp_conntrack`. Kernels since 6.1 have no `HEARTBEAT_ACKED`.
pub(super) mod sctp_state {
    constants! { u8: CLOSED = 1, ESTABLISHED = 4, SHUTDOWN_SENT = 5, SHUTDOWN_ACK_SENT = 7, HEARTBEAT_ACKED = 9 }
}

/// `IPS_SEEN_REPLY`: the first packet was answered.
pub(super) const STATUS_SEEN_REPLY: u32 = 1 << 1;
/// `IPS_SEEN_REPLY` and `IPS_ASSURED`: the peers have answered each other.
pub(super) const STATUS_ANSWERED: u32 = STATUS_SEEN_REPLY | 1 << 2;
