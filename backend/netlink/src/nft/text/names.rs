//! The names of loaded values in nft, and its notation of constants.

use proto::model::IpFamily;

use super::registers::{ConstantFormat, Value};
use crate::nft::{
    expr::{CtDirection, CtKey, FibFlags, FibResult, MetaKey, NatFlags, PayloadBase, RejectWith},
    fields::FieldReader,
};

/// A part of the packet.
pub(super) fn payload(base: PayloadBase, offset: u32, len: u32) -> Value {
    let (name, format) = match (base, offset, len) {
        (PayloadBase::Network, 9, 1) => ("ip protocol", ConstantFormat::Proto),
        (PayloadBase::Network, 12, 4) => ("ip saddr", ConstantFormat::Addr),
        (PayloadBase::Network, 16, 4) => ("ip daddr", ConstantFormat::Addr),
        (PayloadBase::Network, 8, 16) => ("ip6 saddr", ConstantFormat::Addr),
        (PayloadBase::Network, 24, 16) => ("ip6 daddr", ConstantFormat::Addr),
        (PayloadBase::Transport, 0, 2) => ("th sport", ConstantFormat::Port),
        (PayloadBase::Transport, 2, 2) => ("th dport", ConstantFormat::Port),
        _ => {
            let text = format!("@{},{},{}", base.name(), offset * 8, len * 8);
            return Value::new(text, ConstantFormat::Raw, len as usize);
        }
    };
    Value::new(name, format, len as usize)
}

/// The value of a key.
pub(super) fn meta(key: MetaKey) -> Value {
    let (format, len) = match key {
        MetaKey::Priority | MetaKey::Mark | MetaKey::Iif | MetaKey::Oif => (ConstantFormat::Number, 4),
        MetaKey::Iifname | MetaKey::Oifname => (ConstantFormat::Name, 16),
        MetaKey::Nfproto => (ConstantFormat::Raw, 1),
        MetaKey::L4proto => (ConstantFormat::Proto, 1),
    };
    Value::new(key.name(), format, len)
}

pub(super) fn ct(key: CtKey, direction: Option<CtDirection>) -> Value {
    let (format, len) = match key {
        CtKey::State => (ConstantFormat::CtState, 4),
        CtKey::Direction => (ConstantFormat::Raw, 1),
        CtKey::Status | CtKey::Mark => (ConstantFormat::Number, 4),
        CtKey::Protocol => (ConstantFormat::Proto, 1),
        CtKey::ProtoSrc | CtKey::ProtoDst => (ConstantFormat::Port, 2),
        CtKey::SrcIp | CtKey::DstIp => (ConstantFormat::Addr, 4),
        CtKey::SrcIp6 | CtKey::DstIp6 => (ConstantFormat::Addr, 16),
    };
    let text = format!("ct {}{}", direction.map_or("", CtDirection::name), key.name());
    Value::new(text, format, len)
}

pub(super) fn fib(result: FibResult, flags: FibFlags) -> Value {
    let (format, len) = match result {
        FibResult::Oif => (ConstantFormat::Number, 4),
        FibResult::Oifname => (ConstantFormat::Name, 16),
        FibResult::AddrType => (ConstantFormat::AddrType, 4),
    };
    let check = if flags.contains(FibFlags::PRESENT) { "check " } else { "" };
    let text = format!("fib {} {check}{}", flags.names().join(" . "), result.name());
    Value::new(text, format, len)
}

pub(super) fn constant(format: ConstantFormat, data: &[u8]) -> String {
    let mut fields = FieldReader::new(data);
    let number = || data.try_into().ok().map(u32::from_ne_bytes);
    let text = match format {
        ConstantFormat::Addr => {
            let family = if data.len() == IpFamily::V6.address_len() { IpFamily::V6 } else { IpFamily::V4 };
            fields.addr(family).map(|addr| addr.to_string())
        }
        ConstantFormat::Proto => fields.proto().map(|proto| match proto {
            1 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            58 => "ipv6-icmp".into(),
            132 => "sctp".into(),
            other => other.to_string(),
        }),
        ConstantFormat::Port => fields.port().map(|port| port.to_string()),
        ConstantFormat::Number | ConstantFormat::CtState => number().map(|number| format!("{number:#010x}")),
        // RTN_LOCAL and its neighbours in linux/rtnetlink.h
        ConstantFormat::AddrType => number().map(|number| match number {
            1 => "unicast".into(),
            2 => "local".into(),
            3 => "broadcast".into(),
            5 => "multicast".into(),
            other => other.to_string(),
        }),
        ConstantFormat::Name => {
            let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
            // A comparison with fewer than IFNAMSIZ bytes matches a prefix.
            let wildcard = if end == data.len() && end < 16 { "*" } else { "" };
            Some(format!("\"{}{wildcard}\"", String::from_utf8_lossy(&data[..end]).escape_debug()))
        }
        ConstantFormat::Raw => None,
    };
    text.unwrap_or_else(|| data.iter().fold("0x".into(), |text, byte| text + &format!("{byte:02x}")))
}

/// `(value & mask) ^ xor`; `|` in nft if the mask clears the bits of `xor`.
pub(super) fn masked(text: &str, format: ConstantFormat, mask: &[u8], xor: &[u8]) -> String {
    let all_kept = mask.iter().all(|&byte| byte == 0xff);
    let is_or = mask.iter().zip(xor).all(|(&mask, &xor)| mask == !xor);
    let xor_text = constant(format, xor);
    if is_or {
        format!("{text} | {xor_text}")
    } else if all_kept {
        format!("{text} ^ {xor_text}")
    } else {
        format!("{text} & {} ^ {xor_text}", constant(format, mask))
    }
}

pub(super) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The prefix length of the mask, if it is one of a prefix.
pub(super) fn prefix_len(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).take_while(|&ones| ones == 8).sum();
    let partial = mask.get(ones as usize / 8).map_or(0, |byte| byte.leading_ones());
    let total: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    (ones + partial == total).then_some(total)
}

/// `new,established`.
pub(super) fn ct_states(mask: &[u8]) -> String {
    let bits = mask.try_into().map_or(0, u32::from_ne_bytes);
    let named = [
        (CtKey::STATE_INVALID, "invalid"),
        (CtKey::STATE_ESTABLISHED, "established"),
        (CtKey::STATE_RELATED, "related"),
        (CtKey::STATE_NEW, "new"),
    ];
    let rest = named.iter().fold(bits, |rest, (bit, _)| rest & !bit);
    let mut names: Vec<String> =
        named.iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| (*name).into()).collect();
    if rest != 0 {
        names.push(format!("{rest:#x}"));
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
