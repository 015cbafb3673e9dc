//! Rules as text: tracks the values in the registers, and writes each statement with the names of its inputs.
//!
//! ```text
//! payload -> r8, meta -> r9, payload -> r10, numgen -> r11, lookup r8 -> r8, nat r8
//!   = dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 map @endpoints
//! ```
//! The result of a map that is not read as a whole is written as an assignment: `r8 = ... map @affinity`.

use std::{fmt, time::Duration};

use super::{
    names,
    registers::{Registers, Value},
};
use crate::nft::{
    expr::{CmpOp, Constant, DynsetOp, Expr, LookupMatch, RangeOp, Register, Rule},
    set::{DataType, RegisterCounts},
};

/// A rule, and the layouts of the known sets, by name.
pub(crate) struct RuleText<'a> {
    pub(crate) rule: &'a Rule,
    pub(crate) sets: &'a dyn Fn(&str) -> Option<RegisterCounts>,
}

impl fmt::Display for RuleText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut writer = Writer { registers: Registers::default(), parts: Vec::new(), sets: self.sets };
        self.rule.exprs.iter().for_each(|expr| writer.put(expr));

        let mut parts = writer.parts;
        parts.retain(|part| !part.is_empty());
        if let Some(comment) = &self.rule.comment {
            parts.push(format!("comment {comment:?}"));
        }
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
    sets: &'a dyn Fn(&str) -> Option<RegisterCounts>,
}

impl Writer<'_> {
    /// The text of the value in this number of registers, as [`Registers::take`]. The parts that it replaces are empty
    /// from now on.
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
            Expr::Range { sreg, op, from, to } => self.compare_range(*sreg, *op, [from, to]),
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
            Expr::Dynset { set, op, key, data, timeout } => self.dynset(set, *op, *key, *data, *timeout),
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
                let to = self.nat_destination([*addr, *addr_max], [*port, *port_max]);
                self.parts.push(format!("{} {family} to {to}{}", kind.name(), names::nat_flags(*flags)));
            }
            Expr::Masquerade { flags } => self.parts.push(format!("masquerade{}", names::nat_flags(*flags))),
            Expr::Reject(with) => self.parts.push(names::reject(*with)),
            Expr::Counter => self.parts.push("counter".into()),
            Expr::Other { name, data } => self.parts.push(format!("[{name} {data:?}]")),
        }
    }

    fn compare(&mut self, sreg: Register, op: CmpOp, data: &[u8]) {
        let empty = || Value::new(format!("{sreg:?}"), DataType::UNKNOWN);
        let Value { text, kind, mask, loaded_by, .. } = self.registers.get(sreg).cloned().unwrap_or_else(empty);
        if let Some(part) = loaded_by {
            self.parts[part].clear();
        }

        let data_text = names::constant(kind, data);
        let Some(mask) = mask else {
            self.parts.push(format!("{text} {}{data_text}", op.name()));
            return;
        };

        // Comparisons of masked values have notations of their own.
        let is_address = matches!(kind, DataType::Ipv4Addr | DataType::Ipv6Addr);
        let part = match (op, names::prefix_len(&mask)) {
            (CmpOp::Neq, _) if kind == DataType::CtState && names::is_zero(data) => {
                format!("{text} {}", names::ct_states(&mask))
            }
            (CmpOp::Eq | CmpOp::Neq, Some(prefix)) if is_address => format!("{text} {}{data_text}/{prefix}", op.name()),
            _ => {
                let operator = if op == CmpOp::Eq { "== " } else { op.name() };
                format!("{text} & {} {operator}{data_text}", names::constant(kind, &mask))
            }
        };
        self.parts.push(part);
    }

    fn compare_range(&mut self, sreg: Register, op: RangeOp, range: [&Constant; 2]) {
        let kind = self.registers.kind(sreg);
        let value = self.take(sreg, Some(1));
        let [from, to] = range.map(|constant| names::constant(kind, constant));
        self.parts.push(format!("{value} {}{from}-{to}", op.name()));
    }

    fn bitwise(&mut self, sreg: Register, dreg: Register, mask: &[u8], xor: &[u8]) {
        let kind = self.registers.kind(sreg);
        let text = self.take(sreg, Some(mask.len().div_ceil(4) as u8));
        let value = if names::is_zero(xor) {
            Value { mask: Some(mask.into()), ..Value::with_len(text, kind, mask.len()) }
        } else {
            Value::with_len(names::masked(&text, kind, mask, xor), kind, mask.len())
        };
        self.registers.load(dreg, value);
    }

    fn lookup(&mut self, set: &str, sreg: Register, dreg: Option<Register>, matches: LookupMatch) {
        let counts = (self.sets)(set);
        let key = self.take(sreg, counts.map(|counts| counts.key));
        match dreg {
            None if matches == LookupMatch::NotInSet => self.parts.push(format!("{key} != @{set}")),
            None => self.parts.push(format!("{key} @{set}")),
            Some(Register::VERDICT) => self.parts.push(format!("{key} vmap @{set}")),
            Some(dreg) => {
                let text = format!("{key} map @{set}");
                let assignment = format!("{dreg:?} = {text}");
                // Data of unknown length may overwrite all following registers.
                let registers = counts.map_or(u8::MAX, |counts| counts.data);
                let loaded_by = Some(self.parts.len());
                self.registers.load(dreg, Value { registers, loaded_by, ..Value::new(text, DataType::UNKNOWN) });
                self.parts.push(assignment);
            }
        }
    }

    fn dynset(&mut self, set: &str, op: DynsetOp, key: Register, data: Option<Register>, timeout: Option<Duration>) {
        let counts = (self.sets)(set);
        let mut element = self.take(key, counts.map(|counts| counts.key));
        if let Some(timeout) = timeout {
            element += &format!(" timeout {timeout:?}");
        }
        if let Some(data) = data {
            element += &format!(" : {}", self.take(data, counts.map(|counts| counts.data)));
        }
        self.parts.push(format!("{} @{set} {{ {element} }}", op.name()));
    }

    /// The new address and port, of which each is a value or a range.
    fn nat_destination(&mut self, addr: [Option<Register>; 2], port: [Option<Register>; 2]) -> String {
        // The result of a map that fills the registers of both is written once.
        let is_covered = self.is_one_result(addr[0], port[0]);
        let mut to = String::new();
        if let [Some(min), max] = addr {
            to += &self.span(min, max, DataType::Ipv4Addr);
        }
        if let [Some(min), max] = port
            && !is_covered
        {
            to += &format!(":{}", self.span(min, max, DataType::InetService));
        }
        to
    }

    /// Whether the value at `addr` is the result of a map whose registers include `port`.
    fn is_one_result(&self, addr: Option<Register>, port: Option<Register>) -> bool {
        let (Some(addr), Some(port)) = (addr, port) else { return false };
        let Some(value) = self.registers.get(addr) else { return false };
        value.loaded_by.is_some() && port.number() < addr.number().saturating_add(value.registers)
    }

    /// A value or a range, with constants of this type.
    fn span(&mut self, min: Register, max: Option<Register>, kind: DataType) -> String {
        let mut text = self.bound(min, kind);
        if let Some(max) = max {
            text += &format!("-{}", self.bound(max, kind));
        }
        text
    }

    fn bound(&mut self, register: Register, kind: DataType) -> String {
        match self.registers.get(register) {
            Some(Value { constant: Some(constant), .. }) => names::constant(kind, constant),
            _ => self.take(register, Some(1)),
        }
    }
}
