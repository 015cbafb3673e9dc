//! Constant to expressions. An attribute that is missing or unknown makes the whole expression [`Expr::Other`]: a rule
//! that another process changed must not look like ours.

use std::time::Duration;

use super::{
    CmpOp, CtDirection, CtKey, DynsetOp, Expr, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType,
    NumgenType, PayloadBase, RangeOp, Register, RejectWith,
};
use crate::{
    attr::{Attr, Attrs, attrs},
    nft::{abi::rule, element::ElementData, table::TableFamily},
};

/// `NF_NAT_RANGE_MAP_IPS` and `NF_NAT_RANGE_PROTO_SPECIFIED`: set by the kernel when a register is given, and by some
/// versions of nft.
const MAP_IPS: u32 = 1;
const PROTO_SPECIFIED: u32 = 2;

/// The expressions in the content of `NFTA_RULE_EXPRESSIONS`.
pub(crate) fn exprs(list: Attrs<'_>) -> Vec<Expr> {
    list.map(|element| {
        let name = element.nested().find(rule::EXPR_NAME).and_then(|name| name.str()).unwrap_or_default();
        let data = element.nested().find(rule::EXPR_DATA).map_or(&[][..], |data| data.payload);
        read(name, data).unwrap_or_else(|| Expr::Other { name: name.into(), data: data.into() })
    })
    .collect()
}

/// The attributes of an expression by number, none above 7 and none twice.
struct Parts<'a>([Option<Attr<'a>>; 8]);

impl<'a> Parts<'a> {
    /// `None` when there is an attribute that is not in `known`.
    fn read(data: &'a [u8], known: &[u16]) -> Option<Self> {
        let mut parts = [None; 8];
        for attr in attrs(data) {
            let place = parts.get_mut(usize::from(attr.kind)).filter(|_| known.contains(&attr.kind))?;
            if place.replace(attr).is_some() {
                return None;
            }
        }
        Some(Parts(parts))
    }

    fn get(&self, kind: usize) -> Option<Attr<'a>> {
        self.0[kind]
    }

    fn u32(&self, kind: usize) -> Option<u32> {
        self.get(kind)?.u32()
    }

    /// A number that may be left out.
    fn u32_or(&self, kind: usize, default: u32) -> Option<u32> {
        self.get(kind).map_or(Some(default), |attr| attr.u32())
    }

    fn register(&self, kind: usize) -> Option<Register> {
        Register::from_wire(self.u32(kind)?)
    }

    /// A register that may be left out; the outer `None` is a broken one.
    fn register_if_any(&self, kind: usize) -> Option<Option<Register>> {
        match self.get(kind) {
            None => Some(None),
            Some(attr) => Some(Some(Register::from_wire(attr.u32()?)?)),
        }
    }

    fn value(&self, kind: usize) -> Option<&'a [u8]> {
        match ElementData::read(&self.get(kind)?)? {
            ElementData::Value(value) => Some(value),
            _ => None,
        }
    }
}

