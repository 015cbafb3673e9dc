//! The backend against the running kernel, each test in a network namespace of its own. Needs root.

// A panic is how a test fails.
#![allow(clippy::unwrap_used)]

mod affinity;
mod contract;
mod drift;
mod drifted;
mod large;
mod listing;
mod preview;
mod support;
