//! The names that nft prints for loaded values, and its notation of constants.

use super::{element::put_proto, registers::Kind};
use crate::nft::{
    expr::{CmpOp, CtDirection, CtKey, FibFlags, FibResult, MetaKey, NatFlags, PayloadBase, RejectWith},
    fields::FieldReader,
};

/// Part of the packet, and what it is.
pub(super) fn payload(base: PayloadBase, offset: u32, len: u32) -> (String, Kind) {
    let (name, kind) = match (base, offset, len) {
        (PayloadBase::Network, 9, 1) => ("ip protocol", Kind::Proto),
        (PayloadBase::Network, 12, 4) => ("ip saddr", Kind::Addr),
        (PayloadBase::Network, 16, 4) => ("ip daddr", Kind::Addr),
        (PayloadBase::Network, 8, 16) => ("ip6 saddr", Kind::Addr),
        (PayloadBase::Network, 24, 16) => ("ip6 daddr", Kind::Addr),
        (PayloadBase::Transport, 0, 2) => ("th sport", Kind::Port),
        (PayloadBase::Transport, 2, 2) => ("th dport", Kind::Port),
        _ => {
            let base = match base {
                PayloadBase::Link => "ll",
                PayloadBase::Network => "nh",
                PayloadBase::Transport => "th",
            };
            return (format!("@{base},{},{}", offset * 8, len * 8), Kind::Raw);
        }
    };
    (name.into(), kind)
}

/// The third is the length in bytes.
pub(super) fn meta(key: MetaKey) -> (&'static str, Kind, usize) {
    match key {
        MetaKey::Priority => ("meta priority", Kind::Number, 4),
        MetaKey::Mark => ("meta mark", Kind::Number, 4),
        MetaKey::Iif => ("iif", Kind::Number, 4),
        MetaKey::Oif => ("oif", Kind::Number, 4),
        MetaKey::Iifname => ("iifname", Kind::Name, 16),
        MetaKey::Oifname => ("oifname", Kind::Name, 16),
        MetaKey::Nfproto => ("meta nfproto", Kind::Raw, 1),
        MetaKey::L4proto => ("meta l4proto", Kind::Proto, 1),
    }
}

pub(super) fn ct(key: CtKey, direction: Option<CtDirection>) -> (String, Kind, usize) {
    let (name, kind, len) = match key {
        CtKey::State => ("state", Kind::CtState, 4),
        CtKey::Direction => ("direction", Kind::Raw, 1),
        CtKey::Status => ("status", Kind::Number, 4),
        CtKey::Mark => ("mark", Kind::Number, 4),
        CtKey::Protocol => ("protocol", Kind::Proto, 1),
        CtKey::ProtoSrc => ("proto-src", Kind::Port, 2),
        CtKey::ProtoDst => ("proto-dst", Kind::Port, 2),
        CtKey::SrcIp => ("ip saddr", Kind::Addr, 4),
        CtKey::DstIp => ("ip daddr", Kind::Addr, 4),
        CtKey::SrcIp6 => ("ip6 saddr", Kind::Addr, 16),
        CtKey::DstIp6 => ("ip6 daddr", Kind::Addr, 16),
    };
    let direction = match direction {
        None => "",
        Some(CtDirection::Original) => "original ",
        Some(CtDirection::Reply) => "reply ",
    };
    (format!("ct {direction}{name}"), kind, len)
}

pub(super) fn fib(result: FibResult, flags: FibFlags) -> (String, Kind, usize) {
    let named = [
        (FibFlags::SADDR, "saddr"),
        (FibFlags::DADDR, "daddr"),
        (FibFlags::MARK, "mark"),
        (FibFlags::IIF, "iif"),
        (FibFlags::OIF, "oif"),
    ];
    let of: Vec<&str> = named.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect();
    let (result, kind, len) = match result {
        FibResult::Oif => ("oif", Kind::Number, 4),
        FibResult::Oifname => ("oifname", Kind::Name, 16),
        FibResult::AddrType => ("type", Kind::AddrType, 4),
    };
    let check = if flags.contains(FibFlags::PRESENT) { "check " } else { "" };
    (format!("fib {} {check}{result}", of.join(" . ")), kind, len)
}

/// A constant, as its kind is written.
pub(super) fn constant(kind: Kind, data: &[u8]) -> String {
    let mut fields = FieldReader::new(data);
    let number = || data.try_into().ok().map(u32::from_ne_bytes);
    let text = match kind {
        Kind::Addr if data.len() == 16 => fields.ipv6().map(|addr| addr.to_string()),
        Kind::Addr => fields.ipv4().map(|addr| addr.to_string()),
        Kind::Proto => fields.proto().and_then(|proto| {
            let mut text = String::new();
            put_proto(&mut text, proto).is_ok().then_some(text)
        }),
        Kind::Port => fields.port().map(|port| port.to_string()),
        Kind::Number | Kind::CtState => number().map(|number| format!("{number:#010x}")),
        // RTN_LOCAL and its neighbours in linux/rtnetlink.h
        Kind::AddrType => number().map(|number| match number {
            1 => "unicast".into(),
            2 => "local".into(),
            3 => "broadcast".into(),
            5 => "multicast".into(),
            other => other.to_string(),
        }),
        Kind::Name => {
            let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
            // IFNAMSIZ: what is compared with less is how names begin.
            let more = if end == data.len() && end < 16 { "*" } else { "" };
            Some(format!("\"{}{more}\"", String::from_utf8_lossy(&data[..end]).escape_debug()))
        }
        Kind::Raw => None,
    };
    text.unwrap_or_else(|| data.iter().fold("0x".into(), |text, byte| text + &format!("{byte:02x}")))
}

/// The operator and a space; nft leaves "equal" out.
pub(super) fn operator(op: CmpOp) -> &'static str {
    match op {
        CmpOp::Eq => "",
        CmpOp::Neq => "!= ",
        CmpOp::Lt => "< ",
        CmpOp::Lte => "<= ",
        CmpOp::Gt => "> ",
        CmpOp::Gte => ">= ",
    }
}

/// `(value & mask) ^ xor`; nft calls it `|` when each bit that is set was cleared before.
pub(super) fn masked(text: &str, kind: Kind, mask: &[u8], xor: &[u8]) -> String {
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

/// The length of the prefix that the mask keeps, when it keeps a prefix.
pub(super) fn prefix_len(mask: &[u8]) -> Option<u32> {
    let ones: u32 = mask.iter().map(|byte| byte.leading_ones()).take_while(|&ones| ones == 8).sum();
    let edge = mask.get(ones as usize / 8).map_or(0, |byte| byte.leading_ones());
    let total: u32 = mask.iter().map(|byte| byte.count_ones()).sum();
    (ones + edge == total).then_some(total)
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

/// With a space before each.
pub(super) fn nat_flags(flags: NatFlags) -> String {
    let named = [
        (NatFlags::RANDOM, " random"),
        (NatFlags::FULLY_RANDOM, " fully-random"),
        (NatFlags::PERSISTENT, " persistent"),
    ];
    named.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, name)| *name).collect()
}

pub(super) fn reject(with: RejectWith) -> String {
    match with {
        RejectWith::TcpReset => "reject with tcp reset".into(),
        RejectWith::Icmp(code) => format!("reject with icmp {code}"),
        RejectWith::Icmpx(code) => format!("reject with icmpx {code}"),
    }
}
