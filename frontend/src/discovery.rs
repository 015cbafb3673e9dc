//! Where frontends are: the ready endpoints of their Service, asked of an API server, for agents on nodes where no Service works yet.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context as _, Result};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, api::ListParams};

use crate::source::kubernetes_client;

/// The endpoints of a Service that are ready, or of which that is not known, at one of its ports: by name, by number, or the first. The
/// kubeconfig is read anew, and should lead to the API server by its own address. There is no time limit.
///
/// # Errors
/// When the API does not answer, or does not let us list EndpointSlices in that namespace.
pub async fn discover_frontends(
    kubeconfig: &Path,
    namespace: &str,
    service: &str,
    port: Option<&str>,
) -> Result<Vec<SocketAddr>> {
    let client = kubernetes_client(Some(kubeconfig)).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(client, namespace);
    let its = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let list = slices.list(&its).await;
    let list = list.with_context(|| {
        format!("list the EndpointSlices of {namespace}/{service}: that takes the permission to list them there")
    })?;
    Ok(list.items.iter().flat_map(|slice| ready(slice, port)).collect())
}

/// Those in one slice. Addresses that cannot be read are left out.
fn ready(slice: &EndpointSlice, port: Option<&str>) -> Vec<SocketAddr> {
    let number = slice.ports.iter().flatten().find_map(|of| {
        let number = of.port.and_then(|number| u16::try_from(number).ok())?;
        let is_it = |port: &str| of.name.as_deref() == Some(port) || number.to_string() == port;
        port.is_none_or(is_it).then_some(number)
    });
    let Some(number) = number else { return Vec::new() };
    let is_ready = |ready: Option<bool>| ready != Some(false);
    let endpoints = slice
        .endpoints
        .iter()
        .flatten()
        .filter(|endpoint| is_ready(endpoint.conditions.as_ref().and_then(|conditions| conditions.ready)));
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, number))).collect()
}

#[cfg(test)]
mod tests;
