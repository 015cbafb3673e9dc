//! Concatenations: the fields of the keys and data of maps, each padded to 4 bytes as in registers.

use std::{fmt, net::IpAddr, ops::Deref};

use proto::model::IpFamily;

use super::set::DataType;
use crate::attr::align;

/// `NFT_DATA_VALUE_MAXLEN`: the longest key or data.
const MAX_LEN: usize = 64;

/// A concatenation of up to 64 bytes, built without allocation; dereferences to its bytes. A field that does not fit is
/// omitted, and the kernel rejects the length.
///
/// ```
/// # use netlink::nft::Fields;
/// let vip = Fields::new().addr([10, 96, 0, 1]).proto(6).port(80);
/// assert_eq!(&vip[..], [10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0]);
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fields {
    len: u8,
    /// Zero from `len` on.
    bytes: [u8; MAX_LEN],
}

impl Fields {
    /// An empty concatenation.
    pub const fn new() -> Self {
        Fields { len: 0, bytes: [0; MAX_LEN] }
    }

    /// Appends an address of 4 or 16 bytes.
    #[must_use]
    pub fn addr(self, addr: impl Into<IpAddr>) -> Self {
        match addr.into() {
            IpAddr::V4(addr) => self.raw(&addr.octets()),
            IpAddr::V6(addr) => self.raw(&addr.octets()),
        }
    }

    /// Appends a transport protocol (`IPPROTO_*`).
    #[must_use]
    pub fn proto(self, proto: u8) -> Self {
        self.raw(&[proto])
    }

    /// Appends a port.
    #[must_use]
    pub fn port(self, port: u16) -> Self {
        self.raw(&port.to_be_bytes())
    }

    /// Appends a mark or an index, in host byte order.
    #[must_use]
    pub fn mark(self, mark: u32) -> Self {
        self.raw(&mark.to_ne_bytes())
    }

    /// Appends a field of these bytes, padded.
    #[must_use]
    pub fn raw(mut self, field: &[u8]) -> Self {
        let start = usize::from(self.len);
        if let Some(slot) = self.bytes.get_mut(start..start + field.len()) {
            slot.copy_from_slice(field);
            self.len = (start + align(field.len())) as u8;
        }
        self
    }
}

impl Default for Fields {
    fn default() -> Self {
        Fields::new()
    }
}

impl Deref for Fields {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Reads the fields of a concatenation in order. Each method returns `None` if too few bytes are left.
#[derive(Clone, Debug)]
pub struct FieldReader<'a>(&'a [u8]);

impl<'a> FieldReader<'a> {
    /// A reader of these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        FieldReader(bytes)
    }

    /// An address of this family.
    pub fn addr(&mut self, family: IpFamily) -> Option<IpAddr> {
        match family {
            IpFamily::V4 => self.array::<4>().map(IpAddr::from),
            IpFamily::V6 => self.array::<16>().map(IpAddr::from),
        }
    }

    /// A transport protocol.
    pub fn proto(&mut self) -> Option<u8> {
        Some(self.array::<1>()?[0])
    }

    /// A port.
    pub fn port(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.array()?))
    }

    /// A mark or an index.
    pub fn mark(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.array()?))
    }

    /// The bytes of a field of this type.
    pub(crate) fn field(&mut self, kind: DataType) -> Option<&'a [u8]> {
        self.take(kind.len())
    }

    /// The bytes of a field of this length.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    /// A single, unconcatenated field has no padding.
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let field = self.0.get(..len)?;
        self.0 = self.0.get(align(len)..).unwrap_or_default();
        Some(field)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_fields_are_read_back() {
        let v6: IpAddr = "fd00::1".parse().unwrap();
        let key = Fields::new().addr([10, 0, 0, 1]).proto(17).port(53).mark(7).addr(v6);
        assert_eq!(key.len(), 32);
        let mut fields = FieldReader::new(&key);
        assert_eq!(fields.addr(IpFamily::V4), Some([10, 0, 0, 1].into()));
        assert_eq!((fields.proto(), fields.port(), fields.mark()), (Some(17), Some(53), Some(7)));
        assert_eq!(fields.addr(IpFamily::V6), Some(v6));
        assert_eq!(fields.proto(), None);
    }

    #[test]
    fn a_field_that_does_not_fit_is_omitted() {
        let full = (0..16).fold(Fields::new(), |fields, n| fields.mark(n));
        assert_eq!(full.len(), 64);
        assert_eq!(full.port(1), full);
    }
}
