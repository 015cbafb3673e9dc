//! The command line with what a file says behind it. First it is read as far as it goes, to find the file and what is given without it;
//! then it is read whole, so that what a file says is checked like everything else.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Error, Result, bail};
use clap::{
    Arg, ArgGroup, ArgMatches, Command, CommandFactory as _, FromArgMatches as _,
    error::{ContextKind, ContextValue},
    parser::ValueSource,
    value_parser,
};

use super::{Document, Kind, Role, Setting, Target, Warning, kube_proxy::Translation, own};
use crate::{
    cli::{BackendName, Cli, Effective},
    kubectl::CalledBy,
};

/// What is asked for, and by which file.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// All that holds.
    pub(crate) effective: Effective,
    /// Of `--config`.
    pub(crate) file: Option<PathBuf>,
    /// What of it has no effect.
    pub(crate) warnings: Vec<Warning>,
}

const CONFIG_HELP: &str = "Take from this file (YAML) what neither the command line nor the environment says: one of Fairlead's own \
    (docs/configuration.md), or kube-proxy's KubeProxyConfiguration, of which what has no effect is logged";

/// The command line: that of [`Cli`], and `--config` where it is of use.
pub(crate) fn command() -> Command {
    let arg =
        Arg::new("config").long("config").value_name("FILE").value_parser(value_parser!(PathBuf)).help(CONFIG_HELP);
    let with = |command: Command| command.arg(arg.clone());
    let backends = |command: Command| {
        let names: Vec<_> = command.get_subcommands().map(|backend| backend.get_name().to_owned()).collect();
        names.into_iter().fold(command, |command, name| command.mut_subcommand(name, with))
    };
    Cli::command().mut_subcommand("frontend", with).mut_subcommand("local", with).mut_subcommand("backend", backends)
}

/// Reads a command line, which begins with the program's name.
///
/// # Errors
/// [`clap::Error`] where only the command line has to do with it.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Parsed> {
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let Some(given) = Given::find(&arguments) else {
        let (cli, effective) = read(arguments, &[])?;
        return Ok(Parsed { cli, effective, file: None, warnings: Vec::new() });
    };
    let document = Document::read(&given.file)?;
    let (settings, warnings) = given.read(document).with_context(|| given.file.display().to_string())?;
    let settings: Vec<_> = settings.into_iter().filter(|setting| given.leaves_open(&setting.flag)).collect();
    let (cli, effective) = with_settings(&arguments, &settings, &given.file)?;
    Ok(Parsed { cli, effective, file: Some(given.file), warnings })
}

/// Reads a command line with settings of a file behind it.
///
/// # Errors
/// With the file's name and the field where a setting has to do with it, else as of [`parse`].
pub(crate) fn with_settings(
    arguments: &[impl Clone + Into<OsString>],
    settings: &[Setting],
    file: &Path,
) -> Result<(Cli, Effective)> {
    let from_file = settings.iter().flat_map(Setting::to_arguments).map(OsString::from);
    let arguments = arguments.iter().cloned().map(Into::into).chain(from_file);
    read(arguments, settings).map_err(|error| match settings.iter().find(|setting| is_about(&error, &setting.flag)) {
        Some(Setting { field, .. }) => Error::msg(format!("{}: {field}: {}", file.display(), first_line(&error))),
        None => error.into(),
    })
}

/// Reads a whole command line, of which these settings are from a file.
fn read(arguments: impl IntoIterator<Item = OsString>, settings: &[Setting]) -> Result<(Cli, Effective), clap::Error> {
    let mut arguments = arguments.into_iter().peekable();
    let mut command = match CalledBy::of(arguments.peek().map(AsRef::as_ref)) {
        CalledBy::Kubectl => command().bin_name("kubectl fairlead"),
        CalledBy::Name | CalledBy::Completion => command(),
    };
    let matches = command.try_get_matches_from_mut(arguments)?;
    let effective = Effective::of(&command, &matches, settings.iter().map(|setting| setting.flag.as_ref()));
    Ok((Cli::from_arg_matches(&matches)?, effective))
}

/// What a document says of the flags of a command, by its names.
///
/// # Errors
/// [`Problems`](super::Problems), all at once.
pub(crate) fn settings(
    document: Document,
    target: Target,
    path: &[impl AsRef<str>],
) -> Result<(Vec<Setting>, Vec<Warning>)> {
    let Document { kind, fields, mut warnings } = document;
    let command = built(path).context("there is no such command")?;
    if kind != Kind::KubeProxy {
        return Ok((own::settings(&command, &fields)?, warnings));
    }
    let Translation { mut settings, warnings: more } = target.translate(&fields)?;
    warnings.extend(more);
    // `backend nft` has no flag that names it.
    settings.retain(|setting| own::flags(&command).any(|(flag, _)| flag == setting.flag));
    Ok((settings, warnings))
}

