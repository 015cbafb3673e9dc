//! The configuration in force, as it was put together from the command line, the environment, a file and defaults. There are no secrets in it: those are in
//! files, of which only the paths are here.

use std::collections::BTreeSet;

use clap::{ArgMatches, Command, parser::ValueSource};
use serde_json::{Map, Value, json};

/// Every flag with its value and where that is from, as JSON.
#[derive(Clone, Debug)]
pub(crate) struct Effective(Value);

impl Effective {
    /// What was read by a command, with the flags that a file has said.
    pub(crate) fn of<'a>(command: &Command, matches: &ArgMatches, filed: impl Iterator<Item = &'a str>) -> Self {
        let filed: BTreeSet<_> = filed.collect();
        let (mut words, mut flags) = (Vec::new(), Map::new());
        let (mut command, mut matches) = (command, matches);
        loop {
            collect(command, matches, &filed, &mut flags);
            let Some((name, inner)) = matches.subcommand() else { break };
            words.push(name);
            let Some(found) = command.find_subcommand(name) else { break };
            (command, matches) = (found, inner);
        }
        Self(json!({"fairlead": {"command": words.join(" "), "flags": flags}}))
    }

    /// Whether a flag has its value because nobody has said anything else.
    pub(crate) fn is_default(&self, flag: &str) -> bool {
        self.0["fairlead"]["flags"][flag]["from"] == "default"
    }

    /// A document.
    pub(crate) fn to_json(&self) -> String {
        format!("{:#}\n", self.0)
    }
}

/// The flags of one command. Those without a value are left out.
fn collect(command: &Command, matches: &ArgMatches, filed: &BTreeSet<&str>, flags: &mut Map<String, Value>) {
    for argument in command.get_arguments() {
        let id = argument.get_id().as_str();
        let (Some(long), Ok(Some(raw))) = (argument.get_long(), matches.try_get_raw(id)) else { continue };
        let mut values: Vec<_> = raw.map(|value| Value::from(value.to_string_lossy())).collect();
        let value = if values.len() == 1 { values.remove(0) } else { Value::from(values) };
        let from = match matches.value_source(id) {
            Some(ValueSource::CommandLine) if filed.contains(long) => "file",
            Some(ValueSource::CommandLine) => "command line",
            Some(ValueSource::EnvVariable) => "environment",
            _ => "default",
        };
        flags.insert(long.to_owned(), json!({"value": value, "from": from}));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_is_there_with_where_it_is_from() {
        let mut command = crate::config::command();
        let line =
            ["fairlead", "backend", "nft", "--metrics", "none", "--frontend", "http://a:1", "--frontend", "http://b:1"];
        let matches = command.try_get_matches_from_mut(line).unwrap();
        let Effective(config) = Effective::of(&command, &matches, ["frontend"].into_iter());
        let config = &config["fairlead"];
        assert_eq!(config["command"], "backend nft");
        let flags = &config["flags"];
        assert_eq!(flags["metrics"], json!({"value": "none", "from": "command line"}));
        assert_eq!(flags["frontend"], json!({"value": ["http://a:1", "http://b:1"], "from": "file"}));
        assert_eq!(flags["healthz"], json!({"value": "0.0.0.0:10256", "from": "default"}));
        assert_eq!(flags["log-format"]["value"], "text", "{flags}");
        assert_eq!(flags["node-name"], Value::Null, "what was not said and has no default");
    }
}
