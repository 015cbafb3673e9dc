//! The backend against the running kernel, both variants, each test in a network namespace of its own. Needs root.

// A panic is how a test fails.
#![allow(clippy::unwrap_used)]

mod contract;
mod drift;
mod large;
mod preview;
mod support;
mod takeover;
