//! Elements of sets and maps. They borrow their bytes, so that large sets are written and read without allocation.

use std::{borrow::Cow, time::Duration};

use super::{abi::LIST_ELEM, userdata};
use crate::attr::{Attr, Put};

/// An element of a set or map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Element<'a> {
    /// The key, or the first key of a range. Empty for the element (`*`) of all keys without an element of their own,
    /// which Linux has since 5.13.
    pub key: &'a [u8],
    /// The last key of a range, in sets with [`super::SetFlags::INTERVAL`].
    pub key_end: Option<&'a [u8]>,
    /// The data of a map's element.
    pub data: ElementData<'a>,
    /// The timeout, in sets with [`super::SetFlags::TIMEOUT`]; the kernel has a resolution of milliseconds.
    pub timeout: Option<Duration>,
    /// The comment in listings, truncated to 128 bytes.
    pub comment: Option<&'a str>,
}

impl<'a> Element<'a> {
    /// An element of a set.
    pub fn key(key: &'a [u8]) -> Self {
        Element { key, ..Element::default() }
    }

    /// An element of a map.
    pub fn value(key: &'a [u8], value: &'a [u8]) -> Self {
        Element { key, data: ElementData::Value(value), ..Element::default() }
    }
}

/// The data of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ElementData<'a> {
    /// No data: an element of a set.
    #[default]
    None,
    /// Bytes; a concatenation if the map's data has several fields.
    Value(&'a [u8]),
    /// A verdict.
    Verdict(Verdict<'a>),
}

/// The verdict of a rule, or the data of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict<'a> {
    /// The packet continues at the next hook.
    Accept,
    /// The packet is dropped.
    Drop,
    /// Continues with the next rule.
    Continue,
    /// Returns to the chain that jumped here.
    Return,
    /// Continues in the chain, and returns.
    Jump(Cow<'a, str>),
    /// Continues in the chain, without return.
    Goto(Cow<'a, str>),
    /// Any other code.
    Other(i32),
}

// `NF_DROP`, `NF_ACCEPT` and `enum nft_verdicts`.
constants! { i32: DROP = 0, ACCEPT = 1, CONTINUE = -1, JUMP = -3, GOTO = -4, RETURN = -5 }

// `enum nft_data_attributes`, `enum nft_verdict_attributes`, `enum nft_set_elem_attributes`.
constants! { u16:
    DATA_VALUE = 1, DATA_VERDICT = 2, VERDICT_CODE = 1, VERDICT_CHAIN = 2,
    ELEM_KEY = 1, ELEM_DATA = 2, ELEM_FLAGS = 3, ELEM_TIMEOUT = 4, ELEM_USERDATA = 6, ELEM_KEY_END = 10,
}

/// `NFT_SET_ELEM_CATCHALL`, of an element without key.
const CATCHALL: u32 = 2;

impl<'a> Verdict<'a> {
    /// `goto chain`.
    pub fn goto(chain: impl Into<Cow<'a, str>>) -> Self {
        Verdict::Goto(chain.into())
    }

    /// `jump chain`.
    pub fn jump(chain: impl Into<Cow<'a, str>>) -> Self {
        Verdict::Jump(chain.into())
    }

    /// The same verdict with an owned chain name.
    pub fn into_owned(self) -> Verdict<'static> {
        match self {
            Verdict::Accept => Verdict::Accept,
            Verdict::Drop => Verdict::Drop,
            Verdict::Continue => Verdict::Continue,
            Verdict::Return => Verdict::Return,
            Verdict::Jump(chain) => Verdict::Jump(Cow::Owned(chain.into_owned())),
            Verdict::Goto(chain) => Verdict::Goto(Cow::Owned(chain.into_owned())),
            Verdict::Other(code) => Verdict::Other(code),
        }
    }

    /// The chain of a jump or goto.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// Appends `NFTA_DATA_VERDICT` with the code and the chain, if any.
    fn put(&self, buf: &mut Vec<u8>) {
        let code = match self {
            Verdict::Accept => ACCEPT,
            Verdict::Drop => DROP,
            Verdict::Continue => CONTINUE,
            Verdict::Return => RETURN,
            Verdict::Jump(_) => JUMP,
            Verdict::Goto(_) => GOTO,
            Verdict::Other(code) => *code,
        };
        buf.nest(DATA_VERDICT, |buf| {
            buf.put_u32(VERDICT_CODE, code as u32);
            if let Some(chain) = self.chain() {
                buf.put_str(VERDICT_CHAIN, chain);
            }
        });
    }

    fn read(verdict: &Attr<'a>) -> Option<Self> {
        let code = verdict.nested().find(VERDICT_CODE)?.u32()? as i32;
        let chain = || Some(Cow::Borrowed(verdict.nested().find(VERDICT_CHAIN)?.str()?));
        Some(match code {
            ACCEPT => Verdict::Accept,
            DROP => Verdict::Drop,
            CONTINUE => Verdict::Continue,
            RETURN => Verdict::Return,
            JUMP => Verdict::Jump(chain()?),
            GOTO => Verdict::Goto(chain()?),
            other => Verdict::Other(other),
        })
    }
}

impl<'a> ElementData<'a> {
    pub(crate) fn value(self) -> Option<&'a [u8]> {
        match self {
            ElementData::Value(value) => Some(value),
            _ => None,
        }
    }

    /// Reads an attribute of `struct nft_data`: a value or a verdict.
    pub(crate) fn read(attr: &Attr<'a>) -> Option<Self> {
        let inner = attr.nested().next()?;
        match inner.kind {
            DATA_VALUE => Some(ElementData::Value(inner.payload)),
            DATA_VERDICT => Some(ElementData::Verdict(Verdict::read(&inner)?)),
            _ => None,
        }
    }
}

