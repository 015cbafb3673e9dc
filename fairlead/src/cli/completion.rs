//! The flags of `fairlead completion`.

use clap::{
    Args,
    builder::{PossibleValuesParser, TypedValueParser as _},
};
use clap_complete::Shell;

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
    #[arg(value_parser = PossibleValuesParser::new(["bash", "zsh", "fish"]).try_map(|name| name.parse::<Shell>()))]
    pub(crate) shell: Shell,
}
