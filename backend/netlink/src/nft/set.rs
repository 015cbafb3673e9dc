//! Sets and maps, and the types of their keys and data.

use std::time::Duration;

use super::{
    abi::{LIST_ELEM, set as attr},
    userdata,
};
use crate::attr::{Put, align};

/// `enum byteorder` of nft: the byte order in which it prints numbers.
const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;

/// A set, or, if it has data, a map.
///
/// A key of several fields is a concatenation with each field padded to 4 bytes ([`super::Fields`]). A key of a single
/// field has no padding.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Set {
    /// The name, at most 255 bytes.
    pub name: String,
    /// The fields of a key: at most five, and at most 64 bytes in total.
    pub key: Vec<DataType>,
    /// The fields of a map's data; `[DataType::Verdict]` for a verdict map; empty for a set.
    pub data: Vec<DataType>,
    /// `NFT_SET_*`, without those that `key` and `data` imply (`MAP`, `CONCAT`).
    pub flags: SetFlags,
    /// The maximum number of elements. The kernel's default for a map that rules change is 65,535.
    pub size: Option<u32>,
    /// The default timeout of elements; requires [`SetFlags::TIMEOUT`].
    pub timeout: Option<Duration>,
    /// The comment in listings.
    pub comment: Option<String>,
}

impl Set {
    /// A set with these fields of a key.
    pub fn new(name: impl Into<String>, key: impl Into<Vec<DataType>>) -> Self {
        Set {
            name: name.into(),
            key: key.into(),
            data: Vec::new(),
            flags: SetFlags::NONE,
            size: None,
            timeout: None,
            comment: None,
        }
    }

    /// A map with these fields of a key and of the data.
    pub fn map(name: impl Into<String>, key: impl Into<Vec<DataType>>, data: impl Into<Vec<DataType>>) -> Self {
        Set { data: data.into(), ..Set::new(name, key) }
    }

    /// Whether elements have data.
    pub(crate) fn is_map(&self) -> bool {
        !self.data.is_empty()
    }

    /// The noun in nft.
    pub(crate) fn noun(&self) -> &'static str {
        if self.is_map() { "map" } else { "set" }
    }

    /// Appends the attributes; `id` is unique in the batch.
    pub(crate) fn put(&self, buf: &mut Vec<u8>, id: u32) {
        let has_ranges_of_fields = self.flags.contains(SetFlags::INTERVAL) && self.key.len() > 1;
        let mut flags = self.flags;
        if self.is_map() {
            flags = flags | SetFlags::MAP;
        }
        if has_ranges_of_fields {
            flags = flags | SetFlags::CONCAT;
        }

        buf.put_str(attr::NAME, &self.name);
        buf.put_u32(attr::FLAGS, flags.0);
        buf.put_u32(attr::KEY_TYPE, DataType::concat(&self.key));
        buf.put_u32(attr::KEY_LEN, value_len(&self.key) as u32);
        if self.is_map() {
            // The kernel ignores the length of verdicts; nft writes 0.
            let is_verdict = self.data == [DataType::Verdict];
            buf.put_u32(attr::DATA_TYPE, DataType::concat(&self.data));
            buf.put_u32(attr::DATA_LEN, if is_verdict { 0 } else { value_len(&self.data) as u32 });
        }
        buf.put_u32(attr::ID, id);

        if self.size.is_some() || has_ranges_of_fields {
            buf.nest(attr::DESC, |buf| {
                if let Some(size) = self.size {
                    buf.put_u32(attr::DESC_SIZE, size);
                }
                if has_ranges_of_fields {
                    buf.nest(attr::DESC_CONCAT, |buf| {
                        for field in &self.key {
                            buf.nest(LIST_ELEM, |buf| buf.put_u32(attr::FIELD_LEN, field.len() as u32));
                        }
                    });
                }
            });
        }
        if let Some(timeout) = self.timeout {
            buf.put_u64(attr::TIMEOUT, timeout.as_millis() as u64);
        }

        let mut entries = Vec::new();
        userdata::push_u32(&mut entries, userdata::SET_KEY_BYTE_ORDER, byte_order(&self.key));
        if self.is_map() {
            userdata::push_u32(&mut entries, userdata::SET_DATA_BYTE_ORDER, byte_order(&self.data));
        }
        if let Some(comment) = &self.comment {
            userdata::push_comment(&mut entries, userdata::SET_COMMENT, comment);
        }
        buf.put(attr::USERDATA, &entries);
    }

    pub(crate) fn register_counts(&self) -> RegisterCounts {
        let count = |fields: &[DataType]| value_len(fields).div_ceil(4) as u8;
        RegisterCounts { key: count(&self.key), data: count(&self.data) }
    }
}

/// The numbers of registers of a set's key and of its data.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegisterCounts {
    pub(crate) key: u8,
    pub(crate) data: u8,
}

