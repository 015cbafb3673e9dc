//! `fairlead completion`: shell completion scripts.

use anyhow::{Context as _, Result};
use clap_complete::{
    generate,
    shells::{Bash, Fish, Zsh},
};

use crate::{
    cli::{CompletionArgs, Shell},
    config, print,
};

/// Prints the script.
pub(crate) fn run(args: &CompletionArgs) -> Result<()> {
    let (mut command, mut script) = (config::command(), Vec::new());
    match args.shell {
        Shell::Bash => generate(Bash, &mut command, "fairlead", &mut script),
        Shell::Zsh => generate(Zsh, &mut command, "fairlead", &mut script),
        Shell::Fish => generate(Fish, &mut command, "fairlead", &mut script),
    }
    print::text(String::from_utf8(script).context("the script is not UTF-8")?)
}
