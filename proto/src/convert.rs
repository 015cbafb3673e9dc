//! Conversion between the model and the wire form. To the wire it cannot fail; from the wire every field is validated.

mod enums;
mod message;
mod operation;
mod pack;
mod service_port;

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use pack::{pack_address, unpack_address};

/// A received message with an invalid field. No operation of a batch is applied if one of them is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidMessage {
    /// The path of the field, such as `batch.operations[3].put_service_port.port`.
    pub field: String,
    /// What is wrong, with the value.
    pub reason: String,
}

impl InvalidMessage {
    pub(crate) fn new(field: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { field: field.into(), reason: reason.to_string() }
    }
}

/// Prepends the name of the enclosing field to the path in an error.
fn within(field: impl fmt::Display) -> impl FnOnce(InvalidMessage) -> InvalidMessage {
    move |error| InvalidMessage { field: format!("{field}.{}", error.field), ..error }
}

/// The value of a mandatory message field.
fn required<T>(value: Option<T>, field: &str) -> Result<T, InvalidMessage> {
    value.ok_or_else(|| InvalidMessage::new(field, "is missing"))
}

/// Converts the entries of a repeated field; an error names the index.
fn each<T, U: TryFrom<T, Error = InvalidMessage>>(
    entries: impl IntoIterator<Item = T>,
    field: &str,
) -> Result<Vec<U>, InvalidMessage> {
    let entries = entries.into_iter().enumerate();
    entries.map(|(at, entry)| U::try_from(entry).map_err(within(format_args!("{field}[{at}]")))).collect()
}

fn sorted<T: Ord>(mut values: Vec<T>) -> Vec<T> {
    values.sort_unstable();
    values.dedup();
    values
}

/// A duration in microseconds.
#[must_use]
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// A time as Unix microseconds.
#[must_use]
pub fn unix_micros(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, micros)
}

/// The time of Unix microseconds; `None` for 0, which means unknown.
fn from_unix_micros(micros: u64) -> Option<SystemTime> {
    if micros == 0 { None } else { UNIX_EPOCH.checked_add(Duration::from_micros(micros)) }
}

#[cfg(test)]
mod tests;
