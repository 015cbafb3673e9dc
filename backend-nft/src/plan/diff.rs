//! The difference between two sorted lists of elements.

use std::cmp::Ordering;

use crate::element::Element;

/// A change of one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ElementChange {
    Removed(Element),
    Added(Element),
}

/// Calls `visit` with each change. An element with new data is removed and added: the kernel cannot replace
/// the data of an element.
pub(super) fn diff(old: &[Element], new: &[Element], mut visit: impl FnMut(ElementChange)) {
    debug_assert!(old.is_sorted() && new.is_sorted());
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(removed), Some(added)) => removed.cmp(added),
        };
        if order != Ordering::Greater
            && let Some(removed) = old.next()
            && order != Ordering::Equal
        {
            visit(ElementChange::Removed(*removed));
        }
        if order != Ordering::Less
            && let Some(added) = new.next()
            && order != Ordering::Equal
        {
            visit(ElementChange::Added(*added));
        }
    }
}
