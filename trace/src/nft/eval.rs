//! Evaluates the rules of a chain of nf_tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, bail};
use netlink::nft::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupMatch, MetaKey, NatType, NumgenType, Policy,
    RangeOp, Register, RejectWith, Rule, Verdict,
};

use super::{Table, describe, registers::Registers};
use crate::{
    kernel::SetElement,
    traversal::{ChainVerdict, MAX_DEPTH, Traversal},
};

/// `RTN_UNICAST`, `RTN_LOCAL` of `linux/rtnetlink.h`.
const RTN_UNICAST: u32 = 1;
const RTN_LOCAL: u32 = 2;
/// `IPS_DST_NAT` of `linux/netfilter/nf_conntrack_common.h`.
const STATUS_DNAT: u32 = 1 << 5;
/// The size of an interface name, `IFNAMSIZ`.
const IFNAMSIZ: usize = 16;
/// Expressions that match every packet and do not affect where it goes.
const NO_EFFECT: [&str; 5] = ["counter", "log", "objref", "notrack", "last"];

/// The result of a chain.
enum ChainResult {
    /// The calling chain continues.
    Return,
    Verdict(ChainVerdict),
}

/// The result of a rule.
enum RuleResult {
    /// It did not match, or has no verdict.
    Continue,
    Verdict(Verdict<'static>),
    Decided(ChainVerdict),
}

/// Evaluates a base chain.
pub(crate) fn base(traversal: &mut Traversal<'_>, table: &Table, name: &str) -> Result<ChainVerdict> {
    match chain(traversal, table, name, 0)? {
        ChainResult::Verdict(verdict) => Ok(verdict),
        ChainResult::Return => {
            let policy = table.bases().find(|(of, _)| *of == name).map(|(_, base)| base.policy);
            Ok(match policy {
                Some(Policy::Drop) => ChainVerdict::Drop { reason: format!("the policy of {}", table.full_name(name)) },
                _ => ChainVerdict::Accept,
            })
        }
    }
}

fn chain(traversal: &mut Traversal<'_>, table: &Table, name: &str, depth: usize) -> Result<ChainResult> {
    if depth > MAX_DEPTH {
        bail!("{}: chains jump to each other in a cycle", table.full_name(name));
    }
    for rule in table.rules.get(name).into_iter().flatten() {
        let verdict = match RuleRun::new(traversal, table, name, rule).run()? {
            RuleResult::Continue => continue,
            RuleResult::Decided(verdict) => return Ok(ChainResult::Verdict(verdict)),
            RuleResult::Verdict(verdict) => verdict,
        };
        let comment = comment(rule);
        let reason = || if comment.is_empty() { table.full_name(name) } else { comment.to_owned() };
        match verdict {
            Verdict::Continue => {}
            Verdict::Accept => return Ok(ChainResult::Verdict(ChainVerdict::Accept)),
            Verdict::Drop => return Ok(ChainResult::Verdict(ChainVerdict::Drop { reason: reason() })),
            Verdict::Return => return Ok(ChainResult::Return),
            Verdict::Jump(to) | Verdict::Goto(to) if to == name => {
                bail!("{}: the chain jumps to itself", table.full_name(name))
            }
            Verdict::Jump(to) => {
                traversal.jumped_by.push(reason());
                let result = chain(traversal, table, &to, depth + 1)?;
                traversal.jumped_by.pop();
                if let ChainResult::Verdict(_) = result {
                    return Ok(result);
                }
            }
            Verdict::Goto(to) => {
                traversal.jumped_by.push(reason());
                let result = chain(traversal, table, &to, depth + 1)?;
                traversal.jumped_by.pop();
                return Ok(result);
            }
            Verdict::Other(code) => {
                traversal.unknown(format!("{}: unknown verdict {code}, treated as accept", table.full_name(name)));
                return Ok(ChainResult::Verdict(ChainVerdict::Accept));
            }
        }
    }
    Ok(ChainResult::Return)
}

fn comment(rule: &Rule) -> &str {
    rule.comment.as_ref().map_or("", |comment| comment)
}

/// The evaluation of a rule.
struct RuleRun<'a, 'f, 'k> {
    traversal: &'f mut Traversal<'k>,
    table: &'a Table,
    chain: &'a str,
    rule: &'a Rule,
    registers: Registers,
    verdict: Option<Verdict<'static>>,
    /// What it has done so far, for display.
    actions: Vec<String>,
}

/// The result of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ExprResult {
    Continue,
    NoMatch,
    Verdict(ChainVerdict),
}

impl<'a, 'f, 'k> RuleRun<'a, 'f, 'k> {
    fn new(traversal: &'f mut Traversal<'k>, table: &'a Table, chain: &'a str, rule: &'a Rule) -> Self {
        Self { traversal, table, chain, rule, registers: Registers::new(), verdict: None, actions: Vec::new() }
    }

