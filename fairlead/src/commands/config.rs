//! `fairlead config`: converts and checks configuration files.

use anyhow::{Context as _, Result};
use runtime::printable;

use crate::{
    cli::{self, ConfigCommand},
    config::{self, Document, TargetRole, chart},
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
        Ok((kind, settings, mut warnings)) => {
            let output = match convert_for {
                Some(TargetRole::Chart) => {
                    let (values, not_in_chart) = chart::values(&settings);
                    warnings.extend(not_in_chart);
                    print::yaml(&values)?
                }
                Some(TargetRole::Local | TargetRole::Backend) => config::to_yaml(kind, &settings)?,
                None => {
                    printable(&format!("{name}: {} for `fairlead {}`", kind.name(), kind.command().join(" "))) + "\n"
                }
            };
            warnings.iter().for_each(|warning| print::error(format_args!("{name}: {warning}")));
            print::document(output)?;
            Ok(ExitCode::Success)
        }
        Err(error) => {
            print::error(format_args!("{error:#}"));
            Ok(ExitCode::FoundProblems)
        }
    }
}
