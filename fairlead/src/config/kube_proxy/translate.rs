//! Translates kube-proxy's configuration to our settings, field by field.

use std::{collections::BTreeMap, time::Duration};

use clap::ValueEnum;
use serde_json::{Map, Value};

use super::{
    cross_field::CrossFields,
    fields::{Effect, Field, modes},
};
use crate::cli::duration;
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

/// kube-proxy's modes, the default first.
const MODES: [BackendName; 3] = [BackendName::Iptables, BackendName::Ipvs, BackendName::Nftables];

/// The backend of a mode of kube-proxy.
///
/// # Errors
/// Which modes there are.
pub(super) fn backend_of(mode: Option<&Value>) -> Result<BackendName, String> {
    let Some(mode) = mode else { return Ok(MODES[0]) };
    MODES.into_iter().find(|backend| mode == backend.name()).ok_or_else(|| {
        let names = MODES.map(BackendName::name);
        format!("{mode}: expected one of {}, or nothing for {}", names.join(", "), names[0])
    })
}

impl Target {
    /// Translates all fields, with kube-proxy's defaults for missing ones. Values that our settings have in the same
    /// form are not checked here.
    ///
    /// # Errors
    /// Values that cannot be translated, all at once.
    pub(crate) fn translate(self, document: &Map<String, Value>) -> Result<Translation, FieldErrors> {
        let mut translation = Translation::default();
        let mut values = BTreeMap::new();
        flatten(document, "", &mut values);
        let mode = values.get("mode").copied().filter(|mode| **mode != "");
        let of_mode = backend_of(mode).map_err(|reason| FieldErrors(vec![FieldProblem::new("mode", reason)]))?;
        let backend = self.backend.unwrap_or(of_mode);
        let name = backend.name();
        if mode.is_some() && backend != of_mode {
            translation.warn("mode", format!("{} has no effect: the command line sets {name}", of_mode.name()));
        }
        translation.set("mode", "backend", name);

        let mut fields = BTreeMap::new();
        for (path, value) in values {
            let Some(field) = Field::at(&path) else {
                translation.warn(path, "kube-proxy has no such field, and ignores it too");
                continue;
            };
            let may_be_false = matches!(field.effect, Effect::Switch | Effect::Nothing(_));
            if !field.is_pointer && is_zero(value) && (may_be_false || !value.is_boolean()) {
                continue;
            }
            let modes = modes(&path);
            if !modes.contains(&backend) {
                let modes = modes.iter().map(|mode| mode.name()).collect::<Vec<_>>().join(" and ");
                translation.warn(path, format!("kube-proxy reads it only in mode {modes}, and this is {name}"));
                continue;
            }
            match field.effect {
                Effect::SameFlag | Effect::Switch => translation.set(&path, field_of(field.flags), value.clone()),
                Effect::Becomes(ours) => translation.set(&path, ours, value.clone()),
                Effect::CrossField => {}
                Effect::Nothing(why) => translation.warn(&path, format!("{value} has no effect: {why}")),
            }
            fields.insert(path, value);
        }
        if !fields.contains_key("oomScoreAdj") {
            translation.set("oomScoreAdj", "oomScoreAdj", OOM_SCORE_ADJ);
        }
        let errors = CrossFields { backend, role: self.role, fields, translation: &mut translation }.translate();
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

/// The values of all fields that are set, by path.
fn flatten<'a>(document: &'a Map<String, Value>, prefix: &str, values: &mut BTreeMap<String, &'a Value>) {
    for (name, value) in document {
        let path = format!("{prefix}{name}");
        let section = format!("{path}.");
        match value {
            Value::Null => {}
            Value::Object(fields) if Field::has_section(&section) => flatten(fields, &section, values),
            _ => drop(values.insert(path, value)),
        }
    }
}

/// Whether it is the zero value of its type in Go.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty() || duration(text) == Ok(Duration::ZERO),
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.values().all(is_zero),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn zero_values_are_recognized() {
        for zero in [json!(null), json!(""), json!(0), json!("0s"), json!(false), json!([]), json!({"a": {"b": "0"}})] {
            assert!(is_zero(&zero), "{zero}");
        }
        for value in [json!("a"), json!(1), json!("1s"), json!(true), json!(["a"]), json!({"a": 1}), json!(-1)] {
            assert!(!is_zero(&value), "{value}");
        }
    }
}
