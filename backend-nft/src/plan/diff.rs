//! The difference between two sorted lists of elements.

use std::cmp::Ordering;

use crate::element::Element;

/// What happens to an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Difference {
    Gone(Element),
    New(Element),
}

/// Calls `visit` with each difference. One key with other data is both: the kernel changes no element in place.
pub(super) fn diff(old: &[Element], new: &[Element], mut visit: impl FnMut(Difference)) {
    debug_assert!(old.is_sorted() && new.is_sorted());
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(gone), Some(added)) => gone.cmp(added),
        };
        if order != Ordering::Greater
            && let Some(gone) = old.next()
            && order != Ordering::Equal
        {
            visit(Difference::Gone(*gone));
        }
        if order != Ordering::Less
            && let Some(added) = new.next()
            && order != Ordering::Equal
        {
            visit(Difference::New(*added));
        }
    }
}
