//! The flags of `fairlead cleanup`.

use clap::Args;

use super::BackendName;

#[derive(Debug, Args)]
pub(crate) struct CleanupArgs {
    /// Whose objects to remove.
    #[arg(long, value_enum)]
    pub(crate) backend: BackendName,
}
