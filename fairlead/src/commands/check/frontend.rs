//! Checks the way from this node to a frontend: credentials and a stream. With a kubeconfig also what RBAC allows a
//! frontend.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result};
use tokio::time::timeout;

use super::{Finding, certificate::certificate};
use crate::{cli::HereArgs, commands::view};

/// How long the API server may take to respond.
const API_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the certificates, and opens a stream, which reads all files.
pub(super) async fn check(here: &HereArgs) -> Result<Vec<Finding>> {
    let of = &here.frontend;
    let now = SystemTime::now();
    let certificates = [("--tls-ca", &of.tls_ca), ("--tls-cert", &of.tls_cert)];
    let mut findings: Vec<_> =
        certificates.into_iter().filter_map(|(flag, path)| Some(certificate(flag, path.as_ref()?, now))).collect();
    let node = here.node()?;
    findings.push(match view::committed_in_time(of, &node).await {
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

/// Checks what RBAC allows the identity of a kubeconfig.
pub(super) async fn permissions(kubeconfig: &Path) -> Vec<Finding> {
    let checked = timeout(API_TIMEOUT, frontend::check_permissions(kubeconfig)).await;
    let checked = checked.with_context(|| format!("no response within {API_TIMEOUT:?}")).flatten();
    let permissions = match checked {
        Ok(permissions) => permissions,
        Err(error) => {
            let what = format!("cannot ask the API server for permissions: {error:#}");
            let fix = "check the kubeconfig, and that the API server is reachable from here";
            return vec![Finding::ok("rbac", what).fail("a frontend gets all objects from the API server", fix)];
        }
    };
    let finding = |permission: frontend::Permission| {
        let fix = "bind the ClusterRole of the chart to its ServiceAccount";
        if permission.allowed {
            return Finding::ok("rbac", format!("a frontend may {permission}"));
        }
        let forbidden = Finding::ok("rbac", format!("a frontend may not {permission}"));
        match permission.optional {
            Some(without) => forbidden.warn(without, fix),
            None => forbidden.fail("a frontend with this identity never becomes ready", fix),
        }
    };
    permissions.into_iter().map(finding).collect()
}
