//! Decodes expressions. An expression with a missing or unknown attribute becomes [`Expr::Other`]: a rule that another
//! process changed must not equal ours.

use std::time::Duration;

use super::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType,
    NumgenType, PayloadBase, RangeOp, Register, RejectWith,
};
use crate::{
    attr::{Attr, Attrs},
    nft::{abi::rule, element::ElementData, table::TableFamily},
};

/// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`: the kernel and some versions of nft set them if there is
/// a register.
const MAP_IPS: u32 = 1;
const PROTO_SPECIFIED: u32 = 2;

/// The expressions in `NFTA_RULE_EXPRESSIONS`.
pub(crate) fn exprs(list: Attrs<'_>) -> Vec<Expr> {
    list.map(|element| {
        let name = element.nested().find(rule::EXPR_NAME).and_then(|name| name.str()).unwrap_or_default();
        let data = element.nested().find(rule::EXPR_DATA).map_or(&[][..], |data| data.payload);
        read(name, data).unwrap_or_else(|| Expr::Other { name: name.into(), data: data.into() })
    })
    .collect()
}

/// The attributes of an expression by type: at most 9, without duplicates.
struct ExprAttrs<'a>([Option<Attr<'a>>; 10]);

impl<'a> ExprAttrs<'a> {
    /// `None` if an attribute is not in `known`, or occurs twice.
    fn read(data: &'a [u8], known: &[u16]) -> Option<Self> {
        let mut found = [None; 10];
        for attr in crate::attr::attrs(data) {
            let slot = found.get_mut(usize::from(attr.kind)).filter(|_| known.contains(&attr.kind))?;
            if slot.replace(attr).is_some() {
                return None;
            }
        }
        Some(ExprAttrs(found))
    }

    fn get(&self, kind: usize) -> Option<Attr<'a>> {
        self.0[kind]
    }

    fn u32(&self, kind: usize) -> Option<u32> {
        self.get(kind)?.u32()
    }

    /// An optional number.
    fn u32_or(&self, kind: usize, default: u32) -> Option<u32> {
        self.get(kind).map_or(Some(default), |attr| attr.u32())
    }

    fn register(&self, kind: usize) -> Option<Register> {
        Register::from_wire(self.u32(kind)?)
    }

    /// An optional register; the outer `None` is an invalid one.
    fn optional_register(&self, kind: usize) -> Option<Option<Register>> {
        match self.get(kind) {
            None => Some(None),
            Some(attr) => Some(Some(Register::from_wire(attr.u32()?)?)),
        }
    }

    fn value(&self, kind: usize) -> Option<&'a [u8]> {
        ElementData::read(&self.get(kind)?)?.value()
    }
}

