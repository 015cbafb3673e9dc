//! The fake API server in the namespace of a lab.

use std::{fs, net::TcpListener};

use anyhow::{Context as _, Result};
use fake_api_server::{ApiServer, Resource};
use serde_json::Value;

use crate::{lab::Lab, worker::Worker};

/// Starts a server on the lab's loopback, which serves as long as the worker runs, and writes the lab's kubeconfig.
pub(crate) fn start(
    lab: &Lab,
    worker: &Worker,
    objects: impl IntoIterator<Item = (Resource, Value)>,
) -> Result<ApiServer> {
    let listener = lab.run(|| TcpListener::bind("127.0.0.1:0")).context("bind the API server")?;
    let server = ApiServer::serve(listener, &worker.handle).context("start the API server")?;
    fs::write(lab.kubeconfig(), server.kubeconfig()).context("write a kubeconfig")?;
    for (resource, object) in objects {
        let _version = server.put(resource, object);
    }
    Ok(server)
}
