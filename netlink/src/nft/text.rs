//! nft-like text of objects, for logs, dry runs and tests. Rules read as `nft list` shows them where nft has words for
//! them; what it has no words for (a constant in a register, say) is written plainly.

mod element;
mod names;
mod registers;
mod rule;

use std::fmt;

pub(crate) use {element::ElementText, rule::RuleText};

use super::{
    chain::{Chain, Policy},
    set::{DataType, Set, SetFlags},
    table::TableFamily,
};

/// A family's name by its number.
pub(crate) fn family(number: u8) -> String {
    TableFamily::from_number(number).map_or_else(|| format!("family-{number}"), |family| family.to_string())
}

/// ` { type nat hook prerouting priority -100 ; policy accept ; comment "..." ; }`; nothing for a bare regular chain.
pub(crate) fn chain_body(f: &mut fmt::Formatter<'_>, chain: &Chain) -> fmt::Result {
    if chain.base.is_none() && chain.comment.is_none() {
        return Ok(());
    }
    f.write_str(" {")?;
    if let Some(base) = &chain.base {
        let (kind, hook) = (base.kind.name(), base.hook.name());
        let policy = match base.policy {
            Policy::Accept => "accept",
            Policy::Drop => "drop",
        };
        write!(f, " type {kind} hook {hook} priority {} ; policy {policy} ;", base.priority)?;
    }
    if let Some(comment) = &chain.comment {
        write!(f, " comment {:?} ;", &**comment)?;
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
    let named = [
        (SetFlags::CONSTANT, "constant"),
        (SetFlags::INTERVAL, "interval"),
        (SetFlags::TIMEOUT, "timeout"),
        (SetFlags::EVAL, "dynamic"),
    ];
    let flags: Vec<&str> = named.iter().filter(|(flag, _)| set.flags.contains(*flag)).map(|(_, name)| *name).collect();
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
        write!(f, " comment {:?} ;", &**comment)?;
    }
    f.write_str(" }")
}

fn types(fields: &[DataType]) -> String {
    fields.iter().map(|field| field.name()).collect::<Vec<_>>().join(" . ")
}
