//! The fields of a configuration file, and the typed structs that they fill. A field is named as its flag, in
//! camelCase.

use std::fmt;

use clap::{Arg, Args, Command};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{Kind, document::API_VERSION, parse::with_switch_values};

/// One field with its value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Setting {
    /// The field of our files.
    pub(crate) field: String,
    pub(crate) value: Value,
    /// The path of the field in the file that sets it: that of kube-proxy's field where this is translated.
    pub(crate) path: String,
}

/// A field that has no effect, or another effect than in kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldWarning {
    pub(crate) field: String,
    /// Why, and what to do instead.
    pub(crate) reason: String,
}

/// A field that does not exist, or whose value is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FieldError {
    pub(crate) field: String,
    pub(crate) reason: String,
}

/// All errors of a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) struct FieldErrors(pub(crate) Vec<FieldError>);

/// The settings in the fields of one of our files.
///
/// # Errors
/// Fields that `command` does not have, and values that no field can have.
pub(super) fn of_fields(command: &Command, fields: Map<String, Value>) -> Result<Vec<Setting>, FieldErrors> {
    let (mut settings, mut errors) = (Vec::new(), Vec::new());
    for (field, value) in fields {
        let is_known = flags(command).any(|(flag, _)| field_of(flag) == field);
        match if is_known { scalars(value) } else { Err(unknown_field(command)) } {
            Ok(value) => settings.push(Setting { path: field.clone(), field, value }),
            Err(reason) => errors.push(FieldError::new(field, reason)),
        }
    }
    if errors.is_empty() { Ok(settings) } else { Err(FieldErrors(errors)) }
}

/// A struct of settings, with defaults for what the file does not set.
///
/// # Errors
/// Values that are not allowed, all at once.
pub(crate) fn read<T: DeserializeOwned>(settings: &[Setting]) -> Result<T, FieldErrors> {
    let read = |settings: &[Setting]| {
        let fields: Map<_, _> =
            settings.iter().map(|setting| (setting.field.clone(), as_text(setting.value.clone()))).collect();
        serde_json::from_value::<T>(fields.into())
    };
    // The errors of flattened structs name no field, so each setting is read alone.
    read(settings).map_err(|all| {
        let error = |setting: &Setting| {
            let error = read(std::slice::from_ref(setting)).err()?;
            Some(FieldError::new(&setting.path, error.to_string()))
        };
        let mut errors: Vec<_> = settings.iter().filter_map(error).collect();
        if errors.is_empty() {
            errors.push(FieldError::new("the file", all.to_string()));
        }
        FieldErrors(errors)
    })
}

/// The settings of a group of flags when none is given.
pub(crate) fn defaults<T: Args>() -> T {
    let command = with_switch_values(T::augment_args(Command::new("defaults").no_binary_name(true)));
    let parsed = command.try_get_matches_from([""; 0]).and_then(|matches| T::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| error.exit())
}

/// One of our files, with these settings.
pub(crate) fn to_yaml(kind: Kind, settings: &[Setting]) -> anyhow::Result<String> {
    let fields: Map<_, _> = settings.iter().map(|setting| (setting.field.clone(), setting.value.clone())).collect();
    Ok(format!("apiVersion: {API_VERSION}\nkind: {}\n{}", kind.name(), crate::print::yaml(&fields)?))
}

/// The flags of a command that a file may set.
pub(crate) fn flags(command: &Command) -> impl Iterator<Item = (&str, &Arg)> {
    let flags = command.get_arguments().filter_map(|arg| Some((arg.get_long()?, arg)));
    flags.filter(|(flag, _)| !["config", "help", "version"].contains(flag))
}

/// `max-loss` is `maxLoss` in a file.
pub(crate) fn field_of(flag: &str) -> String {
    let mut words = flag.split('-');
    let mut field = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        field.extend(letters.next().map(|first| first.to_ascii_uppercase()));
        field.push_str(letters.as_str());
    }
    field
}

fn unknown_field(command: &Command) -> String {
    format!("`{}` has no such field", command.get_bin_name().unwrap_or_default())
}

/// Rejects what no field can be, however it is read.
fn scalars(value: Value) -> Result<Value, String> {
    match value {
        Value::Null => Err("has no value".to_owned()),
        Value::Array(values) => values.into_iter().map(scalars).collect::<Result<_, _>>().map(Value::Array),
        Value::Bool(_) | Value::String(_) => Ok(value),
        Value::Number(number) if !number.is_f64() => Ok(number.into()),
        other => Err(format!("{other} is neither text nor a whole number; quote text")),
    }
}

/// Numbers as text, which the parsers of flags take.
fn as_text(value: Value) -> Value {
    match value {
        Value::Number(number) => number.to_string().into(),
        Value::Array(values) => values.into_iter().map(as_text).collect(),
        other => other,
    }
}

// === Constructors ===

impl Setting {
    pub(crate) fn new(path: impl Into<String>, field: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { field: field.into(), value: value.into(), path: path.into() }
    }
}

impl FieldWarning {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

impl FieldError {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

// === Display ===

impl fmt::Display for FieldWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl fmt::Display for FieldErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errors: Vec<_> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&errors.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::FromArgMatches as _;
    use serde_json::json;

    use super::*;
    use crate::cli::Cli;

    /// `fairlead frontend`, `backend configured` and `local`.
    fn commands() -> [(Kind, Command); 3] {
        let mut command = super::super::command();
        command.build();
        Kind::OURS.map(|kind| {
            let names = kind.command().iter();
            (kind, names.fold(command.clone(), |command, name| command.find_subcommand(name).unwrap().clone()))
        })
    }

    #[test]
    fn each_flag_has_its_own_field() {
        assert_eq!(["backend", "max-loss", "tls-client-ca"].map(field_of), ["backend", "maxLoss", "tlsClientCa"]);
        for (_, command) in commands() {
            let fields: Vec<_> = flags(&command).map(|(flag, _)| field_of(flag)).collect();
            assert!(fields.len() > 10, "{fields:?}");
            assert_eq!(fields.iter().collect::<BTreeSet<_>>().len(), fields.len(), "{fields:?}");
        }
    }

    #[test]
    fn each_field_is_read_into_its_struct() {
        for (kind, command) in commands() {
            let matches = super::super::command().get_matches_from([&["fairlead"], kind.command()].concat());
            let mut cli = Cli::from_arg_matches(&matches).unwrap();
            for (flag, _) in flags(&command) {
                // No field is a map, so a field that accepts one is not read.
                let error = cli.replace(&[Setting::new("path", field_of(flag), json!({}))]).unwrap_err();
                assert_eq!(error.0[0].field, "path", "{flag}");
            }
        }
    }
}
