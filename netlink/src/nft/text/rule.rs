//! Rules as text: follows the values through the registers, and writes each statement with the names of what it reads.
//!
//! ```text
//! payload -> r8, meta -> r9, payload -> r10, numgen -> r11, lookup r8 -> r8, nat r8
//!   = dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints
//! ```
//! A map's result that is not read as a whole, from its start, is written as an assignment: `r8 = ... map @affinity`.

use std::fmt;

use super::{
    names,
    registers::{Kind, Registers, Value},
};
use crate::nft::expr::{CmpOp, DynsetOp, Expr, LookupMatch, NatType, NumgenType, RangeOp, Register, Rule};

/// How many registers the key and the data of a set fill, if the set is known.
pub(crate) type SetWords<'a> = dyn Fn(&str) -> Option<(u8, u8)> + 'a;

/// A rule, ready to be written.
pub(crate) struct RuleText<'a> {
    rule: &'a Rule,
    sets: &'a SetWords<'a>,
}

impl<'a> RuleText<'a> {
    pub(crate) fn new(rule: &'a Rule, sets: &'a SetWords<'a>) -> Self {
        RuleText { rule, sets }
    }
}

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer { registers: Registers::default(), parts: Vec::new(), sets: self.sets };
        self.rule.exprs.iter().for_each(|expr| writer.put(expr));
        let mut parts = writer.parts;
        parts.extend(self.rule.comment.as_ref().map(|comment| format!("comment {:?}", &**comment)));
        parts.retain(|part| !part.is_empty());
        f.write_str(&parts.join(" "))
    }
}

/// Without knowing the sets it uses: a key is taken to be all that was loaded from its first register on.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RuleText::new(self, &|_| None).fmt(f)
    }
}

struct Writer<'a> {
    registers: Registers,
    /// The rule's text; an empty part was overtaken by a later one.
    parts: Vec<String>,
    sets: &'a SetWords<'a>,
}

