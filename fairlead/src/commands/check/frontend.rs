//! Checks the way from this node to a frontend: credentials and a stream. With a kubeconfig also what RBAC allows a
//! frontend.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use tokio::time::timeout;

use super::{
    Finding,
    certificate::{certificate, secret},
};
use crate::{cli::HereArgs, commands::view};

/// How long the API server may take to respond.
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the files, and opens a stream.
pub(super) async fn check(here: &HereArgs) -> Result<Vec<Finding>> {
    let of = &here.frontend;
    let certificates = [("--tls-ca", &of.tls_ca), ("--tls-cert", &of.tls_cert)];
    let secrets = [("--tls-key", &of.tls_key), ("--token-file", &of.token_file)];
    let mut findings: Vec<_> =
        certificates.into_iter().filter_map(|(flag, path)| Some(certificate(flag, path.as_ref()?))).collect();
    findings.extend(secrets.into_iter().filter_map(|(flag, path)| Some(secret(flag, path.as_ref()?))));
    let node = here.node()?;
    findings.push(match view::committed_in_time(of, &node).await {
        Ok(state) => {
            let count = state.service_ports().len();
            Finding::ok("frontend", format!("it streams the view of {node}: {count} service ports"))
        }
        Err(error) => Finding::fail(
            "frontend",
            format!("no stream for {node}: {error:#}"),
            "this node keeps its last state, and receives no changes",
            "check that a frontend runs, that --frontend is its address, and that the credentials are those of this \
             node; `fairlead status` asks all frontends",
        ),
    });
    Ok(findings)
}

/// Checks what RBAC allows the identity of a kubeconfig.
pub(super) async fn permissions(kubeconfig: &Path) -> Vec<Finding> {
    let checked = timeout(API_TIMEOUT, frontend::check_permissions(kubeconfig)).await;
    let checked = checked.with_context(|| format!("no response within {API_TIMEOUT:?}")).flatten();
    let permissions = match checked {
        Ok(permissions) => permissions,
        Err(error) => {
            return vec![Finding::fail(
                "rbac",
                format!("cannot ask the API server for permissions: {error:#}"),
                "a frontend gets all objects from the API server",
                "check the kubeconfig, and that the API server is reachable from here",
            )];
        }
    };
    let finding = |permission: frontend::Permission| {
        let what = permission.to_string();
        match (permission.allowed, permission.optional) {
            (true, _) => Finding::ok("rbac", format!("a frontend may {what}")),
            (false, Some(without)) => Finding::warn(
                "rbac",
                format!("a frontend may not {what}"),
                without,
                "to use it, bind the ClusterRole of the chart to its ServiceAccount",
            ),
            (false, None) => Finding::fail(
                "rbac",
                format!("a frontend may not {what}"),
                "a frontend with this identity never becomes ready",
                "bind the ClusterRole of the chart to its ServiceAccount",
            ),
        }
    };
    permissions.into_iter().map(finding).collect()
}
