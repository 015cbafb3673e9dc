//! `fairlead config`: converts and checks configuration files.

use anyhow::{Context as _, Result};

use crate::{
    cli::{self, ConfigCommand},
    config::{self, Document},
    exit_code::ExitCode,
    print,
};

/// Converts or checks a file. Prints errors and warnings.
pub(crate) fn run(command: ConfigCommand) -> Result<ExitCode> {
    let (file, convert_for) = match command {
        ConfigCommand::Convert { file, role } => (file, Some(role)),
        ConfigCommand::Validate { file } => (file, None),
    };
    let document = Document::parse(&Document::read_text(&file)?);
    let name = file.display();
    match document.and_then(|document| cli::check_document(document, convert_for)).with_context(|| name.to_string()) {
        Ok((kind, settings, warnings)) => {
            warnings.iter().for_each(|warning| print::error(format_args!("{name}: {warning}")));
            if convert_for.is_some() {
                print::document(config::to_yaml(kind, &settings)?)?;
            } else {
                print::line(format_args!("{name}: {} for `fairlead {}`", kind.name(), kind.command().join(" ")))?;
            }
            Ok(ExitCode::Success)
        }
        Err(error) => {
            print::error(format_args!("{error:#}"));
            Ok(ExitCode::FoundProblems)
        }
    }
}
