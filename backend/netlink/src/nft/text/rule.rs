//! Rules as text: tracks the values in the registers, and writes each statement with the names of its inputs.
//!
//! ```text
//! payload -> r8, meta -> r9, payload -> r10, numgen -> r11, lookup r8 -> r8, nat r8
//!   = dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints
//! ```
//! The result of a map that is not read as a whole is written as an assignment: `r8 = ... map @affinity`.

use std::fmt;

use super::{
    names,
    registers::{Registers, Value},
};
use crate::nft::{
    expr::{CmpOp, Expr, LookupMatch, Register, Rule},
    set::DataType,
};

/// Returns the numbers of registers of a set's key and data, if the set is known.
pub(crate) type RegisterCounts<'a> = dyn Fn(&str) -> Option<(u8, u8)> + 'a;

pub(crate) struct RuleText<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) sets: &'a RegisterCounts<'a>,
}

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer { registers: Registers::default(), parts: Vec::new(), sets: self.sets };
        self.rule.exprs.iter().for_each(|expr| writer.put(expr));
        let mut parts = writer.parts;
        parts.extend(self.rule.comment.as_ref().map(|comment| format!("comment {comment:?}")));
        parts.retain(|part| !part.is_empty());
        f.write_str(&parts.join(" "))
    }
}

/// Displays the rule without the layouts of its sets: a key is assumed to extend to the first empty register.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        RuleText { rule: self, sets: &|_| None }.fmt(f)
    }
}

struct Writer<'a> {
    registers: Registers,
    /// The rule's text; a later part may replace an earlier one, which is empty then.
    parts: Vec<String>,
    sets: &'a RegisterCounts<'a>,
}

