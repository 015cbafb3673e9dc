//! `fairlead endpoints`: all endpoints of a Service, whether a node uses each, and why.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use anyhow::Result;
use proto::{
    convert::unpack_address,
    model::ServicePort,
    v1::{EndpointsRequest, EndpointsResponse, PoolMembership, Problem, ServicePortEndpoints, SliceEndpoint},
};
use serde::Serialize;

use super::{
    services::{policy, vips},
    view::RESPONSE_TIMEOUT,
};
use crate::{cli::EndpointsArgs, print, table::TextTable};

/// The frontend's response.
#[derive(Debug, Serialize)]
struct EndpointsReport {
    node: String,
    node_known: bool,
    zone: String,
    revision: u64,
    ports: Vec<PortEndpoints>,
    problems: Vec<Problem>,
}

#[derive(Debug, Serialize)]
struct PortEndpoints {
    service_port: ServicePort,
    endpoints: Vec<EndpointDecision>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct EndpointDecision {
    address: IpAddr,
    /// `None` if its EndpointSlice has no such port.
    port: Option<u16>,
    slice: String,
    node: Option<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
    zone_hints: Vec<String>,
    node_hints: Vec<String>,
    cluster: PoolMembership,
    local: PoolMembership,
}

/// Sends the request to a frontend, and prints its response.
pub(crate) async fn run(args: EndpointsArgs) -> Result<()> {
    let EndpointsArgs { service, namespace, port, view } = args;
    let service = service.in_namespace(namespace.as_deref())?;
    let node = view.node_name()?;
    let grpc = view.frontend.grpc()?;
    let request = EndpointsRequest {
        namespace: service.namespace.to_string(),
        name: service.name.to_string(),
        node: node.clone(),
        port: port.unwrap_or_default(),
    };
    let report = EndpointsReport::new(node, grpc.endpoints(&request, RESPONSE_TIMEOUT).await?)?;
    print::value(view.output, &report, || report.table())
}

impl EndpointsReport {
    fn new(node: String, response: EndpointsResponse) -> Result<Self> {
        let EndpointsResponse { epoch: _, revision, node_known, zone, ports, problems } = response;
        let ports = ports.into_iter().map(PortEndpoints::new).collect::<Result<_>>()?;
        Ok(Self { node, node_known, zone, revision, ports, problems })
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let zone = if self.zone.is_empty() { "no zone" } else { &self.zone };
        let known = if self.node_known { "" } else { ", no Node object" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "Endpoints for {} ({zone}{known}) at revision {}", self.node, self.revision);
        for port in &self.ports {
            port.write(&mut text);
        }
        if !self.problems.is_empty() {
            let _ = write!(text, "\n{}", TextTable::of_problems(&self.problems));
        }
        text
    }
}

impl PortEndpoints {
    fn new(port: ServicePortEndpoints) -> Result<Self> {
        let ServicePortEndpoints { service_port, endpoints, notes } = port;
        let service_port = ServicePort::try_from(service_port.unwrap_or_default())?;
        let endpoints = endpoints.into_iter().map(EndpointDecision::new).collect::<Result<_>>()?;
        Ok(Self { service_port, endpoints, notes })
    }

    fn write(&self, text: &mut String) {
        let port = &self.service_port;
        let _ = writeln!(text, "\n{} at {}, policy {}", port.key, vips(port).join(" "), policy(port));
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        for (family, has_endpoints) in port.any_endpoints.iter() {
            if port.cluster_ips[family].is_some() && !has_endpoints {
                let _ = writeln!(text, "  {family}: no endpoint in the cluster is usable, connections are rejected");
            }
        }
        if self.endpoints.is_empty() {
            let _ = writeln!(text, "  no EndpointSlice lists an endpoint");
            return;
        }

        let mut table = TextTable::new(&["ENDPOINT", "ON NODE", "SLICE", "CLUSTER POOL", "LOCAL POOL"]);
        for endpoint in &self.endpoints {
            let EndpointDecision { node, slice, cluster, local, .. } = endpoint;
            let node = node.as_deref().unwrap_or_default();
            table.row([&*endpoint.socket(), node, slice, &describe(cluster), &describe(local)]);
        }
        let _ = write!(text, "{table}");
    }
}

impl EndpointDecision {
    fn new(state: SliceEndpoint) -> Result<Self> {
        let SliceEndpoint { slice, address, port, node, ready, serving, terminating, .. } = state;
        Ok(Self {
            address: unpack_address(&address, "address")?,
            port: u16::try_from(port).ok().filter(|port| *port != 0),
            slice,
            node: if node.is_empty() { None } else { Some(node) },
            ready,
            serving,
            terminating,
            zone_hints: state.zone_hints,
            node_hints: state.node_hints,
            cluster: state.cluster.unwrap_or_default(),
            local: state.local.unwrap_or_default(),
        })
    }

    fn socket(&self) -> String {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).to_string(),
            None => self.address.to_string(),
        }
    }
}

fn describe(PoolMembership { in_pool, detail, .. }: &PoolMembership) -> String {
    format!("{}: {detail}", if *in_pool { "in" } else { "out" })
}
