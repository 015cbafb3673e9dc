//! The flags of `fairlead completion`.

use clap::{Args, ValueEnum};

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  fairlead completion bash > /etc/bash_completion.d/fairlead
  fairlead completion zsh > \"${fpath[1]}/_fairlead\"
  fairlead completion fish > ~/.config/fish/completions/fairlead.fish

As a kubectl plugin, with completion (docs/tools.md):
  ln -s fairlead /usr/local/bin/kubectl-fairlead
  ln -s fairlead /usr/local/bin/kubectl_complete-fairlead")]
pub(crate) struct CompletionArgs {
    /// Print the script for this shell.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
}
