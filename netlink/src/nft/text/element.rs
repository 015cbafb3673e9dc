//! Elements as text: `10.96.0.1 . tcp . 80 : goto pool-3`.

use std::fmt;

use crate::nft::{
    element::{Element, ElementData, Verdict},
    fields::FieldReader,
    set::DataType,
};

/// An element, and the types of its key and data if they are known.
pub(crate) struct ElementText<'a> {
    element: &'a Element<'a>,
    layout: Option<(&'a [DataType], &'a [DataType])>,
}

impl<'a> ElementText<'a> {
    pub(crate) fn new(element: &'a Element<'a>, layout: Option<(&'a [DataType], &'a [DataType])>) -> Self {
        ElementText { element, layout }
    }
}

impl fmt::Display for ElementText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, data) = self.layout.unwrap_or_default();
        put_value(f, self.element.key, self.element.key_end, key)?;
        if let Some(timeout) = self.element.timeout {
            write!(f, " timeout {timeout:?}")?;
        }
        if let Some(comment) = self.element.comment {
            write!(f, " comment {comment:?}")?;
        }
        match &self.element.data {
            ElementData::None => Ok(()),
            ElementData::Value(value) => {
                f.write_str(" : ")?;
                put_value(f, value, None, data)
            }
            ElementData::Verdict(verdict) => write!(f, " : {verdict}"),
        }
    }
}

/// A value or a range: its fields, or hexadecimal if the types of the fields are unknown.
fn put_value(f: &mut fmt::Formatter<'_>, value: &[u8], end: Option<&[u8]>, fields: &[DataType]) -> fmt::Result {
    if fields.is_empty() {
        put_hex(f, value)?;
        return end.map_or(Ok(()), |end| {
            f.write_str("-")?;
            put_hex(f, end)
        });
    }
    let (mut from, mut to) = (FieldReader::new(value), end.map(FieldReader::new));
    for (index, &kind) in fields.iter().enumerate() {
        if index > 0 {
            f.write_str(" . ")?;
        }
        let first = from.field(kind).unwrap_or_default();
        let last = to.as_mut().and_then(|to| to.field(kind)).unwrap_or(first);
        put_field(f, first, kind)?;
        if last != first {
            f.write_str("-")?;
            put_field(f, last, kind)?;
        }
    }
    Ok(())
}

fn put_field(f: &mut fmt::Formatter<'_>, field: &[u8], kind: DataType) -> fmt::Result {
    let mut reader = FieldReader::new(field);
    match kind {
        DataType::Ipv4Addr => reader.ipv4().map(|addr| write!(f, "{addr}")),
        DataType::Ipv6Addr => reader.ipv6().map(|addr| write!(f, "{addr}")),
        DataType::InetProto => reader.proto().map(|proto| put_proto(f, proto)),
        DataType::InetService => reader.port().map(|port| write!(f, "{port}")),
        DataType::Mark => reader.mark().map(|mark| write!(f, "{mark:#010x}")),
        DataType::IfName => {
            let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
            Some(write!(f, "{:?}", String::from_utf8_lossy(&field[..end])))
        }
        DataType::Verdict | DataType::Other(_) => None,
    }
    .unwrap_or_else(|| put_hex(f, field))
}

/// The name of a transport protocol in nft.
pub(super) fn put_proto(f: &mut dyn fmt::Write, proto: u8) -> fmt::Result {
    match proto {
        1 => f.write_str("icmp"),
        6 => f.write_str("tcp"),
        17 => f.write_str("udp"),
        58 => f.write_str("ipv6-icmp"),
        132 => f.write_str("sctp"),
        other => write!(f, "{other}"),
    }
}

fn put_hex(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    f.write_str("0x")?;
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for Verdict<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Accept => f.write_str("accept"),
            Verdict::Drop => f.write_str("drop"),
            Verdict::Continue => f.write_str("continue"),
            Verdict::Return => f.write_str("return"),
            Verdict::Jump(chain) => write!(f, "jump {chain}"),
            Verdict::Goto(chain) => write!(f, "goto {chain}"),
            Verdict::Other(code) => write!(f, "verdict {code}"),
        }
    }
}