/// A subcommand, with the flags that are everybody's.
fn built(path: &[impl AsRef<str>]) -> Option<Command> {
    let mut command = command();
    command.build();
    path.iter().try_fold(command, |command, name| command.find_subcommand(name.as_ref()).cloned())
}

/// What a command line with `--config` says besides.
struct Given {
    file: PathBuf,
    /// The names of the command and its subcommand.
    path: Vec<String>,
    /// The last of them, built.
    command: Command,
    matches: ArgMatches,
}

impl Given {
    fn find(arguments: &[OsString]) -> Option<Self> {
        // What is wrong with it is found when it is read whole.
        let mut matches = command().ignore_errors(true).try_get_matches_from(arguments).ok()?;
        let mut path = Vec::new();
        while let Some((name, inner)) = matches.remove_subcommand() {
            path.push(name);
            matches = inner;
        }
        let file = matches.try_get_one::<PathBuf>("config").ok()??.clone();
        Some(Self { file, command: built(&path)?, path, matches })
    }

    /// What the file says of this command.
    fn read(&self, mut document: Document) -> Result<(Vec<Setting>, Vec<Warning>)> {
        let command = self.path.first().map_or("", String::as_str);
        let wanted = Kind::OURS.into_iter().find(|kind| kind.command().first() == Some(&command));
        let role = if wanted == Some(Kind::Local) { Role::Local } else { Role::Backend };
        match document.kind {
            Kind::KubeProxy if wanted == Some(Kind::Frontend) => {
                bail!("kind: {} is for `local` and `backend`, not for `{command}`", document.kind.name())
            }
            Kind::KubeProxy => {}
            kind if wanted != Some(kind) => {
                let meant = kind.command().join(" ");
                bail!("kind: {} is for `fairlead {meant}`, not for `{command}`", kind.name())
            }
            // `backend nft` says by its name what other commands are told by a flag.
            _ if own::flags(&self.command).all(|(flag, _)| flag != "backend") => {
                if let (Some(name), Some(backend)) = (self.path.get(1), document.fields.remove("backend"))
                    && backend != name.as_str()
                {
                    bail!("backend: {backend} is not that of `fairlead backend {name}`");
                }
            }
            _ => {}
        }
        settings(document, Target { role, backend: self.backend() }, &self.path)
    }

    /// The backend that the command line names.
    fn backend(&self) -> Option<BackendName> {
        let given = self.matches.try_get_one::<BackendName>("backend").ok().flatten().copied();
        let named = || <BackendName as clap::ValueEnum>::from_str(self.path.get(1)?, false).ok();
        given.or_else(named)
    }

    /// Whether the file decides: neither the flag is given, nor its variable, nor a flag that excludes it.
    fn leaves_open(&self, flag: &str) -> bool {
        let Some((_, arg)) = own::flags(&self.command).find(|(long, _)| *long == flag) else { return true };
        let source = |arg: &Arg| self.matches.value_source(arg.get_id().as_str());
        let by_itself = matches!(source(arg), Some(ValueSource::CommandLine | ValueSource::EnvVariable));
        let is_in = |group: &ArgGroup| group.get_args().any(|member| member == arg.get_id());
        let mut groups: Vec<_> = self.command.get_groups().filter(|group| is_in(group)).cloned().collect();
        groups.retain_mut(|group| !group.is_multiple());
        let rivals = groups.iter().flat_map(|group| group.get_args());
        let excluded = rivals.filter_map(|id| self.command.get_arguments().find(|rival| rival.get_id() == id));
        let excluded = excluded.chain(self.command.get_arg_conflicts_with(arg));
        !by_itself && !excluded.into_iter().any(|rival| source(rival) == Some(ValueSource::CommandLine))
    }
}

/// Whether an error names a flag.
fn is_about(error: &clap::Error, flag: &str) -> bool {
    let is_named = |text: &str| {
        let name = text.trim_start_matches("--");
        let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
        text.starts_with("--") && &name[..end] == flag
    };
    [ContextKind::InvalidArg, ContextKind::PriorArg].into_iter().any(|kind| match error.get(kind) {
        Some(ContextValue::String(text)) => is_named(text),
        Some(ContextValue::Strings(texts)) => texts.iter().any(|text| is_named(text)),
        _ => false,
    })
}

/// What an error says, without the usage that follows.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests;
