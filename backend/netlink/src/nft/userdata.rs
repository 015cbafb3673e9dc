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
/// `NFTNL_UDATA_SET_KEY_TYPEOF`, `NFTNL_UDATA_SET_DATA_TYPEOF`: the expression that `typeof` names.
const SET_KEY_TYPEOF: u8 = 3;
const SET_DATA_TYPEOF: u8 = 4;
/// `NFTNL_UDATA_SET_COMMENT`.
pub(crate) const SET_COMMENT: u8 = 7;
/// `NFTNL_UDATA_SET_TYPEOF_EXPR`: the kind of the expression.
const TYPEOF_EXPRESSION: u8 = 0;
/// `EXPR_VALUE` of nft: a type, such as `ipv4_addr`, in place of an expression.
const PLAIN_TYPE: u32 = 4;

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

pub(crate) fn comment(userdata: &[u8], kind: u8) -> Option<&str> {
    let text = entry(userdata, kind)?;
    std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok()
}

/// Whether the userdata of a set has the type of its key or data in place of an expression: since 1.1.3 nft writes this
/// for `type ipv4_addr`, and earlier versions crash on it.
pub(crate) fn has_plain_type(userdata: &[u8]) -> bool {
    let types = [SET_KEY_TYPEOF, SET_DATA_TYPEOF].into_iter().filter_map(|kind| entry(userdata, kind));
    types.filter_map(|of| entry(of, TYPEOF_EXPRESSION)).any(|expression| expression == PLAIN_TYPE.to_ne_bytes())
}

/// The value of the first entry of this kind.
fn entry(mut userdata: &[u8], kind: u8) -> Option<&[u8]> {
    while let [found, len, rest @ ..] = userdata {
        let value = rest.get(..usize::from(*len))?;
        if *found == kind {
            return Some(value);
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
    fn plain_types_are_those_of_new_versions_of_nft() {
        // What versions of nft write on a little-endian machine for each declaration.
        let type_by_1_0_6 = "000402000000";
        let type_by_1_1_3 = "00040200000003080004040000000100";
        let map_by_1_1_7 = "0004020000000104000000000308000404000000010004080004040000000100060400000000";
        let typeof_by_1_1_7 = "0004020000000314000407000000010c00040c00000001040c000000";
        let concatenation_by_1_1_7 = "000400000000031200040d000000010a00000004040000000100";

        assert!(has_plain_type(&bytes(type_by_1_1_3)) && has_plain_type(&bytes(map_by_1_1_7)));
        for harmless in [type_by_1_0_6, typeof_by_1_1_7, concatenation_by_1_1_7, ""] {
            assert!(!has_plain_type(&bytes(harmless)), "{harmless}");
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn long_text_is_truncated_between_characters() {
        let long = format!("{}ä{}", "x".repeat(127), "y".repeat(50));
        assert_eq!(fit(&long), "x".repeat(127));
        assert_eq!(fit("one\0two"), "one");
    }
}
