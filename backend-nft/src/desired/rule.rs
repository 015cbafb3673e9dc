//! Builds rules, expression by expression, in the order in which nft prints them.
//!
//! The fields of a key are loaded into consecutive registers from the first one on; the result of a lookup replaces the
//! key.

use backend::dataplane::{IFNAMSIZ, InterfaceName};
use ipnet::IpNet;
use netlink::nft::{
    CmpOp, CtKey, Expr, FibFlags, FibResult, Fields, LookupMatch, MetaKey, NatFlags, NatType, NumgenType, PayloadBase,
    Register, RejectWith, Rule, Verdict,
};
use proto::model::{IpFamily, Protocol};

use super::nft_family;
use crate::element::{Map, VipShape};

/// `RTN_LOCAL` of `linux/rtnetlink.h`: an address of this node.
const RTN_LOCAL: u32 = 2;

/// A rule under construction.
#[derive(Clone, Debug)]
pub(super) struct RuleBuilder {
    family: IpFamily,
    exprs: Vec<Expr>,
}

/// Which address of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PacketAddress {
    Source,
    Destination,
}

impl PacketAddress {
    /// The offset in the IP header (`saddr` 12, `daddr` 16) or the IPv6 header (8, 24).
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

// === impl RuleBuilder ===

impl RuleBuilder {
    pub(super) fn new(family: IpFamily) -> Self {
        Self { family, exprs: Vec::new() }
    }

    /// Completes the rule with `comment "..."`.
    pub(super) fn comment(self, text: impl AsRef<str>) -> Rule {
        Rule::new(self.exprs).comment(text.as_ref())
    }

    /// Completes the rule without a comment.
    pub(super) fn build(self) -> Rule {
        Rule::new(self.exprs)
    }

    // === conditions ===

    /// `ip saddr 10.244.0.0/16`.
    pub(super) fn in_cidr(self, address: PacketAddress, cidr: &IpNet) -> Self {
        // Every address matches.
        if cidr.prefix_len() == 0 { self } else { self.compare(address, CmpOp::Eq, cidr) }
    }

    /// `ip saddr != 10.244.0.0/16`, for each CIDR.
    pub(super) fn not_in_cidrs<'a>(self, address: PacketAddress, cidrs: impl IntoIterator<Item = &'a IpNet>) -> Self {
        cidrs.into_iter().fold(self, |builder, cidr| builder.compare(address, CmpOp::Neq, cidr))
    }

    /// `iifname "cbr0"`, or `!=`. Packets of the node itself have no input interface.
    pub(super) fn input_interface(self, op: CmpOp, interface: &InterfaceName) -> Self {
        let mut name = interface.as_str().as_bytes().to_vec();
        name.resize(IFNAMSIZ, 0);
        self.interface(op, name)
    }

    /// `iifname "veth*"`, or `!=`.
    pub(super) fn input_interface_prefix(self, op: CmpOp, prefix: &InterfaceName) -> Self {
        self.interface(op, prefix.as_str().as_bytes().to_vec())
    }

    fn interface(self, op: CmpOp, name: Vec<u8>) -> Self {
        self.load_meta(FIRST, MetaKey::Iifname).cmp(op, name)
    }

    fn compare(mut self, address: PacketAddress, op: CmpOp, cidr: &IpNet) -> Self {
        self = self.load_address(address, FIRST);
        if cidr.prefix_len() < cidr.max_prefix_len() {
            let mask = Fields::new().addr(cidr.netmask());
            self = self.bitwise(&mask, &vec![0; mask.len()]);
        }
        self.cmp(op, &*Fields::new().addr(cidr.network()))
    }

    /// `fib saddr type local`.
    pub(super) fn address_is_local(self, address: PacketAddress) -> Self {
        let flags = match address {
            PacketAddress::Source => FibFlags::SADDR,
            PacketAddress::Destination => FibFlags::DADDR,
        };
        let fib = Expr::Fib { dreg: FIRST, result: FibResult::AddrType, flags };
        self.push(fib).cmp(CmpOp::Eq, RTN_LOCAL.to_ne_bytes())
    }

    /// `meta l4proto tcp`.
    pub(super) fn protocol(self, protocol: Protocol) -> Self {
        self.load_meta(FIRST, MetaKey::L4proto).cmp(CmpOp::Eq, [protocol.number()])
    }

    /// `ct state new`.
    pub(super) fn new_connection(self) -> Self {
        self.push(Expr::Ct { dreg: FIRST, key: CtKey::State, direction: None }).any_bit(CtKey::STATE_NEW)
    }

    /// `meta mark & 0x4000 != 0`.
    pub(super) fn has_mark(self, mark: u32) -> Self {
        self.load_meta(FIRST, MetaKey::Mark).any_bit(mark)
    }

    /// The first register has any of these bits.
    fn any_bit(self, mask: u32) -> Self {
        self.bitwise(&mask.to_ne_bytes(), &[0; 4]).cmp(CmpOp::Neq, [0; 4])
    }

    /// `ip daddr . meta l4proto . th dport @policy-local-vips`, or another set of VIPs.
    pub(super) fn vip_in_set(self, set: Map) -> Self {
        self.load_vip(set.vip_shape(), FIRST).0.push(lookup(set, FIRST, None))
    }

