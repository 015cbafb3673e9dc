//! The command line, merged with the file that `--config` names.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, ValueEnum as _, value_parser};

use super::{Cli, Effective, effective::leaf};
use crate::config::{
    BackendName, Document, Kind, Setting, TargetRole,
    kube_proxy::{self, Conversion},
    settings,
};

/// A command with its settings.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// All settings with their origins.
    pub(crate) effective: Effective,
    /// The file of `--config`.
    pub(crate) file: Option<PathBuf>,
}

/// Of these, a flag replaces the other one in the file too.
const SOURCES: [&str; 2] = ["manifests", "kubeconfig"];

const KUBE_PROXYS: &str = "the file is kube-proxy's: convert it with `fairlead config convert`";

/// The command line of [`Cli`], where a switch that a file may turn on can be turned off: `--shadow=false`.
pub(crate) fn command() -> Command {
    let backends = |command: Command| command.mut_subcommands(with_switch_values);
    Cli::command()
        .mut_subcommand("frontend", with_switch_values)
        .mut_subcommand("local", with_switch_values)
        .mut_subcommand("backend", backends)
}

/// Lets switches take `=true` and `=false`.
fn with_switch_values(command: Command) -> Command {
    command.mut_args(|arg| match arg.get_action() {
        ArgAction::SetTrue => arg
            .action(ArgAction::Set)
            .value_parser(value_parser!(bool))
            .value_name("true|false")
            .num_args(0..=1)
            .require_equals(true)
            .default_value("false")
            .default_missing_value("true")
            .hide_default_value(true)
            .hide_possible_values(true),
        _ => arg,
    })
}

/// Parses a command line, which begins with the program's name.
///
/// # Errors
/// [`clap::Error`] for the command line alone; others name the file and the field.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Parsed> {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let mut command = command();
    let matches = command.try_get_matches_from_mut(&arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let Some(file) = cli.command.config_file().cloned() else {
        cli.validate()?;
        return Ok(Parsed { cli, effective: Effective::of(&command, &matches, &[]), file: None });
    };
    let text = Document::read_text(&file)?;
    let mut read = || -> Result<_> {
        let mut settings = given_settings(Document::parse(&text)?, &matches)?;
        let given = leaf(&matches).1;
        if SOURCES.iter().any(|source| given.try_contains_id(source).unwrap_or(false)) {
            settings.retain(|setting| !SOURCES.contains(&setting.field.as_str()));
        }
        let command = settings::with_defaults(self::command(), &settings);
        cli = Cli::from_arg_matches(&command.try_get_matches_from(&arguments)?)?;
        cli.validate()?;
        Ok(settings)
    };
    let settings = read().with_context(|| file.display().to_string())?;
    Ok(Parsed { cli, effective: Effective::of(&command, &matches, &settings), file: Some(file) })
}

/// The settings of a document without flags, the kind of the file that has them, and what a file of kube-proxy loses
/// if it is converted for a process.
///
/// # Errors
/// Invalid settings, all at once. Settings that contradict each other.
pub(crate) fn check_document(
    document: Document,
    convert_for: Option<TargetRole>,
) -> Result<(Kind, Vec<Setting>, Vec<String>)> {
    let (kind, Conversion { settings, warnings }) = match (document.kind, convert_for) {
        (Kind::KubeProxy, Some(role)) => (role.kind(), kube_proxy::convert(&document.fields, role)?),
        (Kind::KubeProxy, None) => bail!(KUBE_PROXYS),
        (kind, _) => (kind, Conversion { settings: settings_of(document), warnings: Vec::new() }),
    };
    check_for(kind.command(), &settings)?;
    let arguments = [&["fairlead"], kind.command()].concat();
    let command = settings::with_defaults(command(), &settings);
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)?.validate()?;
    Ok((kind, settings, warnings))
}

/// The settings of a file of ours for the command that is called.
fn given_settings(mut document: Document, matches: &ArgMatches) -> Result<Vec<Setting>> {
    let path = leaf(matches).0;
    let (command, kind) = (path.first().copied().unwrap_or_default(), document.kind);
    if kind == Kind::KubeProxy {
        bail!(KUBE_PROXYS);
    }
    if kind.command().first() != Some(&command) {
        bail!("kind: {} is for `fairlead {}`, not for `{command}`", kind.name(), kind.command().join(" "));
    }
    let backend_name = |name: &str| BackendName::from_str(name, false).ok();
    if let Some(named) = path.get(1).copied().and_then(backend_name)
        && let Some(backend) = document.fields.remove("backend")
        && backend.as_str().and_then(backend_name) != Some(named)
    {
        bail!("backend: {backend} does not match `fairlead backend {}`", named.name());
    }
    let settings = settings_of(document);
    check_for(&path, &settings)?;
    Ok(settings)
}

/// The settings of a file of ours.
fn settings_of(document: Document) -> Vec<Setting> {
    document.fields.into_iter().map(|(field, value)| Setting::new(field.as_str(), field.as_str(), value)).collect()
}

/// Checks that a command, by the names of its subcommands, accepts these settings.
fn check_for(path: &[&str], settings: &[Setting]) -> Result<()> {
    let mut command = command();
    command.build();
    let command = path.iter().try_fold(&command, |command, name| command.find_subcommand(name));
    settings::check(command.context("no such command")?, settings)
}

#[cfg(test)]
mod tests;
