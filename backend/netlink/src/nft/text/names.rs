//! The names of loaded values in nft, and its notation of constants.

use proto::model::IpFamily;

use super::registers::Value;
use crate::nft::{
    expr::{CtDirection, CtKey, FibFlags, FibResult, MetaKey, NatFlags, PayloadBase, RejectWith},
    fields::FieldReader,
    set::DataType,
};

/// A part of the packet.
pub(super) fn payload(base: PayloadBase, offset: u32, len: u32) -> Value {
    let (name, kind) = match (base, offset, len) {
        (PayloadBase::Network, 9, 1) => ("ip protocol", DataType::InetProto),
        (PayloadBase::Network, 12, 4) => ("ip saddr", DataType::Ipv4Addr),
        (PayloadBase::Network, 16, 4) => ("ip daddr", DataType::Ipv4Addr),
        (PayloadBase::Network, 8, 16) => ("ip6 saddr", DataType::Ipv6Addr),
        (PayloadBase::Network, 24, 16) => ("ip6 daddr", DataType::Ipv6Addr),
        (PayloadBase::Transport, 0, 2) => ("th sport", DataType::InetService),
        (PayloadBase::Transport, 2, 2) => ("th dport", DataType::InetService),
        _ => {
            let text = format!("@{},{},{}", base.name(), offset * 8, len * 8);
            return Value::with_len(text, DataType::UNKNOWN, len as usize);
        }
    };
    Value::new(name, kind)
}

pub(super) fn meta(key: MetaKey) -> Value {
    let kind = match key {
        MetaKey::Priority | MetaKey::Mark | MetaKey::Iif | MetaKey::Oif => DataType::Mark,
        MetaKey::Iifname | MetaKey::Oifname => DataType::IfName,
        MetaKey::Nfproto => DataType::UNKNOWN,
        MetaKey::L4proto => DataType::InetProto,
    };
    Value::new(key.name(), kind)
}

pub(super) fn ct(key: CtKey, direction: Option<CtDirection>) -> Value {
    let kind = match key {
        CtKey::State => DataType::CtState,
        CtKey::Direction => DataType::UNKNOWN,
        CtKey::Status | CtKey::Mark => DataType::Mark,
        CtKey::Protocol => DataType::InetProto,
        CtKey::ProtoSrc | CtKey::ProtoDst => DataType::InetService,
        CtKey::SrcIp | CtKey::DstIp => DataType::Ipv4Addr,
        CtKey::SrcIp6 | CtKey::DstIp6 => DataType::Ipv6Addr,
    };
    let text = format!("ct {}{}", direction.map_or("", CtDirection::name), key.name());
    Value::new(text, kind)
}

pub(super) fn fib(result: FibResult, flags: FibFlags) -> Value {
    let kind = match result {
        FibResult::Oif => DataType::Mark,
        FibResult::Oifname => DataType::IfName,
        FibResult::AddrType => DataType::FibAddrType,
    };
    let check = if flags.contains(FibFlags::PRESENT) { "check " } else { "" };
    let text = format!("fib {} {check}{}", flags.names().join(" . "), result.name());
    Value::new(text, kind)
}

/// A constant of this type, an address of either family; hexadecimal if the type is not known, or too few bytes are
/// given.
pub(super) fn constant(kind: DataType, data: &[u8]) -> String {
    let mut fields = FieldReader::new(data);
    let number = || data.try_into().ok().map(u32::from_ne_bytes);

    let text = match kind {
        DataType::Ipv4Addr | DataType::Ipv6Addr => {
            let family = if data.len() == IpFamily::V6.address_len() { IpFamily::V6 } else { IpFamily::V4 };
            fields.addr(family).map(|addr| addr.to_string())
        }
        DataType::InetProto => fields.proto().map(|proto| match proto {
            1 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            58 => "ipv6-icmp".into(),
            132 => "sctp".into(),
            other => other.to_string(),
        }),
        DataType::InetService => fields.port().map(|port| port.to_string()),
        DataType::Mark | DataType::CtState => number().map(|number| format!("{number:#010x}")),
        DataType::INTEGER => number().map(|number| number.to_string()),
        // RTN_LOCAL and its neighbours in linux/rtnetlink.h
        DataType::FibAddrType => number().map(|number| match number {
            1 => "unicast".into(),
            2 => "local".into(),
            3 => "broadcast".into(),
            5 => "multicast".into(),
            other => other.to_string(),
        }),
        DataType::IfName => Some(interface_name(data)),
        DataType::Verdict | DataType::Other(_) => None,
    };

    text.unwrap_or_else(|| data.iter().fold("0x".into(), |text, byte| text + &format!("{byte:02x}")))
}

/// A name, or a prefix of names, as `"veth*"`.
fn interface_name(data: &[u8]) -> String {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    // A comparison with fewer than IFNAMSIZ bytes matches a prefix.
    let wildcard = if end == data.len() && end < 16 { "*" } else { "" };
    format!("\"{}{wildcard}\"", String::from_utf8_lossy(&data[..end]).escape_debug())
}

/// `(value & mask) ^ xor`; `|` in nft if the mask clears the bits of `xor`.
pub(super) fn masked(text: &str, kind: DataType, mask: &[u8], xor: &[u8]) -> String {
    let all_kept = mask.iter().all(|&byte| byte == 0xff);
    let is_or = mask.iter().zip(xor).all(|(&mask, &xor)| mask == !xor);
    let xor_text = constant(kind, xor);
    if is_or {
        format!("{text} | {xor_text}")
    } else if all_kept {
        format!("{text} ^ {xor_text}")
    } else {
        format!("{text} & {} ^ {xor_text}", constant(kind, mask))
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The prefix length of the mask, if all its ones precede its zeros.
pub(super) fn prefix_len(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).take_while(|&ones| ones == 8).sum();
    let partial = mask.get(ones as usize / 8).map_or(0, |byte| byte.leading_ones());
    let total: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    if ones + partial == total { Some(total) } else { None }
}

/// `new,established`.
pub(super) fn ct_states(mask: &[u8]) -> String {
    let named = [
        (CtKey::STATE_INVALID, "invalid"),
        (CtKey::STATE_ESTABLISHED, "established"),
        (CtKey::STATE_RELATED, "related"),
        (CtKey::STATE_NEW, "new"),
    ];

    let mut bits = mask.try_into().map_or(0, u32::from_ne_bytes);
    let mut names = Vec::new();
    for (bit, name) in named {
        if bits & bit != 0 {
            names.push(name.to_owned());
            bits &= !bit;
        }
    }
    if bits != 0 {
        names.push(format!("{bits:#x}"));
    }
    names.join(",")
}

/// The names, each with a space before it.
pub(super) fn nat_flags(flags: NatFlags) -> String {
    flags.names().iter().map(|name| format!(" {name}")).collect()
}

pub(super) fn reject(with: RejectWith) -> String {
    match with {
        RejectWith::TcpReset => "reject with tcp reset".into(),
        RejectWith::Icmp(code) => format!("reject with icmp {code}"),
        RejectWith::Icmpx(code) => format!("reject with icmpx {code}"),
    }
}
