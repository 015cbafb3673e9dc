//! The exit codes of all commands.

/// How a command ended. An error that a command returns is [`ExitCode::CouldNotRun`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitCode {
    /// Everything is fine.
    Success = 0,
    /// The command ran, and the check found something.
    FoundProblems = 1,
    /// The command could not run. The command line parser uses the same code.
    CouldNotRun = 2,
}

impl ExitCode {
    /// The exit code of a check that ran.
    pub(crate) fn of_check(is_fine: bool) -> Self {
        if is_fine { Self::Success } else { Self::FoundProblems }
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> Self {
        Self::from(code as u8)
    }
}
