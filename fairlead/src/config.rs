//! Configuration: the settings of `fairlead frontend`, `backend` and `local` are typed structs (`cli`), filled in this
//! order: defaults, file, environment, flags.
//!
//! ```text
//!                   ┌─ fairlead.io ─────────────────┐
//!   FILE ─▶ document┤                               ├─▶ settings ─▶ structs of `cli` ─▶ + environment, flags
//!                   └─ kube-proxy ─▶ kube_proxy ────┘
//! ```

mod document;
mod kube_proxy;
mod parse;
mod settings;
pub(crate) mod value;

pub(crate) use document::{Document, Kind};
#[cfg(test)]
pub(crate) use kube_proxy::{Effect, FIELDS, mode_of};
pub(crate) use kube_proxy::{Role, Target, from_flags};
pub(crate) use parse::{Parsed, command, command_with, load, parse};
#[cfg(test)]
pub(crate) use settings::flags;
pub(crate) use settings::{FieldError, FieldErrors, FieldWarning, Setting, defaults, field_of, read, to_yaml};
