//! Converts kube-proxy's flags, as `--kube-proxy-arg` of k3s and RKE2 takes them, to its configuration.

use serde_json::{Map, Value};

use super::{FIELDS, Translation, cross_field, fields::Shape};
use crate::config::{Document, FieldErrors, FieldProblem, Kind};

/// Flags without a field, and what to use instead.
const OTHERS: &[(&str, &str)] = &[
    ("config", "convert that file with `fairlead config convert`; kube-proxy ignores most other flags then"),
    ("write-config-to", "`fairlead config convert` prints the configuration"),
    ("master", "set the API server in a kubeconfig, and use --kubeconfig"),
    ("cleanup", "use `fairlead cleanup --of kube-proxy`"),
    (
        "init-only",
        "Fairlead has no such mode: load modules and write sysctls in a privileged container before, as the chart does",
    ),
    ("healthz-port", "kube-proxy takes it from --healthz-bind-address"),
    ("metrics-port", "kube-proxy takes it from --metrics-bind-address"),
    ("boot-id-file", "it is not read"),
    ("machine-id-file", "it is not read"),
    ("version", "use `fairlead --version`"),
];

/// The configuration that these flags set. Each is written as `--proxy-mode=ipvs`, `proxy-mode=ipvs` or
/// `--masquerade-all`.
///
/// # Errors
/// Flags that kube-proxy does not have.
pub(crate) fn document(flags: &[String]) -> Result<Document, FieldErrors> {
    let pairs: Vec<_> = flags.iter().map(|flag| pair(flag)).collect();
    let mode = pairs.iter().rev().find(|(name, _)| *name == "proxy-mode").map(|(_, mode)| Value::from(*mode));
    let backend = cross_field::backend(None, mode.as_ref(), &mut Translation::default())
        .map_err(|reason| FieldErrors(vec![FieldProblem::new("--proxy-mode", reason)]))?;
    let (mut fields, mut warnings, mut errors) = (Map::new(), Vec::new(), Vec::new());
    for (name, text) in pairs {
        let all: Vec<_> = FIELDS.iter().filter(|field| field.flag == name && !name.is_empty()).collect();
        let other = OTHERS.iter().find(|(other, _)| *other == name);
        match (all.iter().find(|field| field.is_read_in(backend)).or(all.first()), other) {
            (Some(field), _) => set(&mut fields, field.path, value(field.shape, text)),
            (None, Some((_, why))) => warnings.push(FieldProblem::new(format!("--{name}"), *why)),
            (None, None) => errors.push(FieldProblem::new(format!("--{name}"), "kube-proxy has no such flag")),
        }
    }
    if errors.is_empty() { Ok(Document { kind: Kind::KubeProxy, fields, warnings }) } else { Err(FieldErrors(errors)) }
}

fn pair(flag: &str) -> (&str, &str) {
    let flag = flag.trim().trim_start_matches('-');
    flag.split_once('=').unwrap_or((flag, "true"))
}

/// The value as in a file. What cannot be parsed stays text, which the field then rejects.
fn value(shape: Shape, text: &str) -> Value {
    let bool = |text: &str| text.parse::<bool>().map_or_else(|_| text.into(), Value::Bool);
    match shape {
        Shape::Text | Shape::Time | Shape::Any => text.into(),
        Shape::Bool => bool(text),
        Shape::Integer(..) => text.parse::<i64>().map_or_else(|_| text.into(), Value::from),
        Shape::Number => text.parse::<f64>().map_or_else(|_| text.into(), Value::from),
        Shape::Cidrs => text.split(',').filter(|part| !part.is_empty()).collect(),
        Shape::Map => {
            let gates = text.split(',').filter_map(|gate| gate.split_once('='));
            gates.map(|(name, state)| (name.to_owned(), bool(state))).collect()
        }
    }
}

fn set(fields: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => drop(fields.insert(path.to_owned(), value)),
        Some((section, rest)) => {
            let section = fields.entry(section).or_insert_with(|| Map::new().into());
            if let Value::Object(section) = section {
                set(section, rest, value);
            }
        }
    }
}
