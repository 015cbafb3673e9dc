//! An operation of a batch, decoded from its bytes: to print it, and to report which operation the kernel rejected.

use std::fmt;

use super::NftBatch;
use crate::{
    attr::{Attr, HEADER as ATTR_HEADER},
    message::{HEADER, SUBHEADER, messages},
    nft::{
        abi::{self, chain, elements, msg, rule},
        decode::{self, Body},
        element::Element,
        set::Set,
        text::{self, ElementText, RuleText},
    },
};

/// An operation of a batch.
#[derive(Clone, Debug)]
pub(crate) struct Operation<'a> {
    batch: &'a NftBatch,
    kind: u16,
    body: Body<'a>,
}

impl<'a> Operation<'a> {
    /// `message`: the message with its header.
    pub(super) fn new(batch: &'a NftBatch, message: &'a [u8]) -> Option<Self> {
        let message = messages(message).next()?;
        Some(Operation { batch, kind: message.kind & 0xff, body: Body::new(message.payload)? })
    }

    /// The operation as `nft` would write it, without elements.
    pub(crate) fn label(&self) -> String {
        let family = text::family(self.body.family);
        let table = self.body.table().unwrap_or_default();
        let (verb, noun, name) = self.describe();
        let separator = if name.is_empty() { "" } else { " " };
        format!("{verb} {noun} {family} {table}{separator}{name}")
    }

    /// The operation as `nft` would write it, with this element only.
    pub(crate) fn element_label(&self, index: usize) -> String {
        let label = self.label();
        match self.elements().nth(index) {
            Some(element) => format!("{label} {{ {} }}", self.element_text(&element)),
            None => label,
        }
    }

    /// The index of the element that contains the attribute at `offset`, in bytes from the start of the message.
    pub(crate) fn element_at(&self, offset: usize) -> Option<usize> {
        let list = self.element_list()?;
        let list_at = HEADER + SUBHEADER + list.offset + ATTR_HEADER;
        list.nested().position(|element| {
            let start = list_at + element.offset;
            (start..start + ATTR_HEADER + element.payload.len()).contains(&offset)
        })
    }

    /// 0 if the operation has exactly one element.
    pub(crate) fn only_element(&self) -> Option<usize> {
        if self.elements().take(2).count() == 1 { Some(0) } else { None }
    }

    /// The elements to add or delete.
    pub(crate) fn elements(&self) -> impl Iterator<Item = Element<'a>> {
        let list = self.element_list();
        list.into_iter().flat_map(|list| list.nested()).filter_map(|element| Element::read(&element))
    }

    /// The list of elements; `None` for an operation on an object of another kind.
    fn element_list(&self) -> Option<Attr<'a>> {
        match self.kind {
            msg::NEWSETELEM | msg::DELSETELEM | msg::DESTROYSETELEM => self.body.get(elements::LIST),
            _ => None,
        }
    }

    fn set(&self, name: &str) -> Option<&'a Set> {
        self.batch.set(self.body.family, self.body.table()?, name)
    }

    fn element_text<'e>(&self, element: &'e Element<'e>) -> ElementText<'e>
    where
        'a: 'e,
    {
        ElementText { element, set: self.body.str(elements::SET).and_then(|name| self.set(name)) }
    }

    /// The verb, the noun, and the name behind that of the table.
    fn describe(&self) -> (&'static str, &'static str, &'a str) {
        let name = |kind| self.body.str(kind).unwrap_or_default();
        let set_noun = |name: &str| self.set(name).map_or("set", Set::noun);
        match self.kind {
            msg::NEWTABLE => ("add", "table", ""),
            msg::DELTABLE => ("delete", "table", ""),
            msg::NEWCHAIN => ("add", "chain", name(chain::NAME)),
            msg::DELCHAIN => ("delete", "chain", name(chain::NAME)),
            msg::NEWRULE => ("add", "rule", name(rule::CHAIN)),
            msg::DELRULE => ("flush", "chain", name(rule::CHAIN)),
            msg::NEWSET => ("add", set_noun(name(abi::set::NAME)), name(abi::set::NAME)),
            msg::DELSET => ("delete", set_noun(name(abi::set::NAME)), name(abi::set::NAME)),
            msg::NEWSETELEM => ("add", "element", name(elements::SET)),
            msg::DELSETELEM => ("delete", "element", name(elements::SET)),
            msg::DESTROYSETELEM => ("destroy", "element", name(elements::SET)),
            _ => ("unknown", "operation", ""),
        }
    }
}

/// One line, or one per element; each ends with a newline.
impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = self.label();
        if self.element_list().is_some() {
            for element in self.elements() {
                writeln!(f, "{label} {{ {} }}", self.element_text(&element))?;
            }
            return Ok(());
        }

        f.write_str(&label)?;
        match self.kind {
            msg::NEWTABLE => {
                if let Some(comment) = decode::table(&self.body).and_then(|table| table.comment) {
                    write!(f, " {{ comment {comment:?} ; }}")?;
                }
            }
            msg::NEWCHAIN => {
                if let Some(chain) = decode::chain(&self.body) {
                    text::chain_body(f, &chain)?;
                }
            }
            msg::NEWSET => {
                if let Some(set) = decode::set(&self.body) {
                    text::set_body(f, &set)?;
                }
            }
            msg::NEWRULE => {
                if let Some(listed) = decode::rule(&self.body) {
                    let registers = |name: &str| self.set(name).map(Set::register_counts);
                    write!(f, " {}", RuleText { rule: &listed.rule, sets: &registers })?;
                }
            }
            _ => {}
        }
        writeln!(f)
    }
}