/// Writes a value as an attribute of `struct nft_data`.
#[inline]
pub(crate) fn put_value(buf: &mut Vec<u8>, kind: u16, value: &[u8]) {
    buf.nest(kind, |buf| buf.put(DATA_VALUE, value));
}

/// Writes a verdict as an attribute of `struct nft_data`.
pub(crate) fn put_verdict(buf: &mut Vec<u8>, kind: u16, verdict: &Verdict<'_>) {
    buf.nest(kind, |buf| verdict.put(buf));
}

impl<'a> Element<'a> {
    /// The key or range, which is enough to delete the element.
    pub(crate) fn without_data(self) -> Self {
        Element { key: self.key, key_end: self.key_end, ..Element::default() }
    }

    /// Appends the element as an `NFTA_LIST_ELEM`.
    #[inline]
    pub(crate) fn put(&self, buf: &mut Vec<u8>) {
        buf.nest(LIST_ELEM, |buf| {
            if let Some(timeout) = self.timeout {
                buf.put_u64(ELEM_TIMEOUT, timeout.as_millis() as u64);
            }
            if self.key.is_empty() {
                buf.put_u32(ELEM_FLAGS, CATCHALL);
            } else {
                put_value(buf, ELEM_KEY, self.key);
            }
            if let Some(key_end) = self.key_end {
                put_value(buf, ELEM_KEY_END, key_end);
            }
            match &self.data {
                ElementData::None => {}
                ElementData::Value(value) => put_value(buf, ELEM_DATA, value),
                ElementData::Verdict(verdict) => put_verdict(buf, ELEM_DATA, verdict),
            }
            userdata::put_comment(buf, ELEM_USERDATA, self.comment);
        });
    }

    /// Reads one `NFTA_LIST_ELEM`.
    pub(crate) fn read(attr: &Attr<'a>) -> Option<Self> {
        let mut element = Element::default();
        let mut has_key = false;

        for part in attr.nested() {
            match part.kind {
                ELEM_KEY => {
                    element.key = ElementData::read(&part)?.value()?;
                    has_key = true;
                }
                ELEM_KEY_END => element.key_end = Some(ElementData::read(&part)?.value()?),
                ELEM_DATA => element.data = ElementData::read(&part)?,
                ELEM_FLAGS => has_key |= part.u32()? & CATCHALL != 0,
                ELEM_TIMEOUT => element.timeout = Some(Duration::from_millis(part.u64()?)),
                ELEM_USERDATA => element.comment = userdata::comment(part.payload, userdata::COMMENT),
                _ => {}
            }
        }
        if has_key { Some(element) } else { None }
    }
}