    fn run(mut self) -> Result<RuleResult> {
        for expr in &self.rule.exprs {
            match self.expression(expr)? {
                ExprResult::Continue => {}
                ExprResult::NoMatch => return Ok(RuleResult::Continue),
                ExprResult::Verdict(verdict) => {
                    self.record_step();
                    return Ok(RuleResult::Decided(verdict));
                }
            }
        }
        self.record_step();
        Ok(self.verdict.map_or(RuleResult::Continue, RuleResult::Verdict))
    }

    fn record_step(&mut self) {
        if let Some(verdict) = &self.verdict {
            self.actions.push(verdict.to_string());
        }
        let action = if self.actions.is_empty() { "matches".to_owned() } else { self.actions.join("; ") };
        self.traversal.step(self.table.full_name(self.chain), self.rule.to_string(), action);
    }

    fn expression(&mut self, expr: &Expr) -> Result<ExprResult> {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                let Some(bytes) = self.traversal.packet.bytes(*base, *offset, *len) else {
                    return Ok(ExprResult::NoMatch);
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
                self.traversal.set_mark(mark, comment(self.rule));
            }
            Expr::MetaSet { .. } => {}
            Expr::Ct { dreg, key, direction } => {
                let Some(value) = self.conntrack(*key, *direction) else { return Ok(self.unknown("ct")) };
                self.registers.load(*dreg, &value);
            }
            Expr::Fib { dreg, result, flags } => {
                let Some(value) = self.fib(*result, *flags) else { return Ok(self.unknown("fib")) };
                self.registers.load(*dreg, &value);
            }
            Expr::Cmp { sreg, op, data } => {
                let ordering = self.registers.get(*sreg, data.len()).cmp(&data[..]);
                let holds = match op {
                    CmpOp::Eq => ordering.is_eq(),
                    CmpOp::Neq => ordering.is_ne(),
                    CmpOp::Lt => ordering.is_lt(),
                    CmpOp::Lte => ordering.is_le(),
                    CmpOp::Gt => ordering.is_gt(),
                    CmpOp::Gte => ordering.is_ge(),
                };
                return Ok(if holds { ExprResult::Continue } else { ExprResult::NoMatch });
            }
            Expr::Range { sreg, op, from, to } => {
                let value = self.registers.get(*sreg, from.len());
                let inside = *value >= from[..] && *value <= to[..];
                return Ok(if inside == (*op == RangeOp::Eq) { ExprResult::Continue } else { ExprResult::NoMatch });
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                let value = self.registers.get(*sreg, mask.len()).iter().zip(&mask[..]).zip(&xor[..]);
                let value: Vec<_> = value.map(|((value, mask), xor)| (value & mask) ^ xor).collect();
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
            Expr::Dynset { set, op, key, .. } => {
                let types = self.table.sets.get(set).map_or(&[][..], |set| &set.key);
                let key = describe::value(types, self.registers.get(*key, describe::len(types)));
                self.actions.push(match op {
                    DynsetOp::Delete => format!("delete {key} from @{set}"),
                    DynsetOp::Add | DynsetOp::Update => format!("add {key} to @{set}"),
                });
            }
            Expr::Numgen { dreg, kind, modulus, offset } => {
                let number = self.generate(*modulus, *kind);
                self.registers.load(*dreg, &(offset + number).to_ne_bytes());
            }
            Expr::Nat { kind, addr, port, .. } => return Ok(self.translate(*kind, *addr, *port)),
            Expr::Masquerade { .. } => {
                let reason = if comment(self.rule).is_empty() { "masquerade" } else { comment(self.rule) };
                self.traversal.masquerade(None, reason);
                self.actions.push("source masqueraded".to_owned());
                return Ok(ExprResult::Verdict(ChainVerdict::Accept));
            }
            Expr::Reject(with) => return Ok(self.reject(*with)),
            Expr::Counter => {}
            Expr::Other { name, .. } if NO_EFFECT.contains(&name.as_str()) => {}
            Expr::Other { name, .. } => return Ok(self.unknown(name)),
        }
        Ok(ExprResult::Continue)
    }

    /// An unknown expression is treated as not matching.
    fn unknown(&mut self, expression: &str) -> ExprResult {
        let rule = format!("{} ({expression}): {}", self.table.full_name(self.chain), self.rule);
        self.traversal.unknown(format!("unknown expression, the rule is treated as not matching: {rule}"));
        ExprResult::NoMatch
    }

    fn meta(&mut self, key: MetaKey) -> Vec<u8> {
        let name = |name: String| {
            let mut bytes = name.into_bytes();
            bytes.resize(IFNAMSIZ, 0);
            bytes
        };
        match key {
            MetaKey::Mark => self.traversal.mark.to_ne_bytes().to_vec(),
            MetaKey::L4proto => vec![self.traversal.packet.protocol.number()],
            MetaKey::Nfproto => vec![if self.traversal.packet.is_v4() { 2 } else { 10 }],
            MetaKey::Iifname => name(self.traversal.input()),
            MetaKey::Oifname => name(self.traversal.output()),
            MetaKey::Iif => index(&self.traversal.input()).to_ne_bytes().to_vec(),
            MetaKey::Oif => index(&self.traversal.output()).to_ne_bytes().to_vec(),
            MetaKey::Priority => vec![0; 4],
        }
    }

