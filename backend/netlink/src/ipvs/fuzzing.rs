//! For fuzz targets: decodes virtual servers and destinations.

use super::codec;
use crate::AddressFamily;

/// Reads a message as each kind of object.
pub(crate) fn payload(payload: &[u8], family: AddressFamily) {
    let _ = (codec::read_service(payload), codec::read_scheduling(payload), codec::read_timeouts(payload));
    let Some(destination) = codec::read_destination(payload, family) else { return };
    // What is written lacks the counters.
    let mut bytes = Vec::new();
    codec::write_destination(&mut bytes, &destination);
    assert!(!bytes.is_empty());
}
