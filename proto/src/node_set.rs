//! Sets of nodes as count and sum of hashes, so that the sets of several frontends can be added: the sum is the set of
//! all nodes if each node is in exactly one of these sets.

use crate::digest::Digest;
pub use crate::v1::NodeSet;

impl NodeSet {
    /// Adds a node that is not in it.
    pub fn insert(&mut self, node: &str) {
        self.count = self.count.wrapping_add(1);
        self.hash = self.hash.wrapping_add(Digest::of_node_name(node).0);
    }

    /// Removes a node that is in it.
    pub fn remove(&mut self, node: &str) {
        self.count = self.count.wrapping_sub(1);
        self.hash = self.hash.wrapping_sub(Digest::of_node_name(node).0);
    }

    /// Adds a set without common nodes.
    pub fn add(&mut self, Self { count, hash }: Self) {
        self.count = self.count.wrapping_add(count);
        self.hash = self.hash.wrapping_add(hash);
    }

    /// Removes a set of nodes that are in it.
    pub fn subtract(&mut self, Self { count, hash }: Self) {
        self.count = self.count.wrapping_sub(count);
        self.hash = self.hash.wrapping_sub(hash);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(nodes: &[&str]) -> NodeSet {
        let mut set = NodeSet::default();
        nodes.iter().for_each(|node| set.insert(node));
        set
    }

    #[test]
    fn sum_is_the_whole_only_with_each_node_once() {
        let whole = set(&["a", "b", "c"]);
        let sum = |first: &[&str], second: &[&str]| {
            let mut sum = set(first);
            sum.add(set(second));
            sum
        };
        assert_eq!(sum(&["c", "a"], &["b"]), whole);
        assert_ne!(sum(&["a"], &["b"]), whole);
        assert_ne!(sum(&["a", "b"], &["b"]), whole, "the count is right");
        let mut removed = whole;
        removed.remove("b");
        assert_eq!(removed, set(&["c", "a"]));
        removed.subtract(set(&["a"]));
        assert_eq!(removed, set(&["c"]));
    }
}
