//! What lies between this node and what it is told: credentials, a frontend that takes a stream, and, for whoever has its kubeconfig, what
//! the API server lets a frontend do.

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result, bail};
use tokio::time::timeout;

use super::{
    Finding,
    certificate::{certificate, secret},
};
use crate::{
    cli::{CheckArgs, OutputArgs, OutputFormat, ViewArgs},
    commands::view::{Event, View},
};

/// How long a frontend, or the API server, may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// The files, and a stream.
pub(super) async fn check(args: &CheckArgs) -> Result<Vec<Finding>> {
    let of = &args.here.frontend;
    let certificates = [("--tls-ca", &of.tls_ca), ("--tls-cert", &of.tls_cert)];
    let secrets = [("--tls-key", &of.tls_key), ("--token-file", &of.token_file)];
    let mut findings: Vec<_> =
        certificates.into_iter().filter_map(|(flag, path)| Some(certificate(flag, path.as_ref()?))).collect();
    findings.extend(secrets.into_iter().filter_map(|(flag, path)| Some(secret(flag, path.as_ref()?))));
    let node = args.here.node()?;
    let view =
        ViewArgs { frontend: of.clone(), node: Some(node.clone()), output: OutputArgs { format: OutputFormat::Table } };
    let followed = timeout(PATIENCE, follow(&view)).await;
    let followed = followed.with_context(|| format!("no answer within {PATIENCE:?}")).flatten();
    findings.push(match followed {
        Ok(services) => {
            Finding::ok("frontend", format!("it tells {node} what to do: {services} service ports"))
        }
        Err(error) => Finding::fail(
            "frontend",
            format!("no stream for {node}: {error:#}"),
            "this node keeps what it has, and follows no change",
            "is one running, is --frontend right, may this node's name be used with these credentials? `fairlead status` asks all of them",
        ),
    });
    Ok(findings)
}

/// How many service ports the first commit has.
async fn follow(args: &ViewArgs) -> Result<usize> {
    let mut view = View::open(args).await?;
    loop {
        match view.next().await? {
            Event::Batch(batch) if batch.commit => return Ok(view.state.service_ports().len()),
            Event::Drain(_) => bail!("the frontend is about to end"),
            _ => {}
        }
    }
}

/// What the holder of a kubeconfig may do.
pub(super) async fn permissions(kubeconfig: &Path) -> Vec<Finding> {
    let asked = timeout(PATIENCE, frontend::check_permissions(kubeconfig)).await;
    let asked = asked.with_context(|| format!("no answer within {PATIENCE:?}")).flatten();
    let permissions = match asked {
        Ok(permissions) => permissions,
        Err(error) => {
            return vec![Finding::fail(
                "rbac",
                format!("the API server cannot be asked: {error:#}"),
                "without it a frontend knows nothing",
                "is the kubeconfig right, and the API server there?",
            )];
        }
    };
    let finding = |permission: frontend::Permission| {
        let what = permission.to_string();
        match (permission.allowed, permission.optional) {
            (true, _) => Finding::ok("rbac", format!("it may {what}")),
            (false, Some(without)) => Finding::warn(
                "rbac",
                format!("it may not {what}"),
                without,
                "give its ServiceAccount the ClusterRole of the chart, if that is wanted",
            ),
            (false, None) => Finding::fail(
                "rbac",
                format!("it may not {what}"),
                "a frontend with this identity never gets ready",
                "give its ServiceAccount the ClusterRole of the chart",
            ),
        }
    };
    permissions.into_iter().map(finding).collect()
}
