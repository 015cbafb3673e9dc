//! `fairlead config`: converts and checks configuration files.

use anyhow::{Context as _, Result};
use runtime::printable;

use crate::{
    cli::{self, CheckedDocument, ConfigCommand},
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
    let name = file.display();
    let text = Document::read_text(&file)?;

    let checked = Document::parse(&text).and_then(|document| cli::check_document(document, convert_for));
    let CheckedDocument { kind, settings, mut warnings } = match checked.with_context(|| name.to_string()) {
        Ok(checked) => checked,
        Err(error) => {
            print::error(format_args!("{error:#}"));
            return Ok(ExitCode::FoundProblems);
        }
    };

    let output = match convert_for {
        Some(TargetRole::Chart) => {
            let (values, not_in_chart) = chart::values(&settings);
            warnings.extend(not_in_chart);
            print::yaml(&values)?
        }
        Some(TargetRole::Local | TargetRole::Backend) => config::to_yaml(kind, &settings)?,
        None => printable(&format!("{name}: {} for `fairlead {}`", kind.name(), kind.command().join(" "))) + "\n",
    };
    for warning in warnings {
        print::error(format_args!("{name}: {warning}"));
    }
    print::document(output)?;
    Ok(ExitCode::Success)
}
