//! How owners share a limited number of items: beyond the limit, the owner with the most gives way. So an owner may
//! have all items while no other owner needs any, and an owner that takes too much loses its own items, because the
//! others have fewer.

use std::{collections::BTreeMap, iter::zip};

/// How many items owners have beyond their shares, and have to give up.
#[derive(Clone, Debug)]
pub struct Excess<O>(BTreeMap<O, usize>);

impl<O: Ord> Excess<O> {
    /// What owners have to give up so that `limit` items remain: as if the owner with the most gave up one item after
    /// the other. `items` may name an owner several times. Of owners with the same number of items, the first ones in
    /// order keep one more.
    pub fn beyond(limit: usize, items: impl IntoIterator<Item = (O, usize)>) -> Self {
        let mut counts = BTreeMap::new();
        for (owner, count) in items {
            *counts.entry(owner).or_default() += count;
        }

        let mut by_count: Vec<&mut usize> = counts.values_mut().collect();
        by_count.sort();
        let owners_left = (1..=by_count.len()).rev();
        let mut room = limit;
        for (count, owners) in zip(by_count, owners_left) {
            let kept = room.div_ceil(owners).min(*count);
            *count -= kept;
            room -= kept;
        }

        counts.retain(|_, excess| *excess > 0);
        Self(counts)
    }

    /// The owners that have to give something up.
    pub fn owners(&self) -> impl Iterator<Item = &O> {
        self.0.keys()
    }

    /// How many items an owner has to give up.
    pub fn of(&self, owner: &O) -> usize {
        self.0.get(owner).copied().unwrap_or_default()
    }

    /// Whether an owner has to give up one more item. If so, the item counts as given up.
    pub fn take(&mut self, owner: &O) -> bool {
        let Some(left) = self.0.get_mut(owner).filter(|left| **left > 0) else { return false };
        *left -= 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, cmp::Ordering, iter};

    use super::*;

    /// What each owner keeps, in ascending order.
    fn kept<const N: usize>(limit: usize, counts: [usize; N]) -> Vec<usize> {
        let excess = Excess::beyond(limit, counts.into_iter().enumerate());
        let mut kept: Vec<_> = counts.into_iter().enumerate().map(|(owner, count)| count - excess.of(&owner)).collect();
        kept.sort_unstable();
        kept
    }

    #[test]
    fn owner_alone_may_have_everything() {
        let mut excess = Excess::beyond(10, [("noisy", 10)]);
        assert!(!excess.take(&"noisy"));

        let mut excess = Excess::beyond(10, [("noisy", 6), ("quiet", 1), ("noisy", 4)]);
        assert_eq!(excess.owners().collect::<Vec<_>>(), [&"noisy"]);
        assert!(!excess.take(&"quiet") && excess.take(&"noisy") && !excess.take(&"noisy"));
    }

    #[test]
    fn first_owners_in_order_keep_one_more() {
        for owners in [["a", "b", "c"], ["c", "a", "b"]] {
            let excess = Excess::beyond(8, owners.map(|owner| (owner, 4)));
            assert_eq!(["a", "b", "c"].map(|owner| excess.of(&owner)), [1, 1, 2]);
        }
    }

    #[test]
    fn owners_with_the_most_give_way_one_by_one() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..1000 {
            let counts: [usize; 8] = std::array::from_fn(|_| random.usize(..20));
            let limit = random.usize(..=counts.iter().sum::<usize>());

            let mut expected = counts;
            while expected.iter().sum::<usize>() > limit {
                *expected.iter_mut().max().unwrap() -= 1;
            }
            expected.sort_unstable();

            assert_eq!(kept(limit, counts), expected, "{limit} of {counts:?}");
        }
    }

    thread_local! {
        static COMPARISONS: Cell<usize> = const { Cell::new(0) };
    }

    /// An owner that counts how often owners are compared.
    #[derive(PartialEq, Eq)]
    struct Counted(usize);

    impl Ord for Counted {
        fn cmp(&self, other: &Self) -> Ordering {
            COMPARISONS.set(COMPARISONS.get() + 1);
            self.0.cmp(&other.0)
        }
    }

    impl PartialOrd for Counted {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            Some(self.cmp(other))
        }
    }

    /// The comparisons for each item when 7 of 8 remain.
    fn cost_of_giving_way(owners: usize, items_of_owner: usize) -> usize {
        let owner_of_item = |item| Counted(item % owners);
        let items = owners * items_of_owner;
        COMPARISONS.set(0);
        let mut excess = Excess::beyond(items / 8 * 7, (0..items).map(|item| (owner_of_item(item), 1)));
        let given_up = (0..items).filter(|item| excess.take(&owner_of_item(*item))).count();
        assert_eq!(given_up, items / 8);
        COMPARISONS.get() / items
    }

    #[test]
    fn cost_of_giving_way_is_logarithmic() {
        let few = cost_of_giving_way(64, 64);
        assert!(cost_of_giving_way(64, 4096) <= few, "it does not depend on the number of items: {few}");
        let many = cost_of_giving_way(64 * 64, 64);
        assert!(many <= 3 * few, "twice the digits: {few}, {many}");
    }

    #[test]
    fn nothing_remains_of_no_room() {
        assert_eq!(kept(0, [3, 0, 1]), [0, 0, 0]);
        assert_eq!(Excess::<usize>::beyond(0, iter::empty()).owners().count(), 0);
    }
}
