//! Sets and maps, and the types of their keys and data.

use std::time::Duration;

use super::{element::ElementData, userdata::Comment};
use crate::attr::align;

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
    pub comment: Option<Comment>,
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

    /// A verdict map with these fields of a key.
    pub fn verdict_map(name: impl Into<String>, key: impl Into<Vec<DataType>>) -> Self {
        Set::map(name, key, [DataType::Verdict])
    }

    /// With these additional flags.
    #[must_use]
    pub fn flags(mut self, flags: SetFlags) -> Self {
        self.flags = self.flags | flags;
        self
    }

    /// With this maximum number of elements.
    #[must_use]
    pub fn size(mut self, size: u32) -> Self {
        self.size = Some(size);
        self
    }

    /// With this comment.
    #[must_use]
    pub fn comment(mut self, comment: impl Into<Comment>) -> Self {
        self.comment = Some(comment.into());
        self
    }

    /// Whether elements have data.
    pub fn is_map(&self) -> bool {
        !self.data.is_empty()
    }

    /// The noun in nft.
    pub fn noun(&self) -> &'static str {
        if self.is_map() { "map" } else { "set" }
    }

    /// Whether `data` fits a map (or, `ElementData::None`, a set) like this one.
    pub fn takes(&self, data: &ElementData<'_>) -> bool {
        match data {
            ElementData::None => !self.is_map(),
            ElementData::Verdict(_) => self.data == [DataType::Verdict],
            ElementData::Value(bytes) => self.is_map() && bytes.len() == value_len(&self.data),
        }
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
        /// `ifname`: an interface's name, 16 bytes.
        IfName = 41 "ifname",
    }
}

impl DataType {
    /// The length in bytes, without padding. That of [`DataType::Other`] is assumed to be 4.
    pub(crate) const fn len(self) -> usize {
        match self {
            DataType::Ipv4Addr | DataType::Mark | DataType::Other(_) => 4,
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
