//! The command line, merged with the file that `--config` names.

use std::{ffi::OsString, path::PathBuf};

use anyhow::{Context as _, Result, bail};
use clap::{ArgAction, ArgMatches, Command, CommandFactory as _, FromArgMatches as _, ValueEnum as _, value_parser};

use super::{
    BackendName, Document, FieldProblem, Kind, Setting, TargetRole,
    kube_proxy::{Target, Translation},
    settings,
};
use crate::{
    cli::{Cli, Effective},
    kubectl::CalledBy,
};

/// A command with its settings.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// All settings with their origins.
    pub(crate) effective: Effective,
    /// The file of `--config`.
    pub(crate) file: Option<PathBuf>,
    /// Fields of it without effect.
    pub(crate) warnings: Vec<FieldProblem>,
}

/// Of these, a flag replaces the other one in the file too.
const SOURCES: [&str; 2] = ["manifests", "kubeconfig"];

/// The command line of [`Cli`], where a switch that a file may turn on can be turned off: `--shadow=false`.
pub(crate) fn command() -> Command {
    let backends = |command: Command| command.mut_subcommands(with_switch_values);
    Cli::command()
        .mut_subcommand("frontend", with_switch_values)
        .mut_subcommand("local", with_switch_values)
        .mut_subcommand("backend", backends)
}

/// Lets switches take `=true` and `=false`.
pub(super) fn with_switch_values(command: Command) -> Command {
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
    let mut command = match CalledBy::of(arguments.first().map(AsRef::as_ref)) {
        CalledBy::Kubectl => command().bin_name("kubectl fairlead"),
        CalledBy::Name | CalledBy::Completion => command(),
    };
    let matches = command.try_get_matches_from_mut(&arguments)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let Some(file) = cli.command.config_file().cloned() else {
        cli.validate()?;
        return Ok(Parsed { cli, effective: Effective::of(&command, &matches, &[]), file: None, warnings: Vec::new() });
    };
    let text = Document::read_text(&file)?;
    let mut read = || -> Result<_> {
        let (mut settings, warnings) = given_settings(Document::parse(&text)?, &matches)?;
        let given = leaf(&matches).1;
        if SOURCES.iter().any(|source| given.try_contains_id(source).unwrap_or(false)) {
            settings.retain(|setting| !SOURCES.contains(&setting.field.as_str()));
        }
        let command = settings::with_defaults(self::command(), &settings);
        cli = Cli::from_arg_matches(&command.try_get_matches_from(&arguments)?)?;
        cli.validate()?;
        Ok((settings, warnings))
    };
    let (settings, warnings) = read().with_context(|| file.display().to_string())?;
    Ok(Parsed { cli, effective: Effective::of(&command, &matches, &settings), file: Some(file), warnings })
}

/// The settings of a document for a command, by the names of its subcommands.
///
/// # Errors
/// [`FieldErrors`](super::FieldErrors), all at once.
fn load(document: Document, target: Target, path: &[impl AsRef<str>]) -> Result<(Vec<Setting>, Vec<FieldProblem>)> {
    let Document { kind, fields, mut warnings } = document;
    let mut command = command();
    command.build();
    let command = path.iter().try_fold(&command, |command, name| command.find_subcommand(name.as_ref()));
    let command = command.context("no such command")?;
    let settings = if kind == Kind::KubeProxy {
        let Translation { mut settings, warnings: more } = target.translate(&fields)?;
        warnings.extend(more);
        // The subcommands of `backend` that name a backend have no flag for it.
        settings.retain(|setting| settings::flags(command).any(|(flag, _)| settings::field_of(flag) == setting.field));
        settings
    } else {
        fields.into_iter().map(|(field, value)| Setting::new(field.as_str(), field.as_str(), value)).collect()
    };
    settings::check(command, &settings)?;
    Ok((settings, warnings))
}

/// The settings of a document without flags, and the kind of the file that has them.
///
/// # Errors
/// See [`load`]; also settings that contradict each other.
pub(crate) fn check(document: Document, role: TargetRole) -> Result<(Kind, Vec<Setting>, Vec<FieldProblem>)> {
    let kind = match (document.kind, role) {
        (Kind::KubeProxy, TargetRole::Local) => Kind::Local,
        (Kind::KubeProxy, TargetRole::Backend) => Kind::Backend,
        (kind, _) => kind,
    };
    let (settings, warnings) = load(document, Target { role, backend: None }, kind.command())?;
    let arguments = [&["fairlead"], kind.command()].concat();
    let command = settings::with_defaults(command(), &settings);
    Cli::from_arg_matches(&command.try_get_matches_from(arguments)?)?.validate()?;
    Ok((kind, settings, warnings))
}

/// The settings of a file for the command that is called.
fn given_settings(mut document: Document, matches: &ArgMatches) -> Result<(Vec<Setting>, Vec<FieldProblem>)> {
    let (path, given) = leaf(matches);
    let (command, subcommand) = (path.first().copied().unwrap_or_default(), path.get(1).copied());
    let wanted = Kind::OURS.into_iter().find(|kind| kind.command().first() == Some(&command));
    let role = if wanted == Some(Kind::Local) { TargetRole::Local } else { TargetRole::Backend };
    let named = subcommand.and_then(|name| BackendName::from_str(name, false).ok());
    match document.kind {
        Kind::KubeProxy if wanted == Some(Kind::Frontend) => {
            bail!("kind: {} is for `local` and `backend`, not for `{command}`", document.kind.name())
        }
        Kind::KubeProxy => {}
        kind if wanted != Some(kind) => {
            bail!("kind: {} is for `fairlead {}`, not for `{command}`", kind.name(), kind.command().join(" "))
        }
        _ => {
            if let Some(named) = named
                && let Some(backend) = document.fields.remove("backend")
                && backend.as_str().and_then(|name| BackendName::from_str(name, false).ok()) != Some(named)
            {
                bail!("backend: {backend} does not match `fairlead backend {}`", named.name());
            }
        }
    }
    let flag = given.try_get_one::<BackendName>("backend").ok().flatten().copied();
    load(document, Target { role, backend: flag.or(named) }, &path)
}

/// The names of the subcommands, and the arguments of the last one.
fn leaf(mut matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let mut path = Vec::new();
    while let Some((name, inner)) = matches.subcommand() {
        path.push(name);
        matches = inner;
    }
    (path, matches)
}

#[cfg(test)]
mod tests;
