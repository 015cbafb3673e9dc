//! From the model to the wire and back. Going out cannot fail; coming in names the field that is wrong.

mod from_wire;
mod pack;
mod to_wire;

use std::fmt;

pub(crate) use pack::pack_endpoint;
pub use pack::{pack_address, unpack_address};

/// A message from the other side that cannot be read: which field, and what is wrong with it.
///
/// Nothing of a batch is applied when one of its operations is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct InvalidMessage {
    /// The path of the field, as `batch.operations[3].put_service_port.port`.
    pub field: String,
    /// What is wrong, with the value.
    pub reason: String,
}

impl InvalidMessage {
    pub(crate) fn new(field: impl Into<String>, reason: impl fmt::Display) -> Self {
        Self { field: field.into(), reason: reason.to_string() }
    }
}

/// Puts the name of the enclosing field in front of the path.
trait Within<T> {
    fn within(self, field: impl fmt::Display) -> Result<T, InvalidMessage>;
}

impl<T> Within<T> for Result<T, InvalidMessage> {
    fn within(self, field: impl fmt::Display) -> Self {
        self.map_err(|error| InvalidMessage { field: format!("{field}.{}", error.field), ..error })
    }
}

/// The value of a message field that must be there.
fn required<T>(value: Option<T>, field: &str) -> Result<T, InvalidMessage> {
    value.ok_or_else(|| InvalidMessage::new(field, "is missing"))
}

#[cfg(test)]
mod tests;