fn read(name: &str, data: &[u8]) -> Option<Expr> {
    match name {
        "payload" => {
            let parts = Parts::read(data, &[1, 2, 3, 4])?;
            Some(Expr::Payload {
                dreg: parts.register(1)?,
                base: PayloadBase::from_number(parts.u32(2)?)?,
                offset: parts.u32(3)?,
                len: parts.u32(4)?,
            })
        }
        "meta" => {
            let parts = Parts::read(data, &[1, 2, 3])?;
            let key = MetaKey::from_number(parts.u32(2)?)?;
            match (parts.register_if_any(1)?, parts.register_if_any(3)?) {
                (Some(dreg), None) => Some(Expr::Meta { dreg, key }),
                (None, Some(sreg)) => Some(Expr::MetaSet { sreg, key }),
                _ => None,
            }
        }
        "ct" => {
            let parts = Parts::read(data, &[1, 2, 3])?;
            let direction = match parts.get(3) {
                None => None,
                Some(attr) => Some(CtDirection::from_number(u32::from(*attr.payload.first()?))?),
            };
            Some(Expr::Ct { dreg: parts.register(1)?, key: CtKey::from_number(parts.u32(2)?)?, direction })
        }
        "fib" => {
            let parts = Parts::read(data, &[1, 2, 3])?;
            let result = FibResult::from_number(parts.u32(2)?)?;
            Some(Expr::Fib { dreg: parts.register(1)?, result, flags: FibFlags(parts.u32(3)?) })
        }
        "cmp" => {
            let parts = Parts::read(data, &[1, 2, 3])?;
            let op = CmpOp::from_number(parts.u32(2)?)?;
            Some(Expr::Cmp { sreg: parts.register(1)?, op, data: parts.value(3)?.into() })
        }
        "range" => {
            let parts = Parts::read(data, &[1, 2, 3, 4])?;
            let op = RangeOp::from_number(parts.u32(2)?)?;
            let (from, to) = (parts.value(3)?.into(), parts.value(4)?.into());
            Some(Expr::Range { sreg: parts.register(1)?, op, from, to })
        }
        "bitwise" => {
            let parts = Parts::read(data, &[1, 2, 3, 4, 5, 6])?;
            let (mask, xor) = (parts.value(4)?, parts.value(5)?);
            let plain = parts.u32_or(6, 0)? == 0 && parts.u32(3)? as usize == mask.len();
            let (sreg, dreg) = (parts.register(1)?, parts.register(2)?);
            plain.then(|| Expr::Bitwise { sreg, dreg, mask: mask.into(), xor: xor.into() })
        }
        "byteorder" => {
            let parts = Parts::read(data, &[1, 2, 3, 4, 5])?;
            let (sreg, dreg) = (parts.register(1)?, parts.register(2)?);
            Some(Expr::Byteorder { sreg, dreg, op: parts.u32(3)?, len: parts.u32(4)?, size: parts.u32(5)? })
        }
        "immediate" => {
            let parts = Parts::read(data, &[1, 2])?;
            match (parts.register(1)?, ElementData::read(&parts.get(2)?)?) {
                (Register::VERDICT, ElementData::Verdict(verdict)) => Some(Expr::Verdict(verdict.into_owned())),
                (dreg, ElementData::Value(value)) => Some(Expr::Immediate { dreg, data: value.into() }),
                _ => None,
            }
        }
        "lookup" => {
            // 4 is the set's number in the transaction, which nft gives beside its name.
            let parts = Parts::read(data, &[1, 2, 3, 4, 5])?;
            Some(Expr::Lookup {
                set: parts.get(1)?.str()?.into(),
                sreg: parts.register(2)?,
                dreg: parts.register_if_any(3)?,
                matches: LookupMatch::from_number(parts.u32_or(5, 0)?)?,
            })
        }
        "numgen" => {
            let parts = Parts::read(data, &[1, 2, 3, 4])?;
            let kind = NumgenType::from_number(parts.u32(3)?)?;
            let (modulus, offset) = (parts.u32(2)?, parts.u32_or(4, 0)?);
            Some(Expr::Numgen { dreg: parts.register(1)?, kind, modulus, offset })
        }
        "dynset" => dynset(data),
        "nat" => nat(data),
        "masq" => {
            let parts = Parts::read(data, &[1])?;
            Some(Expr::Masquerade { flags: NatFlags(parts.u32_or(1, 0)?) })
        }
        "reject" => {
            let parts = Parts::read(data, &[1, 2])?;
            let code = || Some(*parts.get(2)?.payload.first()?);
            Some(Expr::Reject(match parts.u32(1)? {
                0 => RejectWith::Icmp(code()?),
                1 => RejectWith::TcpReset,
                2 => RejectWith::Icmpx(code()?),
                _ => return None,
            }))
        }
        // Bytes (1), packets (2) and padding (3) are left out.
        "counter" => Parts::read(data, &[1, 2, 3]).map(|_| Expr::Counter),
        _ => None,
    }
}

fn dynset(data: &[u8]) -> Option<Expr> {
    // 2 is the set's number in the transaction, 8 padding, and 9 the flags, which the kernel always dumps.
    let mut known = Vec::with_capacity(data.len());
    for attr in attrs(data) {
        match attr.kind {
            2 | 8 => {}
            9 if attr.u32()? == 0 => {}
            1 | 3..=6 => known.push(attr),
            _ => return None,
        }
    }
    let get = |kind| known.iter().find(|attr| attr.kind == kind);
    let timeout = match get(6) {
        None => None,
        Some(attr) => Some(attr.u64()?).filter(|&ms| ms != 0).map(Duration::from_millis),
    };
    let data = match get(5) {
        None => None,
        Some(attr) => Some(Register::from_wire(attr.u32()?)?),
    };
    Some(Expr::Dynset {
        set: get(1)?.str()?.into(),
        op: DynsetOp::from_number(get(3)?.u32()?)?,
        key: Register::from_wire(get(4)?.u32()?)?,
        data,
        timeout,
    })
}

fn nat(data: &[u8]) -> Option<Expr> {
    let parts = Parts::read(data, &[1, 2, 3, 4, 5, 6, 7])?;
    let (addr, port) = (parts.register_if_any(3)?, parts.register_if_any(5)?);
    let implied = addr.map_or(0, |_| MAP_IPS) | port.map_or(0, |_| PROTO_SPECIFIED);
    Some(Expr::Nat {
        kind: NatType::from_number(parts.u32(1)?)?,
        family: TableFamily::from_number(u8::try_from(parts.u32(2)?).ok()?)?,
        addr,
        // The kernel dumps a range for a single value too.
        addr_max: parts.register_if_any(4)?.filter(|max| Some(*max) != addr),
        port,
        port_max: parts.register_if_any(6)?.filter(|max| Some(*max) != port),
        flags: NatFlags(parts.u32_or(7, 0)? & !implied),
    })
}