/// The byte order of a value of one field. 0 for a concatenation: nft derives it from the types of the fields.
fn byte_order(fields: &[DataType]) -> u32 {
    match fields {
        [DataType::Mark] => HOST_ENDIAN,
        [DataType::Verdict] => 0,
        [_] => BIG_ENDIAN,
        _ => 0,
    }
}

/// The length in bytes of a value of these fields.
#[must_use]
pub fn value_len(fields: &[DataType]) -> usize {
    match fields {
        [only] => only.len(),
        fields => fields.iter().map(|field| align(field.len())).sum(),
    }
}

numbered! {
    /// The type of a field: `enum datatypes` in nft, 6 bits of `NFTA_SET_KEY_TYPE` each.
    DataType or Other {
        /// A verdict; only as the data of a map.
        Verdict = 0xffff_ff00 "verdict",
        /// `ipv4_addr`, 4 bytes.
        Ipv4Addr = 7 "ipv4_addr",
        /// `ipv6_addr`, 16 bytes.
        Ipv6Addr = 8 "ipv6_addr",
        /// `inet_proto`: a transport protocol, 1 byte.
        InetProto = 12 "inet_proto",
        /// `inet_service`: a port, 2 bytes, network byte order.
        InetService = 13 "inet_service",
        /// `mark`: 4 bytes, **host** byte order, as marks and the results of `numgen` are in registers.
        Mark = 19 "mark",
        /// `ct_state`: 4 bytes, a bit set, host byte order.
        CtState = 26 "ct_state",
        /// `fib_addrtype`: 4 bytes, `RTN_LOCAL` and so on, host byte order.
        FibAddrType = 38 "fib_addrtype",
        /// `ifname`: an interface's name, 16 bytes.
        IfName = 41 "ifname",
    }
}

impl DataType {
    /// nft's `TYPE_INVALID`: the type of a value is not known.
    pub(crate) const UNKNOWN: DataType = DataType::Other(0);
    /// nft's `TYPE_INTEGER`: the result of `numgen`, in host byte order. A field of the packet, such as `tcp sequence`,
    /// has the same number, but is in network byte order.
    pub(crate) const INTEGER: DataType = DataType::Other(4);

    /// The length in bytes, without padding; an assumed 4 for [`DataType::Other`].
    pub(crate) const fn len(self) -> usize {
        match self {
            DataType::Ipv4Addr | DataType::Mark => 4,
            DataType::CtState | DataType::FibAddrType | DataType::Other(_) => 4,
            DataType::Ipv6Addr | DataType::Verdict | DataType::IfName => 16,
            DataType::InetProto => 1,
            DataType::InetService => 2,
        }
    }

    /// The number of a concatenation: the first field in the highest bits.
    pub(crate) fn concat(fields: &[DataType]) -> u32 {
        fields.iter().fold(0, |number, field| number << 6 | field.number())
    }

    /// The fields of the number of a concatenation.
    pub(crate) fn split(number: u32) -> Vec<DataType> {
        if number == DataType::Verdict.number() {
            return vec![DataType::Verdict];
        }
        let fields = (0..5).rev().map(|index| number >> (6 * index) & 0x3f);
        fields.skip_while(|&field| field == 0).map(DataType::from_number).collect()
    }
}

flags! {
    /// `NFT_SET_*` flags.
    SetFlags {
        /// No flags.
        pub NONE = 0,
        /// The set has no name and belongs to one rule.
        pub ANONYMOUS = 0x1,
        /// Elements cannot change.
        pub CONSTANT = 0x2 "constant",
        /// Elements are ranges: they have a `key_end`.
        pub INTERVAL = 0x4 "interval",
        /// Elements may have timeouts.
        pub TIMEOUT = 0x10 "timeout",
        /// Rules may change the set (`dynset`); `dynamic` in nft.
        pub EVAL = 0x20 "dynamic",
        /// `NFT_SET_MAP`, implied by [`Set::data`].
        pub(crate) MAP = 0x8,
        /// `NFT_SET_CONCAT`, implied by [`Set::key`] in interval sets.
        pub(crate) CONCAT = 0x80,
    }
}

impl SetFlags {
    pub(crate) const fn without(self, flags: SetFlags) -> Self {
        SetFlags(self.0 & !flags.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_concatenation_keeps_its_fields_in_order() {
        let fields = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
        assert_eq!(DataType::concat(&fields), 0x730d, "what nft writes");
        assert_eq!(DataType::split(0x730d), fields);
        assert_eq!(DataType::split(DataType::concat(&[DataType::Verdict])), [DataType::Verdict]);
        assert_eq!(DataType::split(5), [DataType::Other(5)]);
    }

    #[test]
    fn only_concatenations_are_padded() {
        assert_eq!(value_len(&[DataType::InetService]), 2);
        assert_eq!(value_len(&[DataType::Ipv6Addr, DataType::InetProto, DataType::InetService]), 24);
    }
}
