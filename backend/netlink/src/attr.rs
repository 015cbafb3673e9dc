//! Netlink attributes (`struct nlattr`: length, type, payload, padding to 4 bytes): a writer that appends to one
//! buffer, and a reader that borrows from it.

use std::net::IpAddr;

/// `NLA_F_NESTED`: the payload consists of attributes.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: the bits of a type without its flags.
const TYPE_MASK: u16 = 0x3fff;
/// Length of an attribute's header, `NLA_HDRLEN`.
pub(crate) const HEADER: usize = 4;
/// The longest attribute, its header included: the length field has 16 bits.
pub(crate) const MAX_LEN: usize = u16::MAX as usize;

/// Rounds up to the next multiple of 4, as `NLA_ALIGN` does.
pub(crate) const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// Appends attributes to a buffer. Numbers are big-endian, as in nfnetlink, except in `put_ne_*`.
pub(crate) trait Put {
    fn put(&mut self, kind: u16, payload: &[u8]);
    fn put_str(&mut self, kind: u16, text: &str);
    /// Appends an attribute that contains the attributes which `body` appends.
    fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self));

    fn put_u16(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_be_bytes());
    }

    fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_be_bytes());
    }

    fn put_ne_u16(&mut self, kind: u16, value: u16) {
        self.put(kind, &value.to_ne_bytes());
    }

    fn put_ne_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// An address of 4 or 16 bytes.
    fn put_ip(&mut self, kind: u16, ip: IpAddr) {
        match ip {
            IpAddr::V4(v4) => self.put(kind, &v4.octets()),
            IpAddr::V6(v6) => self.put(kind, &v6.octets()),
        }
    }
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, kind: u16, payload: &[u8]) {
        put_header(self, kind, payload.len());
        self.extend_from_slice(payload);
        pad(self);
    }

    /// Strings are zero-terminated, as the kernel writes them.
    fn put_str(&mut self, kind: u16, text: &str) {
        put_header(self, kind, text.len() + 1);
        self.extend_from_slice(text.as_bytes());
        self.push(0);
        pad(self);
    }

    #[inline]
    fn nest(&mut self, kind: u16, body: impl FnOnce(&mut Self)) {
        let start = self.len();
        put_header(self, kind | NESTED, 0);
        body(self);

        let len = self.len() - start;
        debug_assert!(len <= MAX_LEN, "nested attribute of {len} bytes");
        self[start..start + 2].copy_from_slice(&(len as u16).to_ne_bytes());
        // Attributes end aligned, unless they were copied from a message.
        pad(self);
    }
}

/// Appends the header of an attribute whose payload has this length.
#[inline]
fn put_header(buf: &mut Vec<u8>, kind: u16, payload_len: usize) {
    let len = HEADER + payload_len;
    debug_assert!(len <= MAX_LEN, "attribute {kind} of {len} bytes");
    buf.extend_from_slice(&(len as u16).to_ne_bytes());
    buf.extend_from_slice(&kind.to_ne_bytes());
}

/// Pads to the next multiple of 4. Buffers start at a message, so their length is the offset.
#[inline]
fn pad(buf: &mut Vec<u8>) {
    let padding = align(buf.len()) - buf.len();
    buf.extend_from_slice(&[0; 3][..padding]);
}

/// An attribute in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr<'a> {
    /// The type, without the flags.
    pub(crate) kind: u16,
    pub(crate) payload: &'a [u8],
    /// The offset of its header in the bytes that were passed to [`attrs`].
    pub(crate) offset: usize,
}

impl<'a> Attr<'a> {
    /// A string up to its first zero byte; `None` when it is not UTF-8.
    pub(crate) fn str(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|&b| b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }

    pub(crate) fn u8(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    pub(crate) fn u16(&self) -> Option<u16> {
        Some(u16::from_be_bytes(self.payload.try_into().ok()?))
    }

    pub(crate) fn u32(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.try_into().ok()?))
    }

    pub(crate) fn u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.payload.try_into().ok()?))
    }

    /// A number in host byte order, as in generic netlink.
    pub(crate) fn ne_u16(&self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.payload.try_into().ok()?))
    }

    /// See [`Attr::ne_u16`].
    pub(crate) fn ne_u32(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.payload.try_into().ok()?))
    }

    /// An address of 4 or 16 bytes.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self.payload.len() {
            4 => Some(<[u8; 4]>::try_from(self.payload).ok()?.into()),
            _ => Some(<[u8; 16]>::try_from(self.payload).ok()?.into()),
        }
    }

    /// The attributes nested in this one.
    pub(crate) fn nested(&self) -> Attrs<'a> {
        attrs(self.payload)
    }
}

/// The attributes in `bytes`, in their order. An invalid length ends the iteration.
pub(crate) fn attrs(bytes: &[u8]) -> Attrs<'_> {
    Attrs { bytes, at: 0 }
}

/// See [`attrs`].
#[derive(Clone, Debug)]
pub(crate) struct Attrs<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Attrs<'a> {
    /// The first attribute of this type.
    pub(crate) fn find(&self, kind: u16) -> Option<Attr<'a>> {
        Iterator::find(&mut self.clone(), |attr| attr.kind == kind)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    #[inline]
    fn next(&mut self) -> Option<Attr<'a>> {
        let offset = self.at;
        let rest = self.bytes.get(offset..)?;
        let header = rest.first_chunk::<HEADER>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let payload = rest.get(HEADER..len)?;

        self.at += align(len);
        Some(Attr { kind, payload, offset })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_back() {
        let mut buf = Vec::new();
        buf.put_str(1, "fairlead");
        buf.nest(3, |buf| {
            buf.put_u32(4, 7);
            buf.put(5, &[1, 2, 3]);
        });
        buf.put_u64(6, 1 << 40);

        let read: Vec<Attr<'_>> = attrs(&buf).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0].str(), Some("fairlead"));
        assert_eq!(read[1].offset, 16, "a header of 4 bytes and a text of 9, padded");
        assert_eq!(read[1].nested().find(4).and_then(|a| a.u32()), Some(7));
        assert_eq!(read[1].nested().find(5).map(|a| a.payload), Some(&[1, 2, 3][..]));
        assert_eq!(read[2].u64(), Some(1 << 40));
    }

    #[test]
    fn an_invalid_length_ends_the_iteration() {
        let mut buf = Vec::new();
        buf.put_u32(1, 7);
        buf.extend_from_slice(&[200, 0, 2, 0, 1]);
        assert_eq!(attrs(&buf).count(), 1);
        assert_eq!(attrs(&[2, 0, 1, 0]).count(), 0, "shorter than its own header");
        assert_eq!(attrs(&[]).count(), 0);
    }
}
