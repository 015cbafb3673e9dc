//! The one binary: reads the command line and calls what was asked for.

mod cli;
mod commands;
mod config;
mod discovery;
mod print;
mod table;

use std::process::ExitCode;

fn main() -> ExitCode {
    match config::parse(std::env::args_os()).and_then(commands::run) {
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