    /// `ip daddr . meta l4proto . th dport . ip saddr != @source-ranges`.
    pub(super) fn source_not_in_set(self, set: Map) -> Self {
        let (builder, source) = self.load_vip(set.vip_shape(), FIRST);
        builder.load_address(PacketAddress::Source, source).push(Expr::Lookup {
            set: set.name().into(),
            sreg: FIRST,
            dreg: None,
            matches: LookupMatch::NotInSet,
        })
    }

    /// `ip saddr . ip daddr . meta l4proto . th dport @hairpin`.
    pub(super) fn hairpin(self) -> Self {
        let registers = self.address_registers();
        self.load_address(PacketAddress::Source, FIRST)
            .load_vip(VipShape::AddressPort, FIRST.plus(registers))
            .0
            .push(lookup(Map::Hairpin, FIRST, None))
    }

    // === actions ===

    /// `meta mark set meta mark | 0x4000`.
    pub(super) fn set_mark(self, mark: u32) -> Self {
        self.change_mark(!mark, mark)
    }

    /// `meta mark set meta mark ^ 0x4000`.
    pub(super) fn clear_mark(self, mark: u32) -> Self {
        self.change_mark(u32::MAX, mark)
    }

    fn change_mark(self, mask: u32, xor: u32) -> Self {
        let mark = MetaKey::Mark;
        self.load_meta(FIRST, mark)
            .bitwise(&mask.to_ne_bytes(), &xor.to_ne_bytes())
            .push(Expr::MetaSet { sreg: FIRST, key: mark })
    }

    /// `ip daddr . meta l4proto . th dport vmap @vips`, or another map of VIPs.
    pub(super) fn vmap(self, map: Map) -> Self {
        self.load_vip(map.vip_shape(), FIRST).0.push(lookup(map, FIRST, Some(Register::VERDICT)))
    }

    /// `dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints`.
    pub(super) fn dnat(self, map: Map, modulus: u32) -> Self {
        let (builder, index) = self.load_vip(map.vip_shape(), FIRST);
        builder.random_index(index, modulus).push(lookup(map, FIRST, Some(FIRST))).dnat_to(FIRST)
    }

    /// Loads a random slot below `modulus`.
    pub(super) fn random_index(self, dreg: Register, modulus: u32) -> Self {
        self.push(Expr::Numgen { dreg, kind: NumgenType::Random, modulus, offset: 0 })
    }

    /// `dnat ip to`: the address is in this register, the port after it.
    pub(super) fn dnat_to(self, endpoint: Register) -> Self {
        let (family, port) = (nft_family(self.family), endpoint.plus(self.address_registers()));
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

    /// `masquerade fully-random`: with the kernel's default, two clients may select the same port at the same time.
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
    pub(super) fn reject_with_reset(self) -> Self {
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
    pub(super) fn return_to_caller(self) -> Self {
        self.push(Expr::Verdict(Verdict::Return))
    }

    /// `drop`.
    pub(super) fn drop_packet(self) -> Self {
        self.push(Expr::Verdict(Verdict::Drop))
    }

    // === registers ===

    /// The number of registers of an address.
    pub(super) const fn address_registers(&self) -> u8 {
        (self.family.address_len() / 4) as u8
    }

    /// Loads the VIP of the packet from this register on. Returns the register after it.
    pub(super) fn load_vip(self, shape: VipShape, dreg: Register) -> (Self, Register) {
        let registers = self.address_registers();
        match shape {
            VipShape::NodePort => (self.load_protocol_port(dreg), dreg.plus(2)),
            VipShape::Address => (self.load_address(PacketAddress::Destination, dreg), dreg.plus(registers)),
            VipShape::AddressPort => {
                let ports = dreg.plus(registers);
                (self.load_address(PacketAddress::Destination, dreg).load_protocol_port(ports), ports.plus(2))
            }
        }
    }

    /// Loads `meta l4proto . th dport`.
    fn load_protocol_port(self, dreg: Register) -> Self {
        let port = Expr::Payload { dreg: dreg.plus(1), base: PayloadBase::Transport, offset: 2, len: 2 };
        self.load_meta(dreg, MetaKey::L4proto).push(port)
    }

    /// Loads an address.
    pub(super) fn load_address(self, address: PacketAddress, dreg: Register) -> Self {
        let (offset, len) = (address.offset(self.family), self.family.address_len() as u32);
        self.push(Expr::Payload { dreg, base: PayloadBase::Network, offset, len })
    }

    fn load_meta(self, dreg: Register, key: MetaKey) -> Self {
        self.push(Expr::Meta { dreg, key })
    }

    /// Changes the first register.
    fn bitwise(self, mask: &[u8], xor: &[u8]) -> Self {
        self.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: xor.into() })
    }

    /// Compares the first register.
    fn cmp(self, op: CmpOp, data: impl AsRef<[u8]>) -> Self {
        self.push(Expr::Cmp { sreg: FIRST, op, data: data.into() })
    }

    pub(super) fn push(mut self, expr: Expr) -> Self {
        self.exprs.push(expr);
        self
    }
}

/// Looks up the key that starts at `sreg`.
pub(super) fn lookup(map: Map, sreg: Register, dreg: Option<Register>) -> Expr {
    Expr::Lookup { set: map.name().into(), sreg, dreg, matches: LookupMatch::InSet }
}
