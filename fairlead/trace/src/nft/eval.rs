//! Evaluates a rule of nf_tables: each expression on registers.

use std::{cmp::Ordering, net::IpAddr};

use anyhow::Result;
use netlink::nft::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, FieldReader, Fields, LookupMatch, MetaKey, NatType,
    NumgenType, RangeOp, Register, RejectWith, Rule, Verdict, value_len, value_text,
};
use proto::model::IpFamily;

use super::{TableRules, jhash};
use crate::{
    kernel::SetElement,
    outcome::PacketVerdict,
    table::RuleResult,
    traversal::{ChainVerdict, Traversal},
};

/// `RTN_UNICAST`, `RTN_LOCAL` of `linux/rtnetlink.h`.
const RTN_UNICAST: u32 = 1;
const RTN_LOCAL: u32 = 2;
/// The size of an interface name, `IFNAMSIZ`.
const IFNAMSIZ: usize = 16;
/// Expressions that match every packet and do not affect where it goes.
const NO_EFFECT: [&str; 4] = ["counter", "log", "objref", "last"];
/// `NF_CT_STATE_UNTRACKED_BIT`, which nft calls `ct state untracked`.
const STATE_UNTRACKED: u32 = 64;

/// The sixteen registers, four bytes each.
struct Registers([u8; 64]);

/// The evaluation of a rule.
struct RuleRun<'a, 'f, 'k> {
    traversal: &'f mut Traversal<'k>,
    rules: &'a TableRules,
    /// The full name of the chain.
    chain: &'a str,
    rule: &'a Rule,
    /// Its comment, or that of the chain; empty if there is none.
    comment: &'a str,
    chain_comment: &'a str,
    registers: Registers,
    verdict: Option<Verdict<'static>>,
    /// Set by an expression that ends the rule and its base chain.
    decided: Option<ChainVerdict>,
    /// What it has done so far, for display.
    actions: Vec<String>,
}

/// Evaluates a rule of a chain, whose name with that of the table is `full_name`.
pub(crate) fn evaluate(
    traversal: &mut Traversal<'_>,
    rules: &TableRules,
    full_name: &str,
    chain: &str,
    rule: usize,
) -> Result<RuleResult> {
    let rule = &rules.rules[chain][rule];
    let listed = rules.chains.iter().find(|listed| listed.name == chain);
    let run = RuleRun {
        traversal,
        rules,
        chain: full_name,
        rule,
        comment: rule.comment.as_deref().unwrap_or_default(),
        chain_comment: listed.and_then(|chain| chain.comment.as_deref()).unwrap_or_default(),
        registers: Registers([0; 64]),
        verdict: None,
        decided: None,
        actions: Vec::new(),
    };
    run.run()
}

