//! `fairlead config`: converts and checks configuration files.

use anyhow::{Context as _, Result};

use crate::{
    cli::{ConfigArgs, ConfigCommand, ConvertArgs, ValidateArgs},
    config::{self, Document, Kind, Setting, TargetRole},
    exit_code::ExitCode,
    print,
};

/// Converts or checks a file.
pub(crate) fn run(args: ConfigArgs) -> Result<ExitCode> {
    match args.command {
        ConfigCommand::Convert(args) => convert(&args),
        ConfigCommand::Validate(args) => validate(&args),
    }
}

fn convert(args: &ConvertArgs) -> Result<ExitCode> {
    let (name, document) = match &args.file {
        Some(file) => (file.display().to_string(), Document::parse(&Document::read_text(file)?)),
        None => ("--kube-proxy-arg".to_owned(), config::from_flags(&args.kube_proxy_args).map_err(Into::into)),
    };
    checked(document, args.role, &name, |kind, settings| print::text(config::to_yaml(kind, settings)?))
}

fn validate(args: &ValidateArgs) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let document = Document::parse(&Document::read_text(&args.file)?);
    let name_of = document.as_ref().map_or("", |document| document.kind.name());
    checked(document, TargetRole::Local, &name, |kind, _| {
        print::line(format_args!("{name}: {name_of} for `fairlead {}`", kind.command().join(" ")))
    })
}

/// Passes a valid configuration to `then`. Prints errors and warnings.
fn checked(
    document: Result<Document>,
    role: TargetRole,
    name: &str,
    then: impl FnOnce(Kind, &[Setting]) -> Result<()>,
) -> Result<ExitCode> {
    match document.and_then(|document| config::check(document, role)).with_context(|| name.to_owned()) {
        Ok((kind, settings, warnings)) => {
            warnings.iter().for_each(|warning| eprintln!("fairlead: {name}: {warning}"));
            then(kind, &settings)?;
            Ok(ExitCode::Success)
        }
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            Ok(ExitCode::FoundProblems)
        }
    }
}
