//! `fairlead cleanup`: takes out of the kernel what a backend has put there.

use agent::Backend as _;
use anyhow::{Context as _, Result};
use backend_nft::{Nft, Options};

use crate::cli::{BackendName, CleanupArgs};

/// Removes everything of a backend.
pub(crate) async fn run(args: CleanupArgs) -> Result<()> {
    match args.backend {
        BackendName::Nft => Nft::new(Options::default()).context("cannot open nf_tables")?.cleanup().await,
    }
}
