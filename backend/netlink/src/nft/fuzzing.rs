//! For fuzz targets: decodes any object, encodes it, and decodes it again.

use super::{
    ElementData, NftBatch, Set, SetFlags, Table, TableFamily, abi,
    abi::elements,
    decode::{self, Body},
    element::Element,
    monitor,
};
use crate::message::{Message, messages};

/// Reads a message as each kind of object. An object must be the same after it is written and read again.
pub(crate) fn message(message: &Message<'_>) {
    let _ = monitor::event(message);
    let Some(body) = Body::new(message.payload) else { return };
    let _ = body.u32(abi::generation::ID);

    let table = decode::table(&body).unwrap_or_else(|| Table::new(TableFamily::Ip, "t"));
    let mut batch = NftBatch::new();
    batch.add_table(&table);
    assert_eq!(again(&batch, decode::table), Some(table.clone()));

    if let Some(chain) = decode::chain(&body) {
        let mut batch = NftBatch::new();
        batch.add_chain(&table, &chain);
        assert_eq!(again(&batch, decode::chain), Some(chain));
    }

    if let Some(listed) = decode::rule(&body) {
        let mut batch = NftBatch::new();
        batch.add_rule(&table, &listed.chain, &listed.rule);
        let written = again(&batch, decode::rule).map(|written| written.rule);
        assert_eq!(written, Some(listed.rule));
    }

    if let Some(set) = decode::set(&body) {
        let mut batch = NftBatch::new();
        batch.add_set(&table, &set);
        assert_eq!(again(&batch, decode::set), Some(set));
    }

    let list: Option<Vec<_>> = body.nested(elements::LIST).map(|attr| Element::read(&attr)).collect();
    for element in list.into_iter().flatten() {
        let is_map = element.data != ElementData::None;
        let flags = if is_map { SetFlags::MAP } else { SetFlags::NONE };
        let set = Set { flags, ..decode::set(&body).unwrap_or_else(|| Set::new("s", [])) };
        let mut batch = NftBatch::new();
        batch.add_elements(&table, &set, [element.clone()]);
        let is_same = again(&batch, |body| {
            let attr = body.nested(elements::LIST).next()?;
            Some(Element::read(&attr).as_ref() == Some(&element))
        });
        assert_eq!(is_same, Some(true), "{element:?}");
    }
}

/// Reads the object in the operation of a batch. Prints the batch, which must not panic.
fn again<T>(batch: &NftBatch, read: impl Fn(&Body<'_>) -> Option<T>) -> Option<T> {
    let _ = batch.to_string();
    let (bytes, _) = batch.parts();
    messages(bytes).filter_map(|message| Body::new(message.payload)).find_map(|body| read(&body))
}