    /// A field of the connection, which is new. `None`: unknown.
    fn conntrack(&self, key: CtKey, direction: Option<CtDirection>) -> Option<Vec<u8>> {
        let packet = &self.traversal.packet;
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (source, destination) = match direction {
            // Replies come from the current destination.
            Some(CtDirection::Reply) => (packet.destination, packet.source),
            _ => (packet.source, packet.destination),
        };
        Some(match key {
            CtKey::State => CtKey::STATE_NEW.to_ne_bytes().to_vec(),
            CtKey::Direction => vec![0],
            CtKey::Status => {
                let status = if self.traversal.is_translated() { STATUS_DNAT } else { 0 };
                status.to_ne_bytes().to_vec()
            }
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

    fn lookup(
        &mut self,
        set: &str,
        sreg: Register,
        dreg: Option<Register>,
        matches: LookupMatch,
    ) -> Result<ExprResult> {
        let Some(listed) = self.table.sets.get(set) else { return Ok(self.unknown("lookup")) };
        let key = self.registers.get(sreg, describe::len(&listed.key)).to_vec();
        let element = self.traversal.kernel.element(&self.table.table, set, &key)?;
        let key = describe::value(&listed.key, &key);
        let name = if set.starts_with("__") { "the anonymous set".to_owned() } else { format!("@{set}") };
        match (element, matches) {
            (None, LookupMatch::InSet) | (Some(_), LookupMatch::NotInSet) => return Ok(ExprResult::NoMatch),
            (None, LookupMatch::NotInSet) => self.actions.push(format!("{key} is not in {name}")),
            (Some(SetElement::Verdict(verdict)), _) => {
                self.actions.push(format!("{key} is in {name}"));
                self.verdict = Some(verdict);
            }
            (Some(SetElement::Value(value)), _) => {
                self.actions.push(format!("{name} maps {key} to {}", describe::value(&listed.data, &value)));
                if let Some(dreg) = dreg {
                    self.registers.load(dreg, &value);
                }
            }
            (Some(SetElement::Key), _) => self.actions.push(format!("{key} is in {name}")),
        }
        Ok(ExprResult::Continue)
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

    fn translate(&mut self, kind: NatType, addr: Option<Register>, port: Option<Register>) -> ExprResult {
        let address = addr.map(|register| match self.traversal.packet.is_v4() {
            true => {
                let bytes: [u8; 4] = self.registers.get(register, 4).try_into().unwrap_or_default();
                IpAddr::V4(Ipv4Addr::from(bytes))
            }
            false => {
                let bytes: [u8; 16] = self.registers.get(register, 16).try_into().unwrap_or_default();
                IpAddr::V6(Ipv6Addr::from(bytes))
            }
        });
        let port = port.and_then(|register| self.registers.get(register, 2).try_into().ok());
        match kind {
            NatType::Dnat => {
                self.traversal.translate(address, port.map(u16::from_be_bytes));
                self.actions.push(format!("destination translated to {}", self.traversal.packet.destination));
            }
            NatType::Snat => {
                let reason = if comment(self.rule).is_empty() { "snat" } else { comment(self.rule) };
                self.traversal.masquerade(address, reason);
                self.actions.push(format!("source translated to {}", self.traversal.packet.source.ip()));
            }
        }
        ExprResult::Verdict(ChainVerdict::Accept)
    }

    fn reject(&mut self, with: RejectWith) -> ExprResult {
        let with = match with {
            RejectWith::TcpReset => "TCP reset".to_owned(),
            RejectWith::Icmp(3) | RejectWith::Icmpx(1) if self.traversal.packet.is_v4() => {
                "ICMP port unreachable".to_owned()
            }
            RejectWith::Icmp(4) | RejectWith::Icmpx(1) => "ICMPv6 port unreachable".to_owned(),
            RejectWith::Icmp(code) | RejectWith::Icmpx(code) => format!("ICMP unreachable, code {code}"),
        };
        self.actions.push(format!("rejected with {with}"));
        let reason = match (comment(self.rule), self.table.chains.iter().find(|chain| chain.name == self.chain)) {
            ("", Some(netlink::nft::Chain { comment: Some(comment), .. })) => comment.to_string(),
            ("", _) => self.traversal.jumped_by.last().cloned().unwrap_or_else(|| self.table.full_name(self.chain)),
            (comment, _) => comment.to_owned(),
        };
        ExprResult::Verdict(ChainVerdict::Reject { with, reason })
    }
}

/// The index of an interface of this namespace; 0 for none.
fn index(name: &str) -> u32 {
    let path = format!("/sys/class/net/{name}/ifindex");
    if name.is_empty() {
        return 0;
    }
    std::fs::read_to_string(path).ok().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
