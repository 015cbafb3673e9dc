//! A cluster of network namespaces on one machine, in which the end-to-end tests run Fairlead with real packets.
//!
//! ```text
//!                    outside (clients: 172.16.0.1, 203.0.113.1..8)
//!                       |  routes to the VIP ranges through a chosen node
//!                 bridge "fabric" 172.16.0.0/24
//!                  /                        \
//!   node-a 172.16.0.11 (zone a)     node-b 172.16.0.12 (zone b)
//!    |        |        |             |        |        |          routed veths, one per pod
//!  pod-a-1  pod-a-2  pod-a-3       pod-b-1  pod-b-2  pod-b-3
//!  10.244.1.11 ..                  10.244.2.11 ..                 (and IPv6: `plan`)
//! ```
//!
//! Each box is a namespace. [`Cluster`] creates and removes them. [`Server`]s in the pods reply with their name and the
//! source address that they saw, [`Client`]s send requests from any namespace, [`Stream`] and [`Churn`] are traffic in
//! the background, [`Process`] is a program in a namespace, and [`manifests`] writes the Kubernetes objects. All of
//! these are independent of Fairlead. [`Deployment`] runs Fairlead in a cluster, and [`cases`] are the Service
//! conformance cases.

#![allow(clippy::expect_used, reason = "tests call this, and fail by panicking")]

mod browser;
pub mod cases;
mod certificates;
mod client;
mod cluster;
mod deployment;
mod fault;
mod fork;
mod http;
pub mod manifests;
mod netns;
mod pace;
pub mod plan;
mod process;
mod sctp;
mod server;
pub mod suite;
mod tcp_segment;
pub mod tools;
mod traffic;
pub mod uml;
mod wait;
mod wire;

pub use browser::Browser;
pub use certificates::Authority;
pub use client::{Client, DEADLINE};
pub use cluster::{Cluster, ClusterBuilder, Node, Pod};
pub use deployment::{Backend, Deployment, DeploymentBuilder, IptablesCalls, Monitor, fairlead, program};
pub use fault::{Fault, FaultPoint};
pub use http::{HttpResponse, http_get, http_get_here};
pub use netns::{Netns, leftovers, remove_dead_namespaces};
pub use pace::patience;
pub use plan::{DualStack, IpFamily};
pub use process::Process;
pub use server::Server;
pub use traffic::{BackgroundTraffic, Churn, ChurnReport, Stream, StreamReport};
pub use wait::{eventually, utc_now};
pub use wire::{Failure, Protocol, Reply};