impl Writer<'_> {
    /// The text of the value in this number of registers (`None`: up to the first empty register).
    fn take(&mut self, sreg: Register, count: Option<u8>) -> String {
        let (text, replaced) = self.registers.take(sreg, count);
        replaced.into_iter().for_each(|part| self.parts[part].clear());
        text
    }

    fn put(&mut self, expr: &Expr) {
        match expr {
            Expr::Payload { dreg, base, offset, len } => {
                self.registers.load(*dreg, names::payload(*base, *offset, *len));
            }
            Expr::Meta { dreg, key } => self.registers.load(*dreg, names::meta(*key)),
            Expr::MetaSet { sreg, key } => {
                let value = self.take(*sreg, Some(1));
                self.parts.push(format!("{} set {value}", key.name()));
            }
            Expr::Ct { dreg, key, direction } => self.registers.load(*dreg, names::ct(*key, *direction)),
            Expr::Fib { dreg, result, flags } => self.registers.load(*dreg, names::fib(*result, *flags)),
            Expr::Cmp { sreg, op, data } => self.compare(*sreg, *op, data),
            Expr::Range { sreg, op, from, to } => {
                let kind = self.registers.get(*sreg).map_or(DataType::UNKNOWN, |value| value.kind);
                let value = self.take(*sreg, Some(1));
                let from = names::constant(kind, from);
                let to = names::constant(kind, to);
                self.parts.push(format!("{value} {}{from}-{to}", op.name()));
            }
            Expr::Bitwise { sreg, dreg, mask, xor } => self.bitwise(*sreg, *dreg, mask, xor),
            Expr::Byteorder { sreg, dreg, len, .. } => {
                // The constants of comparisons are converted as well.
                let text = self.take(*sreg, Some((*len as usize).div_ceil(4) as u8));
                self.registers.load(*dreg, Value::with_len(text, DataType::UNKNOWN, *len as usize));
            }
            Expr::Immediate { dreg, data } => {
                let text = names::constant(DataType::UNKNOWN, data);
                let value = Value::with_len(text, DataType::UNKNOWN, data.len());
                self.registers.load(*dreg, Value { constant: Some(data.clone()), ..value });
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
                self.parts.push(format!("{} @{set} {{ {element} }}", op.name()));
            }
            Expr::Numgen { dreg, kind, modulus, offset } => {
                let mut text = format!("numgen {} mod {modulus}", kind.name());
                if *offset != 0 {
                    text += &format!(" offset {offset}");
                }
                self.registers.load(*dreg, Value::new(text, DataType::Mark));
            }
            Expr::Hash { sreg, dreg, len, modulus, seed } => {
                let value = self.take(*sreg, Some((*len as usize).div_ceil(4) as u8));
                let text = format!("jhash {value} mod {modulus} seed {seed:#x}");
                self.registers.load(*dreg, Value::new(text, DataType::Mark));
            }
            Expr::Nat { kind, family, addr, addr_max, port, port_max, flags } => {
                // The result of a map that fills both registers is written once.
                let covered = addr.and_then(|addr| self.registers.get(addr)?.end(addr));
                let mut to = addr.map_or_else(String::new, |addr| self.span(addr, *addr_max, DataType::Ipv4Addr));
                if let Some(port) = port.filter(|port| covered.is_none_or(|end| end <= port.number())) {
                    to += &format!(":{}", self.span(port, *port_max, DataType::InetService));
                }
                self.parts.push(format!("{} {family} to {to}{}", kind.name(), names::nat_flags(*flags)));
            }
            Expr::Masquerade { flags } => self.parts.push(format!("masquerade{}", names::nat_flags(*flags))),
            Expr::Reject(with) => self.parts.push(names::reject(*with)),
            Expr::Counter => self.parts.push("counter".into()),
            Expr::Other { name, data } => self.parts.push(format!("[{name} {data:?}]")),
        }
    }

    fn compare(&mut self, sreg: Register, op: CmpOp, data: &[u8]) {
        // The comparison has a notation of its own for the mask.
        let (kind, mask) = self.registers.replace_mask(sreg, None);
        let text = self.take(sreg, Some(1));
        self.registers.replace_mask(sreg, mask.clone());
        let part = match (mask, op) {
            (Some(mask), CmpOp::Neq) if kind == DataType::CtState && names::is_zero(data) => {
                format!("{text} {}", names::ct_states(&mask))
            }
            (Some(mask), CmpOp::Eq | CmpOp::Neq)
                if matches!(kind, DataType::Ipv4Addr | DataType::Ipv6Addr) && names::prefix_len(&mask).is_some() =>
            {
                let prefix = names::prefix_len(&mask).unwrap_or_default();
                format!("{text} {}{}/{prefix}", op.name(), names::constant(kind, data))
            }
            (Some(mask), _) => {
                let mask = names::constant(kind, &mask);
                let data = names::constant(kind, data);
                let operator = if op == CmpOp::Eq { "== " } else { op.name() };
                format!("{text} & {mask} {operator}{data}")
            }
            (None, _) => format!("{text} {}{}", op.name(), names::constant(kind, data)),
        };
        self.parts.push(part);
    }

    fn bitwise(&mut self, sreg: Register, dreg: Register, mask: &[u8], xor: &[u8]) {
        let kind = self.registers.get(sreg).map_or(DataType::UNKNOWN, |value| value.kind);
        let text = self.take(sreg, Some(mask.len().div_ceil(4) as u8));
        let value = if names::is_zero(xor) {
            Value { mask: Some(mask.into()), ..Value::with_len(text, kind, mask.len()) }
        } else {
            Value::with_len(names::masked(&text, kind, mask, xor), kind, mask.len())
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
                // Data of unknown length may overwrite all following registers.
                let registers = known.map_or(u8::MAX, |(_, data)| data);
                let value = Value { registers, ..Value::new(text.clone(), DataType::UNKNOWN) };
                self.registers.load(dreg, Value { loaded_by: Some(self.parts.len()), ..value });
                self.parts.push(format!("{dreg:?} = {text}"));
            }
        }
    }

    /// A value or a range, with constants of this type.
    fn span(&mut self, min: Register, max: Option<Register>, kind: DataType) -> String {
        let mut text = |register| {
            let constant = self.registers.get(register).and_then(|value| value.constant.as_deref());
            let constant = constant.map(|data| names::constant(kind, data));
            constant.unwrap_or_else(|| self.take(register, Some(1)))
        };
        let min = text(min);
        match max {
            Some(max) => format!("{min}-{}", text(max)),
            None => min,
        }
    }
}
