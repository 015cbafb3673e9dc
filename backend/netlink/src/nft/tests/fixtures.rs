//! Objects that the tests share, and the `nft` command.

use std::{process::Command, time::Duration};

use crate::nft::*;

impl<'a> Element<'a> {
    /// An element of an interval set: all keys from `key` to `key_end`, field by field.
    pub(crate) fn range(key: &'a [u8], key_end: &'a [u8]) -> Self {
        Element { key, key_end: Some(key_end), ..Element::default() }
    }

    /// An element of a verdict map.
    pub(crate) fn verdict(key: &'a [u8], verdict: Verdict<'a>) -> Self {
        Element { key, data: ElementData::Verdict(verdict), ..Element::default() }
    }
}

/// The register of this number.
pub(crate) fn r(number: u8) -> Register {
    Register::new(number).unwrap()
}

/// `ip daddr . meta l4proto . th dport` from this register on, for IPv4.
pub(crate) fn load_vip(first: u8) -> Vec<Expr> {
    vec![
        Expr::Payload { dreg: r(first), base: PayloadBase::Network, offset: 16, len: 4 },
        Expr::Meta { dreg: r(first + 1), key: MetaKey::L4proto },
        Expr::Payload { dreg: r(first + 2), base: PayloadBase::Transport, offset: 2, len: 2 },
    ]
}

pub(crate) fn random(dreg: u8, modulus: u32) -> Expr {
    Expr::Numgen { dreg: r(dreg), kind: NumgenType::Random, modulus, offset: 0 }
}

pub(crate) fn lookup(set: &str, sreg: u8, dreg: Option<Register>) -> Expr {
    Expr::Lookup { set: set.into(), sreg: r(sreg), dreg, matches: LookupMatch::InSet }
}

pub(crate) fn dnat(addr: u8, port: u8) -> Expr {
    Expr::Nat {
        kind: NatType::Dnat,
        family: TableFamily::Ip,
        addr: Some(r(addr)),
        addr_max: None,
        port: Some(r(port)),
        port_max: None,
        flags: NatFlags::NONE,
    }
}

const VIP: [DataType; 3] = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];

/// A verdict map.
pub(crate) fn vips() -> Set {
    Set::map("vips", VIP, [DataType::Verdict]).comment("VIP to pool")
}

/// A map of concatenations.
pub(crate) fn endpoints() -> Set {
    Set::map("endpoints", [VIP.as_slice(), &[DataType::Mark]].concat(), [DataType::Ipv4Addr, DataType::InetService])
}

/// A map whose data starts with 4 bytes of padding, for [`affine_rules`].
pub(crate) fn affine_endpoints() -> Set {
    let data = [DataType::Mark, DataType::Ipv4Addr, DataType::InetService];
    Set { name: "affine-endpoints".into(), data: data.into(), ..endpoints() }
}

/// A map that rules change.
pub(crate) fn affinity() -> Set {
    let key = [VIP.as_slice(), &[DataType::Ipv4Addr]].concat();
    let data = [DataType::Mark, DataType::Ipv4Addr, DataType::InetService];
    Set { flags: SetFlags::TIMEOUT | SetFlags::EVAL, size: Some(1000), ..Set::map("affinity", key, data) }
}

/// A plain set.
pub(crate) fn live() -> Set {
    let key = [&[DataType::Ipv4Addr, DataType::InetService], VIP.as_slice()].concat();
    Set::new("live", key)
}

/// A set of ranges of concatenations.
pub(crate) fn source_ranges() -> Set {
    let key = [VIP.as_slice(), &[DataType::Ipv4Addr]].concat();
    Set { flags: SetFlags::INTERVAL, ..Set::new("source-ranges", key).comment("who may connect") }
}

/// A map whose data starts with 4 bytes of padding, and continues with a key of [`endpoints`].
pub(crate) fn aliases() -> Set {
    Set::map("aliases", VIP, [&[DataType::Mark], VIP.as_slice()].concat())
}

/// A set of masked addresses in groups of 16 bytes.
pub(crate) fn allowed_sources() -> Set {
    Set::new("allowed-sources", [DataType::Ipv6Addr, DataType::InetService, DataType::Ipv4Addr])
}

