//! Netlink attributes (`struct nlattr`: length, type, payload, padding to 4 bytes): a writer that appends to one
//! buffer, and a reader that borrows from it.

/// `NLA_F_NESTED`: the payload is attributes.
const NESTED: u16 = 0x8000;
/// `NLA_TYPE_MASK`: what is left of a type without its flags.
const TYPE_MASK: u16 = 0x3fff;
/// Length of an attribute's header, `NLA_HDRLEN`.
pub(crate) const HEADER: usize = 4;
/// The longest attribute, its header included: the length field has 16 bits.
pub(crate) const MAX_LEN: usize = u16::MAX as usize;

/// Rounds up to the next multiple of 4, as `NLA_ALIGN` does.
pub(crate) const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// Where an attribute, whose length is not known yet, starts in the buffer.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub(crate) struct Open(usize);

/// Appends attributes to a buffer. Numbers are written big-endian, as nf_tables wants them.
pub(crate) trait Put {
    fn put(&mut self, kind: u16, payload: &[u8]);
    fn put_str(&mut self, kind: u16, text: &str);
    fn put_u32(&mut self, kind: u16, value: u32);
    fn put_u64(&mut self, kind: u16, value: u64);
    /// Starts an attribute that holds attributes; [`Put::close`] ends it.
    fn open(&mut self, kind: u16) -> Open;
    fn close(&mut self, open: Open);
}

impl Put for Vec<u8> {
    #[inline]
    fn put(&mut self, kind: u16, payload: &[u8]) {
        let len = HEADER + payload.len();
        debug_assert!(len <= MAX_LEN, "attribute {kind} of {len} bytes");
        self.extend_from_slice(&(len as u16).to_ne_bytes());
        self.extend_from_slice(&kind.to_ne_bytes());
        self.extend_from_slice(payload);
        pad(self);
    }

    /// Names are zero-terminated, as the kernel writes them too.
    fn put_str(&mut self, kind: u16, text: &str) {
        let len = HEADER + text.len() + 1;
        debug_assert!(len <= MAX_LEN, "attribute {kind} of {len} bytes");
        self.extend_from_slice(&(len as u16).to_ne_bytes());
        self.extend_from_slice(&kind.to_ne_bytes());
        self.extend_from_slice(text.as_bytes());
        self.push(0);
        pad(self);
    }

    fn put_u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_be_bytes());
    }

    fn put_u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_be_bytes());
    }

    #[inline]
    fn open(&mut self, kind: u16) -> Open {
        let open = Open(self.len());
        self.extend_from_slice(&[0; 2]);
        self.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        open
    }

    #[inline]
    fn close(&mut self, open: Open) {
        let len = self.len() - open.0;
        debug_assert!(len <= MAX_LEN, "nested attribute of {len} bytes");
        self[open.0..open.0 + 2].copy_from_slice(&(len as u16).to_ne_bytes());
    }
}

/// Pads to the next multiple of 4. Buffers start at a message, so their length is the offset.
#[inline]
fn pad(buf: &mut Vec<u8>) {
    let short = align(buf.len()) - buf.len();
    buf.extend_from_slice(&[0; 3][..short]);
}

/// One attribute that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attr<'a> {
    /// The type, without the flags.
    pub(crate) kind: u16,
    pub(crate) payload: &'a [u8],
    /// Where its header starts, counted from the start of the bytes that were given to [`attrs`].
    pub(crate) offset: usize,
}

impl<'a> Attr<'a> {
    /// A string up to its first zero byte; `None` when it is not UTF-8.
    pub(crate) fn str(&self) -> Option<&'a str> {
        let end = self.payload.iter().position(|&b| b == 0).unwrap_or(self.payload.len());
        std::str::from_utf8(&self.payload[..end]).ok()
    }

    pub(crate) fn u32(&self) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.try_into().ok()?))
    }

    pub(crate) fn u64(&self) -> Option<u64> {
        Some(u64::from_be_bytes(self.payload.try_into().ok()?))
    }

    /// A number in the byte order of the machine, as generic netlink has them.
    pub(crate) fn ne_u16(&self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.payload.try_into().ok()?))
    }

    /// See [`Attr::ne_u16`].
    pub(crate) fn ne_u32(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.payload.try_into().ok()?))
    }

    /// The attributes inside this one.
    pub(crate) fn nested(&self) -> Attrs<'a> {
        attrs(self.payload)
    }
}

/// The attributes in `bytes`, in their order. A broken length ends the walk.
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
    pub(crate) fn find(mut self, kind: u16) -> Option<Attr<'a>> {
        Iterator::find(&mut self, |attr| attr.kind == kind)
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    #[inline]
    fn next(&mut self) -> Option<Attr<'a>> {
        let rest = self.bytes.get(self.at..)?;
        let header = rest.first_chunk::<HEADER>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE_MASK;
        let payload = rest.get(HEADER..len)?;
        let offset = self.at;
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
        let outer = buf.open(3);
        buf.put_u32(4, 7);
        buf.put(5, &[1, 2, 3]);
        buf.close(outer);
        buf.put_u64(6, 1 << 40);

        let read: Vec<Attr<'_>> = attrs(&buf).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(read[0].str(), Some("fairlead"));
        assert_eq!(read[1].offset, 16, "4 of header and 9 of text, padded");
        assert_eq!(read[1].nested().find(4).and_then(|a| a.u32()), Some(7));
        assert_eq!(read[1].nested().find(5).map(|a| a.payload), Some(&[1, 2, 3][..]));
        assert_eq!(read[2].u64(), Some(1 << 40));
    }

    #[test]
    fn a_broken_length_ends_the_walk() {
        let mut buf = Vec::new();
        buf.put_u32(1, 7);
        buf.extend_from_slice(&[200, 0, 2, 0, 1]);
        assert_eq!(attrs(&buf).count(), 1);
        assert_eq!(attrs(&[2, 0, 1, 0]).count(), 0, "shorter than its own header");
        assert_eq!(attrs(&[]).count(), 0);
    }
}
