//! What people and scripts are told, on standard output.

use std::{
    fmt::Display,
    io::{self, ErrorKind, Write},
};

use anyhow::Error;

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
    fn one_that_reads_no_further_is_told_from_other_failures() {
        let (reader, mut writer) = io::pipe().unwrap();
        to(&mut writer, "one line\n").unwrap();
        drop(reader);
        assert!(to(&mut writer, "another\n").unwrap_err().is::<NobodyReads>());
        let mut full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        assert!(!to(&mut full, "a line\n").unwrap_err().is::<NobodyReads>());
    }
}
