//! Elements of sets and maps, borrowed: a hundred thousand of them are written and read without allocating.

use std::{borrow::Cow, time::Duration};

use super::{abi::LIST_ELEM, userdata};
use crate::attr::{Attr, Put};

/// An element. Written from, and read into, borrowed bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Element<'a> {
    /// The key, or the first key of a range.
    pub key: &'a [u8],
    /// The last key of a range, in sets with [`super::SetFlags::INTERVAL`].
    pub key_end: Option<&'a [u8]>,
    /// What a map holds under the key.
    pub data: ElementData<'a>,
    /// How long it lives, in sets with [`super::SetFlags::TIMEOUT`]; the kernel counts in milliseconds.
    pub timeout: Option<Duration>,
    /// What is left of its life when it was dumped; never written.
    pub expires: Option<Duration>,
    /// Shown in listings; cut at 128 bytes.
    pub comment: Option<&'a str>,
}

impl<'a> Element<'a> {
    /// An element of a set.
    pub fn key(key: &'a [u8]) -> Self {
        Element { key, ..Element::default() }
    }

    /// An element of an interval set: all keys from `key` to `key_end`, field by field.
    pub fn range(key: &'a [u8], key_end: &'a [u8]) -> Self {
        Element { key, key_end: Some(key_end), ..Element::default() }
    }

    /// An element of a map.
    pub fn value(key: &'a [u8], value: &'a [u8]) -> Self {
        Element { key, data: ElementData::Value(value), ..Element::default() }
    }

    /// An element of a verdict map.
    pub fn verdict(key: &'a [u8], verdict: Verdict<'a>) -> Self {
        Element { key, data: ElementData::Verdict(verdict), ..Element::default() }
    }
}

/// The data of an element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum ElementData<'a> {
    /// None: the element of a set.
    #[default]
    None,
    /// Bytes, a concatenation when the map's data has several fields.
    Value(&'a [u8]),
    /// A verdict.
    Verdict(Verdict<'a>),
}

/// What happens to the packet: the end of a rule, or the data of a verdict map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict<'a> {
    /// It goes on to the next hook.
    Accept,
    /// It is dropped.
    Drop,
    /// The next rule.
    Continue,
    /// Back to the chain that jumped here.
    Return,
    /// Through that chain, and back.
    Jump(Cow<'a, str>),
    /// Through that chain, not back.
    Goto(Cow<'a, str>),
    /// Any other code.
    Other(i32),
}

/// `NF_DROP`, `NF_ACCEPT` and `enum nft_verdicts`.
const DROP: i32 = 0;
const ACCEPT: i32 = 1;
const CONTINUE: i32 = -1;
const JUMP: i32 = -3;
const GOTO: i32 = -4;
const RETURN: i32 = -5;

/// `NFTA_DATA_VALUE`, `NFTA_DATA_VERDICT`, `NFTA_VERDICT_CODE`, `NFTA_VERDICT_CHAIN`.
const DATA_VALUE: u16 = 1;
const DATA_VERDICT: u16 = 2;
const VERDICT_CODE: u16 = 1;
const VERDICT_CHAIN: u16 = 2;

/// `enum nft_set_elem_attributes`.
const ELEM_KEY: u16 = 1;
const ELEM_DATA: u16 = 2;
const ELEM_TIMEOUT: u16 = 4;
const ELEM_EXPIRATION: u16 = 5;
const ELEM_USERDATA: u16 = 6;
const ELEM_KEY_END: u16 = 10;

impl<'a> Verdict<'a> {
    /// Through the chain, not back.
    pub fn goto(chain: impl Into<Cow<'a, str>>) -> Self {
        Verdict::Goto(chain.into())
    }

    /// Through the chain, and back.
    pub fn jump(chain: impl Into<Cow<'a, str>>) -> Self {
        Verdict::Jump(chain.into())
    }

    /// The same, owning its name.
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

    /// The chain it leads to.
    pub fn chain(&self) -> Option<&str> {
        match self {
            Verdict::Jump(chain) | Verdict::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    /// As the payload of a data attribute: `NFTA_DATA_VERDICT` with a code and perhaps a chain.
    pub(crate) fn put(&self, buf: &mut Vec<u8>) {
        let code = match self {
            Verdict::Accept => ACCEPT,
            Verdict::Drop => DROP,
            Verdict::Continue => CONTINUE,
            Verdict::Return => RETURN,
            Verdict::Jump(_) => JUMP,
            Verdict::Goto(_) => GOTO,
            Verdict::Other(code) => *code,
        };
        let verdict = buf.open(DATA_VERDICT);
        buf.put_u32(VERDICT_CODE, code as u32);
        if let Some(chain) = self.chain() {
            buf.put_str(VERDICT_CHAIN, chain);
        }
        buf.close(verdict);
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
    /// The content of an attribute of `struct nft_data`: a value or a verdict.
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
    let data = buf.open(kind);
    buf.put(DATA_VALUE, value);
    buf.close(data);
}

/// Writes a verdict as an attribute of `struct nft_data`.
pub(crate) fn put_verdict(buf: &mut Vec<u8>, kind: u16, verdict: &Verdict<'_>) {
    let data = buf.open(kind);
    verdict.put(buf);
    buf.close(data);
}

/// What of an element is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All, to add it.
    All,
    /// Its key or range, to delete it.
    Key,
}

impl<'a> Element<'a> {
    /// Appends it as one `NFTA_LIST_ELEM`.
    #[inline]
    pub(crate) fn put(&self, buf: &mut Vec<u8>, part: Part) {
        let element = buf.open(LIST_ELEM);
        if let (Part::All, Some(timeout)) = (part, self.timeout) {
            buf.put_u64(ELEM_TIMEOUT, timeout.as_millis() as u64);
        }
        put_value(buf, ELEM_KEY, self.key);
        if let Some(key_end) = self.key_end {
            put_value(buf, ELEM_KEY_END, key_end);
        }
        if part == Part::All {
            match &self.data {
                ElementData::None => {}
                ElementData::Value(value) => put_value(buf, ELEM_DATA, value),
                ElementData::Verdict(verdict) => put_verdict(buf, ELEM_DATA, verdict),
            }
            if let Some(comment) = self.comment {
                userdata::put_comment(buf, ELEM_USERDATA, userdata::COMMENT, comment);
            }
        }
        buf.close(element);
    }

    /// Reads one `NFTA_LIST_ELEM`.
    pub(crate) fn read(attr: &Attr<'a>) -> Option<Self> {
        let mut element = Element::default();
        let mut has_key = false;
        for part in attr.nested() {
            match part.kind {
                ELEM_KEY => {
                    let ElementData::Value(key) = ElementData::read(&part)? else { return None };
                    element.key = key;
                    has_key = true;
                }
                ELEM_KEY_END => {
                    let ElementData::Value(key) = ElementData::read(&part)? else { return None };
                    element.key_end = Some(key);
                }
                ELEM_DATA => element.data = ElementData::read(&part)?,
                ELEM_TIMEOUT => element.timeout = Some(Duration::from_millis(part.u64()?)),
                ELEM_EXPIRATION => element.expires = Some(Duration::from_millis(part.u64()?)),
                ELEM_USERDATA => element.comment = userdata::comment(part.payload, userdata::COMMENT),
                _ => {}
            }
        }
        has_key.then_some(element)
    }
}
