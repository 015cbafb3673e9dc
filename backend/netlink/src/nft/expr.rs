//! Rules and their expressions: instructions on sixteen 32-bit registers.
//!
//! Decoding normalizes the kernel's additions to a dump (default flags, counter values, the other numbering of
//! registers), so that a dumped rule equals the written one. An expression with an unknown attribute becomes
//! [`Expr::Other`]: it is neither an error, nor does it equal an expression without the attribute.

mod attribute;
mod keys;
mod table;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Deref};

use super::abi::{LIST_ELEM, rule};
use crate::attr::{Attrs, Put};
pub use keys::{
    CmpOp, CtDirection, CtKey, DynsetOp, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType, NumgenType,
    PayloadBase, RangeOp, RejectWith,
};
pub use table::Expr;

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The expressions, in order; an expression that does not match ends the rule.
    pub exprs: Vec<Expr>,
    /// The comment in listings.
    pub comment: Option<String>,
}

impl Rule {
    /// A rule without comment.
    pub fn new(exprs: impl Into<Vec<Expr>>) -> Self {
        Rule { exprs: exprs.into(), comment: None }
    }
}

/// A rule in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedRule {
    /// The chain of the rule. Rules of a chain are listed in order.
    pub chain: String,
    /// The number of the rule within its table.
    pub handle: u64,
    /// The rule.
    pub rule: Rule,
}

/// Appends the content of `NFTA_RULE_EXPRESSIONS`.
pub(crate) fn put_exprs(buf: &mut Vec<u8>, exprs: &[Expr]) {
    for expr in exprs {
        buf.nest(LIST_ELEM, |buf| {
            buf.put_str(rule::EXPR_NAME, expr.name());
            buf.nest(rule::EXPR_DATA, |buf| expr.put(buf));
        });
    }
}

/// The expressions in `NFTA_RULE_EXPRESSIONS`.
pub(crate) fn read_exprs(list: Attrs<'_>) -> Vec<Expr> {
    let mut exprs = Vec::new();
    for element in list {
        let name = element.nested().find(rule::EXPR_NAME).and_then(|name| name.str()).unwrap_or_default();
        let data = element.nested().find(rule::EXPR_DATA).map_or(&[][..], |data| data.payload);
        let other = || Expr::Other { name: name.into(), data: data.into() };
        exprs.push(Expr::read(name, data).unwrap_or_else(other));
    }
    exprs
}

/// One of the sixteen registers, or the verdict register.
///
/// A value fills consecutive registers from this one on. Numbers are those of `NFT_REG32_00` (8) to `NFT_REG32_15`
/// (23). Like the kernel's dumps, messages number every fourth register as `NFT_REG_1` to `NFT_REG_4`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// The destination register of a verdict map's data, `NFT_REG_VERDICT`.
    pub const VERDICT: Register = Register(0);
    /// The first register, `NFT_REG32_00`.
    pub const FIRST: Register = Register(8);

    /// The register of this number, 8 to 23; `None` for any other.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 8 && number <= 23 { Some(Register(number)) } else { None }
    }

    /// The register at this distance; at most the last register, so that the kernel rejects a rule with too many
    /// values.
    #[must_use]
    pub const fn plus(self, distance: u8) -> Self {
        let number = self.0.saturating_add(distance);
        if number > 23 { Register(23) } else { Register(number) }
    }

    /// The number: 8 to 23, or 0 for the verdict register.
    pub const fn number(self) -> u8 {
        self.0
    }

    /// The number in messages: `nft_dump_register` in the kernel.
    pub(crate) const fn wire(self) -> u32 {
        match self.0 {
            8 => 1,
            12 => 2,
            16 => 3,
            20 => 4,
            number => number as u32,
        }
    }

    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        match number {
            0 => Some(Register::VERDICT),
            1..=4 => Some(Register(4 + 4 * number as u8)),
            8..=23 => Some(Register(number as u8)),
            _ => None,
        }
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

/// A constant.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Constant(Box<[u8]>);

impl<T: AsRef<[u8]>> From<T> for Constant {
    fn from(bytes: T) -> Self {
        Constant(bytes.as_ref().into())
    }
}

impl Deref for Constant {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Constant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
