//! What people and scripts are told, on standard output.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use anyhow::{Context as _, Error};
use serde::Serialize;

use crate::cli::Output;

/// Whoever read it has enough, as `head` has after ten lines: no failure, but there is nobody to go on for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("nobody reads the output any more")]
pub(crate) struct NobodyReads;

/// Prints text as it is.
///
/// # Errors
/// [`NobodyReads`], or why it cannot be written.
pub(crate) fn text(text: impl Display) -> Result<(), Error> {
    to(&mut io::stdout().lock(), text)
}

/// Prints a line.
///
/// # Errors
/// As [`text`].
pub(crate) fn line(line: impl Display) -> Result<(), Error> {
    text(format_args!("{line}\n"))
}

/// Prints what a command has to say in the form that was asked for: people get the table, scripts the value as one document.
///
/// # Errors
/// As [`text`].
pub(crate) fn value<T: Display>(
    output: Output,
    value: &impl Serialize,
    table: impl FnOnce() -> T,
) -> Result<(), Error> {
    match output {
        Output::Table => text(table()),
        Output::Json => line(serde_json::to_string_pretty(value)?),
        Output::Yaml => text(yaml(value)?),
    }
}

/// A document of YAML, ended by a line break.
///
/// # Errors
/// When the value has no such form.
pub(crate) fn yaml(value: &impl Serialize) -> Result<String, Error> {
    // By way of JSON, so that both forms have the same names in the same order.
    let value = serde_json::to_value(value)?;
    let mut text = serde_saphyr::to_string(&value).context("cannot be written as YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn to(output: &mut impl Write, text: impl Display) -> Result<(), Error> {
    match write!(output, "{text}").and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Err(NobodyReads.into()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yaml_says_what_json_says() {
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
    fn one_that_reads_no_further_is_told_from_other_failures() {
        let (reader, mut writer) = io::pipe().unwrap();
        to(&mut writer, "one line\n").unwrap();
        drop(reader);
        assert!(to(&mut writer, "another\n").unwrap_err().is::<NobodyReads>());
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert!(!to(&mut full, "a line\n").unwrap_err().is::<NobodyReads>());
    }
}
