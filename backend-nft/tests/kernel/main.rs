//! The backend against the running kernel, each test in a network namespace of its own. Needs root.

mod conformance;
mod drift;
mod listing;
mod support;
