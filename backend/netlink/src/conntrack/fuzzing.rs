//! For fuzz targets: decodes flows, and encodes what identifies them.

use super::{abi, flow};
use crate::message::{attributes, messages};

/// Reads a message as a flow. The request to delete a flow must identify the same flow.
pub(crate) fn payload(payload: &[u8]) {
    if let Some(reply) = attributes(payload).and_then(|list| list.find(abi::TUPLE_REPLY)) {
        let _ = flow::read_tuple(reply.nested());
    }
    let Some(Some(open)) = flow::read(payload) else { return };
    // The kernel never mixes families in a tuple.
    if open.original.source.is_ipv4() != open.original.destination.is_ipv4() {
        return;
    }
    let mut request = Vec::new();
    flow::write_delete(&mut request, &open, 0, 1);
    let original = messages(&request).find_map(|message| attributes(message.payload)?.find(abi::TUPLE_ORIG));
    assert_eq!(original.and_then(|original| flow::read_tuple(original.nested())), Some(open.original));
}
