//! The flags of `fairlead services`.

use clap::Args;

use super::ViewArgs;

#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// List Fairlead's IPVS virtual servers in this node's kernel instead, with their endpoints, connections and drain
    /// deadlines. Needs no frontend. For the other backends use `nft list table ip fairlead` (`ip6`) and
    /// `iptables-save`.
    // No conflict with `--frontend`: its variable may be set for the backend of this node.
    #[arg(long, conflicts_with_all = ["node", "tls_ca", "frontend_name", "tls_cert", "tls_key", "token_file"])]
    pub(crate) kernel: bool,

    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[cfg(test)]
mod tests {
    use super::super::testing::parse;

    #[test]
    fn kernel_excludes_flags_of_the_frontend() {
        assert!(parse(&["services", "--kernel"]).is_ok());
        assert!(parse(&["services", "--kernel", "-o", "json"]).is_ok());
        assert!(parse(&["services", "--node", "node-a"]).is_ok());
        assert!(parse(&["services", "--kernel", "--node", "node-a"]).is_err());
        assert!(parse(&["services", "--kernel", "--token-file", "token"]).is_err());
        assert!(parse(&["watch", "--kernel"]).is_err());
    }
}
