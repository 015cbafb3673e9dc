//! Converts kube-proxy's flags, as `--kube-proxy-arg` of k3s and RKE2 takes them, to its configuration.

use serde_json::{Map, Value};

use super::{
    FIELDS,
    fields::{Effect, modes},
    translate::backend_of,
};
use crate::config::{Document, FieldErrors, FieldProblem, Kind};

/// The configuration that these flags set. Each is written as `--proxy-mode=ipvs`, `proxy-mode=ipvs` or
/// `--masquerade-all`.
///
/// # Errors
/// Flags that kube-proxy does not have.
pub(crate) fn document(flags: &[String]) -> Result<Document, FieldErrors> {
    let pairs: Vec<_> = flags.iter().map(|flag| pair(flag)).collect();
    let mode = pairs.iter().rev().find(|(name, _)| *name == "proxy-mode").map(|(_, mode)| Value::from(*mode));
    let backend = backend_of(mode.as_ref().filter(|mode| *mode != ""))
        .map_err(|reason| FieldErrors(vec![FieldProblem::new("--proxy-mode", reason)]))?;
    let (mut fields, mut warnings, mut errors) = (Map::new(), Vec::new(), Vec::new());
    for (name, text) in pairs {
        let flag = format!("--{name}");
        let of_flag = || FIELDS.iter().filter(|field| field.flags.split(' ').any(|flag| flag == name));
        let in_mode = of_flag().find(|field| modes(field.path).contains(&backend));
        match in_mode.or_else(|| of_flag().next()).filter(|_| !name.is_empty()) {
            Some(field) => match field.effect {
                Effect::Nothing(why) => warnings.push(FieldProblem::new(flag, format!("has no effect: {why}"))),
                _ => set(&mut fields, field.path, value(name, text)),
            },
            None => errors.push(FieldProblem::new(flag, "kube-proxy has no such flag")),
        }
    }
    if errors.is_empty() { Ok(Document { kind: Kind::KubeProxy, fields, warnings }) } else { Err(FieldErrors(errors)) }
}

fn pair(flag: &str) -> (&str, &str) {
    let flag = flag.trim().trim_start_matches('-');
    flag.split_once('=').unwrap_or((flag, "true"))
}

/// The value as in a file. Numbers and lists stay text, as our settings accept them.
fn value(flag: &str, text: &str) -> Value {
    match (flag, text) {
        ("feature-gates", gates) => {
            let gates = gates.split(',').filter_map(|gate| gate.split_once('='));
            gates.map(|(name, state)| (name.to_owned(), value("", state))).collect()
        }
        (_, "true") => true.into(),
        (_, "false") => false.into(),
        (_, text) => text.into(),
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
