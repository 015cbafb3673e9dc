//! The expressions, and their encoding. An expression with a missing or unknown attribute is decoded as
//! [`Expr::Other`]: a rule that another process changed must not equal ours.

use std::time::Duration;

use super::{
    CmpOp, Constant, CtDirection, CtKey, DynsetOp, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType,
    NumgenType, PayloadBase, RangeOp, Register, RejectWith,
    attribute::{Attribute as _, ExprAttrs},
};
use crate::nft::{
    element::{ElementData, Verdict, put_verdict},
    table::TableFamily,
};

/// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`: the kernel and some versions of nft set them if there is
/// a register.
const MAP_IPS: u32 = 1;
const PROTO_SPECIFIED: u32 = 2;

/// Defines [`Expr`] and its encoding. Each expression has its name in the kernel (`struct nft_expr_type`); each field
/// its number in `enum nft_<name>_attributes`, in the order in which they are written. In a dump, attributes that are
/// `ignored` may have any value, and attributes that are `zero` only zero. Expressions without such a table are
/// `others`.
macro_rules! expressions {
    (
        by_table {
            $($(#[$doc:meta])* $var:ident = $name:literal
                $(, ignored [$($ignored:literal),*])? $(, zero [$($zero:literal),*])?
                { $($(#[$field_doc:meta])* $field:ident: $type:ty = $number:literal,)* })*
        }
        others { $($others:tt)* }
    ) => {
        /// One expression.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Expr {
            $($(#[$doc])* $var { $($(#[$field_doc])* $field: $type,)* },)*
            $($others)*
        }

        impl Expr {
            /// The name in the kernel.
            pub(super) fn name(&self) -> &str {
                match self {
                    $(Expr::$var { .. } => $name,)*
                    other => other.name_of_other(),
                }
            }

            /// Appends the attributes.
            pub(super) fn put(&self, buf: &mut Vec<u8>) {
                match self {
                    $(Expr::$var { $($field),* } => { $($field.put(buf, $number);)* })*
                    other => other.put_other(buf),
                }
            }

            fn read_by_table(name: &str, data: &[u8]) -> Option<Expr> {
                $(if name == $name
                    && let Some(attrs) = ExprAttrs::read(data, &[$($number,)* $($($ignored,)*)? $($($zero,)*)?])
                    $($(&& attrs.is_zero($zero))*)?
                    $(&& let Some($field) = attrs.get($number))*
                {
                    return Some(Expr::$var { $($field),* });
                })*
                None
            }
        }
    };
}

expressions! {
    by_table {
        /// Loads bytes of the packet.
        Payload = "payload" {
            /// The destination register.
            dreg: Register = 1,
            /// The header at which `offset` starts.
            base: PayloadBase = 2,
            /// In bytes.
            offset: u32 = 3,
            /// In bytes.
            len: u32 = 4,
        }
        /// Loads metadata of the packet.
        Meta = "meta" {
            /// The key.
            key: MetaKey = 2,
            /// The destination register.
            dreg: Register = 1,
        }
        /// Sets metadata of the packet.
        MetaSet = "meta" {
            /// The key.
            key: MetaKey = 2,
            /// The source register.
            sreg: Register = 3,
        }
        /// Loads a property of the packet's connection.
        Ct = "ct" {
            /// The key.
            key: CtKey = 2,
            /// The destination register.
            dreg: Register = 1,
            /// The tuple, for keys that depend on it.
            direction: Option<CtDirection> = 3,
        }
        /// Looks up an address of the packet in the routing table.
        Fib = "fib" {
            /// The address and the other inputs of the lookup.
            flags: FibFlags = 3,
            /// The kind of result.
            result: FibResult = 2,
            /// The destination register.
            dreg: Register = 1,
        }
        /// Compares a register with a constant.
        Cmp = "cmp" {
            /// The source register.
            sreg: Register = 1,
            /// The operator.
            op: CmpOp = 2,
            /// The constant; its length is the number of bytes to compare.
            data: Constant = 3,
        }
        /// Compares a register with a range of constants.
        Range = "range" {
            /// The source register.
            sreg: Register = 1,
            /// Inside or outside the range.
            op: RangeOp = 2,
            /// The first value of the range.
            from: Constant = 3,
            /// The last value of the range.
            to: Constant = 4,
        }
        /// Loads a constant.
        Immediate = "immediate" {
            /// The destination register.
            dreg: Register = 1,
            /// The constant.
            data: Constant = 2,
        }
        /// Looks up a key in a set or map. A miss ends the rule (see `matches`). nft sends the set's number in the
        /// transaction (4) with its name.
        Lookup = "lookup", ignored [4] {
            /// The first register of the key.
            sreg: Register = 2,
            /// The destination register of a map's data, [`Register::VERDICT`] for a verdict; `None` for a set.
            dreg: Option<Register> = 3,
            /// The set's name.
            set: String = 1,
            /// Whether the rule continues if the key is in the set, or if it is not.
            matches: LookupMatch = 5,
        }
        /// Changes an element of a set or map. The set's number (2) and padding (8) are ignored; the kernel always
        /// dumps the flags (9).
        Dynset = "dynset", ignored [2, 8], zero [9] {
            /// The first register of the key.
            key: Register = 4,
            /// The first register of a map's data, which a map requires even to delete an element.
            data: Option<Register> = 5,
            /// The operation.
            op: DynsetOp = 3,
            /// The element's timeout; the kernel has a resolution of milliseconds.
            timeout: Option<Duration> = 6,
            /// The set's name.
            set: String = 1,
        }
        /// Converts numbers between host and network byte order.
        Byteorder = "byteorder" {
            /// The source register.
            sreg: Register = 1,
            /// The destination register.
            dreg: Register = 2,
            /// The direction: `enum nft_byteorder_ops`.
            op: u32 = 3,
            /// In bytes.
            len: u32 = 4,
            /// The size of each number, in bytes.
            size: u32 = 5,
        }
        /// Loads a number from `offset` to `offset + modulus - 1`, in host byte order.
        Numgen = "numgen" {
            /// The destination register.
            dreg: Register = 1,
            /// The number of values.
            modulus: u32 = 2,
            /// Random or sequential.
            kind: NumgenType = 3,
            /// The lowest value.
            offset: u32 = 4,
        }
        /// Loads the Jenkins hash (`jhash`) of a value, from 0 to `modulus - 1`, in host byte order. The offset (6) and
        /// the type of the hash (7) are zero.
        Hash = "hash", zero [6, 7] {
            /// The first source register.
            sreg: Register = 1,
            /// The destination register.
            dreg: Register = 2,
            /// The length of the value in bytes.
            len: u32 = 3,
            /// The number of values.
            modulus: u32 = 4,
            /// The seed.
            seed: u32 = 5,
        }
        /// Translates an address and a port of the connection (NAT).
        Nat = "nat" {
            /// Source or destination.
            kind: NatType = 1,
            /// The address's family.
            family: TableFamily = 2,
            /// The register of the address.
            addr: Option<Register> = 3,
            /// The register of the last address of a range.
            addr_max: Option<Register> = 4,
            /// The register of the port.
            port: Option<Register> = 5,
            /// The register of the last port of a range.
            port_max: Option<Register> = 6,
            /// The selection of ports.
            flags: NatFlags = 7,
        }
        /// Translates the source to the address of the outgoing interface.
        Masquerade = "masq" {
            /// The selection of ports.
            flags: NatFlags = 1,
        }
    }
    others {
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
        /// Ends the rule with a verdict.
        Verdict(Verdict<'static>),
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
}

impl Expr {
    /// The expression of this name with these attributes; `None` if this crate does not support it.
    pub(super) fn read(name: &str, data: &[u8]) -> Option<Expr> {
        let mut expr = Self::read_by_table(name, data).or_else(|| Self::read_other(name, data))?;
        match &mut expr {
            Expr::Dynset { timeout, .. } => *timeout = timeout.filter(|timeout| !timeout.is_zero()),
            Expr::Nat { addr, addr_max, port, port_max, flags, .. } => {
                // The kernel dumps a single value as a range.
                *addr_max = addr_max.filter(|max| Some(*max) != *addr);
                *port_max = port_max.filter(|max| Some(*max) != *port);

                let map_ips = if addr.is_some() { MAP_IPS } else { 0 };
                let proto_specified = if port.is_some() { PROTO_SPECIFIED } else { 0 };
                *flags = NatFlags(flags.0 & !(map_ips | proto_specified));
            }
            _ => {}
        }
        Some(expr)
    }

    fn name_of_other(&self) -> &str {
        match self {
            Expr::Bitwise { .. } => "bitwise",
            Expr::Verdict(_) => "immediate",
            Expr::Reject(_) => "reject",
            Expr::Counter => "counter",
            Expr::Other { name, .. } => name,
            _ => "",
        }
    }

    fn put_other(&self, buf: &mut Vec<u8>) {
        match self {
            Expr::Bitwise { sreg, dreg, mask, xor } => {
                sreg.put(buf, 1);
                dreg.put(buf, 2);
                // The attribute 6 is omitted: NFT_BITWISE_MASK_XOR is the default, and kernels before 5.6 lack it.
                (mask.len() as u32).put(buf, 3);
                mask.put(buf, 4);
                xor.put(buf, 5);
            }
            Expr::Verdict(verdict) => {
                Register::VERDICT.put(buf, 1);
                put_verdict(buf, 2, verdict);
            }
            Expr::Reject(with) => {
                let (kind, code) = match *with {
                    RejectWith::Icmp(code) => (0u32, code),
                    RejectWith::TcpReset => (1, 0),
                    RejectWith::Icmpx(code) => (2, code),
                };
                kind.put(buf, 1);
                code.put(buf, 2);
            }
            Expr::Other { data, .. } => buf.extend_from_slice(data),
            _ => {}
        }
    }

    fn read_other(name: &str, data: &[u8]) -> Option<Expr> {
        match name {
            "bitwise" => {
                let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5, 6])?;
                let mask: Constant = attrs.get(4)?;
                let has_len = attrs.get::<u32>(3)? as usize == mask.len();
                if !has_len || !attrs.is_zero(6) {
                    return None;
                }
                Some(Expr::Bitwise { sreg: attrs.get(1)?, dreg: attrs.get(2)?, mask, xor: attrs.get(5)? })
            }
            "immediate" => {
                let attrs = ExprAttrs::read(data, &[1, 2])?;
                match (attrs.get(1)?, attrs.data(2)?) {
                    (Register::VERDICT, ElementData::Verdict(verdict)) => Some(Expr::Verdict(verdict.into_owned())),
                    _ => None,
                }
            }
            "reject" => {
                let attrs = ExprAttrs::read(data, &[1, 2])?;
                Some(Expr::Reject(match attrs.get::<u32>(1)? {
                    0 => RejectWith::Icmp(attrs.get(2)?),
                    1 => RejectWith::TcpReset,
                    2 => RejectWith::Icmpx(attrs.get(2)?),
                    _ => return None,
                }))
            }
            // Bytes (1), packets (2) and padding (3) are omitted.
            "counter" => ExprAttrs::read(data, &[1, 2, 3]).map(|_| Expr::Counter),
            _ => None,
        }
    }
}
