//! The command line: parses the arguments and runs the command.

mod cli;
mod commands;
mod config;
mod discovery;
mod exit_code;
#[cfg(feature = "testing")]
pub mod fuzzing;
mod http_get;
mod instance;
mod kubectl;
mod print;
#[cfg(test)]
mod reference;
mod table;

use exit_code::ExitCode;
use kubectl::CalledBy;

/// Runs the command that the arguments of the process name, and returns its exit code.
#[must_use]
pub fn main() -> std::process::ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let result = match CalledBy::of(arguments.first().map(AsRef::as_ref)) {
        CalledBy::Completion => {
            let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            print::text(kubectl::complete(config::command(), &words)).map(|()| ExitCode::Success)
        }
        CalledBy::Name | CalledBy::Kubectl => config::parse(arguments).and_then(commands::run),
    };
    let code = result.unwrap_or_else(|error| {
        if error.is::<print::OutputClosed>() {
            return ExitCode::Success;
        }
        // clap prints its errors, help and the version itself.
        if let Some(error) = error.downcast_ref::<clap::Error>() {
            error.exit();
        }
        eprintln!("fairlead: {error:#}");
        ExitCode::CouldNotRun
    });
    code.into()
}
