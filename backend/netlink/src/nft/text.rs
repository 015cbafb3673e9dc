//! Objects as text, for logs, dry runs and tests: in the syntax of `nft list` where nft has one, else explicitly, e.g.
//! as assignments to registers.

mod element;
mod names;
mod registers;
mod rule;

use std::fmt;

pub use element::value_text;
pub(crate) use {element::ElementText, rule::RuleText};

use super::{
    chain::Chain,
    set::{DataType, Set},
    table::TableFamily,
};

/// The name of a family by its number.
pub(crate) fn family(number: u8) -> String {
    TableFamily::from_number(number.into()).map_or_else(|| format!("family-{number}"), |family| family.to_string())
}

/// ` { type nat hook prerouting priority -100 ; policy accept ; comment "..." ; }`; empty for a regular chain without
/// comment.
pub(crate) fn chain_body(f: &mut fmt::Formatter<'_>, chain: &Chain) -> fmt::Result {
    if chain.base.is_none() && chain.comment.is_none() {
        return Ok(());
    }

    f.write_str(" {")?;
    if let Some(base) = &chain.base {
        let kind = base.kind.name();
        let hook = base.hook.name();
        write!(f, " type {kind} hook {hook} priority {} ; policy {} ;", base.priority, base.policy.name())?;
    }
    if let Some(comment) = &chain.comment {
        write!(f, " comment {comment:?} ;")?;
    }
    f.write_str(" }")
}

/// ` { type ipv4_addr . inet_proto : verdict ; flags interval ; }`.
pub(crate) fn set_body(f: &mut fmt::Formatter<'_>, set: &Set) -> fmt::Result {
    write!(f, " {{ type {}", types(&set.key))?;
    if set.is_map() {
        write!(f, " : {}", types(&set.data))?;
    }
    f.write_str(" ;")?;

    let flags = set.flags.names();
    if !flags.is_empty() {
        write!(f, " flags {} ;", flags.join(","))?;
    }
    if let Some(timeout) = set.timeout {
        write!(f, " timeout {timeout:?} ;")?;
    }
    if let Some(size) = set.size {
        write!(f, " size {size} ;")?;
    }
    if let Some(comment) = &set.comment {
        write!(f, " comment {comment:?} ;")?;
    }
    f.write_str(" }")
}

fn types(fields: &[DataType]) -> String {
    fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(" . ")
}
