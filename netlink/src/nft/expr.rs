//! Rules and their expressions: instructions on sixteen 32-bit registers.
//!
//! Decoding normalizes the kernel's additions to a dump (default flags, counter values, the other numbering of
//! registers), so that a dumped rule equals the written one. An expression with an unknown attribute becomes
//! [`Expr::Other`]: it is neither an error, nor does it equal an expression without the attribute.

mod decode;
mod encode;
mod keys;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Deref, time::Duration};

use super::{element::Verdict, table::TableFamily, userdata::Comment};
pub use keys::{
    CmpOp, CtDirection, CtKey, DynsetOp, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType, NumgenType,
    PayloadBase, RangeOp, RejectWith,
};

pub(crate) use {decode::exprs as read_exprs, encode::put_exprs};

/// A rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// The expressions, in order; an expression that does not match ends the rule.
    pub exprs: Vec<Expr>,
    /// The comment in listings.
    pub comment: Option<Comment>,
}

impl Rule {
    /// A rule without comment.
    pub fn new(exprs: impl Into<Vec<Expr>>) -> Self {
        Rule { exprs: exprs.into(), comment: None }
    }

    /// With this comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<Comment>) -> Self {
        self.comment = Some(comment.into());
        self
    }
}

/// A rule in a listing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedRule {
    /// The chain of the rule. Rules of a chain are listed in order.
    pub chain: String,
    /// The handle, for [`super::NftBatch::delete_rule`].
    pub handle: u64,
    /// The rule.
    pub rule: Rule,
}

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// The destination register.
        dreg: Register,
        /// The header at which `offset` starts.
        base: PayloadBase,
        /// In bytes.
        offset: u32,
        /// In bytes.
        len: u32,
    },
    /// Loads metadata of the packet.
    Meta {
        /// The destination register.
        dreg: Register,
        /// The key.
        key: MetaKey,
    },
    /// Sets metadata of the packet.
    MetaSet {
        /// The source register.
        sreg: Register,
        /// The key.
        key: MetaKey,
    },
    /// Loads a property of the packet's connection.
    Ct {
        /// The destination register.
        dreg: Register,
        /// The key.
        key: CtKey,
        /// The tuple, for keys that depend on it.
        direction: Option<CtDirection>,
    },
    /// Looks up an address of the packet in the routing table.
    Fib {
        /// The destination register.
        dreg: Register,
        /// The kind of result.
        result: FibResult,
        /// The address and the other inputs of the lookup.
        flags: FibFlags,
    },
    /// Compares a register with a constant.
    Cmp {
        /// The source register.
        sreg: Register,
        /// The operator.
        op: CmpOp,
        /// The constant; its length is the number of bytes to compare.
        data: Constant,
    },
    /// Compares a register with a range of constants.
    Range {
        /// The source register.
        sreg: Register,
        /// Inside or outside the range.
        op: RangeOp,
        /// The first value of the range.
        from: Constant,
        /// The last value of the range.
        to: Constant,
    },
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise {
        /// The source register.
        sreg: Register,
        /// The destination register.
        dreg: Register,
        /// As long as the value.
        mask: Constant,
        /// As long as the value.
        xor: Constant,
    },
    /// Loads a constant.
    Immediate {
        /// The destination register.
        dreg: Register,
        /// The constant.
        data: Constant,
    },
    /// Ends the rule with a verdict.
    Verdict(Verdict<'static>),
    /// Looks up a key in a set or map. A miss ends the rule (see `matches`).
    Lookup {
        /// The set's name.
        set: String,
        /// The first register of the key.
        sreg: Register,
        /// The destination register of a map's data, [`Register::VERDICT`] for a verdict; `None` for a set.
        dreg: Option<Register>,
        /// Whether the rule continues if the key is in the set, or if it is not.
        matches: LookupMatch,
    },
    /// Changes an element of a set or map.
    Dynset {
        /// The set's name.
        set: String,
        /// The operation.
        op: DynsetOp,
        /// The first register of the key.
        key: Register,
        /// The first register of a map's data, which a map requires even to delete an element.
        data: Option<Register>,
        /// The element's timeout; the kernel has a resolution of milliseconds.
        timeout: Option<Duration>,
    },
    /// Converts numbers between host and network byte order.
    Byteorder {
        /// The source register.
        sreg: Register,
        /// The destination register.
        dreg: Register,
        /// The direction: `enum nft_byteorder_ops`.
        op: u32,
        /// In bytes.
        len: u32,
        /// The size of each number, in bytes.
        size: u32,
    },
    /// Loads a number from `offset` to `offset + modulus - 1`, in host byte order.
    Numgen {
        /// The destination register.
        dreg: Register,
        /// Random or sequential.
        kind: NumgenType,
        /// The number of values.
        modulus: u32,
        /// The lowest value.
        offset: u32,
    },
    /// Translates an address and a port of the connection (NAT).
    Nat {
        /// Source or destination.
        kind: NatType,
        /// The address's family.
        family: TableFamily,
        /// The register of the address.
        addr: Option<Register>,
        /// The register of the last address of a range.
        addr_max: Option<Register>,
        /// The register of the port.
        port: Option<Register>,
        /// The register of the last port of a range.
        port_max: Option<Register>,
        /// The selection of ports.
        flags: NatFlags,
    },
    /// Translates the source to the address of the outgoing interface.
    Masquerade {
        /// The selection of ports.
        flags: NatFlags,
    },
    /// Rejects the packet.
    Reject(RejectWith),
    /// Counts packets and bytes. The values are dropped, because they would make equal rules differ.
    Counter,
    /// Any other expression, as the kernel dumps it.
    Other {
        /// The name in the kernel.
        name: String,
        /// The payload of `NFTA_EXPR_DATA`.
        data: Constant,
    },
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
