//! kube-proxy's configuration (`kubeproxy.config.k8s.io/v1alpha1`) and its flags, translated into ours.
//!
//! ```text
//!   flags ─▶ document ─▶ one row of the table a field: read by its shape ─┬─ becomes a flag of ours ─────▶ settings
//!                                                                         ├─ means nothing here ─────────▶ warnings
//!                                                                         └─ only together with others: joint ─▶ both
//! ```
//!
//! Every row says what becomes of its field, so none can be without effect and without a warning.

mod fields;
mod flags;
mod joint;
#[cfg(test)]
mod tests;
mod translate;
mod values;

#[cfg(test)]
pub(crate) use fields::Effect;
pub(crate) use fields::{FIELDS, Field};
pub(crate) use flags::document as from_flags;
#[cfg(test)]
pub(crate) use joint::mode_of;
pub(super) use translate::Translation;
pub(crate) use translate::{Role, Target};
