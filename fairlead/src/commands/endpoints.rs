//! `fairlead endpoints`: every endpoint of a Service, whether a node uses it, and why.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use anyhow::{Result, bail};
use proto::{
    convert::unpack_address,
    model::ServicePort,
    v1::{EndpointsRequest, EndpointsResponse, PoolMembership, Problem, ServicePortEndpoints, SliceEndpoint},
};
use runtime::Shutdown;
use serde::Serialize;

use super::services::{policy, vips};
use crate::{
    cli::{EndpointsArgs, ServiceName},
    print,
    table::Table,
};

/// How long a frontend may take to connect and answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the frontend has said, for people and scripts.
#[derive(Debug, Serialize)]
struct Report {
    node: String,
    node_known: bool,
    zone: String,
    revision: u64,
    ports: Vec<OfPort>,
    problems: Vec<Wrong>,
}

#[derive(Debug, Serialize)]
struct OfPort {
    service_port: ServicePort,
    endpoints: Vec<OfEndpoint>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct OfEndpoint {
    address: IpAddr,
    /// `None`: its slice has no such port.
    port: Option<u16>,
    slice: String,
    node: Option<String>,
    ready: bool,
    serving: bool,
    terminating: bool,
    zone_hints: Vec<String>,
    node_hints: Vec<String>,
    cluster: Said,
    local: Said,
}

#[derive(Debug, Serialize)]
struct Said {
    in_pool: bool,
    reason: String,
    detail: String,
}

#[derive(Debug, Serialize)]
struct Wrong {
    object: String,
    field: String,
    message: String,
}

/// Asks, and prints the answer.
pub(crate) async fn run(args: EndpointsArgs, mut shutdown: Shutdown) -> Result<()> {
    let EndpointsArgs { service: ServiceName { namespace, name }, port, view } = args;
    let node = view.node_name()?;
    let grpc = view.frontend.grpc(None)?;
    let port = port.unwrap_or_default();
    let request = EndpointsRequest { namespace, name, node: node.clone(), port };
    let response = tokio::select! {
        () = shutdown.recv() => bail!("interrupted"),
        response = grpc.endpoints(&request, PATIENCE) => response?,
    };
    let report = Report::new(node, response)?;
    print::value(view.output, &report, || report.table())
}

impl Report {
    fn new(node: String, response: EndpointsResponse) -> Result<Self> {
        let EndpointsResponse { epoch: _, revision, node_known, zone, ports, problems } = response;
        let ports = ports.into_iter().map(OfPort::new).collect::<Result<_>>()?;
        let problems = problems.into_iter().map(|Problem { object, field, message }| Wrong { object, field, message });
        Ok(Self { node, node_known, zone, revision, ports, problems: problems.collect() })
    }

    fn table(&self) -> String {
        let mut text = String::new();
        let zone = if self.zone.is_empty() { "no zone" } else { &self.zone };
        let known = if self.node_known { "" } else { ", which the frontend does not know" };
        // Writing to a String cannot fail.
        let _ = writeln!(text, "As seen from {} ({zone}{known}) at revision {}", self.node, self.revision);
        for port in &self.ports {
            port.write(&mut text);
        }
        if !self.problems.is_empty() {
            let mut table = Table::new(&["OBJECT", "FIELD", "PROBLEM"]);
            self.problems.iter().for_each(|Wrong { object, field, message }| {
                table.row([object, field, message].map(Clone::clone));
            });
            let _ = write!(text, "\n{table}");
        }
        text
    }
}

impl OfPort {
    fn new(port: ServicePortEndpoints) -> Result<Self> {
        let ServicePortEndpoints { service_port, endpoints, notes } = port;
        let service_port = ServicePort::try_from(service_port.unwrap_or_default())?;
        let endpoints = endpoints.into_iter().map(OfEndpoint::new).collect::<Result<_>>()?;
        Ok(Self { service_port, endpoints, notes })
    }

    fn write(&self, text: &mut String) {
        let port = &self.service_port;
        let (ways, policy) = (vips(port).join(" "), policy(port));
        let _ = writeln!(text, "\n{} at {ways}, policy {policy}", port.key);
        for note in &self.notes {
            let _ = writeln!(text, "  {note}");
        }
        for (family, any) in port.any_endpoints.iter().filter(|(family, _)| port.cluster_ips[*family].is_some()) {
            if !any {
                let _ = writeln!(text, "  {family}: nothing in the cluster can serve, so connections are refused");
            }
        }
        if self.endpoints.is_empty() {
            let _ = writeln!(text, "  no EndpointSlice lists anything");
            return;
        }
        let mut table = Table::new(&["ENDPOINT", "ON NODE", "SLICE", "CLUSTER POOL", "LOCAL POOL"]);
        for endpoint in &self.endpoints {
            let OfEndpoint { node, slice, cluster, local, .. } = endpoint;
            let node = node.clone().unwrap_or_default();
            table.row([endpoint.socket(), node, slice.clone(), cluster.to_string(), local.to_string()]);
        }
        let _ = write!(text, "{table}");
    }
}

impl OfEndpoint {
    fn new(state: SliceEndpoint) -> Result<Self> {
        let SliceEndpoint { slice, address, port, node, ready, serving, terminating, .. } = state;
        Ok(Self {
            address: unpack_address(&address, "address")?,
            port: u16::try_from(port).ok().filter(|port| *port != 0),
            slice,
            node: Some(node).filter(|node| !node.is_empty()),
            ready,
            serving,
            terminating,
            zone_hints: state.zone_hints,
            node_hints: state.node_hints,
            cluster: Said::new(state.cluster.unwrap_or_default()),
            local: Said::new(state.local.unwrap_or_default()),
        })
    }

    fn socket(&self) -> String {
        let Self { address, port, .. } = self;
        port.map_or_else(|| address.to_string(), |port| SocketAddr::new(*address, port).to_string())
    }
}

impl Said {
    fn new(verdict: PoolMembership) -> Self {
        let PoolMembership { in_pool, reason, detail } = verdict;
        Self { in_pool, reason, detail }
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.in_pool { "in" } else { "out" };
        write!(f, "{state}: {}", self.detail)
    }
}
