//! The effective configuration for /configz: each flag with its value and its origin. Of secrets it contains only the
//! paths of their files.

use clap::{Arg, ArgMatches, Command, parser::ValueSource};
use serde_json::{Map, Value, json};

use crate::config::{Setting, field_of};

/// Each flag with its value and its origin, as JSON.
#[derive(Clone, Debug)]
pub(crate) struct Effective(Value);

impl Effective {
    /// The configuration of a parsed command line with the settings of a file.
    pub(crate) fn of(command: &Command, matches: &ArgMatches, settings: &[Setting]) -> Self {
        let (path, matches) = leaf(matches);
        // The last subcommand has the global flags, too.
        let flags = find_command(command, &path).map(|command| flags(command, matches, settings));
        Self(json!({"fairlead": {"command": path.join(" "), "flags": flags}}))
    }

    /// Whether a flag has its default value.
    pub(crate) fn is_default(&self, flag: &str) -> bool {
        self.0["fairlead"]["flags"][flag]["from"] == "default"
    }

    /// A JSON document.
    pub(crate) fn to_json(&self) -> String {
        format!("{:#}\n", self.0)
    }
}

/// The names of the subcommands, and the arguments of the last one.
pub(super) fn leaf(mut matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let mut path = Vec::new();
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name);
        matches = inner;
    }
    (path, matches)
}

/// A subcommand, by its path: the names of the commands that it is in, and its own.
pub(super) fn find_command<'a>(command: &'a Command, path: &[&str]) -> Option<&'a Command> {
    path.iter().try_fold(command, |command, name| command.find_subcommand(name))
}

/// The flags of one command that have a value.
fn flags(command: &Command, matches: &ArgMatches, settings: &[Setting]) -> Map<String, Value> {
    let mut flags = Map::new();
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let Some(flag) = argument.get_long() else { continue };
        let setting = settings.iter().find(|setting| setting.field == field_of(flag));
        // Of an unknown id, `value_source` panics.
        let source = if matches.try_contains_id(id).is_ok() { matches.value_source(id) } else { None };

        let (value, from) = match (source, setting) {
            (Some(ValueSource::CommandLine), _) => (given_value(argument, matches), "command line"),
            (Some(ValueSource::EnvVariable), _) => (given_value(argument, matches), "environment"),
            (_, Some(setting)) => (Some(setting.value.clone()), "file"),
            _ => (given_value(argument, matches), "default"),
        };
        if let Some(value) = value {
            flags.insert(flag.to_owned(), json!({"value": value, "from": from}));
        }
    }
    flags
}

/// The value of a flag, of several a list.
fn given_value(argument: &Arg, matches: &ArgMatches) -> Option<Value> {
    let raw = matches.try_get_raw(argument.get_id().as_str()).ok().flatten()?;
    let mut values: Vec<_> = raw.map(|value| value_of(argument, &value.to_string_lossy())).collect();
    Some(if values.len() == 1 { values.remove(0) } else { values.into() })
}

/// A value as a file has it: of a switch `true` or `false`, otherwise text.
fn value_of(argument: &Arg, text: &str) -> Value {
    match text.parse() {
        Ok(on) if argument.is_require_equals_set() => Value::Bool(on),
        _ => Value::from(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_flag_has_its_value_and_origin() {
        let mut command = super::super::command();
        let arguments = ["fairlead", "backend", "nft", "--metrics", "none"];
        let matches = command.try_get_matches_from_mut(arguments).unwrap();
        let settings = [("frontend", json!(["http://a:1", "http://b:1"])), ("metrics", json!("::"))]
            .map(|(field, value)| Setting::new(field, field, value));
        let Effective(config) = Effective::of(&command, &matches, &settings);
        let config = &config["fairlead"];
        assert_eq!(config["command"], "backend nftables");
        let flags = &config["flags"];
        assert_eq!(flags["metrics"], json!({"value": "none", "from": "command line"}));
        assert_eq!(flags["frontend"], json!({"value": ["http://a:1", "http://b:1"], "from": "file"}));
        assert_eq!(flags["healthz"], json!({"value": "0.0.0.0:10256", "from": "default"}));
        assert_eq!(flags["log-format"]["value"], "text", "{flags}");
        assert_eq!(flags["shadow"]["value"], false, "{flags}");
        assert_eq!(flags["node-name"], Value::Null, "neither set nor with a default");
    }
}
