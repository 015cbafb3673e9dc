//! Misbehaving clients over real connections: how they are limited, and that other clients are not delayed.
//!
//! In each test a well-behaved client receives 50 changes one after the other, first alone and then beside twenty
//! misbehaving clients of one kind.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod client;
#[path = "../common/cluster.rs"]
mod cluster;
mod connections;
mod fixture;
mod floods;
mod limits;
#[path = "../common/replica.rs"]
mod replica;
mod replicas;
#[path = "../common/running.rs"]
mod running;
mod slow_readers;
mod stream_age;
#[path = "../common/transport.rs"]
mod transport;

use std::time::Duration;

/// How long to wait for something that normally happens at once.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The node of all endpoints, which no client follows.
const ENDPOINT_NODE: &str = "elsewhere";
/// The number of misbehaving clients.
const BAD_CLIENTS: usize = 20;
