//! Checks the way from this node to a frontend: credentials and a stream.

use std::time::SystemTime;

use anyhow::Result;

use super::{Finding, certificate::certificate};
use crate::{cli::HereArgs, commands::view};

/// Checks the certificates, and opens a stream, which reads all files.
pub(super) async fn check(here: &HereArgs) -> Result<Vec<Finding>> {
    let of = &here.frontend;
    let now = SystemTime::now();
    let certificates = [("--tls-ca", &of.tls_ca), ("--tls-cert", &of.tls_cert)];
    let mut findings: Vec<_> =
        certificates.into_iter().filter_map(|(flag, path)| Some(certificate(flag, path.as_ref()?, now))).collect();
    let node = here.node()?;
    findings.push(match view::committed(of, &node).await {
        Ok(state) => {
            let count = state.service_ports().len();
            Finding::ok("frontend", format!("it streams the view of {node}: {count} service ports"))
        }
        Err(error) => Finding::ok("frontend", format!("no stream for {node}: {error:#}")).fail(
            "this node keeps its last state, and receives no changes",
            "check that a frontend runs, that --frontend is its address, and that the credentials are those of this \
             node; `fairlead status` asks all frontends",
        ),
    });
    Ok(findings)
}
