//! Configuration files: ours, whose fields are the flags, and kube-proxy's, which is translated into flags. What a file says is put behind
//! the arguments that were given, where those and the environment do not say otherwise; from there on it is a command line.
//!
//! ```text
//!                       ┌─ ours ───────▶ own ────────┐
//!   FILE ─▶ document ───┤                            ├─▶ settings ─▶ arguments ─▶ clap ─▶ Cli
//!                       └─ kube-proxy ─▶ kube_proxy ─┴─▶ warnings
//! ```

mod arguments;
mod document;
mod kube_proxy;
mod own;
mod setting;

pub(crate) use arguments::{Parsed, command, parse, settings, with_settings};
pub(crate) use document::{Document, Kind};
#[cfg(test)]
pub(crate) use kube_proxy::{Effect, FIELDS, mode_of};
pub(crate) use kube_proxy::{Role, Target, from_flags};
pub(crate) use own::to_yaml;
#[cfg(test)]
pub(crate) use own::{field_of, flags};
pub(crate) use setting::{Invalid, Problems, Setting, Values, Warning};
