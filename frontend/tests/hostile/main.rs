//! Clients that do harm, over real sockets and real gRPC: what they get, and that the others notice nothing.
//!
//! Each test has the same good client, which is told of 50 changes one after the other, first alone and then beside twenty
//! clients of one bad kind.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod client;
#[path = "../common/cluster.rs"]
mod cluster;
mod connections;
mod fixture;
mod floods;
mod held;
mod limits;
mod replicas;
mod slow_readers;
mod stream_age;
mod transport;

use std::time::Duration;

/// For what comes at once where nothing else has to be done.
const PATIENCE: Duration = Duration::from_secs(30);
/// Where all endpoints are: nowhere that a client asks about.
const HOME: &str = "elsewhere";
/// So many clients of one kind.
const BAD: usize = 20;
