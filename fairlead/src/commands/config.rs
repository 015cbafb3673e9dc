//! `fairlead config`: what a configuration file says, without doing it.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::{
    cli::{BackendCommand, Cli, Command, ConfigArgs, ConfigCommand, ConvertArgs, Process, ValidateArgs},
    config::{self, Document, Kind, Role, Setting, Target, Warning},
    print,
};

/// Prints, or says what is wrong.
pub(crate) fn run(args: ConfigArgs) -> Result<()> {
    match args.command {
        ConfigCommand::Convert(args) => convert(&args),
        ConfigCommand::Validate(args) => validate(&args),
    }
}

fn convert(args: &ConvertArgs) -> Result<()> {
    let (name, document) = match &args.file {
        Some(file) => (file.display().to_string(), Document::read(file)?),
        None => ("--kube-proxy-arg".to_owned(), config::from_flags(&args.kube_proxy_args)?),
    };
    let role = match args.process {
        Process::Local => Role::Local,
        Process::Backend => Role::Backend,
    };
    let (kind, settings) = checked(document, role, &name)?;
    print::text(config::to_yaml(kind, &settings)?)
}

fn validate(args: &ValidateArgs) -> Result<()> {
    let name = args.file.display().to_string();
    let document = Document::read(&args.file)?;
    let kind = document.kind;
    checked(document, Role::Local, &name)?;
    print::line(format_args!("{name}: {} for `fairlead {}`", kind.name(), kind.command().join(" ")))
}

/// What a document says in our words; what has no effect is said at once.
fn checked(document: Document, role: Role, name: &str) -> Result<(Kind, Vec<Setting>)> {
    let kind = match (document.kind, role) {
        (Kind::KubeProxy, Role::Local) => Kind::Local,
        (Kind::KubeProxy, Role::Backend) => Kind::Backend,
        (ours, _) => ours,
    };
    let (settings, warnings) =
        config::settings(document, Target { role, backend: None }, kind.command()).with_context(|| name.to_owned())?;
    for warning in warnings {
        warn(name, &warning);
    }
    let (cli, _) = config::with_settings(&[&["fairlead"], kind.command()].concat(), &settings, Path::new(name))?;
    consistent(cli).with_context(|| name.to_owned())?;
    Ok((kind, settings))
}

fn warn(name: &str, warning: &Warning) {
    eprintln!("fairlead: {name}: {warning}");
}

/// What is checked when the process starts, as far as it needs nothing but the flags.
fn consistent(cli: Cli) -> Result<()> {
    let any = match cli.command {
        Command::Frontend(args) => return args.addresses().map(drop),
        Command::Local(args) => args.any,
        Command::Backend(args) => match args.backend {
            BackendCommand::Configured(args) => args.any,
            _ => return Ok(()),
        },
        _ => return Ok(()),
    };
    any.check()?;
    any.traffic.options().map(drop)
}
