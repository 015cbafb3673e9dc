//! Misbehaving clients over real connections: how they are limited, and that other clients are not delayed.
//!
//! In each test a well-behaved client receives 50 changes one after the other, first alone and then beside twenty
//! misbehaving clients of one kind.

mod client;
mod connections;
mod fixture;
mod floods;
mod limits;
mod replicas;
mod slow_readers;
mod stream_age;

use std::time::Duration;

use crate::{cluster, replica, running, transport};

/// How long to wait for something that normally happens at once.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The number of misbehaving clients.
const BAD_CLIENTS: usize = 20;
