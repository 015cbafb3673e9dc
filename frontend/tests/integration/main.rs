//! A frontend over real connections: streams, TLS and misbehaving clients.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

mod cluster;
mod grpc;
mod hostile;
mod replica;
mod running;
mod stream;
mod tls;
mod transport;
