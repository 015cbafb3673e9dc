//! The attributes of expressions, and the types of their values.

use std::time::Duration;

use super::{
    CmpOp, Constant, CtDirection, CtKey, DynsetOp, FibFlags, FibResult, LookupMatch, MetaKey, NatFlags, NatType,
    NumgenType, PayloadBase, RangeOp, Register,
};
use crate::{
    attr::{Attr, Put, attrs},
    nft::{
        element::{ElementData, put_value},
        table::TableFamily,
    },
};

/// A field of an expression.
pub(super) trait Attribute: Sized {
    /// Appends the attribute, unless the field has the kernel's default.
    fn put(&self, buf: &mut Vec<u8>, kind: u16);

    /// Reads the attribute. `None` if it is malformed, or missing without a default.
    fn read(attr: Option<Attr<'_>>) -> Option<Self>;
}

/// The attributes of an expression by type: at most 9, without duplicates.
pub(super) struct ExprAttrs<'a>([Option<Attr<'a>>; 10]);

impl<'a> ExprAttrs<'a> {
    /// `None` if an attribute is not in `known`, or occurs twice.
    pub(super) fn read(data: &'a [u8], known: &[u16]) -> Option<Self> {
        let mut found = [None; 10];
        for attr in attrs(data) {
            if !known.contains(&attr.kind) || found.get_mut(usize::from(attr.kind))?.replace(attr).is_some() {
                return None;
            }
        }
        Some(ExprAttrs(found))
    }

    pub(super) fn get<T: Attribute>(&self, kind: usize) -> Option<T> {
        T::read(self.0[kind])
    }

    pub(super) fn data(&self, kind: usize) -> Option<ElementData<'a>> {
        ElementData::read(&self.0[kind]?)
    }

    /// Whether the attribute is missing or zero.
    pub(super) fn is_zero(&self, kind: usize) -> bool {
        matches!(self.get(kind), Some(None | Some(0u32)))
    }
}

impl<T: Attribute> Attribute for Option<T> {
    fn put(&self, buf: &mut Vec<u8>, kind: u16) {
        if let Some(value) = self {
            value.put(buf, kind);
        }
    }

    fn read(attr: Option<Attr<'_>>) -> Option<Self> {
        match attr {
            None => Some(None),
            attr => T::read(attr).map(Some),
        }
    }
}

/// Attributes that are written and read by an expression each, without a default.
macro_rules! attributes {
    ($($type:ty: |$value:ident, $buf:ident, $kind:ident| $put:expr, |$attr:ident| $read:expr;)*) => {
        $(impl Attribute for $type {
            fn put(&self, $buf: &mut Vec<u8>, $kind: u16) {
                let $value = self;
                $put
            }

            fn read(attr: Option<Attr<'_>>) -> Option<Self> {
                let $attr = attr?;
                $read
            }
        })*
    };
}

attributes! {
    u8: |value, buf, kind| buf.put(kind, &[*value]), |attr| attr.u8();
    u32: |value, buf, kind| buf.put_u32(kind, *value), |attr| attr.u32();
    Register: |register, buf, kind| buf.put_u32(kind, register.wire()), |attr| Register::from_wire(attr.u32()?);
    String: |text, buf, kind| buf.put_str(kind, text), |attr| attr.str().map(str::to_owned);
    Constant: |value, buf, kind| put_value(buf, kind, value), |attr| Some(ElementData::read(&attr)?.value()?.into());
    Duration: |time, buf, kind| buf.put_u64(kind, time.as_millis() as u64),
        |attr| attr.u64().map(Duration::from_millis);
    FibFlags: |flags, buf, kind| buf.put_u32(kind, flags.0), |attr| attr.u32().map(FibFlags);
    CtDirection: |direction, buf, kind| buf.put(kind, &[direction.number() as u8]),
        |attr| CtDirection::from_number(attr.u8()?.into());
}

/// Enums, written as numbers of 32 bits.
macro_rules! numbers {
    ($($type:ty),*) => {
        attributes! {
            $($type: |value, buf, kind| buf.put_u32(kind, value.number()), |attr| <$type>::from_number(attr.u32()?);)*
        }
    };
}

numbers!(PayloadBase, MetaKey, CtKey, FibResult, CmpOp, RangeOp, DynsetOp, NumgenType, NatType, TableFamily);

/// The default is [`LookupMatch::InSet`].
impl Attribute for LookupMatch {
    fn put(&self, buf: &mut Vec<u8>, kind: u16) {
        if *self == LookupMatch::NotInSet {
            buf.put_u32(kind, self.number());
        }
    }

    fn read(attr: Option<Attr<'_>>) -> Option<Self> {
        attr.map_or(Some(LookupMatch::InSet), |attr| LookupMatch::from_number(attr.u32()?))
    }
}

/// The default is [`NatFlags::NONE`].
impl Attribute for NatFlags {
    fn put(&self, buf: &mut Vec<u8>, kind: u16) {
        if *self != NatFlags::NONE {
            buf.put_u32(kind, self.0);
        }
    }

    fn read(attr: Option<Attr<'_>>) -> Option<Self> {
        attr.map_or(Some(NatFlags::NONE), |attr| attr.u32().map(NatFlags))
    }
}
