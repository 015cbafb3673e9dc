//! The flags of `fairlead bundle`.

use std::{net::SocketAddr, path::PathBuf};

use clap::Args;

use super::HereArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
The file manifest.json lists what the archive contains, and what was left out and why. It never contains
private keys, tokens or the content of Secrets. It contains names of Services and, without --redact-ips, IP
addresses: check it before you share it.")]
pub(crate) struct BundleArgs {
    /// Write the archive to this file, which must not exist. Default: fairlead-bundle-NODE.tar.gz in the current
    /// directory.
    #[arg(short, long, value_name = "FILE.tar.gz")]
    pub(crate) output: Option<PathBuf>,

    /// Replace each IP address by a pseudonym, the same everywhere in the archive.
    #[arg(long)]
    pub(crate) redact_ips: bool,

    #[command(flatten)]
    pub(crate) here: HereArgs,

    /// Read /metrics, /statusz and /configz of the backend at this address.
    #[arg(long, alias = "agent", default_value = "127.0.0.1:10249", value_name = "ADDRESS:PORT")]
    pub(crate) backend_address: SocketAddr,
}
