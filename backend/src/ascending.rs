//! Compares two sorted sequences in one pass, where a lookup for each key would multiply their cost.

/// Whether a key is in `keys`, which ascend. The keys that are asked for have to ascend, too.
pub(crate) fn ascending<'a, K: Ord + 'a>(keys: impl IntoIterator<Item = &'a K>) -> impl FnMut(&K) -> bool {
    let mut keys = keys.into_iter().peekable();
    move |key| {
        while keys.next_if(|next| *next < key).is_some() {}
        keys.peek().is_some_and(|next| *next == key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_one_pass() {
        let mut is_even = ascending(&[0, 2, 4, 6, 8]);
        let found: Vec<u8> = [1, 2, 2, 3, 6, 8, 9].into_iter().filter(|key| is_even(key)).collect();
        assert_eq!(found, [2, 2, 6, 8]);
    }
}
