//! The one binary: reads the command line and calls what was asked for.

mod cli;
mod commands;
mod config;
mod discovery;
mod kubectl;
mod print;
#[cfg(test)]
mod reference;
mod table;

use std::process::ExitCode;

use kubectl::CalledBy;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let done = match CalledBy::of(arguments.first().map(AsRef::as_ref)) {
        CalledBy::Completion => {
            let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
            print::text(kubectl::complete(config::command(), &words)).map(|()| ExitCode::SUCCESS)
        }
        CalledBy::Name | CalledBy::Kubectl => config::parse(arguments).and_then(commands::run),
    };
    match done {
        Ok(code) => code,
        Err(error) if error.is::<print::NobodyReads>() => ExitCode::SUCCESS,
        Err(error) => {
            // What clap says has its own form and exit code; help and the version are such too.
            if let Some(error) = error.downcast_ref::<clap::Error>() {
                error.exit();
            }
            eprintln!("fairlead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
