//! A packet in a chain of nf_tables: rule after rule, expression after expression, until one decides.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Result, bail};
use netlink::nft::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupMatch, MetaKey, NatType, NumgenType, Policy,
    RangeOp, Register, RejectWith, Rule, Verdict,
};

use super::{Table, registers::Registers, words};
use crate::{
    flow::{DEEPEST, Decision, Flow},
    kernel::Found,
};

/// `RTN_UNICAST`, `RTN_LOCAL` of `linux/rtnetlink.h`.
const RTN_UNICAST: u32 = 1;
const RTN_LOCAL: u32 = 2;
/// `IPS_DST_NAT` of `linux/netfilter/nf_conntrack_common.h`.
const STATUS_DNAT: u32 = 1 << 5;
/// Length of an interface's name, `IFNAMSIZ`.
const NAME: usize = 16;
/// Expressions that let every packet pass as far as a rule is concerned.
const HARMLESS: [&str; 5] = ["counter", "log", "objref", "notrack", "last"];

/// How a chain ends.
enum Left {
    /// Behind its last rule, or by `return`: the chain that jumped here goes on.
    Back,
    Decided(Decision),
}

/// How a rule ends.
enum Ended {
    /// It did not match, or says nothing about where to go on.
    Next,
    Verdict(Verdict<'static>),
    Decided(Decision),
}

/// A base chain.
pub(crate) fn base(flow: &mut Flow<'_>, table: &Table, name: &str) -> Result<Decision> {
    match chain(flow, table, name, 0)? {
        Left::Decided(decision) => Ok(decision),
        Left::Back => {
            let policy = table.bases().find(|(of, _)| *of == name).map(|(_, base)| base.policy);
            Ok(match policy {
                Some(Policy::Drop) => Decision::Drop { why: format!("the policy of {}", table.place(name)) },
                _ => Decision::Accept,
            })
        }
    }
}

fn chain(flow: &mut Flow<'_>, table: &Table, name: &str, depth: usize) -> Result<Left> {
    if depth > DEEPEST {
        bail!("{}: chains lead to each other without end", table.place(name));
    }
    for rule in table.rules.get(name).into_iter().flatten() {
        let verdict = match Run::new(flow, table, name, rule).run()? {
            Ended::Next => continue,
            Ended::Decided(decision) => return Ok(Left::Decided(decision)),
            Ended::Verdict(verdict) => verdict,
        };
        let led_by = comment(rule).to_owned();
        let why = || if led_by.is_empty() { table.place(name) } else { led_by.clone() };
        match verdict {
            Verdict::Continue => {}
            Verdict::Accept => return Ok(Left::Decided(Decision::Accept)),
            Verdict::Drop => return Ok(Left::Decided(Decision::Drop { why: why() })),
            Verdict::Return => return Ok(Left::Back),
            Verdict::Jump(to) | Verdict::Goto(to) if to == name => {
                bail!("{}: leads to itself", table.place(name))
            }
            Verdict::Jump(to) => {
                flow.led_by.push(why());
                let left = chain(flow, table, &to, depth + 1)?;
                flow.led_by.pop();
                if let Left::Decided(decision) = left {
                    return Ok(Left::Decided(decision));
                }
            }
            Verdict::Goto(to) => {
                flow.led_by.push(why());
                let left = chain(flow, table, &to, depth + 1)?;
                flow.led_by.pop();
                return Ok(left);
            }
            Verdict::Other(code) => {
                flow.unknown(format!("{}: verdict {code} (a queue?)", table.place(name)));
                return Ok(Left::Decided(Decision::Accept));
            }
        }
    }
    Ok(Left::Back)
}

fn comment(rule: &Rule) -> &str {
    rule.comment.as_ref().map_or("", |comment| comment)
}

/// A rule that is being run.
struct Run<'a, 'f, 'k> {
    flow: &'f mut Flow<'k>,
    table: &'a Table,
    chain: &'a str,
    rule: &'a Rule,
    registers: Registers,
    verdict: Option<Verdict<'static>>,
    /// What it has done so far, in words.
    does: Vec<String>,
}

/// Whether the rule goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goes {
    On,
    /// It does not match.
    No,
    /// It has decided.
    Decided(Decision),
}

impl<'a, 'f, 'k> Run<'a, 'f, 'k> {
    fn new(flow: &'f mut Flow<'k>, table: &'a Table, chain: &'a str, rule: &'a Rule) -> Self {
        Self { flow, table, chain, rule, registers: Registers::new(), verdict: None, does: Vec::new() }
    }

    fn run(mut self) -> Result<Ended> {
        for expr in &self.rule.exprs {
            match self.expression(expr)? {
                Goes::On => {}
                Goes::No => return Ok(Ended::Next),
                Goes::Decided(decision) => {
                    self.tell();
                    return Ok(Ended::Decided(decision));
                }
            }
        }
        self.tell();
        Ok(self.verdict.map_or(Ended::Next, Ended::Verdict))
    }

