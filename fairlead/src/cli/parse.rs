//! The command line, merged with the file that `--config` names.

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{
    Arg, ArgAction, ArgMatches, Args as _, Command, CommandFactory as _, FromArgMatches as _, ValueEnum as _,
    error::{ContextKind, ErrorKind},
    parser::ValueSource,
    value_parser,
};

use super::{
    Cli, ConntrackArgs, Effective, FrontendAddressArgs,
    effective::{find_command, leaf},
};
use crate::{
    config::{
        Document, Kind, Setting, TargetRole, field_of,
        kube_proxy::{self, Conversion},
        settings,
    },
    modes::Mode,
    running_backend::RunningBackend,
};

/// A command with its settings.
#[derive(Debug)]
pub(crate) struct Parsed {
    pub(crate) cli: Cli,
    /// The command line.
    pub(crate) arguments: Vec<OsString>,
    /// All settings with their origins.
    pub(crate) effective: Effective,
    /// The file of `--config`.
    pub(crate) file: Option<PathBuf>,
    /// About the file.
    pub(crate) warnings: Vec<String>,
}

/// The sources of objects. A flag for one of them replaces both in the file.
const SOURCES: [&str; 2] = ["manifests", "kubeconfig"];

/// Flags that together say how pods are identified. If one of them is given, none is taken from the running backend.
const POD_DETECTION: [&str; 4] =
    ["detect_local_mode", "cluster_cidr", "pod_bridge_interface", "pod_interface_name_prefix"];

const NOT_CONVERTED: &str = "the file is kube-proxy's: convert it with `fairlead config convert`";

/// The command line of [`Cli`], where a switch that a file or the running backend may turn on can be turned off:
/// `--shadow=false`.
pub(crate) fn command() -> Command {
    // `mut_subcommand` would move a command to the end of the help page.
    with_headings(Cli::command()).mut_subcommands(|command| match command.get_name() {
        "frontend" | "local" | "diff" => with_switch_values(command),
        "backend" => command.mut_subcommands(with_switch_values),
        _ => command,
    })
}

/// Groups flags in help pages, after the other flags of a command. Not by attributes, because a heading would apply to
/// the flags that follow, too.
fn with_headings(mut command: Command) -> Command {
    let groups = [
        (FrontendAddressArgs::augment_args(Command::new("")), "Connection to the frontend"),
        (ConntrackArgs::augment_args(Command::new("")), "Connection tracking (0 leaves a setting unchanged)"),
    ];
    for (group, heading) in groups {
        // `fairlead frontend` has flags of the same names for its own certificate.
        if group.get_arguments().all(|arg| has_argument(&command, arg)) {
            command = command.mut_args(|arg| if has_argument(&group, &arg) { arg.help_heading(heading) } else { arg });
        }
    }
    command.mut_subcommands(with_headings)
}

fn has_argument(command: &Command, arg: &Arg) -> bool {
    command.get_arguments().any(|own| own.get_id() == arg.get_id())
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
    let matches = command.try_get_matches_from_mut(&arguments).map_err(explain_missing_mode)?;
    let cli = Cli::from_arg_matches(&matches)?;

    let Some(file) = cli.command.config_file().cloned() else {
        cli.validate()?;
        let effective = Effective::of(&command, &matches, &[]);
        return Ok(Parsed { cli, arguments, effective, file: None, warnings: Vec::new() });
    };

    let text = Document::read_text(&file)?;
    let with_file = parse_with_file(&text, &matches, &arguments);
    let (cli, settings, warnings) = with_file.with_context(|| file.display().to_string())?;
    let effective = Effective::of(&command, &matches, &settings);
    Ok(Parsed { cli, arguments, effective, file: Some(file), warnings })
}

/// Parses a command line again, where the settings of a file are the defaults of its flags. Returns these settings, and
/// warnings, too.
fn parse_with_file(
    text: &str,
    matches: &ArgMatches,
    arguments: &[OsString],
) -> Result<(Cli, Vec<Setting>, Vec<String>)> {
    let (mut settings, warnings) = given_settings(Document::parse(text)?, matches)?;
    let (_, given) = leaf(matches);
    if SOURCES.iter().any(|source| given.try_contains_id(source).unwrap_or(false)) {
        settings.retain(|setting| !SOURCES.contains(&setting.field.as_str()));
    }

    let cli = parse_with_defaults(&settings, arguments)?;
    cli.validate()?;
    Ok((cli, settings, warnings))
}

/// Parses a command line, where these settings are the defaults of its flags.
fn parse_with_defaults(settings: &[Setting], arguments: &[impl AsRef<OsStr>]) -> Result<Cli> {
    let command = settings::with_defaults(command(), settings);
    let matches = command.try_get_matches_from(arguments.iter().map(AsRef::as_ref))?;
    Ok(Cli::from_arg_matches(&matches)?)
}

/// clap takes the first flag of a backend without a mode for a flag of `fairlead backend`, which has none.
fn explain_missing_mode(error: clap::Error) -> anyhow::Error {
    let usage = error.get(ContextKind::Usage).map(ToString::to_string).unwrap_or_default();
    let is_of_backend = usage.contains(" backend ") && usage.trim_end().ends_with("<COMMAND>");
    if error.kind() != ErrorKind::UnknownArgument || !is_of_backend {
        return error.into();
    }
    let flag = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
    anyhow!(
        "the mode of the backend is missing: write nftables, iptables, ipvs or configured before {flag}, as in \
         `fairlead backend nftables {flag} ...`"
    )
}

