//! The command line: parses the arguments and runs the command.

mod cli;
mod commands;
mod config;
mod connections;
mod discovery;
mod exit_code;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod http_get;
mod instance;
mod kubectl;
mod modes;
mod print;
mod running_backend;
mod table;
mod takeover;
#[cfg(test)]
mod tests;

use exit_code::ExitCode;
use runtime::{log, printable_lines};

/// Runs the command that the arguments of the process name, and returns its exit code.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let result = cli::parse(std::env::args_os()).and_then(commands::run);
    let code = result.unwrap_or_else(|error| {
        if error.is::<print::OutputClosed>() {
            return ExitCode::Success;
        }
        // clap prints its errors, help and the version itself.
        if let Some(error) = error.downcast_ref::<clap::Error>() {
            error.exit();
        }
        log::write_line(&printable_lines(&format!("fairlead: {error:#}")));
        ExitCode::CouldNotRun
    });
    log::flush();
    code.into()
}
