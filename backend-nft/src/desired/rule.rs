//! Rules, written in the order in which nft prints them.
//!
//! A key is built in the registers from the first one on, field after field; what comes out of a map lands in the same
//! place.

use backend::dataplane::{IFNAMSIZ, InterfaceName};
use ipnet::IpNet;
use netlink::nft::{
    CmpOp, CtKey, Expr, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType, NumgenType, PayloadBase,
    Register, RejectWith, Rule, Verdict,
};
use proto::model::{IpFamily, Protocol};

use super::nft_family;
use crate::element::{Map, VipShape};

/// `RTN_LOCAL` of `linux/rtnetlink.h`: an address of this node.
const RTN_LOCAL: u32 = 2;

/// A rule being written.
#[derive(Clone, Debug)]
pub(super) struct Line {
    family: IpFamily,
    exprs: Vec<Expr>,
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Source,
    Destination,
}

impl Address {
    /// Where it is in the header of IP (`saddr` 12, `daddr` 16) or IPv6 (8, 24).
    const fn offset(self, family: IpFamily) -> u32 {
        match (self, family) {
            (Self::Source, IpFamily::V4) => 12,
            (Self::Destination, IpFamily::V4) => 16,
            (Self::Source, IpFamily::V6) => 8,
            (Self::Destination, IpFamily::V6) => 24,
        }
    }
}

const FIRST: Register = Register::FIRST;

// === impl Line ===

impl Line {
    pub(super) fn new(family: IpFamily) -> Self {
        Self { family, exprs: Vec::new() }
    }

    /// `comment "..."`, which ends the rule.
    pub(super) fn comment(self, text: impl AsRef<str>) -> Rule {
        Rule::new(self.exprs).comment(text.as_ref())
    }

    /// Without a comment.
    pub(super) fn end(self) -> Rule {
        Rule::new(self.exprs)
    }

    // === conditions ===

    /// `ip saddr 10.244.0.0/16`.
    pub(super) fn within(self, address: Address, cidr: &IpNet) -> Self {
        // What everything matches needs no comparison.
        if cidr.prefix_len() == 0 { self } else { self.compare(address, CmpOp::Eq, cidr) }
    }

