//! kube-proxy's configuration (`kubeproxy.config.k8s.io/v1alpha1`) and its flags, translated to our settings.
//!
//! ```text
//!   flags ─▶ document ─▶ for each field of the table ─┬─ becomes a field of ours ──▶ settings, which check values
//!                                                     ├─ has no effect ────────────▶ warnings
//!                                                     └─ cross_field ──────────────▶ both
//! ```
//!
//! Each field has an effect or a warning.

mod cross_field;
mod fields;
mod flags;
#[cfg(test)]
mod tests;
mod translate;

#[cfg(test)]
pub(crate) use fields::Effect;
pub(crate) use fields::FIELDS;
pub(crate) use flags::document as from_flags;
pub(super) use translate::Translation;
pub(crate) use translate::{Target, TargetRole};
