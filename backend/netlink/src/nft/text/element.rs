//! Elements as text: `10.96.0.1 . tcp . 80 : goto pool-3`.

use std::fmt;

use super::names::constant;
use crate::nft::{
    element::{Element, ElementData, Verdict},
    fields::FieldReader,
    set::{DataType, Set, value_len},
};

/// An element, and its set, which says the types of the key and the data; `None`: unknown.
pub(crate) struct ElementText<'a> {
    pub(crate) element: &'a Element<'a>,
    pub(crate) set: Option<&'a Set>,
}

impl fmt::Display for ElementText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.set.map_or(&[][..], |set| &set.key);
        let data = self.set.map_or(&[][..], |set| &set.data);

        match self.element.key {
            [] => f.write_str("*")?,
            first => put_value(f, first, self.element.key_end, key)?,
        }
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

/// A value of these fields: `10.96.0.1 . tcp . 80`.
#[must_use]
pub fn value_text(value: &[u8], fields: &[DataType]) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = put_value(&mut text, value, None, fields);
    text
}

/// A value or a range: its fields, or hexadecimal if the types of the fields are unknown.
fn put_value(f: &mut impl fmt::Write, value: &[u8], end: Option<&[u8]>, fields: &[DataType]) -> fmt::Result {
    let is_unknown = |field: &DataType| matches!(field, DataType::Other(_)) && *field != DataType::INTEGER;
    // The length of a field of an unknown type is not known either.
    if value_len(fields) != value.len() || fields.iter().any(is_unknown) {
        return put_range(f, DataType::UNKNOWN, value, end.unwrap_or(value));
    }

    let mut from = FieldReader::new(value);
    let mut to = end.map(FieldReader::new);
    for (index, &kind) in fields.iter().enumerate() {
        if index > 0 {
            f.write_str(" . ")?;
        }
        let first = from.field(kind).unwrap_or_default();
        let last = to.as_mut().and_then(|to| to.field(kind)).unwrap_or(first);
        put_range(f, kind, first, last)?;
    }
    Ok(())
}

fn put_range(f: &mut impl fmt::Write, kind: DataType, first: &[u8], last: &[u8]) -> fmt::Result {
    f.write_str(&constant(kind, first))?;
    if last == first { Ok(()) } else { write!(f, "-{}", constant(kind, last)) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nft::fields::Fields;

    #[test]
    fn values_are_written_as_nft_does() {
        let fields = [DataType::Ipv4Addr, DataType::InetProto, DataType::InetService];
        let key = Fields::new().addr([10, 96, 0, 10]).proto(6).port(80);
        assert_eq!(value_text(&key, &fields), "10.96.0.10 . tcp . 80");
        assert_eq!(value_text(&1u32.to_ne_bytes(), &[DataType::Mark]), "0x00000001");
        assert_eq!(value_text(&1u32.to_ne_bytes(), &[DataType::INTEGER]), "1");
        assert_eq!(value_text(&[1, 2], &[DataType::Other(3)]), "0x0102");
        assert_eq!(value_text(&[1, 2, 3, 4, 5, 6], &[DataType::Other(9)]), "0x010203040506");
    }
}
