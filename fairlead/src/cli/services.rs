//! The flags of `fairlead services`.

use clap::Args;

use super::ViewArgs;

#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// List the virtual servers of ours that are in this node's kernel instead, with their endpoints and connections, and how
    /// long those that drain may still stay. Reads the kernel only, and asks no frontend. For `backend ipvs`: what the others
    /// have written is shown by `nft list table ip fairlead` (`ip6`) and `iptables-save`.
    // `--frontend` is no conflict: its variable may be set for the backend that runs here.
    #[arg(long, conflicts_with_all = ["node", "tls_ca", "frontend_name", "tls_cert", "tls_key", "token_file"])]
    pub(crate) kernel: bool,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn the_kernel_is_that_of_this_node() {
        assert!(parse(&["services", "--kernel"]).is_ok());
        assert!(parse(&["services", "--kernel", "-o", "json"]).is_ok());
        assert!(parse(&["services", "--node", "node-a"]).is_ok());
        assert!(parse(&["services", "--kernel", "--node", "node-a"]).is_err());
        assert!(parse(&["services", "--kernel", "--token-file", "token"]).is_err());
        assert!(parse(&["watch", "--kernel"]).is_err());
    }
}
