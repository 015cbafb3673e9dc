//! Translates kube-proxy's configuration to our settings, field by field.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::{
    cross_field::{self, CrossFields},
    fields::{Effect, FIELDS, Field, Zero},
    values::{decode, is_zero},
};
use crate::config::{BackendName, FieldErrors, FieldProblem, Setting, field_of};

/// The process that a configuration of kube-proxy is translated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) role: TargetRole,
    /// The backend that the command line names. It takes precedence over the field `mode`.
    pub(crate) backend: Option<BackendName>,
}

/// Which process replaces kube-proxy on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TargetRole {
    /// `fairlead local`, which watches the API server itself, as kube-proxy does.
    Local,
    /// `fairlead backend configured`, which follows a frontend.
    Backend,
}

/// A translated configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Translation {
    pub(crate) settings: Vec<Setting>,
    pub(crate) warnings: Vec<FieldProblem>,
}

/// kube-proxy's default.
const OOM_SCORE_ADJ: i64 = -999;

impl Target {
    /// Translates all fields, with kube-proxy's defaults for missing ones.
    ///
    /// # Errors
    /// Values that kube-proxy rejects, all at once.
    pub(crate) fn translate(self, document: &Map<String, Value>) -> Result<Translation, FieldErrors> {
        let (mut translation, mut errors) = (Translation::default(), Vec::new());
        let mut values = BTreeMap::new();
        flatten(document, "", &mut values, &mut translation);
        let backend = cross_field::backend(self.backend, values.get("mode").copied(), &mut translation)
            .map_err(|reason| FieldErrors(vec![FieldProblem::new("mode", reason)]))?;

        translation.set("mode", "backend", backend.name());
        let mut fields = BTreeMap::new();
        for field in FIELDS {
            let Some(value) = values.get(field.path).copied().filter(|value| !value.is_null()) else {
                continue;
            };
            let is_unset = field.zero == Zero::Unset && is_zero(value);
            if !field.is_read_in(backend) {
                if !is_unset {
                    translation.warn(field.path, other_mode(field, backend));
                }
                continue;
            }
            // kube-proxy rejects what it cannot decode even in fields without effect.
            match (decode(value, field.shape), field.effect) {
                (Err(reason), _) => {
                    errors.push(FieldProblem::new(field.path, reason));
                    continue;
                }
                (Ok(_), _) if is_unset => continue,
                (Ok(decoded), Effect::Becomes(name)) => translation.set(field.path, name, decoded),
                (Ok(decoded), Effect::SameFlag) => translation.set(field.path, field_of(field.flag), decoded),
                (Ok(_), Effect::CrossField) => {}
                (Ok(_), Effect::Nothing(why)) => translation.warn(field.path, format!("{value} has no effect: {why}")),
            }
            fields.insert(field.path, value);
        }
        if !fields.contains_key("oomScoreAdj") {
            translation.set("oomScoreAdj", "oomScoreAdj", OOM_SCORE_ADJ);
        }
        errors.extend(CrossFields { backend, role: self.role, fields, translation: &mut translation }.translate());
        if errors.is_empty() { Ok(translation) } else { Err(FieldErrors(errors)) }
    }
}

impl Translation {
    pub(super) fn set(&mut self, path: &str, field: impl Into<String>, value: impl Into<Value>) {
        self.settings.push(Setting::new(path, field, value));
    }

    pub(super) fn warn(&mut self, path: impl Into<String>, reason: impl Into<String>) {
        self.warnings.push(FieldProblem::new(path, reason));
    }
}

/// The values of all fields in the table, by path.
fn flatten<'a>(
    document: &'a Map<String, Value>,
    prefix: &str,
    values: &mut BTreeMap<&'static str, &'a Value>,
    translation: &mut Translation,
) {
    for (name, value) in document {
        let path = format!("{prefix}{name}");
        let inner = format!("{path}.");
        match (FIELDS.iter().find(|field| field.path == path), value) {
            (Some(field), value) => drop(values.insert(field.path, value)),
            (None, Value::Object(fields)) if FIELDS.iter().any(|field| field.path.starts_with(&inner)) => {
                flatten(fields, &inner, values, translation);
            }
            (None, Value::Null) => {}
            (None, _) => translation.warn(path, "kube-proxy has no such field, and ignores it too"),
        }
    }
}

fn other_mode(field: &Field, backend: BackendName) -> String {
    let modes: Vec<_> = field.modes.iter().map(|mode| cross_field::mode_of(*mode)).collect();
    format!("kube-proxy reads it only in mode {}, and this is {}", modes.join(" and "), cross_field::mode_of(backend))
}