fn read(name: &str, data: &[u8]) -> Option<Expr> {
    match name {
        "payload" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4])?;
            Some(Expr::Payload {
                dreg: attrs.register(1)?,
                base: PayloadBase::from_number(attrs.u32(2)?)?,
                offset: attrs.u32(3)?,
                len: attrs.u32(4)?,
            })
        }
        "meta" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3])?;
            let key = MetaKey::from_number(attrs.u32(2)?)?;
            match (attrs.optional_register(1)?, attrs.optional_register(3)?) {
                (Some(dreg), None) => Some(Expr::Meta { dreg, key }),
                (None, Some(sreg)) => Some(Expr::MetaSet { sreg, key }),
                _ => None,
            }
        }
        "ct" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3])?;
            let direction = match attrs.get(3) {
                None => None,
                Some(attr) => Some(CtDirection::from_number(attr.u8()?.into())?),
            };
            Some(Expr::Ct { dreg: attrs.register(1)?, key: CtKey::from_number(attrs.u32(2)?)?, direction })
        }
        "fib" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3])?;
            let result = FibResult::from_number(attrs.u32(2)?)?;
            Some(Expr::Fib { dreg: attrs.register(1)?, result, flags: FibFlags(attrs.u32(3)?) })
        }
        "cmp" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3])?;
            let op = CmpOp::from_number(attrs.u32(2)?)?;
            Some(Expr::Cmp { sreg: attrs.register(1)?, op, data: attrs.value(3)?.into() })
        }
        "range" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4])?;
            let op = RangeOp::from_number(attrs.u32(2)?)?;
            let (from, to) = (attrs.value(3)?.into(), attrs.value(4)?.into());
            Some(Expr::Range { sreg: attrs.register(1)?, op, from, to })
        }
        "bitwise" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5, 6])?;
            let (mask, xor) = (attrs.value(4)?, attrs.value(5)?);
            let plain = attrs.u32_or(6, 0)? == 0 && attrs.u32(3)? as usize == mask.len();
            let (sreg, dreg) = (attrs.register(1)?, attrs.register(2)?);
            plain.then(|| Expr::Bitwise { sreg, dreg, mask: mask.into(), xor: xor.into() })
        }
        "byteorder" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5])?;
            let (sreg, dreg) = (attrs.register(1)?, attrs.register(2)?);
            Some(Expr::Byteorder { sreg, dreg, op: attrs.u32(3)?, len: attrs.u32(4)?, size: attrs.u32(5)? })
        }
        "immediate" => {
            let attrs = ExprAttrs::read(data, &[1, 2])?;
            match (attrs.register(1)?, ElementData::read(&attrs.get(2)?)?) {
                (Register::VERDICT, ElementData::Verdict(verdict)) => Some(Expr::Verdict(verdict.into_owned())),
                (dreg, ElementData::Value(value)) => Some(Expr::Immediate { dreg, data: value.into() }),
                _ => None,
            }
        }
        "lookup" => {
            // 4 is the set's number in the transaction, which nft sends with the name.
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5])?;
            Some(Expr::Lookup {
                set: attrs.get(1)?.str()?.into(),
                sreg: attrs.register(2)?,
                dreg: attrs.optional_register(3)?,
                matches: LookupMatch::from_number(attrs.u32_or(5, 0)?)?,
            })
        }
        "numgen" => {
            let attrs = ExprAttrs::read(data, &[1, 2, 3, 4])?;
            let kind = NumgenType::from_number(attrs.u32(3)?)?;
            let (modulus, offset) = (attrs.u32(2)?, attrs.u32_or(4, 0)?);
            Some(Expr::Numgen { dreg: attrs.register(1)?, kind, modulus, offset })
        }
        "dynset" => dynset(data),
        "nat" => nat(data),
        "masq" => {
            let attrs = ExprAttrs::read(data, &[1])?;
            Some(Expr::Masquerade { flags: NatFlags(attrs.u32_or(1, 0)?) })
        }
        "reject" => {
            let attrs = ExprAttrs::read(data, &[1, 2])?;
            let code = || attrs.get(2)?.u8();
            Some(Expr::Reject(match attrs.u32(1)? {
                0 => RejectWith::Icmp(code()?),
                1 => RejectWith::TcpReset,
                2 => RejectWith::Icmpx(code()?),
                _ => return None,
            }))
        }
        // Bytes (1), packets (2) and padding (3) are omitted.
        "counter" => ExprAttrs::read(data, &[1, 2, 3]).map(|_| Expr::Counter),
        _ => None,
    }
}

fn dynset(data: &[u8]) -> Option<Expr> {
    // 2 is the set's number in the transaction, 8 padding, and 9 the flags, which the kernel always dumps.
    let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5, 6, 8, 9])?;
    let timeout = match attrs.get(6) {
        None => None,
        Some(attr) => Some(attr.u64()?).filter(|&ms| ms != 0).map(Duration::from_millis),
    };
    let expr = Expr::Dynset {
        set: attrs.get(1)?.str()?.into(),
        op: DynsetOp::from_number(attrs.u32(3)?)?,
        key: attrs.register(4)?,
        data: attrs.optional_register(5)?,
        timeout,
    };
    (attrs.u32_or(9, 0)? == 0).then_some(expr)
}

fn nat(data: &[u8]) -> Option<Expr> {
    let attrs = ExprAttrs::read(data, &[1, 2, 3, 4, 5, 6, 7])?;
    let (addr, port) = (attrs.optional_register(3)?, attrs.optional_register(5)?);
    let implied = addr.map_or(0, |_| MAP_IPS) | port.map_or(0, |_| PROTO_SPECIFIED);
    Some(Expr::Nat {
        kind: NatType::from_number(attrs.u32(1)?)?,
        family: TableFamily::from_number(attrs.u32(2)?)?,
        addr,
        // The kernel dumps a single value as a range.
        addr_max: attrs.optional_register(4)?.filter(|max| Some(*max) != addr),
        port,
        port_max: attrs.optional_register(6)?.filter(|max| Some(*max) != port),
        flags: NatFlags(attrs.u32_or(7, 0)? & !implied),
    })
}
