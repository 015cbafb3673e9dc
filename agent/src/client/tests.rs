//! Tests of the gRPC client.
