//! The one binary: reads the command line and calls what was asked for.

mod cli;
mod commands;
mod discovery;
mod print;
mod table;

use std::process::ExitCode;

use clap::Parser as _;

use crate::cli::Cli;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) if error.is::<print::NobodyReads>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("fairlead: {error:#}");
            ExitCode::FAILURE
        }
    }
}
