//! Translates kube-proxy's configuration to our settings, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    cross_field::{self, CrossFields},
    fields::{Effect, FIELDS, Field, Zero},
    values::{Decoded, is_zero},
};
use crate::{
    cli::BackendName,
    config::{FieldError, FieldErrors, FieldWarning, Setting},
};

/// The process that a configuration of kube-proxy is translated for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) role: Role,
    /// The backend that the command line names. It takes precedence over the field `mode`.
    pub(crate) backend: Option<BackendName>,
}

/// Which process replaces kube-proxy on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `fairlead local`, which watches the API server itself, as kube-proxy does.
    Local,
    /// `fairlead backend`, which follows a frontend.
    Backend,
}

/// A translated configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Translation {
    pub(crate) settings: Vec<Setting>,
    pub(crate) warnings: Vec<FieldWarning>,
}

/// kube-proxy's default.
const OOM_SCORE_ADJ: i64 = -999;

impl Target {
    /// Translates all fields, with kube-proxy's defaults for missing ones.
    ///
    /// # Errors
    /// Values that kube-proxy rejects, all at once.
    pub(crate) fn translate(self, document: &Map<String, Value>) -> Result<Translation, FieldErrors> {
        let (mut warnings, mut errors) = (Vec::new(), Vec::new());
        let mut values = BTreeMap::new();
        flatten(document, "", &mut values, &mut warnings);
        let backend = cross_field::backend(self.backend, values.get("mode").copied(), &mut warnings)
            .map_err(|reason| FieldErrors(vec![FieldError::new("mode", reason)]))?;

        let mut settings = vec![Setting::new("mode", "backend", backend.name())];
        let mut fields = BTreeMap::new();
        for field in FIELDS {
            let Some(value) = values.get(field.path).copied().filter(|value| !value.is_null()) else {
                continue;
            };
            let is_unset = field.zero == Zero::Unset && is_zero(value);
            if !field.modes.is_empty() && !field.modes.contains(&backend) {
                if !is_unset {
                    warnings.push(FieldWarning::new(field.path, other_mode(field, backend)));
                }
                continue;
            }
            // kube-proxy rejects what it cannot decode even in fields without effect.
            match Decoded::of(value, field.shape) {
                Err(reason) => errors.push(FieldError::new(field.path, reason)),
                Ok(_) if is_unset => {}
                Ok(decoded) => {
                    match field.effect {
                        Effect::Becomes(name) => settings.push(Setting::new(field.path, name, decoded.to_value())),
                        Effect::CrossField => {}
                        Effect::Nothing(why) => {
                            warnings.push(FieldWarning::new(field.path, format!("{value} has no effect: {why}")));
                        }
                    }
                    fields.insert(field.path, decoded);
                }
            }
        }
        if !fields.contains_key("oomScoreAdj") {
            settings.push(Setting::new("oomScoreAdj", "oomScoreAdj", OOM_SCORE_ADJ));
        }
        let cross_fields = CrossFields { backend, role: self.role, fields: &fields };
        cross_fields.translate(&mut settings, &mut warnings, &mut errors);
        if errors.is_empty() { Ok(Translation { settings, warnings }) } else { Err(FieldErrors(errors)) }
    }
}

/// The values of all fields in the table, by path.
fn flatten<'a>(
    document: &'a Map<String, Value>,
    prefix: &str,
    values: &mut BTreeMap<&'static str, &'a Value>,
    warnings: &mut Vec<FieldWarning>,
) {
    for (name, value) in document {
        let path = format!("{prefix}{name}");
        let inner = format!("{path}.");
        match (FIELDS.iter().find(|field| field.path == path), value) {
            (Some(field), value) => drop(values.insert(field.path, value)),
            (None, Value::Object(fields)) if FIELDS.iter().any(|field| field.path.starts_with(&inner)) => {
                flatten(fields, &inner, values, warnings);
            }
            (None, Value::Null) => {}
            (None, _) => warnings.push(FieldWarning::new(path, "kube-proxy has no such field, and ignores it too")),
        }
    }
}

fn other_mode(field: &Field, backend: BackendName) -> String {
    let modes: Vec<_> = field.modes.iter().map(|mode| cross_field::mode_of(*mode)).collect();
    format!("kube-proxy reads it only in mode {}, and this is {}", modes.join(" and "), cross_field::mode_of(backend))
}