/// Parses a command line again, where the settings of the running backend are the defaults of its flags. Returns the
/// settings that apply, because neither a flag nor the environment sets them, too.
pub(crate) fn with_settings_of(running: &RunningBackend, arguments: &[OsString]) -> Result<(Cli, Vec<Setting>)> {
    let mut command = command();
    let matches = command.try_get_matches_from_mut(arguments)?;
    let (path, given) = leaf(&matches);
    let command = find_command(&command, &path).context("no such command")?;

    let settings = missing_settings(running, command, given);
    settings::check(command, &settings).with_context(|| format!("settings of the backend at {}", running.address))?;
    Ok((parse_with_defaults(&settings, arguments)?, settings))
}

/// The settings of the running backend for flags of a command that are not given. Without the flags for the connection
/// to a frontend, because the files of the backend may be in a container.
fn missing_settings(running: &RunningBackend, command: &Command, given: &ArgMatches) -> Vec<Setting> {
    let connection = FrontendAddressArgs::augment_args(Command::new("connection"));
    let detection_is_given = command.get_arguments().any(|arg| detects_pods(arg) && is_given(arg, given));

    let mut settings = Vec::new();
    for arg in command.get_arguments() {
        let is_replaced = is_given(arg, given) || detection_is_given && detects_pods(arg);
        if is_replaced || arg.is_global_set() || has_argument(&connection, arg) {
            continue;
        }
        if let Some(setting) = setting_of(running, arg) {
            settings.push(setting);
        }
    }
    settings
}

fn is_given(arg: &Arg, matches: &ArgMatches) -> bool {
    let source = matches.value_source(arg.get_id().as_str());
    matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable))
}

fn detects_pods(arg: &Arg) -> bool {
    POD_DETECTION.contains(&arg.get_id().as_str())
}

/// The setting of the running backend for a flag. `--node` of a command is `--node-name` of a backend, by its alias.
fn setting_of(running: &RunningBackend, arg: &Arg) -> Option<Setting> {
    let flag = arg.get_long()?;
    let aliases = arg.get_all_aliases().unwrap_or_default();
    let fields: Vec<_> = aliases.into_iter().chain([flag]).map(field_of).collect();
    let setting = running.settings.iter().find(|setting| fields.contains(&setting.field))?;
    Some(Setting::new(format!("--{flag}"), field_of(flag), setting.value.clone()))
}

/// The settings of a document, checked without a command line.
#[derive(Debug)]
pub(crate) struct CheckedDocument {
    /// The kind of the file that has these settings.
    pub(crate) kind: Kind,
    pub(crate) settings: Vec<Setting>,
    /// What a file of kube-proxy loses when it is converted, and outdated spellings.
    pub(crate) warnings: Vec<String>,
}

/// Checks the settings of a document. One of kube-proxy has to be converted for a process.
///
/// # Errors
/// Invalid settings, all at once. Settings that contradict each other.
pub(crate) fn check_document(document: Document, convert_for: Option<TargetRole>) -> Result<CheckedDocument> {
    let (kind, conversion) = match (document.kind, convert_for) {
        (Kind::KubeProxy, Some(role)) => (role.kind(), kube_proxy::convert(&document.fields, role)?),
        (Kind::KubeProxy, None) => bail!(NOT_CONVERTED),
        (kind, _) => (kind, Conversion { settings: settings_of(document), warnings: Vec::new() }),
    };
    let Conversion { mut settings, mut warnings } = conversion;
    warnings.extend(check_for(kind.command(), &mut settings)?);

    let arguments = [&["fairlead"], kind.command()].concat();
    parse_with_defaults(&settings, &arguments)?.validate()?;
    Ok(CheckedDocument { kind, settings, warnings })
}

/// The settings of a file of ours for the command that is called, and warnings.
fn given_settings(mut document: Document, matches: &ArgMatches) -> Result<(Vec<Setting>, Vec<String>)> {
    let (path, _) = leaf(matches);
    let command = path.first().copied().unwrap_or_default();
    let kind = document.kind;
    if kind == Kind::KubeProxy {
        bail!(NOT_CONVERTED);
    }
    if kind.command().first() != Some(&command) {
        bail!("kind: {} is for `fairlead {}`, not for `{command}`", kind.name(), kind.command().join(" "));
    }

    let mode = |name: &str| Mode::from_str(name, false).ok();
    if let Some(named) = path.get(1).copied().and_then(mode)
        && let Some(backend) = document.fields.remove("backend")
        && backend.as_str().and_then(mode) != Some(named)
    {
        bail!("backend: {backend} does not match `fairlead backend {}`", named.name());
    }

    let mut settings = settings_of(document);
    let warnings = check_for(&path, &mut settings)?;
    Ok((settings, warnings))
}

/// The settings of a file of ours.
fn settings_of(document: Document) -> Vec<Setting> {
    document.fields.into_iter().map(|(field, value)| Setting::new(field.as_str(), field.as_str(), value)).collect()
}

/// Checks that a command, by the names of its subcommands, accepts these settings. Gives them their current spelling,
/// and returns a warning for each outdated spelling.
fn check_for(path: &[&str], settings: &mut [Setting]) -> Result<Vec<String>> {
    let mut command = command();
    command.build();
    let command = find_command(&command, path).context("no such command")?;
    let warnings = settings::respell(command, settings);
    settings::check(command, settings)?;
    Ok(warnings)
}

#[cfg(test)]
mod tests;
