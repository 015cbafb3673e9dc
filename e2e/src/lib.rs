//! A cluster of network namespaces on one machine, with real packets: what the end-to-end tests run Fairlead in, and
//! look at it from outside with.
//!
//! ```text
//!                    outside (clients: 172.16.0.1, 203.0.113.1..8)
//!                       |  routes to the VIP ranges through one node, settable
//!                 bridge "fabric" 172.16.0.0/24
//!                  /                        \
//!   node-a 172.16.0.11 (zone a)     node-b 172.16.0.12 (zone b)
//!    |        |        |             |        |        |          routed veths, one per pod
//!  pod-a-1  pod-a-2  pod-a-3       pod-b-1  pod-b-2  pod-b-3
//!  10.244.1.11 ..                  10.244.2.11 ..                 (IPv6 beside each: `plan`)
//! ```
//!
//! Each box is a namespace. [`Cluster`] builds and removes them, [`Server`]s in the pods answer with who they are and
//! whom they saw, [`Client`]s ask from anywhere, [`Stream`] and [`Churn`] are live traffic, [`Process`] is a program in
//! a namespace, and [`manifests`] writes the Kubernetes objects that belong to it all. None of these knows Fairlead.
//! [`Deployment`] runs it in a cluster, and [`cases`] are what every backend must do there.

#![allow(
    clippy::expect_used,
    reason = "a harness fails by panicking: its callers are tests, and the message is for their reader"
)]

mod browser;
pub mod cases;
mod client;
mod cluster;
mod deployment;
mod fork;
pub mod manifests;
mod netns;
pub mod plan;
mod process;
mod sctp;
mod server;
pub mod suite;
pub mod tools;
mod traffic;
pub mod uml;
mod wait;
mod wire;

pub use browser::Browser;
pub use client::{Client, DEADLINE};
pub use cluster::{Cluster, ClusterBuilder, Node, Pod};
pub use deployment::{Backend, Deployment, DeploymentBuilder, IptablesCalls, Monitor, fairlead, program};
pub use netns::{Netns, leftovers, remove_dead_namespaces};
pub use plan::{DualStack, IpFamily};
pub use process::Process;
pub use server::Server;
pub use traffic::{Churn, ChurnReport, Stream, StreamReport};
pub use wait::eventually;
pub use wire::{Failure, Protocol, Reply};
