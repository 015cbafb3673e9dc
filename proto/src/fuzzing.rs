//! For fuzz targets and simulations: messages from bytes. Clients and servers decode them in their codecs.

use prost::Message as _;

use crate::{model, v1};

/// The message, if it is valid.
#[must_use]
pub fn server_message(bytes: &[u8]) -> Option<model::ServerMessage> {
    v1::ServerMessage::decode(bytes).ok()?.try_into().ok()
}

/// The message, if it is valid.
#[must_use]
pub fn client_message(bytes: &[u8]) -> Option<model::ClientMessage> {
    v1::ClientMessage::decode(bytes).ok()?.try_into().ok()
}