/// A map with a key that ends with a hash.
pub(crate) fn buckets() -> Set {
    Set { name: "buckets".into(), ..endpoints() }
}

/// A map with a single field in key and data.
pub(crate) fn numbers() -> Set {
    Set::map("numbers", [DataType::Mark], [DataType::Mark])
}

pub(crate) fn all_sets() -> Vec<Set> {
    vec![
        vips(),
        endpoints(),
        affine_endpoints(),
        affinity(),
        live(),
        source_ranges(),
        aliases(),
        allowed_sources(),
        buckets(),
        numbers(),
    ]
}

/// The rules of an affinity chain. The loads from `ct`, and the constant that overwrites part of the map's result, work
/// around nft, which aborts when it lists a map's result as part of a key.
pub(crate) fn affine_rules() -> Vec<Rule> {
    let labels = [
        Expr::Ct { dreg: r(9), key: CtKey::SrcIp, direction: Some(CtDirection::Reply) },
        Expr::Ct { dreg: r(10), key: CtKey::ProtoSrc, direction: Some(CtDirection::Reply) },
    ];
    let client = Expr::Payload { dreg: r(14), base: PayloadBase::Network, offset: 12, len: 4 };
    let padding = Expr::Immediate { dreg: r(8), data: [0; 4].into() };
    let remember = |op, timeout| Expr::Dynset { set: "affinity".into(), op, key: r(11), data: Some(r(8)), timeout };
    let timeout = Some(Duration::from_secs(10));

    let mut known = labels.to_vec();
    known.extend(load_vip(11));
    known.push(client.clone());
    known.extend([lookup("affinity", 11, Some(r(8))), lookup("live", 9, None), padding.clone()]);
    known.extend([remember(DynsetOp::Update, timeout), dnat(9, 10)]);

    let mut new = labels.to_vec();
    new.extend(load_vip(11));
    new.extend([random(14, 3), lookup("affine-endpoints", 11, Some(r(8))), padding, client]);
    new.extend([remember(DynsetOp::Delete, None), remember(DynsetOp::Update, timeout), dnat(9, 10)]);
    vec![Rule::new(known).comment("a known client"), Rule::new(new)]
}

/// A rule whose key is the value of another map, behind its padding.
pub(crate) fn alias_rule() -> Rule {
    let mut exprs = load_vip(9);
    exprs.extend([lookup("aliases", 9, Some(r(8))), Expr::Immediate { dreg: r(8), data: [0; 4].into() }]);
    exprs.extend([random(12, 3), lookup("endpoints", 9, Some(r(9))), dnat(9, 10)]);
    Rule::new(exprs)
}

/// A rule with constants and a masked address in a key.
pub(crate) fn allowed_rule() -> Rule {
    Rule::new([
        Expr::Immediate { dreg: r(8), data: [0xfe; 16].into() },
        Expr::Immediate { dreg: r(12), data: 24u16.to_be_bytes().into() },
        Expr::Payload { dreg: r(13), base: PayloadBase::Network, offset: 12, len: 4 },
        Expr::Bitwise { sreg: r(13), dreg: r(13), mask: [255, 255, 255, 0].into(), xor: [0; 4].into() },
        lookup("allowed-sources", 8, None),
        Expr::Verdict(Verdict::Return),
    ])
}

/// A rule with a hash in a key.
pub(crate) fn bucket_rule() -> Rule {
    let mut exprs = load_vip(8);
    exprs.extend([
        Expr::Payload { dreg: r(11), base: PayloadBase::Network, offset: 12, len: 4 },
        Expr::Hash { sreg: r(11), dreg: r(11), len: 4, modulus: 16_384, seed: 0x5eed },
        lookup("buckets", 8, Some(r(8))),
        dnat(8, 9),
    ]);
    Rule::new(exprs)
}

/// Runs `nft` in the thread's network namespace and returns its output.
pub(crate) fn nft(args: &[&str]) -> String {
    let output = Command::new("nft").args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {args:?}: {}: {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
