//! Decodes objects from dumps and batches. `None`: a required attribute is missing.

use std::time::Duration;

use super::{
    abi::{self, chain, rule, set, table},
    chain::{BaseChain, Chain, ChainType, Hook, Policy},
    expr::{ListedRule, Rule, read_exprs},
    set::{DataType, Set, SetFlags},
    table::{Table, TableFamily},
    userdata,
};
use crate::{
    attr::{Attr, Attrs, attrs},
    message::attributes,
};

/// The payload of a message of nf_tables: `struct nfgenmsg`, then attributes.
#[derive(Clone, Debug)]
pub(crate) struct Body<'a> {
    /// `nfgen_family`.
    pub(crate) family: u8,
    attrs: Attrs<'a>,
}

impl<'a> Body<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Option<Self> {
        Some(Body { attrs: attributes(payload)?, family: *payload.first()? })
    }

    pub(crate) fn get(&self, kind: u16) -> Option<Attr<'a>> {
        self.attrs.find(kind)
    }

    /// The attributes nested in this one; none if it is missing.
    pub(crate) fn nested(&self, kind: u16) -> Attrs<'a> {
        self.get(kind).map_or_else(|| attrs(&[]), |attr| attr.nested())
    }

    pub(crate) fn str(&self, kind: u16) -> Option<&'a str> {
        self.get(kind)?.str()
    }

    pub(crate) fn u32(&self, kind: u16) -> Option<u32> {
        self.get(kind)?.u32()
    }

    /// The name of the object's table, or of the table itself.
    pub(crate) fn table(&self) -> Option<&'a str> {
        self.str(abi::TABLE)
    }

    fn comment(&self, attribute: u16, kind: u8) -> Option<String> {
        userdata::comment(self.get(attribute)?.payload, kind).map(Into::into)
    }

    /// A duration; `None` if it is zero, too.
    fn millis(&self, kind: u16) -> Option<Duration> {
        let duration = Duration::from_millis(self.get(kind)?.u64()?);
        if duration.is_zero() { None } else { Some(duration) }
    }
}

/// `None` also for a family that this crate does not support.
pub(crate) fn table(body: &Body<'_>) -> Option<Table> {
    Some(Table {
        family: TableFamily::from_number(body.family.into())?,
        name: body.table()?.into(),
        flags: body.u32(table::FLAGS).unwrap_or(0),
        comment: body.comment(table::USERDATA, userdata::COMMENT),
    })
}

pub(crate) fn chain(body: &Body<'_>) -> Option<Chain> {
    let base = match body.get(chain::HOOK) {
        None => None,
        Some(hook) => Some(BaseChain {
            kind: ChainType::from_name(body.str(chain::TYPE)?)?,
            hook: Hook::from_number(hook.nested().find(chain::HOOK_NUM)?.u32()?),
            priority: hook.nested().find(chain::HOOK_PRIORITY)?.u32()? as i32,
            policy: Policy::from_number(body.u32(chain::POLICY)?)?,
        }),
    };

    let name = body.str(chain::NAME)?.into();
    Some(Chain { name, base, comment: body.comment(chain::USERDATA, userdata::COMMENT) })
}

pub(crate) fn rule(body: &Body<'_>) -> Option<ListedRule> {
    Some(ListedRule {
        chain: body.str(rule::CHAIN)?.into(),
        // A rule in a batch has no handle.
        handle: body.get(rule::HANDLE).and_then(|handle| handle.u64()).unwrap_or(0),
        rule: Rule {
            exprs: read_exprs(body.nested(rule::EXPRESSIONS)),
            comment: body.comment(rule::USERDATA, userdata::COMMENT),
        },
    })
}

/// See [`userdata::has_plain_type`].
pub(crate) fn has_plain_type(body: &Body<'_>) -> bool {
    body.get(set::USERDATA).is_some_and(|userdata| userdata::has_plain_type(userdata.payload))
}

pub(crate) fn set(body: &Body<'_>) -> Option<Set> {
    let flags = SetFlags(body.u32(set::FLAGS).unwrap_or(0));
    let is_map = flags.contains(SetFlags::MAP);
    Some(Set {
        name: body.str(set::NAME)?.into(),
        key: DataType::split(body.u32(set::KEY_TYPE)?),
        data: if is_map { DataType::split(body.u32(set::DATA_TYPE)?) } else { Vec::new() },
        flags: flags.without(SetFlags::MAP | SetFlags::CONCAT),
        size: body.nested(set::DESC).find(set::DESC_SIZE).and_then(|size| size.u32()),
        timeout: body.millis(set::TIMEOUT),
        comment: body.comment(set::USERDATA, userdata::SET_COMMENT),
    })
}
