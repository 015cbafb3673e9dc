//! Our own files: each field is a flag of the command, by its long name in camelCase. There is no list of fields but that of the flags.

use clap::{Arg, ArgAction, Command};
use serde_json::{Map, Value};

use super::{Invalid, Kind, Problems, Setting, Values, document::API_VERSION};

/// What a file says of the flags of `command`, which has been built.
pub(super) fn settings(command: &Command, fields: &Map<String, Value>) -> Result<Vec<Setting>, Problems> {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for (field, value) in fields {
        match setting(command, field, value) {
            Ok(setting) => settings.extend(setting),
            Err(reason) => problems.push(Invalid::new(field, reason)),
        }
    }
    if problems.is_empty() { Ok(settings) } else { Err(Problems(problems)) }
}

/// The file in which these settings are.
pub(crate) fn to_yaml(kind: Kind, settings: &[Setting]) -> anyhow::Result<String> {
    let value = |values: &Values| match values {
        Values::Switch => Value::Bool(true),
        Values::One(text) => match text.parse::<i64>() {
            Ok(number) if number.to_string() == *text => number.into(),
            _ => text.as_str().into(),
        },
        Values::Many(values) => values.as_slice().into(),
    };
    let fields: Map<_, _> = settings.iter().map(|setting| (field_of(&setting.flag), value(&setting.values))).collect();
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

/// `None` where the field says what is so anyway.
fn setting(command: &Command, field: &str, value: &Value) -> Result<Option<Setting>, String> {
    let Some((flag, arg)) = flags(command).find(|(flag, _)| field_of(flag) == field) else {
        let usage = command.get_bin_name().unwrap_or_default();
        return Err(format!("`{usage}` has no such field"));
    };
    let values = match (arg.get_action(), value) {
        (_, Value::Null) => return Err("has no value".to_owned()),
        (ArgAction::SetTrue, Value::Bool(false)) => return Ok(None),
        (ArgAction::SetTrue, Value::Bool(true)) => Values::Switch,
        (ArgAction::SetTrue, other) => return Err(format!("{other} is not true or false")),
        (ArgAction::Append, Value::Array(values)) => Values::Many(scalars(values)?),
        // The flag reads a list with commas by itself.
        (_, Value::Array(values)) => Values::One(scalars(values)?.join(",")),
        (_, value) => Values::One(scalar(value)?),
    };
    Ok(Some(Setting::new(field, flag, values)))
}

fn scalars(values: &[Value]) -> Result<Vec<String>, String> {
    values.iter().map(scalar).collect()
}

fn scalar(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        other => Err(format!("{other} is no text and no whole number; quote what is meant as text")),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn flags_and_fields_are_the_same_names() {
        assert_eq!(["backend", "max-loss", "tls-client-ca"].map(field_of), ["backend", "maxLoss", "tlsClientCa"]);
        let mut command = super::super::command();
        command.build();
        for kind in Kind::OURS {
            let path = kind.command().iter();
            let command = path.fold(&command, |command, name| command.find_subcommand(name).unwrap());
            let flags: Vec<_> = flags(command).map(|(flag, _)| field_of(flag)).collect();
            assert!(flags.len() > 10, "{flags:?}");
            assert_eq!(flags.iter().collect::<BTreeSet<_>>().len(), flags.len(), "two flags are one field");
        }
    }
}