impl RuleRun<'_, '_, '_> {
    fn run(mut self) -> Result<RuleResult> {
        for expr in &self.rule.exprs {
            if !self.expression(expr)? {
                return Ok(RuleResult::Continue);
            }
            if self.decided.is_some() {
                break;
            }
        }

        self.actions.extend(self.verdict.as_ref().map(ToString::to_string));
        let action = if self.actions.is_empty() { "matches".to_owned() } else { self.actions.join("; ") };
        self.traversal.step(self.chain.to_owned(), self.rule.to_string(), action);

        if let Some(verdict) = self.decided.take() {
            return Ok(RuleResult::Decided(verdict));
        }
        let reason = self.commented_or(self.chain);
        Ok(match self.verdict {
            None | Some(Verdict::Continue) => RuleResult::Continue,
            Some(Verdict::Accept) => RuleResult::Decided(ChainVerdict::Accept),
            Some(Verdict::Drop) => RuleResult::Decided(ChainVerdict::Ended(PacketVerdict::Dropped { reason })),
            Some(Verdict::Return) => RuleResult::Return,
            Some(Verdict::Jump(to)) => RuleResult::Call { to: to.into_owned(), is_goto: false, reason },
            Some(Verdict::Goto(to)) => RuleResult::Call { to: to.into_owned(), is_goto: true, reason },
            Some(Verdict::Other(code)) => {
                self.traversal.unknown(format!("{}: unknown verdict {code}, treated as accept", self.chain));
                RuleResult::Decided(ChainVerdict::Accept)
            }
        })
    }

    fn commented_or(&self, otherwise: &str) -> String {
        if self.comment.is_empty() { otherwise } else { self.comment }.to_owned()
    }

    /// Evaluates an expression. Returns whether the packet matches.
    fn expression(&mut self, expr: &Expr) -> Result<bool> {
        match expr {
            Expr::Payload { base, offset, len, .. } if !self.traversal.packet.knows(*base, *offset, *len) => {
                return Ok(self.unknown("payload"));
            }
            Expr::Payload { dreg, base, offset, len } => {
                let Some(bytes) = self.traversal.packet.bytes(*base, *offset, *len) else {
                    return Ok(false);
                };
                self.registers.load(*dreg, &bytes);
            }
            Expr::Meta { dreg, key } => {
                let value = self.meta(*key);
                self.registers.load(*dreg, &value);
            }
            Expr::MetaSet { sreg, key: MetaKey::Mark } => {
                let mark = self.registers.number(*sreg);
                self.actions.push(format!("mark {:#x} set to {mark:#x}", self.traversal.mark));
                self.traversal.set_mark(mark, self.comment);
            }
            Expr::MetaSet { .. } => {}
            // Only the state of a packet that is not tracked can be loaded.
            Expr::Ct { key, .. } if self.traversal.is_untracked() && *key != CtKey::State => {
                return Ok(false);
            }
            Expr::Ct { dreg, key, direction } => {
                let Some(value) = self.conntrack(*key, *direction) else { return Ok(self.unknown("ct")) };
                self.registers.load(*dreg, &value);
            }
            Expr::Fib { dreg, result, flags } => {
                let Some(value) = self.fib(*result, *flags) else { return Ok(self.unknown("fib")) };
                self.registers.load(*dreg, &value);
            }
            Expr::Cmp { sreg, op, data } => {
                return Ok(holds(*op, self.registers.get(*sreg, data.len()).cmp(&data[..])));
            }
            Expr::Range { sreg, op, from, to } => {
                let value = self.registers.get(*sreg, from.len());
                let inside = *value >= from[..] && *value <= to[..];
                return Ok(inside == (*op == RangeOp::Eq));
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                let bytes = self.registers.get(*sreg, mask.len()).iter().zip(&mask[..]).zip(&xor[..]);
                let value: Vec<_> = bytes.map(|((byte, mask), xor)| (byte & mask) ^ xor).collect();
                self.registers.load(*dreg, &value);
            }
            Expr::Byteorder { sreg, dreg, len, size, .. } => {
                let mut value = self.registers.get(*sreg, *len as usize).to_vec();
                // Both directions are the same; on a big-endian machine nothing is to be done.
                if cfg!(target_endian = "little") {
                    value.chunks_mut((*size).max(1) as usize).for_each(<[u8]>::reverse);
                }
                self.registers.load(*dreg, &value);
            }
            Expr::Immediate { dreg, data } => self.registers.load(*dreg, data),
            Expr::Verdict(verdict) => self.verdict = Some(verdict.clone()),
            Expr::Lookup { set, sreg, dreg, matches } => return self.lookup(set, *sreg, *dreg, *matches),
            Expr::Dynset { set, op, key, .. } => self.change_set(set, *op, *key),
            Expr::Numgen { dreg, kind, modulus, offset } => {
                let number = self.generate(*modulus, *kind);
                self.registers.load(*dreg, &(offset + number).to_ne_bytes());
            }
            Expr::Hash { sreg, dreg, len, modulus, seed } => {
                let hash = jhash::jhash(self.registers.get(*sreg, *len as usize), *seed);
                // The kernel's `reciprocal_scale`.
                let number = (u64::from(hash) * u64::from(*modulus)) >> 32;
                self.registers.load(*dreg, &(number as u32).to_ne_bytes());
            }
            Expr::Nat { kind, addr, addr_max, port, port_max, .. } => {
                let address_len = self.traversal.packet.family().address_len();
                let is_address_range = self.is_range(*addr, *addr_max, address_len);
                match kind {
                    NatType::Dnat if is_address_range || self.is_range(*port, *port_max, 2) => {
                        return Ok(self.unknown("nat to a range"));
                    }
                    // The source port is not part of the result.
                    NatType::Snat if is_address_range => {
                        let rule = format!("{}: {}", self.chain, self.rule);
                        self.traversal.unknown(format!("source address in a range, the first is assumed: {rule}"));
                    }
                    NatType::Dnat | NatType::Snat => {}
                }
                self.translate(*kind, *addr, *port);
            }
            Expr::Masquerade { .. } => {
                self.traversal.masquerade(None, &self.commented_or("masquerade"));
                self.actions.push("source masqueraded".to_owned());
                self.decided = Some(ChainVerdict::Accept);
            }
            Expr::Reject(with) => self.reject(*with),
            Expr::Counter => {}
            Expr::Other { name, .. } if name == "notrack" => {
                if self.traversal.untrack() {
                    self.actions.push("not tracked".to_owned());
                }
            }
            Expr::Other { name, .. } if NO_EFFECT.contains(&name.as_str()) => {}
            Expr::Other { name, .. } => return Ok(self.unknown(name)),
        }
        Ok(true)
    }

    /// An unknown expression is treated as not matching.
    fn unknown(&mut self, expression: &str) -> bool {
        let rule = format!("{} ({expression}): {}", self.chain, self.rule);
        self.traversal.unknown(format!("unknown expression, the rule is treated as not matching: {rule}"));
        false
    }

    fn meta(&mut self, key: MetaKey) -> Vec<u8> {
        match key {
            MetaKey::Mark => self.traversal.mark.to_ne_bytes().to_vec(),
            MetaKey::L4proto => vec![self.traversal.packet.protocol.number()],
            MetaKey::Nfproto => match self.traversal.packet.family() {
                IpFamily::V4 => vec![2],
                IpFamily::V6 => vec![10],
            },
            MetaKey::Iifname => padded(self.traversal.input()),
            MetaKey::Oifname => padded(self.traversal.output()),
            MetaKey::Iif => index(&self.traversal.input()).to_ne_bytes().to_vec(),
            MetaKey::Oif => index(&self.traversal.output()).to_ne_bytes().to_vec(),
            MetaKey::Priority => vec![0; 4],
        }
    }

    /// A field of the connection, which is new. `None`: unknown.
    fn conntrack(&self, key: CtKey, direction: Option<CtDirection>) -> Option<Vec<u8>> {
        let packet = &self.traversal.packet;
        let octets = |address: IpAddr| Fields::new().addr(address).to_vec();
        let (source, destination) = match direction {
            // Replies come from the current destination.
            Some(CtDirection::Reply) => (packet.destination, packet.source),
            _ => self.traversal.original,
        };
        Some(match key {
            CtKey::State if self.traversal.is_untracked() => STATE_UNTRACKED.to_ne_bytes().to_vec(),
            CtKey::State => CtKey::STATE_NEW.to_ne_bytes().to_vec(),
            CtKey::Direction => vec![0],
            CtKey::Status if self.traversal.is_translated() => CtKey::STATUS_DNAT.to_ne_bytes().to_vec(),
            CtKey::Status => vec![0; 4],
            CtKey::Mark => self.traversal.ct_mark.to_ne_bytes().to_vec(),
            CtKey::Protocol => vec![packet.protocol.number()],
            CtKey::ProtoSrc => source.port().to_be_bytes().to_vec(),
            CtKey::ProtoDst => destination.port().to_be_bytes().to_vec(),
            CtKey::SrcIp | CtKey::SrcIp6 => octets(source.ip()),
            CtKey::DstIp | CtKey::DstIp6 => octets(destination.ip()),
        })
    }

    fn fib(&mut self, result: FibResult, flags: FibFlags) -> Option<Vec<u8>> {
        let packet = &self.traversal.packet;
        let address = if flags.contains(FibFlags::SADDR) { packet.source } else { packet.destination }.ip();
        let kernel = &self.traversal.kernel;
        match result {
            FibResult::AddrType => {
                let kind = if kernel.is_local(address) { RTN_LOCAL } else { RTN_UNICAST };
                Some(kind.to_ne_bytes().to_vec())
            }
            FibResult::Oif | FibResult::Oifname => None,
        }
    }

    fn lookup(&mut self, set: &str, sreg: Register, dreg: Option<Register>, matches: LookupMatch) -> Result<bool> {
        let Some(listed) = self.rules.sets.get(set) else { return Ok(self.unknown("lookup")) };
        let value = self.registers.get(sreg, value_len(&listed.key)).to_vec();
        let element = self.traversal.kernel.element(&self.rules.table, set, &value)?;

        let key = value_text(&value, &listed.key);
        let name = if set.starts_with("__") { "the anonymous set".to_owned() } else { format!("@{set}") };
        match (element, matches) {
            (None, LookupMatch::InSet) | (Some(_), LookupMatch::NotInSet) => return Ok(false),
            (None, LookupMatch::NotInSet) => self.actions.push(format!("{key} is not in {name}")),
            (Some(SetElement::Verdict(verdict)), _) => {
                self.actions.push(format!("{key} is in {name}"));
                self.verdict = Some(verdict);
            }
            (Some(SetElement::Value(value)), _) => {
                self.actions.push(format!("{name} maps {key} to {}", value_text(&value, &listed.data)));
                if let Some(dreg) = dreg {
                    self.registers.load(dreg, &value);
                }
            }
            (Some(SetElement::Key), _) => self.actions.push(format!("{key} is in {name}")),
        }
        Ok(true)
    }

    fn change_set(&mut self, set: &str, op: DynsetOp, key: Register) {
        let types = self.rules.sets.get(set).map_or(&[][..], |set| &set.key);
        let key = value_text(self.registers.get(key, value_len(types)), types);
        self.actions.push(match op {
            DynsetOp::Delete => format!("delete {key} from @{set}"),
            DynsetOp::Add | DynsetOp::Update => format!("add {key} to @{set}"),
        });
    }

    fn generate(&mut self, modulus: u32, kind: NumgenType) -> u32 {
        if modulus > 1 {
            let method = match kind {
                NumgenType::Random => "random",
                NumgenType::Incremental => "round robin",
            };
            self.actions.push(format!("{method} choice of {modulus}"));
        }
        let probabilities = vec![1.0 / f64::from(modulus.max(1)); modulus.max(1) as usize];
        self.traversal.choices.choose(&probabilities) as u32
    }

    /// Whether two registers contain different ends of a range.
    fn is_range(&self, first: Option<Register>, last: Option<Register>, len: usize) -> bool {
        first.zip(last).is_some_and(|(first, last)| self.registers.get(first, len) != self.registers.get(last, len))
    }

    fn translate(&mut self, kind: NatType, addr: Option<Register>, port: Option<Register>) {
        let family = self.traversal.packet.family();
        let field = |register, len| FieldReader::new(self.registers.get(register, len));
        let address = addr.and_then(|register| field(register, family.address_len()).addr(family));
        let port = port.and_then(|register| field(register, 2).port());

        match kind {
            NatType::Dnat => {
                self.traversal.translate(address, port);
                self.actions.push(format!("destination translated to {}", self.traversal.packet.destination));
            }
            NatType::Snat => {
                self.traversal.masquerade(address, &self.commented_or("snat"));
                self.actions.push(format!("source translated to {}", self.traversal.packet.source.ip()));
            }
        }
        self.decided = Some(ChainVerdict::Accept);
    }

    fn reject(&mut self, with: RejectWith) {
        let with = match with {
            RejectWith::TcpReset => "TCP reset".to_owned(),
            RejectWith::Icmp(3) | RejectWith::Icmpx(1) if self.traversal.packet.family() == IpFamily::V4 => {
                "ICMP port unreachable".to_owned()
            }
            RejectWith::Icmp(4) | RejectWith::Icmpx(1) => "ICMPv6 port unreachable".to_owned(),
            RejectWith::Icmp(code) | RejectWith::Icmpx(code) => format!("ICMP unreachable, code {code}"),
        };
        self.actions.push(format!("rejected with {with}"));

        let reason = match (self.comment, self.chain_comment) {
            ("", "") => self.traversal.jumped_by.last().map_or(self.chain, String::as_str).to_owned(),
            ("", comment) | (comment, _) => comment.to_owned(),
        };
        self.decided = Some(ChainVerdict::Ended(PacketVerdict::Rejected { with, reason }));
    }
}

