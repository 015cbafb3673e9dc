//! The desired rules as text, by pure functions: the base ruleset ([`Base`]), and the rules of each service port
//! ([`Desired`]).

mod base;
mod chains;
mod rule;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use base::{Base, base, hooks, is_only_our_hook, localnet_guard};
pub(crate) use service::{Desired, desired};
