//! The attributes of a set or map.

use crate::{
    attr::Put,
    nft::{
        abi::{LIST_ELEM, set as attr},
        set::{DataType, Set, SetFlags, value_len},
        userdata,
    },
};

/// `enum byteorder` of nft, the byte order in which it prints numbers.
const HOST_ENDIAN: u32 = 1;
const BIG_ENDIAN: u32 = 2;

/// Appends the attributes of a set; `id` is unique in the batch.
pub(super) fn put(buf: &mut Vec<u8>, added: &Set, id: u32) {
    let ranges_of_fields = added.flags.contains(SetFlags::INTERVAL) && added.key.len() > 1;
    let mut flags = added.flags;
    if added.is_map() {
        flags = flags | SetFlags::MAP;
    }
    if ranges_of_fields {
        flags = flags | SetFlags::CONCAT;
    }
    buf.put_str(attr::NAME, &added.name);
    buf.put_u32(attr::FLAGS, flags.0);
    buf.put_u32(attr::KEY_TYPE, DataType::concat(&added.key));
    buf.put_u32(attr::KEY_LEN, value_len(&added.key) as u32);
    if added.is_map() {
        // The kernel ignores the length of verdicts; nft writes 0.
        let verdict = added.data == [DataType::Verdict];
        buf.put_u32(attr::DATA_TYPE, DataType::concat(&added.data));
        buf.put_u32(attr::DATA_LEN, if verdict { 0 } else { value_len(&added.data) as u32 });
    }
    buf.put_u32(attr::ID, id);
    if added.size.is_some() || ranges_of_fields {
        buf.nest(attr::DESC, |buf| {
            if let Some(size) = added.size {
                buf.put_u32(attr::DESC_SIZE, size);
            }
            if ranges_of_fields {
                buf.nest(attr::DESC_CONCAT, |buf| {
                    for field in &added.key {
                        buf.nest(LIST_ELEM, |buf| buf.put_u32(attr::FIELD_LEN, field.len() as u32));
                    }
                });
            }
        });
    }
    if let Some(timeout) = added.timeout {
        buf.put_u64(attr::TIMEOUT, timeout.as_millis() as u64);
    }
    let mut udata = Vec::new();
    userdata::push_u32(&mut udata, userdata::SET_KEY_BYTE_ORDER, byte_order(&added.key));
    if added.is_map() {
        userdata::push_u32(&mut udata, userdata::SET_DATA_BYTE_ORDER, byte_order(&added.data));
    }
    if let Some(comment) = &added.comment {
        userdata::push_comment(&mut udata, userdata::SET_COMMENT, comment);
    }
    buf.put(attr::USERDATA, &udata);
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
