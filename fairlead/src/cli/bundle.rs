//! The flags of `fairlead bundle`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::HereArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
What is in it, and what was left out and why, is in its manifest.json. It has no private key, no token and no content of a Secret; names of
Services and, without --redact-ips, addresses are in it: look before you give it away.")]
pub(crate) struct BundleArgs {
    /// The file to write. The default is fairlead-bundle-NODE.tar.gz here. One that exists is not overwritten.
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub(crate) output: Option<PathBuf>,

    /// Put a name of its own for each IP address, the same everywhere in the bundle.
    #[arg(long)]
    pub(crate) redact_ips: bool,

    #[command(flatten)]
    pub(crate) here: HereArgs,

    /// Where the agent answers /metrics, /statusz and /configz.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS")]
    pub(crate) agent: SocketAddr,
}
