//! Configuration files: their settings become the defaults of the flags, which are typed structs (`cli`). Precedence:
//! flag, environment, file, default of the flag.
//!
//! ```text
//!   FILE ─▶ document ─▶ settings: defaults of the flags ─▶ clap ─▶ structs of `cli`
//!   kube-proxy's FILE ─▶ document ─▶ kube_proxy ─▶ settings ─▶ a file of ours | chart: values for Helm
//! ```

pub(crate) mod chart;
mod document;
pub(crate) mod kube_proxy;
pub(crate) mod settings;
mod values;

pub(crate) use document::{Document, Kind, yaml_error};
pub(crate) use kube_proxy::TargetRole;
#[cfg(test)]
pub(crate) use kube_proxy::fields::{Effect, FIELDS};
#[cfg(test)]
pub(crate) use settings::flags;
pub(crate) use settings::{Setting, field_of, to_yaml};
pub(crate) use values::{cidr, duration};
