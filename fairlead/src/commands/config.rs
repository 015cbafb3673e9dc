//! `fairlead config`: converts and checks configuration files.

use std::path::Path;

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
    checked(&args.file, Some(args.role), |kind, settings| print::text(config::to_yaml(kind, settings)?))
}

fn validate(args: &ValidateArgs) -> Result<ExitCode> {
    let name = args.file.display();
    checked(&args.file, None, |kind, _| {
        print::line(format_args!("{name}: {} for `fairlead {}`", kind.name(), kind.command().join(" ")))
    })
}

/// Passes a valid configuration to `then`. Prints errors and warnings.
fn checked(
    file: &Path,
    convert_for: Option<TargetRole>,
    then: impl FnOnce(Kind, &[Setting]) -> Result<()>,
) -> Result<ExitCode> {
    let document = Document::parse(&Document::read_text(file)?);
    let name = file.display();
    match document.and_then(|document| config::check(document, convert_for)).with_context(|| name.to_string()) {
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
