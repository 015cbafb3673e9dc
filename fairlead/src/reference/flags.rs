//! docs/reference/flags.md: every command with its flags, from their definitions.

use std::fmt::Write as _;

use clap::{Arg, ArgAction, Command};

use super::{code, header, row};
use crate::config;

const INTRO: &str = "# Commands and flags

Made from the program by `make reference`; `fairlead COMMAND --help` says the same. What a flag says goes before its variable of the environment, that before the
field of the file that `--config` names ([configuration.md](../configuration.md)), and that before the default.

";

/// The page.
pub(super) fn page() -> String {
    let mut command = config::command();
    command.build();
    let mut page = INTRO.to_owned();
    page.push_str("## All commands\n\n");
    page.push_str(&table(&command, Arg::is_global_set));
    for inner in command.get_subcommands() {
        section(inner, &mut page);
    }
    page
}

fn section(command: &Command, page: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or_default();
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let _ = write!(page, "\n## `{name}`\n\n{about}.\n\n");
    if let Some(more) = command.get_after_help() {
        let _ = write!(page, "```text\n{more}\n```\n\n");
    }
    page.push_str(&table(command, |arg| !arg.is_global_set()));
    command.get_subcommands().for_each(|inner| section(inner, page));
}

fn table(command: &Command, is_wanted: impl Fn(&Arg) -> bool) -> String {
    let is_configurable = command.get_arguments().any(|arg| arg.get_long() == Some("config"));
    let is_own = |arg: &&Arg| !["help", "version"].contains(&arg.get_id().as_str()) && !arg.is_hide_set();
    let rows: String = command
        .get_arguments()
        .filter(|arg| is_wanted(arg))
        .filter(is_own)
        .map(|arg| {
            let is_field = |flag: &&str| config::flags(command).any(|(known, _)| known == *flag);
            let field = arg.get_long().filter(|_| is_configurable || arg.is_global_set()).filter(is_field);
            let defaults = arg.get_default_values().iter().map(|value| value.to_string_lossy());
            let default = defaults.filter(|_| arg.get_action().takes_values()).collect::<Vec<_>>().join(",");
            let variable = arg.get_env().map(|name| name.to_string_lossy().into_owned());
            row(&[
                &code(&name(arg)),
                &code(&default),
                &code(&variable.unwrap_or_default()),
                &code(&field.map(config::field_of).unwrap_or_default()),
                &about(arg),
            ])
        })
        .collect();
    let names = ["flag", "default", "environment", "field", ""];
    if rows.is_empty() { rows } else { format!("{}{rows}", header(&names)) }
}

/// As on the command line.
fn name(arg: &Arg) -> String {
    let value = arg.get_value_names().unwrap_or_default().join(" ");
    match arg.get_long() {
        None => value,
        Some(long) if arg.get_action().takes_values() => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
    }
}

fn about(arg: &Arg) -> String {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut text = help.replace("\n\n", " ");
    if !text.ends_with('.') {
        text.push('.');
    }
    let possible = arg.get_possible_values();
    if !possible.is_empty() && arg.get_action().takes_values() {
        let one = |value: &clap::builder::PossibleValue| {
            let help = value.get_help().map(|help| format!(" ({help})")).unwrap_or_default();
            format!("`{}`{help}", value.get_name())
        };
        let values: Vec<_> = possible.iter().map(one).collect();
        let _ = write!(text, " One of {}.", values.join(", "));
    }
    let is_list = matches!(arg.get_action(), ArgAction::Append) && arg.get_value_delimiter().is_none();
    if is_list && !text.contains("several times") {
        text.push_str(" May be given several times.");
    }
    text
}
