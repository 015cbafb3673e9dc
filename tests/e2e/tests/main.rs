//! The end-to-end tests: the real binary in clusters of network namespaces, with real packets. They are a test of the
//! package `fairlead`, so that cargo builds the binary together with them.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod backend_python;
mod backend_rust;
mod calico;
mod chart;
mod config;
mod crash_points;
mod diff;
mod drained;
mod families;
mod guests;
mod iptables;
mod ipvs;
mod ipvs_backend;
mod ipvs_cases;
mod ipvs_scheduler;
mod kubectl;
mod lifecycle;
mod modes;
mod nft;
mod observe;
mod page;
mod pod_commands;
mod protocol_test;
mod replicas;
mod setup;
mod shadow;
mod status;
mod tls;
mod tools;
mod traffic;
mod upgrade;
mod workspace;
