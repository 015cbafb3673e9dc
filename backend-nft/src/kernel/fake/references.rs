//! The objects to which the rules of the fake refer.

use netlink::nft::{Expr, Rule};

/// An object that a rule refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleReference<'a> {
    Set(&'a str),
    /// A set that the rule writes to.
    WrittenSet(&'a str),
    Chain(&'a str),
}

/// The objects that a rule refers to.
pub(super) fn references(rule: &Rule) -> impl Iterator<Item = RuleReference<'_>> {
    rule.exprs.iter().filter_map(|expr| match expr {
        Expr::Lookup { set, .. } => Some(RuleReference::Set(set)),
        Expr::Dynset { set, .. } => Some(RuleReference::WrittenSet(set)),
        Expr::Verdict(verdict) => verdict.chain().map(RuleReference::Chain),
        _ => None,
    })
}