impl Writer<'_> {
    /// The text of the value in this number of registers (`None`: all that are loaded in sequence).
    fn take(&mut self, sreg: Register, words: Option<u8>) -> String {
        let (text, superfluous) = self.registers.take(sreg, words);
        superfluous.into_iter().for_each(|part| self.parts[part].clear());
        text
    }

    fn put(&mut self, expr: &Expr) {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                let (text, kind) = names::payload(*base, *offset, *len);
                self.registers.load(*dreg, Value::new(text, kind, *len as usize));
            }
            Expr::Meta { dreg, key } => {
                let (text, kind, len) = names::meta(*key);
                self.registers.load(*dreg, Value::new(text, kind, len));
            }
            Expr::MetaSet { sreg, key } => {
                let value = self.take(*sreg, Some(1));
                let (name, _, _) = names::meta(*key);
                self.parts.push(format!("{name} set {value}"));
            }
            Expr::Ct { dreg, key, direction } => {
                let (text, kind, len) = names::ct(*key, *direction);
                self.registers.load(*dreg, Value::new(text, kind, len));
            }
            Expr::Fib { dreg, result, flags } => {
                let (text, kind, len) = names::fib(*result, *flags);
                self.registers.load(*dreg, Value::new(text, kind, len));
            }
            Expr::Cmp { sreg, op, data } => self.compare(*sreg, *op, data),
            Expr::Range { sreg, op, from, to } => {
                let kind = self.registers.get(*sreg).map_or(Kind::Raw, |value| value.kind);
                let not = if *op == RangeOp::Neq { "!= " } else { "" };
                let value = self.take(*sreg, Some(1));
                let (from, to) = (names::constant(kind, from), names::constant(kind, to));
                self.parts.push(format!("{value} {not}{from}-{to}"));
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => self.bitwise(*sreg, *dreg, mask, xor),
            Expr::Byteorder { sreg, dreg, len, .. } => {
                // What it is compared with is turned round as well.
                let text = self.take(*sreg, Some((*len as usize).div_ceil(4) as u8));
                self.registers.load(*dreg, Value::new(text, Kind::Raw, *len as usize));
            }
            Expr::Immediate { dreg, data } => {
                let text = names::constant(Kind::Raw, data);
                self.registers.load(*dreg, Value::new(text, Kind::Raw, data.len()));
            }
            Expr::Verdict(verdict) => self.parts.push(verdict.to_string()),
            Expr::Lookup { set, sreg, dreg, matches } => self.lookup(set, *sreg, *dreg, *matches),
            Expr::Dynset { set, op, key, data, timeout } => {
                let known = (self.sets)(set);
                let mut element = self.take(*key, known.map(|(key, _)| key));
                if let Some(timeout) = timeout {
                    element += &format!(" timeout {timeout:?}");
                }
                if let Some(data) = data {
                    let data = self.take(*data, known.map(|(_, data)| data));
                    element += &format!(" : {data}");
                }
                let verb = match op {
                    DynsetOp::Add => "add",
                    DynsetOp::Update => "update",
                    DynsetOp::Delete => "delete",
                };
                self.parts.push(format!("{verb} @{set} {{ {element} }}"));
            }
            Expr::Numgen { dreg, kind, modulus, offset } => {
                let kind = match kind {
                    NumgenType::Incremental => "inc",
                    NumgenType::Random => "random",
                };
                let mut text = format!("numgen {kind} mod {modulus}");
                if *offset != 0 {
                    text += &format!(" offset {offset}");
                }
                self.registers.load(*dreg, Value::new(text, Kind::Number, 4));
            }
            Expr::Nat { kind, family, addr, addr_max, port, port_max, flags } => {
                let verb = match kind {
                    NatType::Snat => "snat",
                    NatType::Dnat => "dnat",
                };
                // The result of a map fills both registers at once, and is written once.
                let covered = addr.and_then(|addr| self.registers.get(addr)?.end(addr));
                let mut to = addr.map_or_else(String::new, |addr| self.span(addr, *addr_max));
                if let Some(port) = port.filter(|port| covered.is_none_or(|end| end <= port.number())) {
                    to += &format!(":{}", self.span(port, *port_max));
                }
                self.parts.push(format!("{verb} {family} to {to}{}", names::nat_flags(*flags)));
            }
            Expr::Masquerade { flags } => self.parts.push(format!("masquerade{}", names::nat_flags(*flags))),
            Expr::Reject(with) => self.parts.push(names::reject(*with)),
            Expr::Counter => self.parts.push("counter".into()),
            Expr::Other { name, data } => self.parts.push(format!("[{name} {data:?}]")),
        }
    }

    fn compare(&mut self, sreg: Register, op: CmpOp, data: &[u8]) {
        let (kind, mask) = match self.registers.get(sreg) {
            Some(value) => (value.kind, value.mask.clone()),
            None => (Kind::Raw, None),
        };
        let text = self.take(sreg, Some(1));
        let part = match (mask, op) {
            (Some(mask), CmpOp::Neq) if kind == Kind::CtState && names::is_zero(data) => {
                format!("{text} {}", names::ct_states(&mask))
            }
            (Some(mask), CmpOp::Eq | CmpOp::Neq) if kind == Kind::Addr && names::prefix_len(&mask).is_some() => {
                let prefix = names::prefix_len(&mask).unwrap_or_default();
                format!("{text} {}{}/{prefix}", names::operator(op), names::constant(kind, data))
            }
            (Some(mask), _) => {
                let (mask, data) = (names::constant(kind, &mask), names::constant(kind, data));
                let operator = if op == CmpOp::Eq { "== " } else { names::operator(op) };
                format!("{text} & {mask} {operator}{data}")
            }
            (None, _) => format!("{text} {}{}", names::operator(op), names::constant(kind, data)),
        };
        self.parts.push(part);
    }

    fn bitwise(&mut self, sreg: Register, dreg: Register, mask: &[u8], xor: &[u8]) {
        let kind = self.registers.get(sreg).map_or(Kind::Raw, |value| value.kind);
        let text = self.take(sreg, Some(mask.len().div_ceil(4) as u8));
        let value = if names::is_zero(xor) {
            Value { mask: Some(mask.into()), ..Value::new(text, kind, mask.len()) }
        } else {
            Value::new(names::masked(&text, kind, mask, xor), kind, mask.len())
        };
        self.registers.load(dreg, value);
    }

    fn lookup(&mut self, set: &str, sreg: Register, dreg: Option<Register>, matches: LookupMatch) {
        let known = (self.sets)(set);
        let key = self.take(sreg, known.map(|(key, _)| key));
        match dreg {
            None if matches == LookupMatch::NotInSet => self.parts.push(format!("{key} != @{set}")),
            None => self.parts.push(format!("{key} @{set}")),
            Some(Register::VERDICT) => self.parts.push(format!("{key} vmap @{set}")),
            Some(dreg) => {
                let text = format!("{key} map @{set}");
                // Data of unknown length may have overwritten all that follows.
                let words = known.map_or(u8::MAX, |(_, data)| data);
                let value = Value { words, ..Value::new(text.clone(), Kind::Raw, 4) };
                self.registers.load(dreg, Value { loaded_by: Some(self.parts.len()), ..value });
                self.parts.push(format!("{dreg:?} = {text}"));
            }
        }
    }

    /// A value, or a range of them.
    fn span(&mut self, min: Register, max: Option<Register>) -> String {
        let min = self.take(min, Some(1));
        match max {
            Some(max) => format!("{min}-{}", self.take(max, Some(1))),
            None => min,
        }
    }
}