    /// `ip saddr != 10.244.0.0/16`, for each of them.
    pub(super) fn outside<'a>(self, address: Address, cidrs: impl IntoIterator<Item = &'a IpNet>) -> Self {
        cidrs.into_iter().fold(self, |line, cidr| line.compare(address, CmpOp::Neq, cidr))
    }

    /// `iifname "cbr0"`, or `!=`. What this node makes itself has come in through none.
    pub(super) fn behind(self, op: CmpOp, interface: &InterfaceName) -> Self {
        let mut name = interface.as_str().as_bytes().to_vec();
        name.resize(IFNAMSIZ, 0);
        self.interface(op, name)
    }

    /// `iifname "veth*"`, or `!=`.
    pub(super) fn behind_prefix(self, op: CmpOp, prefix: &InterfaceName) -> Self {
        self.interface(op, prefix.as_str().as_bytes().to_vec())
    }

    fn interface(self, op: CmpOp, name: Vec<u8>) -> Self {
        let data = name.into();
        self.push(Expr::Meta { dreg: FIRST, key: MetaKey::Iifname }).push(Expr::Cmp { sreg: FIRST, op, data })
    }

    fn compare(mut self, address: Address, op: CmpOp, cidr: &IpNet) -> Self {
        self = self.address(address, FIRST);
        if cidr.prefix_len() < cidr.max_prefix_len() {
            let mask = octets(cidr.netmask());
            let xor = vec![0; mask.len()];
            self = self.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: xor.into() });
        }
        self.push(Expr::Cmp { sreg: FIRST, op, data: octets(cidr.network()).into() })
    }

    /// `fib saddr type local`.
    pub(super) fn local(self, address: Address) -> Self {
        let flags = match address {
            Address::Source => FibFlags::SADDR,
            Address::Destination => FibFlags::DADDR,
        };
        self.push(Expr::Fib { dreg: FIRST, result: FibResult::AddrType, flags }).push(Expr::Cmp {
            sreg: FIRST,
            op: CmpOp::Eq,
            data: RTN_LOCAL.to_ne_bytes().into(),
        })
    }

    /// `meta l4proto tcp`.
    pub(super) fn protocol(self, protocol: Protocol) -> Self {
        let data = [protocol.number()].into();
        self.push(Expr::Meta { dreg: FIRST, key: MetaKey::L4proto }).push(Expr::Cmp {
            sreg: FIRST,
            op: CmpOp::Eq,
            data,
        })
    }

    /// `ct state new`: the packet opens a connection.
    pub(super) fn opening(self) -> Self {
        self.push(Expr::Ct { dreg: FIRST, key: CtKey::State, direction: None }).any_bit(CtKey::STATE_NEW)
    }

    /// `meta mark & 0x4000 != 0`.
    pub(super) fn marked(self, mark: u32) -> Self {
        self.push(Expr::Meta { dreg: FIRST, key: MetaKey::Mark }).any_bit(mark)
    }

    /// The first register has one of these bits.
    fn any_bit(self, mask: u32) -> Self {
        let (mask, zero) = (mask.to_ne_bytes(), 0u32.to_ne_bytes());
        self.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: zero.into() }).push(Expr::Cmp {
            sreg: FIRST,
            op: CmpOp::Neq,
            data: zero.into(),
        })
    }

    /// `ip daddr . meta l4proto . th dport @policy-local-vips`, or another set of what packets are addressed to.
    pub(super) fn addressed_to(self, set: Map) -> Self {
        self.vip(set.kind()).0.push(lookup(set, None))
    }

    /// `ip daddr . meta l4proto . th dport . ip saddr != @source-ranges`.
    pub(super) fn not_from(self, set: Map) -> Self {
        let (line, source) = self.vip(set.kind());
        line.address(Address::Source, source).push(Expr::Lookup {
            set: set.name().into(),
            sreg: FIRST,
            dreg: None,
            matches: LookupMatch::NotInSet,
        })
    }

    /// `ip saddr . ip daddr . meta l4proto . th dport @hairpin`.
    pub(super) fn hairpin(self) -> Self {
        let words = self.words();
        let line = self.address(Address::Source, FIRST).address(Address::Destination, FIRST.plus(words));
        line.ports(FIRST.plus(2 * words)).push(lookup(Map::Hairpin, None))
    }

    // === what is done ===

    /// `meta mark set meta mark | 0x4000`.
    pub(super) fn mark(self, mark: u32) -> Self {
        self.change_mark(!mark, mark)
    }

    /// `meta mark set meta mark ^ 0x4000`.
    pub(super) fn unmark(self, mark: u32) -> Self {
        self.change_mark(u32::MAX, mark)
    }

    fn change_mark(self, mask: u32, xor: u32) -> Self {
        let (mask, xor) = (mask.to_ne_bytes().into(), xor.to_ne_bytes().into());
        self.push(Expr::Meta { dreg: FIRST, key: MetaKey::Mark })
            .push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask, xor })
            .push(Expr::MetaSet { sreg: FIRST, key: MetaKey::Mark })
    }

    /// `ip daddr . meta l4proto . th dport vmap @vips`, or another map of what packets are addressed to.
    pub(super) fn vmap(self, map: Map) -> Self {
        self.vip(map.kind()).0.push(lookup(map, Some(Register::VERDICT)))
    }

    /// `dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints`.
    pub(super) fn dnat(self, map: Map, modulus: u32) -> Self {
        let (line, index) = self.vip(map.kind());
        line.random(index, modulus).push(lookup(map, Some(FIRST))).dnat_to(FIRST)
    }

    /// Loads a place in a pool of so many.
    pub(super) fn random(self, dreg: Register, modulus: u32) -> Self {
        self.push(Expr::Numgen { dreg, kind: NumgenType::Random, modulus, offset: 0 })
    }

    /// `dnat ip to`: an address in the first of these registers, then a port.
    pub(super) fn dnat_to(self, endpoint: Register) -> Self {
        let (family, port) = (nft_family(self.family), endpoint.plus(self.words()));
        self.push(Expr::Nat {
            kind: NatType::Dnat,
            family,
            addr: Some(endpoint),
            addr_max: None,
            port: Some(port),
            port_max: None,
            flags: NatFlags::NONE,
        })
    }

    /// `masquerade fully-random`: with the kernel's default two clients may race for one port.
    pub(super) fn masquerade(self) -> Self {
        self.push(Expr::Masquerade { flags: NatFlags::FULLY_RANDOM })
    }

    /// `reject with icmp port-unreachable`, or icmpv6.
    pub(super) fn reject(self) -> Self {
        let with = match self.family {
            IpFamily::V4 => RejectWith::PORT_UNREACHABLE,
            IpFamily::V6 => RejectWith::PORT_UNREACHABLE_V6,
        };
        self.push(Expr::Reject(with))
    }

    /// `reject with tcp reset`.
    pub(super) fn reset(self) -> Self {
        self.push(Expr::Reject(RejectWith::TcpReset))
    }

    /// `jump services`.
    pub(super) fn jump(self, chain: impl Into<String>) -> Self {
        self.push(Expr::Verdict(Verdict::jump(chain.into())))
    }

    /// `goto pool-3`.
    pub(super) fn goto(self, chain: impl Into<String>) -> Self {
        self.push(Expr::Verdict(Verdict::goto(chain.into())))
    }

    /// `return`.
    pub(super) fn back(self) -> Self {
        self.push(Expr::Verdict(Verdict::Return))
    }

    /// `drop`.
    pub(super) fn discard(self) -> Self {
        self.push(Expr::Verdict(Verdict::Drop))
    }

    // === registers ===

    /// The number of registers that an address takes.
    pub(super) const fn words(&self) -> u8 {
        (self.family.address_len() / 4) as u8
    }

    /// Loads what the packet is addressed to. Gives the register behind it.
    fn vip(self, kind: VipShape) -> (Self, Register) {
        self.front_at(kind, FIRST)
    }

    /// The same, from this register on.
    pub(super) fn front_at(self, kind: VipShape, dreg: Register) -> (Self, Register) {
        let words = self.words();
        match kind {
            VipShape::NodePort => (self.ports(dreg), dreg.plus(2)),
            VipShape::Address => (self.address(Address::Destination, dreg), dreg.plus(words)),
            VipShape::Vip => {
                let ports = dreg.plus(words);
                (self.address(Address::Destination, dreg).ports(ports), ports.plus(2))
            }
        }
    }

    /// Loads `meta l4proto . th dport`.
    fn ports(self, dreg: Register) -> Self {
        self.push(Expr::Meta { dreg, key: MetaKey::L4proto }).push(Expr::Payload {
            dreg: dreg.plus(1),
            base: PayloadBase::Transport,
            offset: 2,
            len: 2,
        })
    }

    /// Loads an address.
    pub(super) fn address(self, address: Address, dreg: Register) -> Self {
        let (offset, len) = (address.offset(self.family), self.family.address_len() as u32);
        self.push(Expr::Payload { dreg, base: PayloadBase::Network, offset, len })
    }

    pub(super) fn push(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }
}

fn lookup(map: Map, dreg: Option<Register>) -> Expr {
    Expr::Lookup { set: map.name().into(), sreg: FIRST, dreg, matches: LookupMatch::InSet }
}

fn octets(address: std::net::IpAddr) -> Vec<u8> {
    match address {
        std::net::IpAddr::V4(address) => address.octets().to_vec(),
        std::net::IpAddr::V6(address) => address.octets().to_vec(),
    }
}
