//! Encodes expressions. Each is `NFTA_LIST_ELEM { NFTA_EXPR_NAME, NFTA_EXPR_DATA { attributes of its own } }`.

use super::{Expr, LookupMatch, NatFlags, Register, RejectWith};
use crate::{
    attr::Put,
    nft::{
        abi::{LIST_ELEM, rule},
        element::{put_value, put_verdict},
    },
};

/// Appends the content of `NFTA_RULE_EXPRESSIONS`.
pub(crate) fn put_exprs(buf: &mut Vec<u8>, exprs: &[Expr]) {
    for expr in exprs {
        buf.nest(LIST_ELEM, |buf| {
            buf.put_str(rule::EXPR_NAME, expr.name());
            buf.nest(rule::EXPR_DATA, |buf| put_data(buf, expr));
        });
    }
}

impl Expr {
    /// The name in the kernel (`struct nft_expr_type`).
    pub(super) fn name(&self) -> &str {
        match self {
            Expr::Payload { .. } => "payload",
            Expr::Meta { .. } | Expr::MetaSet { .. } => "meta",
            Expr::Ct { .. } => "ct",
            Expr::Fib { .. } => "fib",
            Expr::Cmp { .. } => "cmp",
            Expr::Range { .. } => "range",
            Expr::Bitwise { .. } => "bitwise",
            Expr::Immediate { .. } | Expr::Verdict(_) => "immediate",
            Expr::Lookup { .. } => "lookup",
            Expr::Dynset { .. } => "dynset",
            Expr::Byteorder { .. } => "byteorder",
            Expr::Numgen { .. } => "numgen",
            Expr::Nat { .. } => "nat",
            Expr::Masquerade { .. } => "masq",
            Expr::Reject(_) => "reject",
            Expr::Counter => "counter",
            Expr::Other { name, .. } => name,
        }
    }
}

/// The attributes, numbered by the order of their names in each `enum nft_<name>_attributes`.
fn put_data(buf: &mut Vec<u8>, expr: &Expr) {
    match expr {
        Expr::Payload { dreg, base, offset, len } => {
            buf.put_u32(1, dreg.wire());
            buf.put_u32(2, base.number());
            buf.put_u32(3, *offset);
            buf.put_u32(4, *len);
        }
        Expr::Meta { dreg, key } => {
            buf.put_u32(2, key.number());
            buf.put_u32(1, dreg.wire());
        }
        Expr::MetaSet { sreg, key } => {
            buf.put_u32(2, key.number());
            buf.put_u32(3, sreg.wire());
        }
        Expr::Ct { dreg, key, direction } => {
            buf.put_u32(2, key.number());
            buf.put_u32(1, dreg.wire());
            if let Some(direction) = direction {
                buf.put(3, &[direction.number() as u8]);
            }
        }
        Expr::Fib { dreg, result, flags } => {
            buf.put_u32(3, flags.0);
            buf.put_u32(2, result.number());
            buf.put_u32(1, dreg.wire());
        }
        Expr::Cmp { sreg, op, data } => {
            buf.put_u32(1, sreg.wire());
            buf.put_u32(2, op.number());
            put_value(buf, 3, data);
        }
        Expr::Range { sreg, op, from, to } => {
            buf.put_u32(1, sreg.wire());
            buf.put_u32(2, op.number());
            put_value(buf, 3, from);
            put_value(buf, 4, to);
        }
        Expr::Bitwise { sreg, dreg, mask, xor } => {
            buf.put_u32(1, sreg.wire());
            buf.put_u32(2, dreg.wire());
            // The attribute 6 is omitted: NFT_BITWISE_MASK_XOR is the default, and kernels before 5.6 lack it.
            buf.put_u32(3, mask.len() as u32);
            put_value(buf, 4, mask);
            put_value(buf, 5, xor);
        }
        Expr::Immediate { dreg, data } => {
            buf.put_u32(1, dreg.wire());
            put_value(buf, 2, data);
        }
        Expr::Verdict(verdict) => {
            buf.put_u32(1, Register::VERDICT.wire());
            put_verdict(buf, 2, verdict);
        }
        Expr::Lookup { set, sreg, dreg, matches } => {
            buf.put_u32(2, sreg.wire());
            if let Some(dreg) = dreg {
                buf.put_u32(3, dreg.wire());
            }
            buf.put_str(1, set);
            if *matches == LookupMatch::NotInSet {
                buf.put_u32(5, matches.number());
            }
        }
        Expr::Dynset { set, op, key, data, timeout } => {
            buf.put_u32(4, key.wire());
            if let Some(data) = data {
                buf.put_u32(5, data.wire());
            }
            buf.put_u32(3, op.number());
            if let Some(timeout) = timeout {
                buf.put_u64(6, timeout.as_millis() as u64);
            }
            buf.put_str(1, set);
        }
        Expr::Byteorder { sreg, dreg, op, len, size } => {
            buf.put_u32(1, sreg.wire());
            buf.put_u32(2, dreg.wire());
            buf.put_u32(3, *op);
            buf.put_u32(4, *len);
            buf.put_u32(5, *size);
        }
        Expr::Numgen { dreg, kind, modulus, offset } => {
            buf.put_u32(1, dreg.wire());
            buf.put_u32(2, *modulus);
            buf.put_u32(3, kind.number());
            buf.put_u32(4, *offset);
        }
        Expr::Nat { kind, family, addr, addr_max, port, port_max, flags } => {
            buf.put_u32(1, kind.number());
            buf.put_u32(2, family.number());
            for (attribute, register) in [(3, addr), (4, addr_max), (5, port), (6, port_max)] {
                if let Some(register) = register {
                    buf.put_u32(attribute, register.wire());
                }
            }
            if *flags != NatFlags::NONE {
                buf.put_u32(7, flags.0);
            }
        }
        Expr::Masquerade { flags } => {
            if *flags != NatFlags::NONE {
                buf.put_u32(1, flags.0);
            }
        }
        Expr::Reject(with) => {
            let (kind, code) = match with {
                RejectWith::Icmp(code) => (0, *code),
                RejectWith::TcpReset => (1, 0),
                RejectWith::Icmpx(code) => (2, *code),
            };
            buf.put_u32(1, kind);
            buf.put(2, &[code]);
        }
        Expr::Counter => {}
        Expr::Other { data, .. } => buf.extend_from_slice(data),
    }
}
