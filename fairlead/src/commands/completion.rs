//! `fairlead completion`: shell completion scripts.

use anyhow::{Context as _, Result};
use clap_complete::generate;

use crate::{cli::CompletionArgs, config, print};

/// Prints the script.
pub(crate) fn run(args: &CompletionArgs) -> Result<()> {
    let (mut command, mut script) = (config::command(), Vec::new());
    generate(args.shell, &mut command, "fairlead", &mut script);
    print::text(String::from_utf8(script).context("the script is not UTF-8")?)
}
