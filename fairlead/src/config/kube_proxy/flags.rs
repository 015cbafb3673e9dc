//! kube-proxy's command line, as `--kube-proxy-arg` of k3s and RKE2 has it, made into its configuration.

use serde_json::{Map, Value};

use super::{FIELDS, Field, fields::Shape, joint};
use crate::config::{Document, Invalid, Kind, Problems, Warning};

/// Flags that are no fields: why they mean nothing here, and what to do instead.
const OTHERS: &[(&str, &str)] = &[
    ("config", "give that file to `fairlead config convert`; kube-proxy passes most other flags over then"),
    ("write-config-to", "`fairlead config convert` prints the configuration"),
    ("master", "name the API server in a kubeconfig, and give that by --kubeconfig"),
    ("cleanup", "`fairlead cleanup --of kube-proxy` does that"),
    (
        "init-only",
        "`fairlead` has no such run: let something privileged load modules and write sysctls before (the chart does)",
    ),
    ("healthz-port", "kube-proxy has it from --healthz-bind-address"),
    ("metrics-port", "kube-proxy has it from --metrics-bind-address"),
    ("boot-id-file", "it is not read"),
    ("machine-id-file", "it is not read"),
    ("version", "`fairlead --version` prints ours"),
];

/// The document that says what these flags say. Each is one word: `--proxy-mode=ipvs`, `proxy-mode=ipvs`, `--masquerade-all`.
///
/// # Errors
/// For what is no flag of kube-proxy's.
pub(crate) fn document(flags: &[String]) -> Result<Document, Problems> {
    let pairs: Vec<_> = flags.iter().map(|flag| pair(flag)).collect();
    let mode = pairs.iter().rev().find(|(name, _)| *name == "proxy-mode").map(|(_, mode)| Value::from(*mode));
    let backend = joint::backend(None, mode.as_ref(), &mut Vec::new())
        .map_err(|reason| Problems(vec![Invalid::new("--proxy-mode", reason)]))?;
    let (mut fields, mut warnings, mut problems) = (Map::new(), Vec::new(), Vec::new());
    for (name, text) in pairs {
        let all: Vec<_> = FIELDS.iter().filter(|field| field.flag == name && !name.is_empty()).collect();
        let of_mode = |field: &&&Field| field.modes.is_empty() || field.modes.contains(&backend);
        let other = OTHERS.iter().find(|(other, _)| *other == name);
        match (all.iter().find(of_mode).or(all.first()), other) {
            (Some(field), _) => set(&mut fields, field.path, value(field.shape, text)),
            (None, Some((_, why))) => warnings.push(Warning::new(format!("--{name}"), *why)),
            (None, None) => problems.push(Invalid::new(format!("--{name}"), "kube-proxy has no such flag")),
        }
    }
    if problems.is_empty() { Ok(Document { kind: Kind::KubeProxy, fields, warnings }) } else { Err(Problems(problems)) }
}

fn pair(flag: &str) -> (&str, &str) {
    let flag = flag.trim().trim_start_matches('-');
    flag.split_once('=').unwrap_or((flag, "true"))
}

/// As it would be in the file; what cannot be is left as text, and refused there.
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
