//! The backend on the running kernel, with both variants, each test in its own network namespace. Needs root.

// A panic is how a test fails.
#![allow(clippy::unwrap_used)]

mod contract;
mod drift;
mod large;
mod preview;
mod support;
mod takeover;
