//! What should be in the kernel, pure, as texts: the chains that all service ports share ([`Base`]), and what each service port
//! adds ([`Desired`]).

mod base;
mod chains;
mod rule;
mod service;
#[cfg(test)]
mod tests;

pub(crate) use base::{Base, base, hooks, localnet_guard};
pub(crate) use service::{Context, Desired, desired};