fn holds(op: CmpOp, ordering: Ordering) -> bool {
    match op {
        CmpOp::Eq => ordering.is_eq(),
        CmpOp::Neq => ordering.is_ne(),
        CmpOp::Lt => ordering.is_lt(),
        CmpOp::Lte => ordering.is_le(),
        CmpOp::Gt => ordering.is_gt(),
        CmpOp::Gte => ordering.is_ge(),
    }
}

/// The name of an interface, padded with zeros.
fn padded(name: String) -> Vec<u8> {
    let mut bytes = name.into_bytes();
    bytes.resize(IFNAMSIZ, 0);
    bytes
}

/// The index of an interface of this namespace; 0 for none.
fn index(name: &str) -> u32 {
    let number = std::fs::read_to_string(format!("/sys/class/net/{name}/ifindex")).unwrap_or_default();
    number.trim().parse().unwrap_or(0)
}

impl Registers {
    /// Stores a value, padded with zeros to whole registers.
    fn load(&mut self, dreg: Register, value: &[u8]) {
        let at = offset(dreg);
        let whole = value.len().next_multiple_of(4);
        if let Some(bytes) = self.0.get_mut(at..at + whole) {
            bytes.fill(0);
            bytes[..value.len()].copy_from_slice(value);
        }
    }

    /// Reads `len` bytes; empty when they extend past the last register.
    fn get(&self, sreg: Register, len: usize) -> &[u8] {
        let at = offset(sreg);
        self.0.get(at..at + len).unwrap_or_default()
    }

    /// A number in host byte order.
    fn number(&self, sreg: Register) -> u32 {
        self.get(sreg, 4).try_into().map(u32::from_ne_bytes).unwrap_or_default()
    }
}

fn offset(register: Register) -> usize {
    usize::from(register.number().saturating_sub(Register::FIRST.number())) * 4
}
