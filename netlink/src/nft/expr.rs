//! Rules and their expressions: small instructions over sixteen 32-bit registers.
//!
//! Only what equals in every field compares equal; the kernel's additions to a dump (default flags, counter values,
//! registers' other numbering) are normalised when it is read. An expression with anything this crate does not know
//! becomes [`Expr::Other`], never an error and never something that looks like less than it is.

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
    /// What it does, in order; an expression that does not match ends the rule.
    pub exprs: Vec<Expr>,
    /// Shown in listings.
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

/// A rule as the kernel holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ListedRule {
    /// The chain it is in; rules of a chain are listed in their order.
    pub chain: String,
    /// What [`super::NftBatch::delete_rule`] takes.
    pub handle: u64,
    /// The rule.
    pub rule: Rule,
}

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// Where to.
        dreg: Register,
        /// The header that `offset` counts from.
        base: PayloadBase,
        /// In bytes.
        offset: u32,
        /// In bytes.
        len: u32,
    },
    /// Loads a property of the packet that is not in it.
    Meta {
        /// Where to.
        dreg: Register,
        /// Which.
        key: MetaKey,
    },
    /// Sets such a property.
    MetaSet {
        /// Where from.
        sreg: Register,
        /// Which.
        key: MetaKey,
    },
    /// Loads a property of the packet's connection.
    Ct {
        /// Where to.
        dreg: Register,
        /// Which.
        key: CtKey,
        /// Of which tuple, for keys that need it.
        direction: Option<CtDirection>,
    },
    /// Looks an address of the packet up in the routing table.
    Fib {
        /// Where to.
        dreg: Register,
        /// What is asked.
        result: FibResult,
        /// Which address, and what else counts.
        flags: FibFlags,
    },
    /// Compares a register with a constant.
    Cmp {
        /// The register.
        sreg: Register,
        /// How.
        op: CmpOp,
        /// The constant; as many bytes are compared as it has.
        data: Constant,
    },
    /// Compares a register with a range of constants.
    Range {
        /// The register.
        sreg: Register,
        /// Inside or outside.
        op: RangeOp,
        /// The first value inside.
        from: Constant,
        /// The last value inside.
        to: Constant,
    },
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise {
        /// Where from.
        sreg: Register,
        /// Where to.
        dreg: Register,
        /// As long as the value.
        mask: Constant,
        /// As long as the value.
        xor: Constant,
    },
    /// Loads a constant.
    Immediate {
        /// Where to.
        dreg: Register,
        /// The constant.
        data: Constant,
    },
    /// Ends the rule with a verdict.
    Verdict(Verdict<'static>),
    /// Looks a key up in a set or map. A miss ends the rule (see `matches`).
    Lookup {
        /// The set's name.
        set: String,
        /// The first register of the key.
        sreg: Register,
        /// Where a map's data goes, [`Register::VERDICT`] for a verdict; `None` for a set.
        dreg: Option<Register>,
        /// Whether the rule goes on when the key is in the set, or when it is not.
        matches: LookupMatch,
    },
    /// Changes an element of a set or map from within a rule.
    Dynset {
        /// The set's name.
        set: String,
        /// What is done.
        op: DynsetOp,
        /// The first register of the key.
        key: Register,
        /// The first register of a map's data; a map needs it even to delete.
        data: Option<Register>,
        /// The element's timeout, in milliseconds at the kernel.
        timeout: Option<Duration>,
    },
    /// Turns the bytes of numbers round, from the machine's order to the network's or back.
    Byteorder {
        /// Where from.
        sreg: Register,
        /// Where to.
        dreg: Register,
        /// Which way: `enum nft_byteorder_ops`.
        op: u32,
        /// In bytes.
        len: u32,
        /// Of each number, in bytes.
        size: u32,
    },
    /// Loads a number from `offset` to `offset + modulus - 1`, in host byte order.
    Numgen {
        /// Where to.
        dreg: Register,
        /// How it is made.
        kind: NumgenType,
        /// How many different numbers.
        modulus: u32,
        /// The smallest.
        offset: u32,
    },
    /// Translates an address and a port of the connection.
    Nat {
        /// Source or destination.
        kind: NatType,
        /// The address's family.
        family: TableFamily,
        /// The register of the address.
        addr: Option<Register>,
        /// The register of the last address, when it is a range.
        addr_max: Option<Register>,
        /// The register of the port.
        port: Option<Register>,
        /// The register of the last port, when it is a range.
        port_max: Option<Register>,
        /// How ports are chosen.
        flags: NatFlags,
    },
    /// Translates the source to the address of the outgoing interface.
    Masquerade {
        /// How ports are chosen.
        flags: NatFlags,
    },
    /// Answers that the destination is not there.
    Reject(RejectWith),
    /// Counts packets and bytes. The counts are not kept: they would make equal rules differ.
    Counter,
    /// Anything else, as the kernel gave it.
    Other {
        /// Its name in the kernel.
        name: String,
        /// The content of `NFTA_EXPR_DATA`.
        data: Constant,
    },
}

/// One of the sixteen registers, or the verdict.
///
/// A value takes as many registers as it needs, from the named one on. Numbers are those of `NFT_REG32_00` (8) to
/// `NFT_REG32_15` (23). The kernel dumps each fourth one as `NFT_REG_1` to `NFT_REG_4`; so it is written here too.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Register(u8);

impl Register {
    /// Where a verdict map's data goes, `NFT_REG_VERDICT`.
    pub const VERDICT: Register = Register(0);
    /// The first register, `NFT_REG32_00`.
    pub const FIRST: Register = Register(8);

    /// The register of this number, 8 to 23; `None` for any other.
    pub const fn new(number: u8) -> Option<Self> {
        if number >= 8 && number <= 23 { Some(Register(number)) } else { None }
    }

    /// The register `words` further on; behind the last it is the last, so that the kernel refuses the rule.
    #[must_use]
    pub const fn plus(self, words: u8) -> Self {
        let number = self.0.saturating_add(words);
        if number > 23 { Register(23) } else { Register(number) }
    }

    /// Its number: 8 to 23, 0 for the verdict.
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
