//! From what is there to what should be, in the words of `iptables-restore`.
//!
//! ```text
//!   *filter  what is new: it keeps packets from where nobody serves, before nobody does
//!   *nat     chains, lines, jumps; what nobody needs goes, all at once
//!   *filter  what is old goes
//! ```
//!
//! Each part is in force as a whole or not at all. A part without content is left out, so that the change of an endpoint is one part.
//! Where large parts are slow, the nat table has several: chains that nothing leads to yet, what leads there, chains that nothing leads
//! to any more.

mod full;
mod partial;
mod script;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use iptables::{ChainSpec, Hook, Table};

use crate::table::{Dispatch, Place};
pub(crate) use full::{Full, remove};
pub(crate) use partial::{UserChanges, partial};
pub(crate) use script::Script;

/// The index of the update that something is for; `None`: several, or none.
pub(crate) type Owner = Option<u32>;

/// What is to be done, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Chains to make, or to fill anew.
    chains: Vec<(Owner, ChainSpec)>,
    /// Chains that hold lines of service ports, to make or to fill anew.
    dispatches: Vec<(Dispatch, Vec<(Owner, String)>)>,
    /// Chains to delete.
    gone: BTreeSet<(Table, String)>,
    add: Vec<(Owner, Place, Dispatch, String)>,
    remove: Vec<(Owner, Dispatch, String)>,
    /// Lines that come behind all others.
    behind: Vec<(Dispatch, String)>,
    hook: Vec<Hook>,
    unhook: Vec<Hook>,
}