    fn tell(&mut self) {
        if let Some(verdict) = &self.verdict {
            self.does.push(verdict.to_string());
        }
        let does = if self.does.is_empty() { "matches".to_owned() } else { self.does.join("; ") };
        self.flow.step(self.table.place(self.chain), self.rule.to_string(), does);
    }

    fn expression(&mut self, expr: &Expr) -> Result<Goes> {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                let Some(bytes) = self.flow.packet.bytes(*base, *offset, *len) else { return Ok(Goes::No) };
                self.registers.load(*dreg, &bytes);
            }
            Expr::Meta { dreg, key } => {
                let value = self.meta(*key);
                self.registers.load(*dreg, &value);
            }
            Expr::MetaSet { sreg, key: MetaKey::Mark } => {
                let mark = self.registers.number(*sreg);
                self.does.push(format!("mark {:#x} becomes {mark:#x}", self.flow.mark));
                self.flow.set_mark(mark, comment(self.rule));
            }
            Expr::MetaSet { .. } => {}
            Expr::Ct { dreg, key, direction } => {
                let Some(value) = self.connection(*key, *direction) else { return Ok(self.unknown("ct")) };
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
                return Ok(if holds { Goes::On } else { Goes::No });
            }
            Expr::Range { sreg, op, from, to } => {
                let value = self.registers.get(*sreg, from.len());
                let inside = *value >= from[..] && *value <= to[..];
                return Ok(if inside == (*op == RangeOp::Eq) { Goes::On } else { Goes::No });
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                let value = self.registers.get(*sreg, mask.len()).iter().zip(&mask[..]).zip(&xor[..]);
                let value: Vec<_> = value.map(|((value, mask), xor)| (value & mask) ^ xor).collect();
                self.registers.load(*dreg, &value);
            }
            Expr::Byteorder { sreg, dreg, len, size, .. } => {
                let mut value = self.registers.get(*sreg, *len as usize).to_vec();
                // To and from the network's order is the same: on a machine that has it already, nothing.
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
                let key = words::value(types, self.registers.get(*key, words::len(types)));
                self.does.push(match op {
                    DynsetOp::Delete => format!("forgets {key} in @{set}"),
                    DynsetOp::Add | DynsetOp::Update => format!("remembers {key} in @{set}"),
                });
            }
            Expr::Numgen { dreg, kind, modulus, offset } => {
                let number = self.any_of(*modulus, *kind);
                self.registers.load(*dreg, &(offset + number).to_ne_bytes());
            }
            Expr::Nat { kind, addr, port, .. } => return Ok(self.translate(*kind, *addr, *port)),
            Expr::Masquerade { .. } => {
                let why = if comment(self.rule).is_empty() { "masquerade" } else { comment(self.rule) };
                self.flow.masquerade(None, why);
                self.does.push("the source becomes an address of this node".to_owned());
                return Ok(Goes::Decided(Decision::Accept));
            }
            Expr::Reject(with) => return Ok(self.reject(*with)),
            Expr::Counter => {}
            Expr::Other { name, .. } if HARMLESS.contains(&name.as_str()) => {}
            Expr::Other { name, .. } => return Ok(self.unknown(name)),
        }
        Ok(Goes::On)
    }

    /// An expression that is not understood is taken for one that does not match.
    fn unknown(&mut self, what: &str) -> Goes {
        let rule = format!("{} ({what}): {}", self.table.place(self.chain), self.rule);
        self.flow.unknown(format!("a rule that is not understood, and taken for one that does not match: {rule}"));
        Goes::No
    }

    fn meta(&mut self, key: MetaKey) -> Vec<u8> {
        let name = |name: String| {
            let mut bytes = name.into_bytes();
            bytes.resize(NAME, 0);
            bytes
        };
        match key {
            MetaKey::Mark => self.flow.mark.to_ne_bytes().to_vec(),
            MetaKey::L4proto => vec![self.flow.packet.protocol.number()],
            MetaKey::Nfproto => vec![if self.flow.packet.is_v4() { 2 } else { 10 }],
            MetaKey::Iifname => name(self.flow.input()),
            MetaKey::Oifname => name(self.flow.output()),
            MetaKey::Iif => index(&self.flow.input()).to_ne_bytes().to_vec(),
            MetaKey::Oif => index(&self.flow.output()).to_ne_bytes().to_vec(),
            MetaKey::Priority => vec![0; 4],
        }
    }

    /// A connection that is being opened. `None`: not known.
    fn connection(&self, key: CtKey, direction: Option<CtDirection>) -> Option<Vec<u8>> {
        let packet = &self.flow.packet;
        let octets = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        let (source, destination) = match direction {
            // What answers is who it is addressed to by now.
            Some(CtDirection::Reply) => (packet.destination, packet.source),
            _ => (packet.source, packet.destination),
        };
        Some(match key {
            CtKey::State => CtKey::STATE_NEW.to_ne_bytes().to_vec(),
            CtKey::Direction => vec![0],
            CtKey::Status => {
                let status = if self.flow.is_translated() { STATUS_DNAT } else { 0 };
                status.to_ne_bytes().to_vec()
            }
            CtKey::Mark => self.flow.ct_mark.to_ne_bytes().to_vec(),
            CtKey::Protocol => vec![packet.protocol.number()],
            CtKey::ProtoSrc => source.port().to_be_bytes().to_vec(),
            CtKey::ProtoDst => destination.port().to_be_bytes().to_vec(),
            CtKey::SrcIp | CtKey::SrcIp6 => octets(source.ip()),
            CtKey::DstIp | CtKey::DstIp6 => octets(destination.ip()),
        })
    }

    fn fib(&mut self, result: FibResult, flags: FibFlags) -> Option<Vec<u8>> {
        let packet = &self.flow.packet;
        let address = if flags.contains(FibFlags::SADDR) { packet.source } else { packet.destination }.ip();
        let kernel = &self.flow.kernel;
        match result {
            FibResult::AddrType => {
                let kind = if kernel.is_local(address) { RTN_LOCAL } else { RTN_UNICAST };
                Some(kind.to_ne_bytes().to_vec())
            }
            FibResult::Oif | FibResult::Oifname => None,
        }
    }

    fn lookup(&mut self, set: &str, sreg: Register, dreg: Option<Register>, matches: LookupMatch) -> Result<Goes> {
        let Some(known) = self.table.sets.get(set) else { return Ok(self.unknown("lookup")) };
        let key = self.registers.get(sreg, words::len(&known.key)).to_vec();
        let found = self.flow.kernel.element(&self.table.table, set, &key)?;
        let key = words::value(&known.key, &key);
        let name = if set.starts_with("__") { "the rule's set".to_owned() } else { format!("@{set}") };
        match (found, matches) {
            (None, LookupMatch::InSet) | (Some(_), LookupMatch::NotInSet) => return Ok(Goes::No),
            (None, LookupMatch::NotInSet) => self.does.push(format!("{key} is not in {name}")),
            (Some(Found::Verdict(verdict)), _) => {
                self.does.push(format!("{key} is in {name}"));
                self.verdict = Some(verdict);
            }
            (Some(Found::Value(value)), _) => {
                self.does.push(format!("{key} leads in {name} to {}", words::value(&known.data, &value)));
                if let Some(dreg) = dreg {
                    self.registers.load(dreg, &value);
                }
            }
            (Some(Found::Key), _) => self.does.push(format!("{key} is in {name}")),
        }
        Ok(Goes::On)
    }

    fn any_of(&mut self, modulus: u32, kind: NumgenType) -> u32 {
        if modulus > 1 {
            let how = match kind {
                NumgenType::Random => "at random",
                NumgenType::Incremental => "in turn",
            };
            self.does.push(format!("one of {modulus} {how}"));
        }
        let shares = vec![1.0 / f64::from(modulus.max(1)); modulus.max(1) as usize];
        self.flow.choices.choose(&shares) as u32
    }

    fn translate(&mut self, kind: NatType, addr: Option<Register>, port: Option<Register>) -> Goes {
        let address = addr.map(|register| match self.flow.packet.is_v4() {
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
                self.flow.translate(address, port.map(u16::from_be_bytes));
                self.does.push(format!("the destination becomes {}", self.flow.packet.destination));
            }
            NatType::Snat => {
                let why = if comment(self.rule).is_empty() { "snat" } else { comment(self.rule) };
                self.flow.masquerade(address, why);
                self.does.push(format!("the source becomes {}", self.flow.packet.source.ip()));
            }
        }
        Goes::Decided(Decision::Accept)
    }

    fn reject(&mut self, with: RejectWith) -> Goes {
        let with = match with {
            RejectWith::TcpReset => "a TCP reset".to_owned(),
            RejectWith::Icmp(3) | RejectWith::Icmpx(1) if self.flow.packet.is_v4() => {
                "ICMP port unreachable".to_owned()
            }
            RejectWith::Icmp(4) | RejectWith::Icmpx(1) => "ICMPv6 port unreachable".to_owned(),
            RejectWith::Icmp(code) | RejectWith::Icmpx(code) => format!("ICMP unreachable, code {code}"),
        };
        self.does.push(format!("refused with {with}"));
        let why = match (comment(self.rule), self.table.chains.iter().find(|chain| chain.name == self.chain)) {
            ("", Some(netlink::nft::Chain { comment: Some(comment), .. })) => comment.to_string(),
            ("", _) => self.flow.led_by.last().cloned().unwrap_or_else(|| self.table.place(self.chain)),
            (comment, _) => comment.to_owned(),
        };
        Goes::Decided(Decision::Refuse { with, why })
    }
}

/// The number of an interface of this namespace; 0 for none.
fn index(name: &str) -> u32 {
    let path = format!("/sys/class/net/{name}/ifindex");
    if name.is_empty() {
        return 0;
    }
    std::fs::read_to_string(path).ok().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}
