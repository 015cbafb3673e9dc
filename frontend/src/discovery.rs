//! Frontend discovery: the ready endpoints of the frontends' Service, from the API server, for backends on nodes where
//! no Service works yet.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context as _, Result};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::{Api, api::ListParams};

use crate::source::KubernetesApi;

/// The addresses of the ready endpoints of a Service, at the port of a name, of a number, or at its first port.
/// Endpoints without a condition `ready` count as ready. The kubeconfig is read each time, and should have the API
/// server's own address. There is no timeout.
///
/// # Errors
/// When the kubeconfig is unusable, the API server does not respond, or does not allow EndpointSlices to be listed in
/// that namespace.
pub async fn discover_frontends(
    kubeconfig: &Path,
    namespace: &str,
    service: &str,
    port: Option<&str>,
) -> Result<Vec<SocketAddr>> {
    let api = KubernetesApi::new(Some(kubeconfig)).await?;
    let slices: Api<EndpointSlice> = Api::namespaced(api.client(), namespace);
    let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    let list = slices.list(&of_service).await.map_err(|error| api.explain(error, "endpointslices.discovery.k8s.io"));
    let list = list.with_context(|| format!("list the EndpointSlices of Service {namespace}/{service}"))?;
    Ok(list.items.iter().flat_map(|slice| ready_addresses(slice, port)).collect())
}

/// Addresses that do not parse are skipped.
fn ready_addresses(slice: &EndpointSlice, port: Option<&str>) -> Vec<SocketAddr> {
    let number = slice.ports.iter().flatten().find_map(|slice_port| {
        let number = slice_port.port.and_then(|number| u16::try_from(number).ok())?;
        let matches = |port: &str| slice_port.name.as_deref() == Some(port) || number.to_string() == port;
        port.is_none_or(matches).then_some(number)
    });
    let Some(number) = number else { return Vec::new() };
    let is_ready = |endpoint: &&Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) != Some(false)
    };
    let endpoints = slice.endpoints.iter().flatten().filter(is_ready);
    let addresses = endpoints.flat_map(|endpoint| &endpoint.addresses);
    addresses.filter_map(|address| Some(SocketAddr::new(address.parse().ok()?, number))).collect()
}

#[cfg(test)]
mod tests;
