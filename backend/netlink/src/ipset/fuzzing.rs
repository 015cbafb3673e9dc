//! For fuzz targets: decodes sets and entries, and encodes entries again.

use super::{IpsetEntry, codec};
use crate::attr::attrs;

/// The number of a rejected entry.
pub(crate) fn error(payload: &[u8]) -> Option<u32> {
    codec::read_rejected_line(payload)
}

/// Reads a message as a set and as entries. An entry must be the same after it is written and read again.
pub(crate) fn payload(payload: &[u8]) {
    let _ = (codec::read_size(payload), codec::read_set(payload));
    for entry in codec::read_entries(payload).into_iter().flatten() {
        let mut bytes = Vec::new();
        entry.write(&mut bytes, 1);
        let written = attrs(&bytes).next().and_then(|data| IpsetEntry::read(data.nested()));
        assert_eq!(written, Some(entry));
    }
}
