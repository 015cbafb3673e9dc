//! The flags of `fairlead bundle`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::{BackendName, FrontendAddressArgs};

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

    /// Which backend runs here.
    #[arg(long, value_enum, default_value = "nft")]
    pub(crate) backend: BackendName,

    #[command(flatten)]
    pub(crate) frontend: FrontendAddressArgs,

    /// Node metadata.name of this machine. The default is the host name in lower case.
    #[arg(long, env = "NODE_NAME", value_name = "NAME")]
    pub(crate) node_name: Option<String>,

    /// Where the backend keeps its state.
    #[arg(long, default_value = "/var/lib/fairlead", value_name = "DIR")]
    pub(crate) state_dir: PathBuf,

    /// Where the agent answers /metrics, /statusz and /configz.
    #[arg(long, default_value = "127.0.0.1:10249", value_name = "ADDRESS")]
    pub(crate) agent: SocketAddr,
}
