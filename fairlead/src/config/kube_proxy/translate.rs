//! From the document to settings of ours, field by field.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    fields::{Effect, FIELDS, Field, Zero},
    joint::{self, Joint},
    values::{Read, is_zero},
};
use crate::{
    cli::BackendName,
    config::{Invalid, Problems, Setting, Warning},
};

/// What a configuration of kube-proxy is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) role: Role,
    /// What the command line names goes before the file's `mode`.
    pub(crate) backend: Option<BackendName>,
}

/// Which of our processes does kube-proxy's work on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `fairlead local`, which asks the API server by itself, as kube-proxy does.
    Local,
    /// `fairlead backend`, with a frontend somewhere.
    Backend,
}

/// A configuration in our words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub(crate) settings: Vec<Setting>,
    pub(crate) warnings: Vec<Warning>,
}

/// The OOM score that kube-proxy gives itself.
const OOM_SCORE_ADJ: &str = "-999";

impl Target {
    /// Translates all fields, with kube-proxy's defaults for those that are not there.
    ///
    /// # Errors
    /// Those that kube-proxy would refuse, all at once.
    pub(crate) fn translate(self, document: &Map<String, Value>) -> Result<Translation, Problems> {
        let (mut warnings, mut problems) = (Vec::new(), Vec::new());
        let mut found = BTreeMap::new();
        gather(document, "", &mut found, &mut warnings);
        let backend = joint::backend(self.backend, found.get("mode").copied(), &mut warnings)
            .map_err(|reason| Problems(vec![Invalid::new("mode", reason)]))?;

        let mut settings = vec![Setting::new("mode", "backend", joint::name(backend))];
        let mut together = BTreeMap::new();
        for field in FIELDS {
            let Some(value) = found.get(field.path).copied().filter(|value| !value.is_null()) else {
                continue;
            };
            let is_unset = field.zero == Zero::Unset && is_zero(value);
            if !field.modes.is_empty() && !field.modes.contains(&backend) {
                if !is_unset {
                    warnings.push(Warning::new(field.path, other_mode(field, backend)));
                }
                continue;
            }
            // What kube-proxy could not decode is refused even if it would be of no use.
            match Read::of(value, field.shape) {
                Err(reason) => problems.push(Invalid::new(field.path, reason)),
                Ok(_) if is_unset => {}
                Ok(read) => match field.effect {
                    Effect::Becomes(flag) => {
                        settings.extend(read.to_values().map(|values| Setting::new(field.path, flag, values)))
                    }
                    Effect::Joint => drop(together.insert(field.path, read)),
                    Effect::Nothing(why) => {
                        warnings.push(Warning::new(field.path, format!("{value} has no effect: {why}")));
                        together.insert(field.path, read);
                    }
                },
            }
        }
        if !settings.iter().any(|setting| setting.flag == "oom-score-adj") {
            let values = crate::config::Values::One(OOM_SCORE_ADJ.to_owned());
            settings.push(Setting::new("oomScoreAdj", "oom-score-adj", values));
        }
        let joint = Joint { backend, role: self.role, fields: &together };
        joint.translate(&mut settings, &mut warnings, &mut problems);
        if problems.is_empty() { Ok(Translation { settings, warnings }) } else { Err(Problems(problems)) }
    }
}

/// All fields that the table knows, by their paths.
fn gather<'a>(
    document: &'a Map<String, Value>,
    prefix: &str,
    found: &mut BTreeMap<&'static str, &'a Value>,
    warnings: &mut Vec<Warning>,
) {
    for (name, value) in document {
        let path = format!("{prefix}{name}");
        let inner = format!("{path}.");
        match (FIELDS.iter().find(|field| field.path == path), value) {
            (Some(field), value) => drop(found.insert(field.path, value)),
            (None, Value::Object(fields)) if FIELDS.iter().any(|field| field.path.starts_with(&inner)) => {
                gather(fields, &inner, found, warnings);
            }
            (None, Value::Null) => {}
            (None, _) => warnings.push(Warning::new(path, "kube-proxy has no such field, and passes it over too")),
        }
    }
}

fn other_mode(field: &Field, backend: BackendName) -> String {
    let modes: Vec<_> = field.modes.iter().map(|mode| joint::mode_of(*mode)).collect();
    format!("kube-proxy reads it in mode {} only, and this is {}", modes.join(" and "), joint::mode_of(backend))
}
