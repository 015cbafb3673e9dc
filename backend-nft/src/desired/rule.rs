//! Builds rules, expression by expression, in the order in which nft prints them.
//!
//! The fields of a key are loaded into consecutive registers from the first one on; the result of a lookup replaces the
//! key.

use std::{net::IpAddr, num::NonZeroU16};

use backend::dataplane::{IFNAMSIZ, InterfaceName, PodMatch};
use ipnet::IpNet;
use netlink::nft::{
    CmpOp, CtKey, Expr, FibFlags, FibResult, Fields, LookupMatch, MetaKey, NatFlags, NatType, NumgenType, PayloadBase,
    Register, RejectWith, Rule, Verdict,
};
use proto::model::{IpFamily, Protocol};

use crate::element::{Map, SourceGroupId, VipShape};

/// `RTN_LOCAL` of `linux/rtnetlink.h`: an address of this node.
const RTN_LOCAL: u32 = 2;

/// The seed of the hash of client addresses. It is no secret: a client that selects its bucket by its addresses shares
/// the endpoint of that bucket.
const CLIENT_SEED: u32 = 0xfa11_ead0;

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

    // === Conditions ===

    /// `ip saddr 10.244.0.0/16`.
    pub(super) fn in_cidr(self, address: PacketAddress, cidr: &IpNet) -> Self {
        // Every address matches.
        if cidr.prefix_len() == 0 { self } else { self.compare(address, CmpOp::Eq, cidr) }
    }

    /// `ip saddr != 10.244.0.0/16`, for each CIDR.
    pub(super) fn not_in_cidrs(self, address: PacketAddress, cidrs: &[IpNet]) -> Self {
        cidrs.iter().fold(self, |builder, cidr| builder.compare(address, CmpOp::Neq, cidr))
    }

    /// The source or destination is a pod: one rule for each CIDR or interface; none if pods are not recognized.
    pub(super) fn of_pods(self, address: PacketAddress, pods: &PodMatch) -> Vec<Self> {
        match pods {
            PodMatch::Unknown => Vec::new(),
            PodMatch::Source(cidrs) => cidrs.iter().map(|cidr| self.clone().in_cidr(address, cidr)).collect(),
            PodMatch::Interface(interface) => vec![self.interface(address, CmpOp::Eq, full_name(interface))],
            PodMatch::InterfacePrefix(prefix) => vec![self.interface(address, CmpOp::Eq, prefix.as_str())],
        }
    }

    /// The source is not a pod. `None`: pods are not recognized, or all sources are pods.
    pub(super) fn not_from_pod(self, pods: &PodMatch) -> Option<Self> {
        let source = PacketAddress::Source;
        match pods {
            PodMatch::Unknown => None,
            // No address is outside of this CIDR.
            PodMatch::Source(cidrs) if cidrs.iter().any(|cidr| cidr.prefix_len() == 0) => None,
            PodMatch::Source(cidrs) => Some(self.not_in_cidrs(source, cidrs)),
            PodMatch::Interface(interface) => Some(self.interface(source, CmpOp::Neq, full_name(interface))),
            PodMatch::InterfacePrefix(prefix) => Some(self.interface(source, CmpOp::Neq, prefix.as_str())),
        }
    }

    /// `iifname "cbr0"`, `oifname "veth*"`, or `!=`. Packets of the node itself have no input interface.
    fn interface(self, address: PacketAddress, op: CmpOp, name: impl AsRef<[u8]>) -> Self {
        let key = match address {
            PacketAddress::Source => MetaKey::Iifname,
            PacketAddress::Destination => MetaKey::Oifname,
        };
        self.load_meta(FIRST, key).cmp(op, name)
    }

    fn compare(mut self, address: PacketAddress, op: CmpOp, cidr: &IpNet) -> Self {
        self = self.load_address(address, FIRST);
        if cidr.prefix_len() < cidr.max_prefix_len() {
            let mask = Fields::new().addr(cidr.netmask());
            self = self.bitwise(&mask, &vec![0; mask.len()]);
        }
        self.cmp(op, &*Fields::new().addr(cidr.network()))
    }

    /// `fib saddr type local`, or `!=`.
    pub(super) fn local_address(self, op: CmpOp, address: PacketAddress) -> Self {
        let flags = match address {
            PacketAddress::Source => FibFlags::SADDR,
            PacketAddress::Destination => FibFlags::DADDR,
        };
        let fib = Expr::Fib { dreg: FIRST, result: FibResult::AddrType, flags };
        self.push(fib).cmp(op, RTN_LOCAL.to_ne_bytes())
    }

    /// `meta l4proto tcp`.
    pub(super) fn protocol(self, protocol: Protocol) -> Self {
        self.load_meta(FIRST, MetaKey::L4proto).cmp(CmpOp::Eq, [protocol.number()])
    }

    /// `tcp dport 24256`.
    pub(super) fn tcp_port(self, port: NonZeroU16) -> Self {
        self.protocol(Protocol::Tcp).load_port(FIRST).cmp(CmpOp::Eq, port.get().to_be_bytes())
    }

    /// `tcp sport 24256`.
    pub(super) fn tcp_source_port(self, port: NonZeroU16) -> Self {
        self.protocol(Protocol::Tcp).load_transport(0, 2).cmp(CmpOp::Eq, port.get().to_be_bytes())
    }

    /// `tcp flags rst`, after a match of the protocol.
    pub(super) fn tcp_reset(self) -> Self {
        const RST: u8 = 0x04;
        self.load_transport(13, 1).bitwise(&[RST], &[0]).cmp(CmpOp::Neq, [0])
    }

    /// `ct state new`.
    pub(super) fn new_connection(self) -> Self {
        self.conntrack(CtKey::State, CtKey::STATE_NEW)
    }

    fn conntrack(self, key: CtKey, bits: u32) -> Self {
        self.push(Expr::Ct { dreg: FIRST, key, direction: None }).any_bit(bits)
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
        let (builder, _) = self.load_vip(set.vip_shape(), FIRST);
        builder.push(lookup(set, FIRST, None))
    }

    /// `group . prefix length . ip saddr & 255.255.255.0 @allowed-sources`. nft prints the constants in hexadecimal,
    /// with "[invalid type]".
    pub(super) fn source_in_group(self, group: SourceGroupId, prefix_len: u8) -> Self {
        let length = FIRST.plus(4);
        let source = FIRST.plus(5);
        // A prefix length up to that of an address is valid.
        let mask = Fields::new().addr(IpNet::new_assert(self.family.unspecified(), prefix_len).netmask());
        let zero = vec![0; mask.len()];

        self.push(Expr::Immediate { dreg: FIRST, data: group.0.into() })
            .push(Expr::Immediate { dreg: length, data: u16::from(prefix_len).to_be_bytes().into() })
            .load_address(PacketAddress::Source, source)
            .push(Expr::Bitwise { sreg: source, dreg: source, mask: (&*mask).into(), xor: zero.into() })
            .push(lookup(Map::AllowedSources, FIRST, None))
    }

    /// `ct status dnat ip saddr . ip daddr . meta l4proto . th dport @hairpin`. A host-network endpoint also receives
    /// direct connections from its own address.
    pub(super) fn hairpin(self) -> Self {
        let destination = FIRST.plus(self.address_registers());
        let builder = self.conntrack(CtKey::Status, CtKey::STATUS_DNAT).load_address(PacketAddress::Source, FIRST);
        let (builder, _) = builder.load_vip(VipShape::AddressPort, destination);
        builder.push(lookup(Map::Hairpin, FIRST, None))
    }

    /// `ct status dnat`, and source and destination have the same address: `@nh,120,8 . @nh,152,8 @equal-bytes` for
    /// each byte. The last byte first, in which most addresses of a node differ.
    pub(super) fn returns_to_source(self) -> Self {
        let family = self.family;
        let mut builder = self.conntrack(CtKey::Status, CtKey::STATUS_DNAT);
        for byte in (0..family.address_len() as u32).rev() {
            builder = builder
                .load_address_byte(PacketAddress::Source, byte, FIRST)
                .load_address_byte(PacketAddress::Destination, byte, FIRST.plus(1))
                .push(lookup(Map::EqualBytes, FIRST, None));
        }
        builder
    }

    // === Actions ===

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
        let (builder, _) = self.load_vip(map.vip_shape(), FIRST);
        builder.push(lookup(map, FIRST, Some(Register::VERDICT)))
    }

    /// `dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints`. nft prints it likewise if
    /// the key is not the VIP of the packet. `aliases`: the map from the VIP to the key.
    pub(super) fn dnat(self, aliases: Option<Map>, map: Map, modulus: u32) -> Self {
        let key = if aliases.is_none() { FIRST } else { FIRST.plus(1) };
        let (mut builder, index) = self.load_pool_key(aliases, key, FIRST);
        if aliases.is_some() {
            builder = builder.push(padding(FIRST));
        }
        builder.random_index(index, modulus).push(lookup(map, key, Some(key))).dnat_to(key)
    }

    /// Loads a random slot below `modulus`.
    pub(super) fn random_index(self, dreg: Register, modulus: u32) -> Self {
        self.push(Expr::Numgen { dreg, kind: NumgenType::Random, modulus, offset: 0 })
    }

    /// `dnat ip to`: the address is in this register, the port after it.
    pub(super) fn dnat_to(self, endpoint: Register) -> Self {
        let port = endpoint.plus(self.address_registers());
        self.dnat_to_registers(endpoint, Some(port))
    }

    /// `dnat ip to 127.0.0.1`, at the same port.
    pub(super) fn dnat_to_address(self, address: IpAddr) -> Self {
        let data = (&*Fields::new().addr(address)).into();
        self.push(Expr::Immediate { dreg: FIRST, data }).dnat_to_registers(FIRST, None)
    }

    fn dnat_to_registers(self, addr: Register, port: Option<Register>) -> Self {
        let family = self.family.into();
        self.push(Expr::Nat {
            kind: NatType::Dnat,
            family,
            addr: Some(addr),
            addr_max: None,
            port,
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

    // === Registers ===

    /// The number of registers of an address.
    pub(super) const fn address_registers(&self) -> u8 {
        (self.family.address_len() / 4) as u8
    }

    /// Loads the VIP of the packet from this register on. Returns the register after it.
    fn load_vip(self, shape: VipShape, dreg: Register) -> (Self, Register) {
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

    /// Loads the key of the packet's pool from this register on. Returns the register after it. `padding`: the register
    /// before it, to be overwritten next, see [`padding`].
    pub(super) fn load_pool_key(self, aliases: Option<Map>, dreg: Register, padding: Register) -> (Self, Register) {
        let protocol = dreg.plus(self.address_registers());
        // For a node port nft prints the destination address, which the value of the map replaces.
        let (builder, end) = self.load_vip(VipShape::AddressPort, dreg);
        let Some(aliases) = aliases else { return (builder, end) };
        let vip = if aliases.vip_shape() == VipShape::NodePort { protocol } else { dreg };
        (builder.push(lookup(aliases, vip, Some(padding))), end)
    }

    /// Loads the bucket of the packet's source address.
    pub(super) fn load_client_bucket(self, dreg: Register, buckets: u32) -> Self {
        let len = self.family.address_len() as u32;
        let hash = Expr::Hash { sreg: dreg, dreg, len, modulus: buckets, seed: CLIENT_SEED };
        self.load_address(PacketAddress::Source, dreg).push(hash)
    }

    /// Loads `meta l4proto . th dport`.
    fn load_protocol_port(self, dreg: Register) -> Self {
        self.load_meta(dreg, MetaKey::L4proto).load_port(dreg.plus(1))
    }

    /// Loads `th dport`.
    fn load_port(self, dreg: Register) -> Self {
        self.push(Expr::Payload { dreg, base: PayloadBase::Transport, offset: 2, len: 2 })
    }

    /// Loads a field of the TCP header into the first register.
    fn load_transport(self, offset: u32, len: u32) -> Self {
        self.push(Expr::Payload { dreg: FIRST, base: PayloadBase::Transport, offset, len })
    }

    fn load_address(self, address: PacketAddress, dreg: Register) -> Self {
        let offset = address.offset(self.family);
        let len = self.family.address_len() as u32;
        self.push(Expr::Payload { dreg, base: PayloadBase::Network, offset, len })
    }

    /// Loads one byte of an address of the packet.
    fn load_address_byte(self, address: PacketAddress, byte: u32, dreg: Register) -> Self {
        let offset = address.offset(self.family) + byte;
        self.push(Expr::Payload { dreg, base: PayloadBase::Network, offset, len: 1 })
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

/// An interface's name as the kernel compares it.
fn full_name(interface: &InterfaceName) -> Vec<u8> {
    let mut name = interface.as_str().as_bytes().to_vec();
    name.resize(IFNAMSIZ, 0);
    name
}

/// Loads a zero into the padding of a map's value, which is zero already.
///
/// nft aborts at a rule in which the value of a map is part of a key or is stored in a map, because it takes the
/// registers after the first register of the value for the values that were loaded there before. So values that become
/// keys start with a padding, and another value is loaded into its register after the lookup.
pub(super) fn padding(dreg: Register) -> Expr {
    Expr::Immediate { dreg, data: [0; 4].into() }
}

/// Looks up the key that starts at `sreg`.
pub(super) fn lookup(map: Map, sreg: Register, dreg: Option<Register>) -> Expr {
    Expr::Lookup { set: map.name().into(), sreg, dreg, matches: LookupMatch::InSet }
}
