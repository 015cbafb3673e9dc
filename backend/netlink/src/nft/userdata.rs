//! Comments, which the kernel stores as opaque userdata, in the type-length-value format of libnftnl.

use super::{chain::Chain, expr::Rule, set::Set, table::Table};
use crate::attr::Put;

/// `NFTNL_UDATA_COMMENT_MAXLEN`: the maximum length of a comment in nft, in bytes.
const MAX_LEN: usize = 128;

/// The type of a comment in the userdata of tables, chains, rules and elements (`NFTNL_UDATA_*_COMMENT`).
pub(crate) const COMMENT: u8 = 0;
/// `NFTNL_UDATA_SET_KEYBYTEORDER`, `NFTNL_UDATA_SET_DATABYTEORDER`: the byte order in which nft prints a number.
pub(crate) const SET_KEY_BYTE_ORDER: u8 = 0;
pub(crate) const SET_DATA_BYTE_ORDER: u8 = 1;
/// `NFTNL_UDATA_SET_COMMENT`.
pub(crate) const SET_COMMENT: u8 = 7;

/// Gives types the builder method `comment`.
macro_rules! commented {
    ($($type:ty),*) => {
        $(impl $type {
            /// With this comment, truncated to 128 bytes.
            #[must_use]
            pub fn comment(mut self, comment: &str) -> Self {
                self.comment = Some(fit(comment).to_owned());
                self
            }
        })*
    };
}

commented!(Table, Chain, Rule, Set);

/// The text of a comment, truncated to the maximum length, beyond which the kernel rejects the transaction.
fn fit(text: &str) -> &str {
    // Readers end the comment at a zero byte.
    let text = text.split('\0').next().unwrap_or_default();
    &text[..text.floor_char_boundary(MAX_LEN)]
}

/// Appends a userdata attribute with a comment, if there is one.
pub(crate) fn put_comment(buf: &mut Vec<u8>, attribute: u16, comment: Option<&str>) {
    if let Some(text) = comment {
        let mut entry = Vec::with_capacity(MAX_LEN + 3);
        push_comment(&mut entry, COMMENT, text);
        buf.put(attribute, &entry);
    }
}

pub(crate) fn push_comment(userdata: &mut Vec<u8>, kind: u8, text: &str) {
    let text = fit(text);
    userdata.extend_from_slice(&[kind, (text.len() + 1) as u8]);
    userdata.extend_from_slice(text.as_bytes());
    userdata.push(0);
}

pub(crate) fn push_u32(userdata: &mut Vec<u8>, kind: u8, value: u32) {
    userdata.extend_from_slice(&[kind, 4]);
    userdata.extend_from_slice(&value.to_ne_bytes());
}

pub(crate) fn comment(mut userdata: &[u8], kind: u8) -> Option<&str> {
    while let [found, len, rest @ ..] = userdata {
        let value = rest.get(..usize::from(*len))?;
        if *found == kind {
            return std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok();
        }
        userdata = &rest[value.len()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_found_after_other_entries() {
        let mut userdata = Vec::new();
        push_u32(&mut userdata, SET_KEY_BYTE_ORDER, 1);
        push_comment(&mut userdata, SET_COMMENT, "service VIPs");
        assert_eq!(comment(&userdata, SET_COMMENT), Some("service VIPs"));
        assert_eq!(comment(&userdata, 5), None);
        assert_eq!(comment(&userdata[..8], SET_COMMENT), None, "truncated");
    }

    #[test]
    fn long_text_is_truncated_between_characters() {
        let long = format!("{}ä{}", "x".repeat(127), "y".repeat(50));
        assert_eq!(fit(&long), "x".repeat(127));
        assert_eq!(fit("one\0two"), "one");
    }
}
