//! The output of commands: results on standard output, in the format of `--output`, and errors.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use anyhow::{Context as _, Error};
use clap::{Args, ValueEnum};
use runtime::{printable, printable_lines};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct OutputArgs {
    /// Print the result in this format.
    #[arg(short = 'o', long = "output", value_enum, default_value = "table", value_name = "FORMAT", id = "output")]
    pub(crate) format: OutputFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    Table,
    /// For scripts: one document, or one per line (`watch`).
    Json,
    /// As JSON, but easier to read and compare: one document, or one after each `---` (`watch`).
    Yaml,
}

/// The reader of standard output has closed it, as `head` does. Not a failure, but the command can stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("standard output is closed")]
pub(crate) struct OutputClosed;

/// Prints text for people: only printable characters.
///
/// # Errors
/// [`OutputClosed`], or another failure of the write.
pub(crate) fn text(text: impl Display) -> Result<(), Error> {
    document(printable_lines(&text.to_string()))
}

/// Prints a line for people, as [`text`] does.
pub(crate) fn line(line: impl Display) -> Result<(), Error> {
    document(printable(&line.to_string()) + "\n")
}

/// Prints a document for programs as it is.
///
/// # Errors
/// As for [`text`].
pub(crate) fn document(document: impl Display) -> Result<(), Error> {
    to(&mut io::stdout().lock(), document)
}

/// Prints an error or a warning on standard error: only printable characters.
pub(crate) fn error(error: impl Display) {
    eprintln!("fairlead: {}", printable_lines(&error.to_string()));
}

/// Prints the result of a command, as [`text`] does, in the format of `--output`: as a table, or as one document.
pub(crate) fn value<T: Display>(
    output: OutputArgs,
    value: &impl Serialize,
    table: impl FnOnce() -> T,
) -> Result<(), Error> {
    match output.format {
        OutputFormat::Table => text(table()),
        OutputFormat::Json => document(serde_json::to_string_pretty(value)? + "\n"),
        OutputFormat::Yaml => document(yaml(value)?),
    }
}

/// Prints one of several results: `table` prints it for people; for scripts it is JSON on a line of its own, or YAML
/// after `---`.
///
/// # Errors
/// As for [`text`], or those of `table`.
pub(crate) fn next_value(
    output: OutputArgs,
    value: &impl Serialize,
    table: impl FnOnce() -> Result<(), Error>,
) -> Result<(), Error> {
    match output.format {
        OutputFormat::Table => table(),
        OutputFormat::Json => document(serde_json::to_string(value)? + "\n"),
        OutputFormat::Yaml => document(format_args!("---\n{}", yaml(value)?)),
    }
}

/// A YAML document that ends with a line break.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Error> {
    // Through JSON, so that both formats have the same names in the same order.
    let value = serde_json::to_value(value)?;
    let mut text = serde_saphyr::to_string(&value).context("cannot serialize as YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn to(output: &mut impl Write, text: impl Display) -> Result<(), Error> {
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(OutputClosed.into()),
        result => Ok(result.context("cannot write to standard output")?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_equals_json() {
        let value = serde_json::json!({
            "nodes": [{ "name": "node-a", "error": null, "behind": true, "micros": u64::MAX }],
            "strings": ["yes", "1", "", "a: b", "two\nlines", "-", "[fd00::1]:80", "*:30080"],
            "none": [],
        });
        let text = yaml(&value).unwrap();
        assert_eq!(serde_saphyr::from_str::<serde_json::Value>(&text).unwrap(), value, "{text}");
        assert_eq!(yaml(&"word").unwrap(), "word\n");
    }

    #[test]
    fn closed_output_is_distinguished_from_other_failures() {
        let (reader, mut writer) = io::pipe().unwrap();
        to(&mut writer, "one line\n").unwrap();
        drop(reader);
        assert!(to(&mut writer, "another\n").unwrap_err().is::<OutputClosed>());
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert!(!to(&mut full, "a line\n").unwrap_err().is::<OutputClosed>());
    }
}
